"""Sessions for training: their sources, which are held out, and the token streams that the trainer reads.

A session is held out by a hash of its content. So copies of one session never stand on both sides. A run that
is repeated, or given more files, holds out the same ones. Sessions pass through the transcript that the codec
uses, so every form is learnt as it will stand in a frame. A folder of streams holds

    tokenizer.json   the bundle's tokenizer
    NAME.bin         uint16 token stream of all sessions, back to back
    NAME.offsets.npy int64 start of each session, length n + 1
    NAME.source.npy  uint8 source number of each session;  NAME.bytes.npy int64 content bytes of each session
    sources.json     names of the source numbers
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import zstandard

from pltz.datasets import recognise
from pltz.models import BundleTokenizer, Ids, Kind, Session, content_bytes, to_tokens, to_tokens_many
from pltz.plt_codec import ContentError, TokenizerMismatch

TEXT = "text:"  # sources that begin so are plain texts
MAX_SOURCES = 256  # the stream keeps one byte per session for its source
OTHER = "other"  # the sources beyond
GROUP = 1024  # sessions tokenised in one call

Spell = Callable[[Ids], Ids]


class LabelledSession(NamedTuple):
    """One session, its source, and the licence that its record states."""

    source: str
    session: Session
    licence: str = ""


def load(file: str) -> Iterator[Session]:
    """Yield the sessions of a file or folder, as `loaders.load` does, but each line of JSON of no known format alone.

    Such lines are records of texts. Raises UsageError where the file cannot be read.
    """
    for found in recognise(file):
        if found.noun == "json" and found.session.kind == "text" and found.place != found.file:
            lines = io.BytesIO(found.session.value)
            yield from (Session.from_json_line(line.removesuffix(b"\n")) for line in lines)
        else:
            yield found.session


def record(session: Session, file: str) -> LabelledSession:
    """Return the record of a loaded session.

    The source is the id up to its last "-", or the name of its file.
    """
    value = session.value if session.kind == "chat" and isinstance(session.value, dict) else {}
    stem = Path(file).name.split(".")[0] or "stdin"
    source = value["id"].rsplit("-", 1)[0] if isinstance(value.get("id"), str) else stem
    stated = value.get("license", value.get("licence", ""))
    if plain(session).kind == "text":
        source = TEXT + source
    return LabelledSession(source, session, stated if isinstance(stated, str) else "")


def plain(session: Session) -> Session:
    """Return a record's chat or text as it is served: the messages alone, without id, licence and the like."""
    value = session.value
    if session.kind == "chat" and isinstance(value, dict):
        if isinstance(value.get("messages"), list):
            return Session("chat", {"messages": value["messages"]})
        if isinstance(value.get("text"), str) and "conversations" not in value:
            return Session("text", value["text"].encode("utf8", "surrogatepass"))
    return session


def fingerprint(session: Session) -> bytes:
    """Return 16 bytes that name a session's content, whatever else its record holds."""
    return hashlib.blake2b(plain(session).to_bytes(), digest_size=16, person=b"pltz split").digest()


def part_of(session: Session, held_out: float) -> str:
    """Return train, validation or test, by the content."""
    share = int.from_bytes(fingerprint(session)[:8], "little") / 2**64
    return "train" if share >= held_out else "validation" if share < held_out / 2 else "test"


@contextmanager
def keeper(path: Path) -> Iterator[Callable[[LabelledSession], None]]:
    """Open a file for writing, and yield a function that writes a record to it."""

    def keep(one: LabelledSession) -> None:
        """Write one record."""
        content = base64.b64encode(one.session.to_bytes()).decode()
        packed.write(json.dumps([one.source, one.session.kind, one.licence, content]).encode() + b"\n")

    with path.open("wb") as f, zstandard.ZstdCompressor(level=3).stream_writer(f) as packed:
        yield keep


def read(path: Path) -> Iterator[LabelledSession]:
    """Yield the records of a file."""
    with path.open("rb") as f, zstandard.ZstdDecompressor().stream_reader(f) as packed:
        rest = b""
        while piece := packed.read(1 << 20):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                source, kind, licence, content = json.loads(line)
                session = Session.from_bytes(cast(Kind, kind), base64.b64decode(content))
                yield LabelledSession(source, session, licence)


def texts(session: Session) -> list[str]:
    """Return the texts of a session, for a tokenizer to learn from."""
    session = plain(session)
    if session.kind == "text":
        return [session.value.decode("utf8", "ignore")]
    if session.kind == "ids":
        return []
    value = session.value
    if isinstance(value, dict):
        value = value.get("messages", value.get("conversations"))
    messages = [m for m in value if isinstance(m, dict)] if isinstance(value, list) else []
    found = [m.get("content", m.get("value")) for m in messages]
    return [text.encode("utf8", "ignore").decode() for text in found if isinstance(text, str)]


def sample(records: Iterable[LabelledSession], limit: int) -> Iterator[Session]:
    """Yield sessions in order, each source up to `limit` content bytes."""
    used: dict[str, int] = {}
    for source, session, _ in records:
        size = content_bytes(plain(session))
        if used.get(source, 0) + size <= limit:
            used[source] = used.get(source, 0) + size
            yield session


class TokenStreams:
    """A writer of token streams into a folder, all with one numbering of sources."""

    def __init__(self, folder: Path, tokenizer: BundleTokenizer, spell: Spell | None = None) -> None:
        self.folder, self.tokenizer, self.spell = folder, tokenizer, spell
        self.sources: dict[str, int] = {}
        self.skipped = 0

    def add(self, name: str, records: Iterable[LabelledSession]) -> tuple[int, int]:
        """Write NAME.bin and its companions; return the number of sessions and tokens in it."""
        offsets, source, sizes = [0], [], []
        remaining = iter(records)
        with (self.folder / f"{name}.bin").open("wb") as f:
            while group := list(islice(remaining, GROUP)):
                for (label, session, _), ids in zip(group, self._tokens(group), strict=True):
                    if ids is None or not len(ids):
                        self.skipped += ids is None
                        continue
                    f.write(ids.astype("<u2").tobytes())
                    offsets.append(offsets[-1] + len(ids))
                    source.append(self._number(label))
                    sizes.append(content_bytes(plain(session)))
        np.save(self.folder / f"{name}.offsets.npy", np.array(offsets, np.int64))
        np.save(self.folder / f"{name}.source.npy", np.array(source, np.uint8))
        np.save(self.folder / f"{name}.bytes.npy", np.array(sizes, np.int64))
        return len(source), offsets[-1]

    def finish(self) -> None:
        """Write the names of the sources."""
        (self.folder / "sources.json").write_text(json.dumps(self.sources))

    def _number(self, label: str) -> int:
        if label not in self.sources and len(self.sources) >= MAX_SOURCES - 2:
            label = TEXT + OTHER if label.startswith(TEXT) else OTHER
        return self.sources.setdefault(label, len(self.sources))

    def _tokens(self, group: list[LabelledSession]) -> list[Ids | None]:
        """Return the tokens of each record; None for one that no bundle tokens spell (opaque parts)."""
        sessions = [plain(session) for _, session, _ in group]
        if all(session.kind != "ids" for session in sessions):
            try:
                return list(to_tokens_many(sessions, self.tokenizer))
            except (ContentError, TokenizerMismatch):
                pass
        return [self._one(session) for session in sessions]

    def _one(self, session: Session) -> Ids | None:
        try:
            if session.kind == "ids":
                return self.spell(session.value) if self.spell else None
            return to_tokens(session, self.tokenizer)
        except (ContentError, TokenizerMismatch):
            return None

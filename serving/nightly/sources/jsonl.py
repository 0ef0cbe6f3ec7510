"""Sessions in JSONL files: a file, or all such files below a folder; plain, .gz or .zst.

One session per line.

A session is named by its file and line (``logs/monday/17``), or by a key of its object (``name_key``). If
files differ only in their suffix, the first one has that name and the others include it
(``logs/monday.jsonl.gz/17``). With ``name_key`` a name may come again with more turns, as in a log that is
written after every turn. Each such line is a version, in the order of the files.

Large plain files are split at line ends, so that several processes share one. A compressed file is one piece.
The last piece has no end, so that lines appended during the run are included.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pltz.archive import Archive, PutRequest
from pltz.datasets import ByteInput, Readable, TooLong, first_events, registry, walk
from pltz.models import Bundle, Session
from pltz.plt_codec import MAX_BYTES, ContentError, CorruptError, UsageError, refusing
from pltz.serving.eviction.checked import Limits, Word
from pltz.serving.nightly.naming import NAMING_KEYS, Naming
from pltz.serving.nightly.sources.source import (
    SHARD_BYTES,
    SHARD_SESSIONS,
    LeftOut,
    Sink,
    SourceEntry,
    SourceShard,
    Unreadable,
    path_setting,
)

ENDS = tuple(suffix + packed for suffix in (".jsonl", ".ndjson") for packed in ("", ".gz", ".zst"))
PACKED = (".gz", ".zst")
AGENTS = frozenset(("claude-code", "codex", "gemini-cli-lines", "pi"))  # whose logs are like no other JSON lines
BLOCK = 1 << 20  # bytes
BOM = b"\xef\xbb\xbf"


class FilePiece(NamedTuple):
    """Lines of a file: from byte ``start`` to byte ``end``, or to the end of the file.

    ``first``: the number of its first line, counted from 1.
    """

    path: str  # below the source's folder
    stem: str  # of the names of its sessions
    start: int
    end: int | None
    first: int


@dataclass(frozen=True)
class JsonlSource:
    """A JSONL file or a folder of them (see the top of this file).

    ``max_bytes``: of a line. ``new_version``: let a line of FILE/LINE that does not continue the stored one be its next
    version; it may be of another file of that name.
    """

    name: Word
    path: str = path_setting()
    naming: Naming = field(default_factory=Naming)
    max_bytes: Annotated[int, Limits(1, MAX_BYTES)] = MAX_BYTES
    new_version: bool = False
    kind = "jsonl"
    naming_keys = NAMING_KEYS

    @property
    def repeats(self) -> bool:
        """Return whether sessions are named by a key, so that a name may come again."""
        return self.naming.name_key is not None

    def settings(self) -> list[Any]:
        """Return the settings that decide how lines are stored. See `EntrySource.settings`."""
        return [self.kind, *self.naming.settings()]

    def shards(self, number: int) -> Iterator[SourceShard]:
        """Yield groups of files and of pieces of large files. Raises UsageError where the path does not
        exist."""
        root = Path(self.path)
        if not root.exists():
            raise UsageError(f"expected a JSONL file or a folder of them, found nothing at {self.path}")
        called = set[str]()
        pieces: list[tuple[FilePiece | LeftOut, int]] = []
        for file in walk(root, ()):
            path = file.inside
            if file.fate in ("left", "told"):
                pieces.append((LeftOut(path, file.rule, file.why), 0))
            elif file.fate == "read" and root.is_dir() and not path.lower().endswith(ENDS):
                pieces.append((LeftOut(path, "no JSONL"), 0))
            else:
                stem = path if _stem(path) in called else _stem(path)
                called.add(stem)
                pieces += _pieces(root, path, stem, file.size)
        row: list[FilePiece | LeftOut] = []
        total = 0
        for piece, size in pieces:
            if row and (total + size > SHARD_BYTES or len(row) >= SHARD_SESSIONS):
                yield SourceShard(number, self._place(row), tuple(row))
                row, total = [], 0
            row.append(piece)
            total += size
        if row:
            yield SourceShard(number, self._place(row), tuple(row))

    def _place(self, row: list[FilePiece | LeftOut]) -> str:
        more = f" and {len(row) - 1} more" if len(row) > 1 else ""
        return (row[0].where if isinstance(row[0], LeftOut) else f"{row[0].path}:{row[0].first}") + more

    def entries(self, shard: SourceShard) -> Iterator[SourceEntry | Unreadable | LeftOut]:
        """Yield the lines of a shard that are not blank. Lines that cannot be read are `Unreadable`."""
        for part in shard.parts:
            if isinstance(part, LeftOut):
                yield part
            else:
                yield from self._read(FilePiece(*part))

    def _read(self, piece: FilePiece) -> Iterator[SourceEntry | Unreadable]:
        root = Path(self.path)
        path = root / piece.path if root.is_dir() else root
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            return  # moved since it was listed: the next run finds it in its new place
        except OSError as exc:
            yield Unreadable(piece.path, f"cannot be read: {exc.strerror or exc}")
            return
        with stream:
            since = os.fstat(stream.fileno()).st_mtime
            if agent := None if self.repeats else self._agent_of(stream, piece):
                why = f"these lines are one session of {agent}: name their folder in a source of kind agent-logs"
                yield Unreadable(piece.path, why)
                return
            stream.seek(piece.start)
            yield from self._lines(self._opened(_Span(stream, piece), piece), piece, since)

    def _opened(self, stream: Readable, piece: FilePiece) -> ByteInput:
        source = ByteInput(stream, piece.path, self.max_bytes)
        if piece.path.endswith(".zst"):
            source.unpack()
        elif piece.path.endswith(".gz"):
            source.gunzip()
        return source

    def _agent_of(self, stream: BufferedReader, piece: FilePiece) -> str | None:
        """Return the agent that wrote a file as the log of one session, by its first lines; None for other files."""
        try:
            with refusing(piece.path):
                events = first_events(self._opened(stream, piece))
                known = registry.of_events(events) if events else None
        except (ContentError, CorruptError, UsageError):  # reading the lines names the damage
            return None
        return known.name if known and known.name in AGENTS else None

    def _lines(self, source: ByteInput, piece: FilePiece, since: float) -> Iterator[SourceEntry | Unreadable]:
        number = piece.first - 1
        while True:
            number += 1
            where = f"{piece.path}:{number}"
            try:
                line = source.line()
            except TooLong as too_long:
                try:
                    source.skip()
                except (CorruptError, UsageError) as exc:
                    yield Unreadable(where, f"{exc}; what stands before it was taken")
                    return
                yield Unreadable(where, str(too_long))
                continue
            except (CorruptError, UsageError) as exc:
                yield Unreadable(where, f"{exc}; what stands before it was taken")
                return
            if line is None:
                return
            raw = (line.removeprefix(BOM) if number == 1 else line).rstrip(b"\r\n")
            if raw.strip(b" \t"):
                yield SourceEntry(where, None if self.repeats else f"{piece.stem}/{number}", raw, since=since)

    def item(self, entry: SourceEntry) -> PutRequest:
        """Return a line as a session to put. Raises UsageError, ContentError and FormatError."""
        request = self.naming.item(entry, Session.from_json_line(entry.raw))
        return replace(request, continues=not (self.repeats or self.new_version))

    def sink(self, cold: Archive, bundle: Bundle) -> Sink:
        """Return the archive itself. See `EntrySource.sink`."""
        return cold


class _Span:
    """A stream that ends where a piece does."""

    def __init__(self, stream: BufferedReader, piece: FilePiece) -> None:
        self._stream = stream
        self._left = None if piece.end is None else piece.end - piece.start

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most ``size``; none at the end of the piece."""
        if self._left is None:
            return self._stream.read(size)
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


def _pieces(root: Path, path: str, stem: str, size: int) -> Iterator[tuple[FilePiece, int]]:
    """Yield the pieces of a file and their bytes. Large plain files are cut at line ends.

    A file that cannot be read is one piece, and reading it reports the error.
    """
    if size <= 2 * SHARD_BYTES or path.lower().endswith(PACKED):
        yield FilePiece(path, stem, 0, None, 1), size
        return
    start, first, at, lines = 0, 1, 0, 1  # ``lines``: the number of the line at ``at``
    with suppress(OSError), (root / path if root.is_dir() else root).open("rb") as file:
        while block := file.read(BLOCK):
            cut = (
                block.find(b"\n", max(0, start + SHARD_BYTES - at)) + 1 if at + len(block) > start + SHARD_BYTES else 0
            )
            if cut:
                yield FilePiece(path, stem, start, at + cut, first), at + cut - start
                start, first = at + cut, lines + block.count(b"\n", 0, cut)
            lines += block.count(b"\n")
            at += len(block)
    yield FilePiece(path, stem, start, None, first), at - start


def _stem(path: str) -> str:
    """Return a file's path without the suffixes of its format.

    >>> _stem("logs/monday.v2.jsonl.zst")
    'logs/monday.v2'
    """
    end = next((end for end in sorted(ENDS, key=len, reverse=True) if path.lower().endswith(end)), "")
    return path[: len(path) - len(end)] or path

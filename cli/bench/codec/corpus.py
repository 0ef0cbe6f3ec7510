"""Sessions to measure on: records of JSONL files, grouped by source, up to a number of bytes per source.

A record is ``{"id": "taskmaster-00af", "messages": [...], ...}``, or has a "text" in place of messages. Its source is
the id up to the last ``-``. Only the messages are kept, as ``{"messages": [...]}``, or the text: ids and licences are
not part of a session.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.models.session.session import Session

SUFFIXES = (".jsonl", ".jsonl.zst")


@dataclass(frozen=True)
class SampleSession:
    """One session to measure: its source, its messages as a chat or its text, and the bytes of these."""

    source: str
    session: "Session"
    content_bytes: int


def read(path: str | None) -> Iterator[SampleSession]:
    """Yield the records of a file, of every JSONL file of a folder, or (None) the sample sessions.

    Raises:
        UsageError: there is no such file, no JSONL file in the folder, or a line without messages or text.
    """
    from pltz.datasets.loaders import load, sample_path

    for file in files(sample_path() if path is None else Path(path)):
        for number, session in enumerate(load(file, "jsonl"), 1):
            yield record(session, f"{file}: session {number}")


def files(path: Path) -> list[Path]:
    """Return the file itself, or the JSONL files of a folder by name.

    Raises:
        UsageError: the folder has none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not found:
        raise UsageError(f"expected {' or '.join(SUFFIXES)} files in {path}, found none")
    return found


def record(line: "Session", place: str) -> SampleSession:
    """Return the session of one line. ``place`` names the line in errors.

    Raises:
        UsageError: the line has neither messages nor a text.
    """
    from pltz.models.session.session import Session, content_bytes

    value = line.value if line.kind == "chat" else None
    if not isinstance(value, dict):
        raise UsageError(f"{place}: expected a record, found another value")
    if isinstance(value.get("messages"), list):
        session = Session("chat", {"messages": value["messages"]})
    elif isinstance(value.get("text"), str):
        session = Session("text", value["text"].encode("utf-8", "surrogatepass"))
    else:
        raise UsageError(f'{place}: expected a record with "messages" or "text", found neither')
    return SampleSession(str(value.get("id", "all")).rsplit("-", 1)[0], session, content_bytes(session))


def select(records: Iterable[SampleSession], limit: int) -> list[SampleSession]:
    """Return the records, grouped by source, each taken while its source stays within ``limit`` content bytes."""
    taken: Counter[str] = Counter()
    chosen = []
    for item in records:
        if taken[item.source] + item.content_bytes <= limit:
            taken[item.source] += item.content_bytes
            chosen.append(item)
    return sorted(chosen, key=lambda item: item.source)

"""Sessions to measure on, from any files that `pltz compress` reads, up to a number of bytes per source.

A record is ``{"id": "taskmaster-00af", "messages": [...], ...}``, or has a "text" in place of messages. Its source is
the id up to the last ``-``, or the name of its file. Of a record with messages or a text only these are kept: ids and
licences are not part of a session.
"""

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pltz.models.session.session import Session


@dataclass(frozen=True)
class SampleSession:
    """One session to measure: its source, its messages as a chat or its text, and the bytes of these."""

    source: str
    session: "Session"
    content_bytes: int


def read(path: str | None) -> Iterator[SampleSession]:
    """Yield the sessions of a file or folder, or (None) the sample sessions. Raises UsageError for none there."""
    from pltz.datasets.loaders import recognise, sample_path
    from pltz.models.session.session import Session

    for found in recognise(sample_path() if path is None else path):
        if found.noun == "json" and found.session.kind == "text" and found.place != found.file:
            for line in io.BytesIO(found.session.value):  # records of texts, a line each
                yield record(Session.from_json_line(line.removesuffix(b"\n")), found.file)
        else:
            yield record(found.session, found.file)


def record(found: "Session", file: str) -> SampleSession:
    """Return a session of a file with its source and size."""
    from pltz.models.session.session import Session, content_bytes

    value = found.value if found.kind == "chat" and isinstance(found.value, dict) else {}
    source = value["id"].rsplit("-", 1)[0] if isinstance(value.get("id"), str) else Path(file).name.split(".")[0]
    if isinstance(value.get("messages"), list):
        found = Session("chat", {"messages": value["messages"]})
    elif isinstance(value.get("text"), str) and "conversations" not in value:
        found = Session("text", value["text"].encode("utf-8", "surrogatepass"))
    return SampleSession(source or "all", found, content_bytes(found))


def select(records: Iterable[SampleSession], limit: int) -> list[SampleSession]:
    """Return the records, grouped by source, each taken while its source stays within ``limit`` content bytes."""
    taken: Counter[str] = Counter()
    chosen = []
    for item in records:
        if taken[item.source] + item.content_bytes <= limit:
            taken[item.source] += item.content_bytes
            chosen.append(item)
    return sorted(chosen, key=lambda item: item.source)

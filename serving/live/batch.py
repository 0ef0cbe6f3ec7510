"""LiveBatch: entries of one transcript as they are kept in the journal. Spec: eviction/FORMAT.md, "Batch".

    batch = LiveBatch(Stream("project", "session"), at, [line_of({"type": "user", "uuid": "u1"})])
    LiveBatch.decode(batch.encode()) == batch

Lines are JSON, so that the coder of logs shrinks them. Each has an identity, by which it is kept once: its uuid, or for
an entry without one 16 random digits that `line_of` appends and `entry_of` takes off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pltz.archive import MAX_NAME, check_part
from pltz.plt_codec import ContentError, UsageError
from pltz.serving.eviction.journal.entry import MAX_BODY

OWN_ID = re.compile(rb'(,)?"pltz":"([0-9a-f]{16})"\}$')


class Stream(NamedTuple):
    """A transcript: of a session, or of one of its sub-agents (``part``)."""

    project: str
    session: str
    part: str = ""

    @classmethod
    def of(cls, key: Mapping[str, Any]) -> Stream:
        """Return the stream of a key of the SDK. Raises UsageError where the archive cannot have that name."""
        found = cls(key["project_key"], key["session_id"], key.get("subpath") or "")
        try:
            if not all(0 < len(text.encode()) <= MAX_NAME for text in found[:2]):
                raise UsageError(f"expected a project and a session of 1 to {MAX_NAME} bytes, got {found[:2]}")
            check_part(found.part)
        except (UnicodeEncodeError, ContentError) as exc:
            raise UsageError(f"no name for a stream: {exc}") from exc
        return found


@dataclass(frozen=True)
class LiveBatch:
    """Entries that were appended together, or a deletion.

    ``at``: in ticks of 2^-20 seconds. ``ends``: None for entries; for a deletion the offset, by segment, up to which
    batches are gone. ``versions``: ids in hex of the versions that are gone.
    """

    stream: Stream
    at: int
    lines: Sequence[bytes] = ()
    ends: Mapping[str, int] | None = None
    versions: frozenset[str] = field(default=frozenset())

    def encode(self) -> bytes:
        """Return the body of its frame. Raises UsageError where it is too long for the journal."""
        head: dict[str, Any] = self.stream._asdict() | {"at": self.at}
        if self.ends is not None:
            head |= {"ends": dict(self.ends), "versions": sorted(self.versions)}
        body = b"\n".join([json.dumps(head).encode(), *self.lines])
        if len(body) > MAX_BODY:
            raise UsageError(f"expected at most {MAX_BODY:,} bytes in a batch, got {len(body):,}: append fewer entries")
        return body

    @classmethod
    def decode(cls, body: bytes) -> LiveBatch:
        """Return the batch of a body that `encode` returned."""
        first, *lines = body.split(b"\n")
        head = json.loads(first)
        stream = Stream(head["project"], head["session"], head["part"])
        return cls(stream, head["at"], lines, head.get("ends"), frozenset(head.get("versions", ())))

    def deletes(self, stream: Stream) -> bool:
        """Return whether it is a deletion of a stream."""
        return self.ends is not None and self.stream in (stream, stream._replace(part=""))


def line_of(entry: Mapping[str, Any], own: bytes) -> bytes:
    """Return an entry as a line. ``own``: 8 random bytes, its identity where it has no uuid. Raises UsageError.

    >>> line_of({"type": "user", "uuid": "u1"}, bytes(8)), line_of({"type": "tag"}, bytes(8))
    (b'{"type":"user","uuid":"u1"}', b'{"type":"tag","pltz":"0000000000000000"}')
    """
    if not isinstance(entry, Mapping):
        raise UsageError(f"expected an entry as an object of JSON, found {type(entry).__name__}")
    try:
        text = json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode()
    except UnicodeEncodeError:  # half a pair of surrogates
        data = json.dumps(entry, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise UsageError(f"expected an entry of JSON: {exc}") from exc
    if isinstance(entry.get("uuid"), str) and not OWN_ID.search(data):
        return data
    return data[:-1] + (b"," if entry else b"") + b'"pltz":"%s"}' % own.hex().encode()


def entry_of(line: bytes) -> Any:
    """Return the entry of a line, as it was appended.

    >>> entry_of(line_of({"type": "tag"}, bytes(8)))
    {'type': 'tag'}
    """
    return json.loads(OWN_ID.sub(b"}", line))


def identity_of(line: bytes) -> str:
    """Return what tells a line from all others of its stream.

    >>> identity_of(line_of({"uuid": "u1"}, bytes(8))), identity_of(line_of({}, bytes(8)))
    ('uuid u1', 'own 0000000000000000')
    """
    entry = json.loads(line)
    own = OWN_ID.search(line)
    return f"own {own[2].decode()}" if own else f"uuid {entry['uuid']}"

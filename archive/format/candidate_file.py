"""A candidate file: the sketches of segments that new ones may be coded after. Spec: FORMAT.md, "Candidates".

    head | groups: domain, tokenizer, root, counts, size | segment id, box of the sketch ... | digest

Disposable: `pltz archive cluster` makes it anew. A damaged one is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import digest
from pltz.plt_codec.versions import Readers

MAGIC, VERSION = b"PLTn", 3
MAX_FILE = 1 << 30  # bytes
HEAD = struct.Struct("<4sB3s16sI")  # magic, version, zeros, archive, groups
# kind and id of the domain, tokenizer, root, sessions, newest, candidates, their bytes
GROUP = struct.Struct("<B16s16s8sIQIQ")
GROUP_2 = struct.Struct("<B16s16s8sIIQ")  # of version 2, without the newest
VERSIONS = Readers("the candidate file", {2: GROUP_2, VERSION: GROUP}, "pltz archive cluster makes a new one")
ENTRY = struct.Struct("<BH")  # bytes of the id, bytes of the box
DIGEST = 16


class CandidateGroup(NamedTuple):
    """The candidates of one domain share this.

    Attributes:
        root: of the keys of their boxes; zeros without encryption.
        sessions: number of sessions of the domain, when they were chosen.
        newest: time at which the last of these began, in seconds since 1970.
    """

    kind: int
    domain: bytes
    tokenizer: bytes
    root: bytes
    sessions: int
    newest: int = 0


class CandidateBoxes(NamedTuple):
    """The candidates of a group: so many ``entries`` in ``data`` from ``begin`` to ``end``."""

    data: bytes
    begin: int
    end: int
    entries: int

    def read(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield segment id, and sketch or box, of each. Raises CorruptError."""
        at = self.begin
        for _ in range(self.entries):
            if at + ENTRY.size > self.end:
                raise CorruptError("a candidate file ends before its entries do: damaged")
            name, box = ENTRY.unpack_from(self.data, at)
            at += ENTRY.size
            if at + name + box > self.end:
                raise CorruptError("a candidate file ends in an entry: damaged")
            yield self.data[at : at + name], self.data[at + name : at + name + box]
            at += name + box
        if at != self.end:
            raise CorruptError("a candidate file goes on behind its entries: damaged")


Boxes = Sequence[tuple[bytes, bytes]]  # segment id, sketch or box


def pack_candidates(archive: bytes, groups: Mapping[CandidateGroup, Boxes]) -> bytes:
    """Return the bytes of a candidate file. Its last 16 bytes are its name. ``archive``: id of the archive."""
    parts = [HEAD.pack(MAGIC, VERSION, bytes(3), archive, len(groups))]
    for group, boxes in groups.items():
        entries = b"".join(ENTRY.pack(len(name), len(box)) + name + box for name, box in boxes)
        fixed = group.kind, group.domain, group.tokenizer, group.root, group.sessions, group.newest
        parts += [GROUP.pack(*fixed, len(boxes), len(entries)), entries]
    data = b"".join(parts)
    return data + digest(b"pltz candidates", data)


def unpack_candidates(data: bytes, archive: bytes) -> Iterator[tuple[CandidateGroup, CandidateBoxes]]:
    """Yield the groups of a candidate file with their candidates, which are not read yet.

    Raises CorruptError where the file is damaged or of another archive, VersionError where its version is another.
    """
    if len(data) < HEAD.size + DIGEST or data[:4] != MAGIC:
        raise CorruptError("expected a candidate file, found none: pltz archive cluster makes a new one")
    body = memoryview(data)[:-DIGEST]
    _, version, zeros, owner, groups = HEAD.unpack_from(body)
    head = VERSIONS.of(version)
    if any(zeros):
        raise VersionError("a candidate file has fields of a newer version: pltz archive cluster makes a new one")
    if digest(b"pltz candidates", body) != data[-DIGEST:] or owner != archive:
        raise CorruptError("a candidate file is damaged or of another archive: pltz archive cluster makes a new one")
    at = HEAD.size
    for _ in range(groups):
        if at + head.size > len(body):
            raise CorruptError("a candidate file ends before its groups do: damaged")
        kind, domain, tokenizer, root, sessions, newest, count, size = head.unpack_from(body, at)
        at += head.size
        if at + size > len(body):
            raise CorruptError("a candidate file ends in a group: damaged")
        group = CandidateGroup(kind, domain, tokenizer, root, sessions, newest)
        yield group, CandidateBoxes(data, at, at + size, count)
        at += size
    if at != len(body):
        raise CorruptError("a candidate file goes on behind its groups: damaged")

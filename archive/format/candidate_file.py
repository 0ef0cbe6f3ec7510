"""A candidate file: the sketches of segments that new ones may be coded after. Spec: FORMAT.md, "Candidates".

    head | groups: domain, tokenizer, root, count | segment id, box of the sketch ... | digest

Disposable: `pltz archive cluster` makes it anew. A damaged one is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pltz.archive.format import ids
from pltz.plt_codec.errors import CorruptError, VersionError

MAGIC, VERSION = b"PLTn", 1
MAX_FILE = 1 << 30  # bytes
HEAD = struct.Struct("<4sB3s16sI")  # magic, version, zeros, archive, groups
GROUP = struct.Struct("<B16s16s8sI")  # kind and id of the domain, tokenizer, root of the keys, candidates
ENTRY = struct.Struct("<BH")  # bytes of the id, bytes of the box
DIGEST = 16


class CandidateGroup(NamedTuple):
    """The candidates of one domain share this. ``root``: of the keys of their boxes; zeros without encryption."""

    kind: int
    domain: bytes
    tokenizer: bytes
    root: bytes


Boxes = Sequence[tuple[bytes, bytes]]  # segment id, sketch or box


def pack_candidates(archive: bytes, groups: Mapping[CandidateGroup, Boxes]) -> bytes:
    """Return the bytes of a candidate file. Its last 16 bytes are its name. ``archive``: id of the archive."""
    parts = [HEAD.pack(MAGIC, VERSION, bytes(3), archive, len(groups))]
    for group, boxes in groups.items():
        parts.append(GROUP.pack(*group, len(boxes)))
        parts += [ENTRY.pack(len(name), len(box)) + name + box for name, box in boxes]
    data = b"".join(parts)
    return data + ids.digest(b"pltz candidates", data)


def unpack_candidates(data: bytes, archive: bytes) -> Iterator[tuple[CandidateGroup, bytes, bytes]]:
    """Yield the group, the segment id and the box of each candidate.

    Raises CorruptError where the file is damaged or of another archive, VersionError where it is newer.
    """
    if len(data) < HEAD.size + DIGEST or data[:4] != MAGIC:
        raise CorruptError("expected a candidate file, found none: pltz archive cluster makes a new one")
    body, digest = data[:-DIGEST], data[-DIGEST:]
    _, version, zeros, owner, groups = HEAD.unpack_from(body)
    if version != VERSION or any(zeros):
        raise VersionError(f"a candidate file of version {version}: use a newer pltz")
    if ids.digest(b"pltz candidates", body) != digest or owner != archive:
        raise CorruptError("a candidate file is damaged or of another archive: pltz archive cluster makes a new one")
    at = HEAD.size
    try:
        for _ in range(groups):
            *fields, count = GROUP.unpack_from(body, at)
            at += GROUP.size
            for _ in range(count):
                name, box = ENTRY.unpack_from(body, at)
                at += ENTRY.size
                if at + name + box > len(body):
                    raise CorruptError("a candidate file ends in an entry: damaged")
                yield CandidateGroup(*fields), body[at : at + name], body[at + name : at + name + box]
                at += name + box
    except struct.error as exc:
        raise CorruptError("a candidate file ends before its entries do: damaged") from exc
    if at != len(body):
        raise CorruptError("a candidate file goes on behind its entries: damaged")

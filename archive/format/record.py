"""A record: a segment, a session's version, both, or a mark, in few bytes. Spec: FORMAT.md, "Record".

    mark flags size | context parent id tokens name ... bitstring | check
     1    1    2         1      1    16   2     1+n                   4      29 bytes beside name and bitstring

Fields that many records share are in the pack's table. Time, version number and tags take no bytes where
they have their usual values. The check covers the pack's salt and the record's place, so bytes count as a
record only where they were written.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pltz.archive.format.ids import NONE, SIZE
from pltz.archive.format.prefix_crc import ByteSource, PrefixCrcs
from pltz.plt_codec.errors import ContentError, CorruptError, VersionError
from pltz.plt_codec.limits import MAX_TOKENS as SESSION_TOKENS
from pltz.plt_codec.varint import read_varint

SEGMENT, SESSION = 0x01, 0x02
PARENT_SHIFT, PARENT_MASK = 2, 0x0C
PARENT_NONE, PARENT_TABLE, PARENT_BACK, PARENT_INLINE = 0, 1, 2, 3
TIME, NUMBERED, TAGS = 0x10, 0x20, 0x40
MARK = 0x80
NEIGHBOUR = 0x80  # beside SEGMENT: the record names a neighbour

UNDELETE, FORGET = 0, 1
MAX_RECORD = 1 << 28  # bytes
MAX_NAME = 1024  # bytes of UTF-8
MAX_TAGS = 16384  # bytes of JSON
TOKENS_PER_BYTE = 65536
CHECK = 4  # bytes
RESIDUE = 0x2144DF1C  # crc32 of anything followed by its own crc32, little-endian
MAX_VEIL = 8 + 16 + 5 + MAX_NAME + MAX_TAGS  # bytes: unit, tag, length of the name, name, tags
LEAST_VEIL = 8 + 16 + 1
HEAD_MOST = 2 + 5  # most bytes of mark, flags and size


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark that forgets or undeletes one version. The mark with the highest counter is in force."""

    version: bytes  # version id
    counter: int
    verb: int  # UNDELETE or FORGET


class Record(NamedTuple):
    """The content of a record.

    Attributes:
        context: number of its context in the pack's table.
        parent: id of the segment above, NONE for a root.
        id: id of its segment, None without one.
        tokens: number of tokens of its segment.
        name: name of its session, None without one.
        time: time of its version, in seconds since 1970.
        veil: in a sealed archive, unit and box in place of name and tags, which are empty then. The bitstring is
            a box too.
        neighbour: id of the segment that its segment was coded after, NONE without one. See FORMAT.md,
            "Neighbours".
    """

    context: int
    parent: bytes = NONE
    id: bytes | None = None
    tokens: int = 0
    bitstring: bytes = b""
    name: str | None = None
    version: int = 1
    time: int = 0
    tags: bytes = b""
    mark: Mark | None = None
    veil: bytes = b""
    neighbour: bytes = NONE

    @property
    def leaf(self) -> bytes:
        """Return the leaf of the session's tower; NONE for an empty one."""
        return self.parent if self.id is None else self.id


class StoredRecord(NamedTuple):
    """A record as stored in a pack, before its parent is looked up."""

    record: Record  # parent is right unless `how` says otherwise
    how: int  # PARENT_*
    reference: int  # number in the table, or offset of the parent's record
    size: int  # bytes of all of it


class RecordPlace:
    """The data outside a record that its bytes depend on: its pack and its offset there.

    Attributes:
        salt: salt of the pack, 16 bytes.
        offset: byte offset of the record; readers move it from record to record.
        base: time of the pack, seconds since 1970.
        contexts: number of contexts in its table.
        sealed: numbers of the contexts with encryption.
    """

    __slots__ = "base", "contexts", "mark", "offset", "parents", "sealed", "seed"

    def __init__(
        self,
        salt: bytes,
        offset: int,
        base: int,
        contexts: int,
        parents: list[bytes] | None = None,
        sealed: frozenset[int] = frozenset(),
    ):
        self.sealed = sealed
        self.mark, self.seed = salt[0], zlib.crc32(salt)
        self.offset, self.base, self.contexts, self.parents = offset, base, contexts, parents or []


def span(data: bytes | memoryview, at: int) -> int:
    """Return the bytes of the record that begins at ``at``. Raises CorruptError."""
    if at + HEAD_MOST <= len(data) and data[at + 3] < 0x80 <= data[at + 2] and data[at + 3]:  # the usual case
        return 4 + (data[at + 2] & 0x7F | data[at + 3] << 7) + CHECK
    size, after = read_varint(bytes(data[at + 2 : at + HEAD_MOST]), 0)
    if size > MAX_RECORD:
        raise CorruptError(f"a record claims {size} bytes, at most {MAX_RECORD} are allowed: damaged")
    return 2 + after + size + CHECK


def decode(data: ByteSource, at: int, place: RecordPlace, sums: PrefixCrcs | None = None) -> StoredRecord:
    """Return the record at ``data[at]``. ``sums``: those of ``data``, for callers that try many places.

    Raises CorruptError where it is damaged or breaks a rule, VersionError where a newer version wrote it.
    """
    head = bytes(data[at : at + HEAD_MOST])
    if not head or head[0] != place.mark:
        raise CorruptError(f"no record at byte {place.offset}: the pack is damaged")
    body, begin = read_varint(head, 2)
    size = begin + body + CHECK
    if body > MAX_RECORD or at + size > len(data):
        raise CorruptError(f"the record at byte {place.offset} claims {body} bytes, more than fit: damaged")
    seed = zlib.crc32(place.offset.to_bytes(8, "little"), place.seed)
    check = sums.of(at, at + size, seed) if sums else zlib.crc32(data[at : at + size], seed)
    if check != RESIDUE:
        raise CorruptError(f"the record at byte {place.offset} does not match its checksum: damaged")
    return _parse(bytes(data[at : at + size]), begin, place)


def _parse(raw: bytes, at: int, place: RecordPlace) -> StoredRecord:
    """Return the fields of a record whose check is right. Errors found here were written that way."""
    flags, end = raw[1], len(raw) - CHECK
    context, at = read_varint(raw, at)
    if context >= place.contexts:
        raise _wrong(place, f"names context {context} of {place.contexts}")
    if flags & MARK and not flags & SEGMENT:
        return StoredRecord(Record(context, mark=_read_mark(flags, raw[:end], at, place)), PARENT_NONE, 0, len(raw))
    if not flags & (SEGMENT | SESSION) or (flags & (TIME | NUMBERED | TAGS) and not flags & SESSION):
        raise _wrong(place, f"has flags {flags:#04x}")
    parent, how, reference = NONE, (flags & PARENT_MASK) >> PARENT_SHIFT, 0
    if how == PARENT_INLINE:
        parent, at = raw[at : at + SIZE], at + SIZE
    elif how:
        reference, at = read_varint(raw, at)
        if how == PARENT_BACK:
            if not 0 < reference <= place.offset:
                raise _wrong(place, f"has its parent {reference} bytes back")
            reference = place.offset - reference
        elif reference >= len(place.parents):
            raise _wrong(place, f"names parent {reference} of {len(place.parents)}")
        else:
            parent = place.parents[reference]
    neighbour = NONE
    if flags & NEIGHBOUR:
        neighbour, at = raw[at : at + SIZE], at + SIZE
        if neighbour == NONE:
            raise _wrong(place, "names no segment as its neighbour")
    identity, tokens = None, 0
    if flags & SEGMENT:
        identity = raw[at : at + SIZE]
        tokens, at = read_varint(raw, at + SIZE)
    name, version, time, tags, veil = None, 1, 0, b"", b""
    if flags & SESSION:
        time = place.base
        size, at = read_varint(raw, at)
        if context in place.sealed:
            name, veil = "", raw[at : at + size]
        else:
            name = _name(raw[at : at + size], place)
        at += size
        if flags & NUMBERED:
            version, at = read_varint(raw, at)
        if flags & TIME:
            delta, at = read_varint(raw, at)
            time += delta
        if flags & TAGS:
            size, at = read_varint(raw, at)
            tags, at = raw[at : at + size], at + size
    if veil and (not LEAST_VEIL <= len(veil) <= MAX_VEIL or tags):
        raise _wrong(place, "has a sealed name that is none")
    if at > end or len(tags) > MAX_TAGS:
        raise _wrong(place, "ends before its fields do")
    bitstring = raw[at:end]
    if not tokens_fit(tokens, len(bitstring)) or (bitstring and identity is None):
        raise _wrong(place, f"claims {tokens} tokens in {len(bitstring)} bytes")
    record = Record(context, parent, identity, tokens, bitstring, name, version, time, tags, None, veil, neighbour)
    return StoredRecord(record, how, reference, len(raw))


def _name(data: bytes, place: RecordPlace) -> str:
    if len(data) > MAX_NAME:
        raise _wrong(place, f"has a name of {len(data)} bytes, over the limit of {MAX_NAME}")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise _wrong(place, "has a name that is not UTF-8") from exc


def tokens_fit(tokens: int, size: int) -> bool:
    """Return whether a bitstring of ``size`` bytes may hold this many tokens."""
    return 0 <= tokens <= min(SESSION_TOKENS, TOKENS_PER_BYTE * (size + 1))


def pack_tags(tags: Mapping[str, str]) -> bytes:
    """Return tags as bytes, none without tags.

    Raises ContentError where they are not strings or are too many.

    >>> pack_tags({"b": "2", "a": "1"})
    b'{"a":"1","b":"2"}'
    """
    if not tags:
        return b""
    if any(not isinstance(part, str) for pair in tags.items() for part in pair):
        raise ContentError("expected tags as strings by strings")
    data = json.dumps(dict(tags), sort_keys=True, separators=(",", ":")).encode()
    if len(data) > MAX_TAGS:
        raise ContentError(f"tags of {len(data)} bytes are over the limit of {MAX_TAGS}")
    return data


def unpack_tags(data: bytes) -> dict[str, str]:
    """Undo `pack_tags`. Raises CorruptError."""
    if not data:
        return {}
    try:
        tags = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise CorruptError("the tags of a session are not JSON: damaged") from exc
    if not isinstance(tags, dict) or any(not isinstance(value, str) for value in tags.values()):
        raise CorruptError("the tags of a session are not strings by strings: damaged")
    return tags


def _read_mark(flags: int, raw: bytes, at: int, place: RecordPlace) -> Mark:
    version, at = _take(raw, at, SIZE, place)
    counter, at = read_varint(raw, at)
    verb, at = _take(raw, at, 1, place)
    if flags != MARK or at != len(raw) or verb[0] > FORGET:
        raise VersionError(f"the record at byte {place.offset} is of a newer version: use a newer pltz")
    return Mark(version, counter, verb[0])


def _take(raw: bytes, at: int, size: int, place: RecordPlace) -> tuple[bytes, int]:
    if at + size > len(raw):
        raise _wrong(place, "ends before its fields do")
    return raw[at : at + size], at + size


def _wrong(place: RecordPlace, what: str) -> CorruptError:
    return CorruptError(f"the record at byte {place.offset} {what}: damaged")

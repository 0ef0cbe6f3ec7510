"""A record: a segment, a session's version, both, or a mark, in as few bytes as they need. Spec: FORMAT.md, "Record".

    mark flags size | context parent id tokens name ... bitstring | check
     1    1    2         1      1    16   2     1+n                   4      29 bytes beside name and bitstring

What is the same for many records stands in the pack's table; time, version number and labels cost nothing where they are what they mostly are.
The check covers the pack's salt and the record's place, so a record is taken for one only where it was written.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pltz.archive.identity import MAX_TOKENS, NONE, SIZE
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError, VersionError
from pltz.plt_codec.varint import MAX_VALUE, read_varint, write_varint

SEGMENT, SESSION = 0x01, 0x02
PARENT_SHIFT, PARENT_MASK = 2, 0x0C
PARENT_NONE, PARENT_TABLE, PARENT_BACK, PARENT_INLINE = 0, 1, 2, 3
TIME, NUMBER, LABELS = 0x10, 0x20, 0x40
MARK = 0x80

RESTORE, FORGET = 0, 1
MAX_RECORD = 1 << 28  # bytes
MAX_NAME = 1024  # bytes of UTF-8
MAX_LABELS = 16384  # bytes of JSON
TOKENS_PER_BYTE = 65536
CHECK = 4  # bytes
HEAD_MOST = 2 + 5  # bytes: mark, flags, size


@dataclass(frozen=True, slots=True)
class Mark:
    """Forget or restore one version; of a version's marks the one with the highest counter holds."""

    version: bytes  # version id
    counter: int
    verb: int  # RESTORE or FORGET


@dataclass(frozen=True, slots=True)
class Record:
    """What a record says.

    ``context``: number in the pack's table. ``parent``: id of the segment above (NONE: none). ``id``: of the segment in it,
    None where there is none. ``name``: of the session, None where it holds none. ``time``: seconds since 1970, of the version.
    """

    context: int
    parent: bytes = NONE
    id: bytes | None = None
    tokens: int = 0
    bitstring: bytes = b""
    name: str | None = None
    number: int = 1
    time: int = 0
    labels: bytes = b""
    mark: Mark | None = None

    def in_context(self, number: int) -> Record:
        """The same under another number; `dataclasses.replace` takes ten times as long."""
        if number == self.context:
            return self
        return Record(
            number,
            self.parent,
            self.id,
            self.tokens,
            self.bitstring,
            self.name,
            self.number,
            self.time,
            self.labels,
            self.mark,
        )

    @property
    def leaf(self) -> bytes:
        """Leaf of the session's tower; NONE for an empty one."""
        return self.parent if self.id is None else self.id


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as it lies in a pack: its parent not looked up yet."""

    record: Record  # parent is right unless `how` says otherwise
    how: int  # PARENT_*
    reference: int  # number in the table, or offset of the parent's record
    size: int  # bytes of all of it


@dataclass(frozen=True, slots=True)
class Place:
    """What a record's bytes depend on beside itself: its pack and where it stands there."""

    salt: bytes
    offset: int
    base: int  # time of the pack, seconds
    contexts: int  # in the pack's table
    parents: list[bytes] = field(default_factory=list)


def encode(record: Record, how: int, reference: int, place: Place) -> bytes:
    """Record -> bytes. ``reference``: number in the table (PARENT_TABLE) or bytes back (PARENT_BACK).

    Raises ContentError where a field is over its limit, UsageError where fields contradict each other.
    """
    if record.mark:
        return _close(MARK, write_varint(record.context) + _mark(record.mark), place)
    flags = how << PARENT_SHIFT
    body = [write_varint(record.context)]
    if how in (PARENT_TABLE, PARENT_BACK):
        body.append(write_varint(reference))
    elif how == PARENT_INLINE:
        body.append(record.parent)
    if record.id is not None:
        flags |= SEGMENT
        if not tokens_fit(record.tokens, len(record.bitstring)):
            raise ContentError(
                f"{record.tokens} tokens in {len(record.bitstring)} bytes are over the format's limit"
            )
        body += (record.id, write_varint(record.tokens))
    elif record.bitstring or record.name is None:
        raise UsageError("a record without a segment holds a session and no bitstring")
    if record.name is not None:
        flags |= SESSION
        body.append(_sized(record.name.encode(), MAX_NAME, "name of a session"))
        if record.number != 1:
            flags |= NUMBER
            body.append(write_varint(record.number))
        if record.time != place.base:
            flags |= TIME
            if not 0 <= record.time - place.base <= MAX_VALUE:
                raise UsageError("the time of a version lies before its pack's, or a century after")
            body.append(write_varint(record.time - place.base))
        if record.labels:
            flags |= LABELS
            body.append(_sized(record.labels, MAX_LABELS, "JSON of the labels"))
    body.append(record.bitstring)
    return _close(flags, b"".join(body), place)


def span(data: bytes | memoryview, at: int) -> int:
    """Bytes of the record whose first bytes stand at ``at``. Raises CorruptError."""
    size, after = read_varint(bytes(data[at + 2 : at + HEAD_MOST]), 0)
    if size > MAX_RECORD:
        raise CorruptError(f"a record claims {size} bytes, at most {MAX_RECORD} are allowed: damaged")
    return 2 + after + size + CHECK


def decode(data: bytes | memoryview, at: int, place: Place) -> Raw:
    """The record at ``data[at]``.

    Raises CorruptError where it is damaged or breaks a rule, VersionError where a newer version wrote it.
    """
    if at >= len(data) or data[at] != place.salt[0]:
        raise CorruptError(f"no record at byte {place.offset}: the pack is damaged")
    size = span(data, at)
    if at + size > len(data):
        raise CorruptError(f"the record at byte {place.offset} does not fit its pack: damaged")
    raw = bytes(data[at : at + size])
    if int.from_bytes(raw[-CHECK:], "little") != _check(raw[:-CHECK], place):
        raise CorruptError(f"the record at byte {place.offset} does not match its checksum: damaged")
    head = 3
    while raw[head - 1] & 0x80:
        head += 1
    return _parse(raw[1], raw[:-CHECK], head, size, place)


def _parse(flags: int, raw: bytes, at: int, size: int, place: Place) -> Raw:
    """Fields of a record whose check is right; what is wrong now was written so."""
    context, at = read_varint(raw, at)
    if context >= place.contexts:
        raise _wrong(place, f"names context {context} of {place.contexts}")
    if flags & MARK:
        return Raw(Record(context, mark=_read_mark(flags, raw, at, place)), PARENT_NONE, 0, size)
    if not flags & (SEGMENT | SESSION) or (flags & (TIME | NUMBER | LABELS) and not flags & SESSION):
        raise _wrong(place, f"has flags {flags:#04x}")
    parent, how, reference = NONE, (flags & PARENT_MASK) >> PARENT_SHIFT, 0
    if how == PARENT_INLINE:
        parent, at = _take(raw, at, SIZE, place)
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
    identity, tokens = None, 0
    if flags & SEGMENT:
        identity, at = _take(raw, at, SIZE, place)
        tokens, at = read_varint(raw, at)
    name, number, time, labels = None, 1, place.base, b""
    if flags & SESSION:
        encoded, at = _take_sized(raw, at, MAX_NAME, place)
        try:
            name = encoded.decode()
        except UnicodeDecodeError as exc:
            raise _wrong(place, "has a name that is not UTF-8") from exc
        if flags & NUMBER:
            number, at = read_varint(raw, at)
        if flags & TIME:
            delta, at = read_varint(raw, at)
            time += delta
        if flags & LABELS:
            labels, at = _take_sized(raw, at, MAX_LABELS, place)
    bitstring = raw[at:]
    if not tokens_fit(tokens, len(bitstring)) or (bitstring and identity is None):
        raise _wrong(place, f"claims {tokens} tokens in {len(bitstring)} bytes")
    return Raw(
        Record(context, parent, identity, tokens, bitstring, name, number, time, labels), how, reference, size
    )


def tokens_fit(tokens: int, size: int) -> bool:
    """Whether a bitstring of ``size`` bytes may claim so many tokens."""
    return 0 <= tokens <= min(MAX_TOKENS, TOKENS_PER_BYTE * (size + 1))


def pack_labels(labels: Mapping[str, str]) -> bytes:
    """Tags as bytes; none are no bytes. Raises ContentError where they are not strings or too many.

    >>> pack_labels({"b": "2", "a": "1"})
    b'{"a":"1","b":"2"}'
    """
    if not labels:
        return b""
    if any(not isinstance(part, str) for pair in labels.items() for part in pair):
        raise ContentError("expected labels as strings by strings")
    data = json.dumps(dict(labels), sort_keys=True, separators=(",", ":")).encode()
    if len(data) > MAX_LABELS:
        raise ContentError(f"labels of {len(data)} bytes are over the limit of {MAX_LABELS}")
    return data


def unpack_labels(data: bytes) -> dict[str, str]:
    """Undo `pack_labels`. Raises CorruptError."""
    if not data:
        return {}
    try:
        labels = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise CorruptError("the labels of a session are not JSON: damaged") from exc
    if not isinstance(labels, dict) or any(not isinstance(value, str) for value in labels.values()):
        raise CorruptError("the labels of a session are not strings by strings: damaged")
    return labels


def _mark(mark: Mark) -> bytes:
    return mark.version + write_varint(mark.counter) + bytes([mark.verb])


def _read_mark(flags: int, raw: bytes, at: int, place: Place) -> Mark:
    version, at = _take(raw, at, SIZE, place)
    counter, at = read_varint(raw, at)
    verb, at = _take(raw, at, 1, place)
    if flags != MARK or at != len(raw) or verb[0] > FORGET:
        raise VersionError(f"the record at byte {place.offset} is of a newer version: use a newer pltz")
    return Mark(version, counter, verb[0])


def _close(flags: int, body: bytes, place: Place) -> bytes:
    if len(body) > MAX_RECORD:
        raise ContentError(f"a record of {len(body)} bytes is over the limit of {MAX_RECORD}")
    raw = bytes([place.salt[0], flags]) + write_varint(len(body)) + body
    return raw + _check(raw, place).to_bytes(CHECK, "little")


def _check(raw: bytes, place: Place) -> int:
    return zlib.crc32(raw, zlib.crc32(place.salt + place.offset.to_bytes(8, "little")))


def _sized(data: bytes, limit: int, what: str) -> bytes:
    if len(data) > limit:
        raise ContentError(f"the {what} has {len(data)} bytes, at most {limit} are allowed")
    return write_varint(len(data)) + data


def _take(raw: bytes, at: int, size: int, place: Place) -> tuple[bytes, int]:
    if at + size > len(raw):
        raise _wrong(place, "ends before its fields do")
    return raw[at : at + size], at + size


def _take_sized(raw: bytes, at: int, limit: int, place: Place) -> tuple[bytes, int]:
    size, at = read_varint(raw, at)
    if size > limit:
        raise _wrong(place, f"has a field of {size} bytes, over the limit of {limit}")
    return _take(raw, at, size, place)


def _wrong(place: Place, what: str) -> CorruptError:
    return CorruptError(f"the record at byte {place.offset} {what}: damaged")

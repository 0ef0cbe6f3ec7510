"""The audit: what was changed, when, by whom and why, as a chain of records. Spec: AUDIT.md, "Audit".

    tail = tail.adding(AuditRecord(...))     in the manifest that makes the change
    AuditFile(archive, tail).encode()        audit/<digest>, once the tail is long

Each record has a digest, of the digest before it and its own bytes. So of a chain the last digest tells all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import NONE, SIZE, digest
from pltz.plt_codec.versions import Readers

MAGIC, VERSION = b"PLTa", 1
HEAD = struct.Struct("<4sB3s16s")  # magic, version, reserved, archive
TAIL = struct.Struct("<QI16s16s16sI")  # records before, records, digests before and of the last, file, bytes
RECORD = struct.Struct("<HIBBBIB")  # bytes of the note, time (40 bits), verb, flags, count, keys
KEY_SIZE = 5  # bytes of a session's key
PERSON, RECORD_PERSON = b"pltz audit", b"pltz record"
# flags: the note is a box, the clock was the user's word, records before may lack, the note is that of the one before
SEALED, FORCED, BREAK, SAME = 1, 2, 4, 8
NOTE_OF = b"audit"  # what the box of a note is bound to
FULL = 1 << 13  # bytes of records from which a manifest hands them to a file
MAX_TAIL = 1 << 17  # bytes
MAX_SIZE = MAX_TAIL + 256  # bytes of a file
MAX_TIME = 1 << 40


class Verb(IntEnum):
    """A kind of change."""

    PUT = 1
    FORGET = 2
    UNDELETE = 3
    ERASE = 4  # is about to destroy keys
    ERASED = 5
    HOLD = 6
    RELEASE = 7
    COLLECT = 8
    REPAIR = 9
    KEY = 10
    GET = 11
    AUDIT = 12  # whether reads are recorded


class AuditRecord(NamedTuple):
    """A record, without the digest before it.

    Attributes:
        time: seconds since 1970.
        verb: a `Verb`; another number is of a newer version.
        number: of the versions or packs that it is about.
        note: JSON of actor, reason and what it is about; with the flag SEALED a box of it.
        keys: the first bytes of the keys of sessions that it is about.
    """

    time: int
    verb: int
    number: int
    note: bytes
    flags: int = 0
    keys: tuple[bytes, ...] = ()

    def encode(self, before: bytes | None) -> bytes:
        """Return its bytes behind a record with a note; None: it is the first."""
        flags, note = (self.flags | SAME, b"") if self.note == before else (self.flags, self.note)
        time = min(self.time, MAX_TIME - 1)
        sizes = self.verb, flags, self.number, len(self.keys)
        return RECORD.pack(len(note), time & 0xFFFFFFFF, time >> 32, *sizes) + b"".join(self.keys) + note


class ChainedRecord(NamedTuple):
    """A record in its chain: its place, from 1, and the digests of the one before it and of itself, 16 bytes each."""

    place: int
    before: bytes
    digest: bytes
    record: AuditRecord


@dataclass(frozen=True)
class AuditTail:
    """The last records of a chain.

    Attributes:
        first: number of records before. ``size``: of records here.
        before: digest of the last record before, 16 bytes; zeros: none. ``last``: of the last one, here or before.
        file: name of the file of those before, 16 bytes; zeros: none.
        rows: the records, one after the other.
    """

    first: int = 0
    size: int = 0
    before: bytes = NONE
    last: bytes = NONE
    file: bytes = NONE
    rows: bytes = b""
    note: bytes | None = field(default=None, compare=False)  # of the last record here, as far as it was looked for

    @property
    def end(self) -> int:
        """Return the number of all records up to the last one."""
        return self.first + self.size

    def adding(self, record: AuditRecord) -> AuditTail:
        """Return it with one more record. Raises CorruptError where those that are there do not follow each other."""
        if self.note is None and self.rows:
            *_, last = self.records()
            data = record.encode(last.record.note)
        else:
            data = record.encode(self.note)
        rows, last_one = self.rows + data, _chained(self.last, data)
        return replace(self, size=self.size + 1, last=last_one, rows=rows, note=record.note)

    def after(self, file: bytes) -> AuditTail:
        """Return what follows it, once a file has it."""
        return AuditTail(self.end, 0, self.last, self.last, file)

    def encode(self) -> bytes:
        """Return its bytes."""
        return TAIL.pack(self.first, self.size, self.before, self.last, self.file, len(self.rows)) + self.rows

    def records(self) -> Iterator[ChainedRecord]:
        """Yield the records. Raises CorruptError, before the first, where their digests do not lead to the last."""
        found, at, before, note = list[ChainedRecord](), 0, self.before, b""
        while at + RECORD.size <= len(self.rows):
            size, low, high, verb, flags, number, keys = RECORD.unpack_from(self.rows, at)
            begin = at + RECORD.size
            ends = [begin + KEY_SIZE * n for n in range(keys + 1)]
            end = ends[-1] + size
            own = _chained(before, self.rows[at:end])
            note = note if flags & SAME else self.rows[ends[-1] : end]
            about = tuple(self.rows[one:other] for one, other in pairwise(ends))
            record = AuditRecord(high << 32 | low, verb, number, note, flags & ~SAME, about)
            found.append(ChainedRecord(self.first + len(found) + 1, before, own, record))
            before, at = own, end
        if (before, len(found), at) != (self.last, self.size, len(self.rows)):
            raise CorruptError(f"the audit is changed behind record {self.first}: its digests do not follow each other")
        yield from found


def decode_tail(data: bytes, at: int) -> tuple[AuditTail, int]:
    """Return a tail at a place in bytes, and where it ends. Raises CorruptError."""
    if at + TAIL.size > len(data):
        raise CorruptError("an audit does not have the size it claims: damaged")
    first, count, before, last, file, size = TAIL.unpack_from(data, at)
    at += TAIL.size
    if size > MAX_TAIL or at + size > len(data) or first + count >= MAX_TIME:
        raise CorruptError("an audit has more than its format allows: damaged")
    return AuditTail(first, count, before, last, file, data[at : at + size]), at + size


@dataclass(frozen=True)
class AuditFile:
    """A file of records that a manifest handed on. ``archive``: id of the archive, 16 bytes."""

    archive: bytes
    tail: AuditTail

    def encode(self) -> bytes:
        """Return its bytes, with its name at the end."""
        data = HEAD.pack(MAGIC, VERSION, bytes(3), self.archive) + self.tail.encode()
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes) -> AuditFile:
        """Return the file in these bytes. Raises CorruptError, VersionError."""
        if len(data) < HEAD.size + SIZE or digest(PERSON, data[:-SIZE]) != data[-SIZE:]:
            raise CorruptError("an audit does not match its checksum: damaged")
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptError("an audit does not begin with its magic: damaged")
        read = VERSIONS[data[len(MAGIC)]]
        return read(data)


def _chained(before: bytes, record: bytes) -> bytes:
    return digest(RECORD_PERSON, before + record)


def _read(data: bytes) -> AuditFile:
    """Return the file in bytes of which digest and magic are right."""
    _, _, reserved, archive = HEAD.unpack_from(data)
    if any(reserved):
        raise VersionError("an audit has fields of a newer version: use a newer pltz")
    tail, end = decode_tail(data[:-SIZE], HEAD.size)
    if end != len(data) - SIZE:
        raise CorruptError("an audit does not have the size it claims: damaged")
    return AuditFile(archive, tail)


VERSIONS = Readers("an audit", {VERSION: _read})

"""A plan: a write-once file that condemns packs, and ends older plans and ledger entries.

Its number is the epoch. Spec: FORMAT.md, "Plan" and "The fence".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from pltz.archive.format import object_names
from pltz.plt_codec.errors import CorruptError, VersionError
from pltz.plt_codec.identity import SIZE, digest
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTc"
VERSION = 2
HEADER = struct.Struct("<4sB3sQ16sQI")  # magic, version, reserved, epoch, random, time, packs
ENDED = struct.Struct("<QQQI")  # epoch ended, packs dropped, count of the token, entries
PERSON = b"pltz plan"
MAX_EPOCH = (1 << 62) - 1
MAX_PLAN = 1 << 26  # bytes of a file


@dataclass(frozen=True)
class CollectionPlan:
    """A plan.

    Attributes:
        condemned: ids of packs that no new session may rely on.
        time: seconds since 1970.
        ended: epoch up to which all plans are over: each pack that they condemn was deleted.
        dropped: number of deleted packs of which the ledger no longer has an entry.
        known: N of the token when entries were dropped last.
        entries: digests of the ledger entries that are dropped with this plan.
    """

    epoch: int
    random: bytes
    condemned: frozenset[bytes]
    time: int = 0
    ended: int = 0
    dropped: int = 0
    known: int = 0
    entries: frozenset[bytes] = frozenset()

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return object_names.plan(self.epoch)

    @property
    def copy(self) -> str:
        """Return the name of its second copy, for `repair`."""
        return object_names.plan_copy(self.epoch)

    def encode(self) -> bytes:
        """Return the bytes of its file."""
        head = HEADER.pack(MAGIC, VERSION, bytes(3), self.epoch, self.random, self.time, len(self.condemned))
        head += ENDED.pack(self.ended, self.dropped, self.known, len(self.entries))
        data = head + b"".join([*sorted(self.condemned), *sorted(self.entries)])
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes) -> CollectionPlan:
        """Return the plan in a file's bytes. Raises CorruptError, VersionError."""
        if len(data) < HEADER.size + SIZE or digest(PERSON, data[:-SIZE]) != data[-SIZE:]:
            raise CorruptError("a plan does not match its checksum: damaged")
        if data[: len(MAGIC)] != MAGIC:
            raise CorruptError("a plan does not begin with its magic: damaged")
        read = VERSIONS.of(data[len(MAGIC)])
        return read(data)


def _read(data: bytes) -> CollectionPlan:
    """Return the plan in a file of version 2, whose digest and magic are right."""
    _, _, reserved, epoch, random, time, count = HEADER.unpack_from(data)
    if any(reserved):
        raise VersionError("a plan has fields of a newer version: use a newer pltz")
    begin = HEADER.size + ENDED.size
    if len(data) < begin + SIZE:
        raise CorruptError("a plan does not have the size it claims: damaged")
    ended, dropped, known, entries = ENDED.unpack_from(data, HEADER.size)
    if begin + (count + entries + 1) * SIZE != len(data):
        raise CorruptError("a plan does not have the size it claims: damaged")
    if not 0 < epoch <= MAX_EPOCH or ended >= epoch:
        raise CorruptError(f"a plan of epoch {epoch} that ends those up to {ended}: damaged")
    names = list(_split(data[begin:-SIZE]))
    condemned, over = frozenset(names[:count]), frozenset(names[count:])
    return CollectionPlan(epoch, random, condemned, time, ended, dropped, known, over)


VERSIONS = Readers("the plan", {VERSION: _read})


def _split(data: bytes) -> Iterable[bytes]:
    return (data[at : at + SIZE] for at in range(0, len(data), SIZE))

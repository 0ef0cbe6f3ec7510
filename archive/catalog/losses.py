"""Losses: what was in the packs that repair gave up, as far as anything tells. Spec: FORMAT.md, "Lost packs".

A row of the manifest names the pack, and an object of its own lists the keys of sessions and segments that were not
read. An object that is damaged or gone lists nothing, so that any session may have been in the pack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from pltz.archive.errors import StoreError
from pltz.archive.format import object_names
from pltz.archive.format.manifest import LostPack
from pltz.archive.humanize import counted
from pltz.archive.storage.store import Store
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.identity import NONE, SIZE, digest

HEADER = struct.Struct("<4sB3xII")  # magic, version, counts of sessions and segments
MAGIC, VERSION = b"PLTl", 1
PERSON = b"pltz lost keys"
KEY_SIZE = 5  # bytes of the key of a session or segment, as indexes have it


class PackState(Enum):
    """The state of a pack that hides what it may hold."""

    DAMAGED = "damaged"  # there, with bytes that cannot be read
    LOST = "lost"  # repair gave it up
    MISSING = "missing"  # damage: the manifest names it, and it is not there


class LostKeys(NamedTuple):
    """First 36 bits of the keys of sessions, and of the ids of segments, that a lost pack had."""

    sessions: frozenset[int] = frozenset()
    segments: frozenset[int] = frozenset()

    def encode(self) -> bytes:
        """Return the bytes of its object, which end with the digest that is its name."""
        keys = [*sorted(self.sessions), *sorted(self.segments)]
        head = HEADER.pack(MAGIC, VERSION, len(self.sessions), len(self.segments))
        data = head + b"".join(key.to_bytes(KEY_SIZE, "big") for key in keys)
        return data + digest(PERSON, data)

    @classmethod
    def decode(cls, data: bytes, name: bytes) -> LostKeys:
        """Return the keys in an object of this name. Raises CorruptError."""
        if len(data) < HEADER.size + SIZE or not name == data[-SIZE:] == digest(PERSON, data[:-SIZE]):
            raise CorruptError("the keys of a lost pack do not match their checksum: damaged")
        magic, version, sessions, segments = HEADER.unpack_from(data)
        body = data[HEADER.size : -SIZE]
        if (magic, version) != (MAGIC, VERSION) or len(body) != KEY_SIZE * (sessions + segments):
            raise CorruptError("the keys of a lost pack do not have the size they claim: damaged")
        keys = [int.from_bytes(body[at : at + KEY_SIZE], "big") for at in range(0, len(body), KEY_SIZE)]
        return cls(frozenset(keys[:sessions]), frozenset(keys[sessions:]))


@dataclass(frozen=True)
class Loss:
    """A pack that repair gave up.

    Attributes:
        time: when, in seconds since 1970.
        missing: number of records that were not read; None if unknown.
        complete: whether ``sessions`` and ``segments`` list everything in the pack that was not read.
        sessions, segments: first 36 bits of session keys and segment ids.
        acknowledged: time in seconds since 1970, or None.
    """

    pack: bytes
    time: int
    missing: int | None
    complete: bool
    sessions: frozenset[int]
    segments: frozenset[int]
    acknowledged: int | None = None

    def __str__(self) -> str:
        """Return it as a sentence for the user."""
        what = "an unknown number of records" if self.missing is None else counted(self.missing, "record")
        sessions = counted(len(self.sessions), "session")
        named = f"{sessions} among them" if self.complete else "of which sessions is not known"
        return f"repair gave it up: {what} lost, {named}; pltz archive repair --acknowledge ends this message"


class Losses:
    """Reads what lost packs had. Each object is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, LostKeys | None] = {NONE: None}

    def of(self, rows: Mapping[bytes, LostPack]) -> list[Loss]:
        """Return the losses of a manifest, in the order of their packs. Raises StoreError."""
        found = []
        for pack, row in sorted(rows.items()):
            keys = self._keys(row.keys)
            sets = keys or LostKeys()
            found.append(Loss(pack, row.time, row.missing, keys is not None, *sets, row.acknowledged or None))
        return found

    def _keys(self, name: bytes) -> LostKeys | None:
        if name not in self._known:
            try:
                self._known[name] = LostKeys.decode(bytes(self._store.view(object_names.lost_keys(name))), name)
            except (CorruptError, FileNotFoundError):
                self._known[name] = None
        return self._known[name]

    def put(self, missing: int | None, complete: bool, sessions: Iterable[int], segments: Iterable[int]) -> LostPack:
        """Put the keys of a pack that is given up, durably, and return the row that names them.

        Arguments as in `Loss`. Raises StoreError, WriterFailed.
        """
        name = NONE
        if complete:
            data = LostKeys(frozenset(sessions), frozenset(segments)).encode()
            name = data[-SIZE:]
            if not self._store.put(object_names.lost_keys(name), data):
                raise StoreError(f"{object_names.lost_keys(name)} holds other bytes than its name says: move it away")
        return LostPack(self._store.now(), missing, 0, name)

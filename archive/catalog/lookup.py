"""The look-up: from the identity of a segment, session or version to the places where its records lie.

    digest --indexes--> places, which are hints --read--> records, which decide

A damaged index is dropped and its packs are scanned, so a look-up misses nothing that can be read. Damaged
records are noted as problems and left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pltz.archive.catalog.listing import Found, Listing
from pltz.archive.catalog.problems import Problems
from pltz.archive.encryption.keys import Encryption
from pltz.archive.format.context import RUN, WITHIN
from pltz.archive.format.ids import LEAF, NONE, version_id
from pltz.archive.format.index_file import (
    MARKS,
    SESSIONS,
    Location,
    Lookup,
    gather,
    key_of_session,
    keys_in,
    keys_of,
)
from pltz.archive.format.record import FORGET, UNDELETE, unpack_tags
from pltz.archive.format.run import OlderVersion, unpack_run
from pltz.plt_codec.errors import CorruptError, FormatError

T = TypeVar("T")

READ = 1 << 14  # records of sessions kept in memory
PACK_BITS = 30  # bits of an offset in an address: a pack has at most 2^30 bytes


@dataclass(frozen=True)
class Version:
    """One version of a session as the catalogue has it.

    Attributes:
        time: seconds since 1970.
        leaf: id of the last segment of the tower that it is in. It is its own last one where ``lacks`` is 0.
        kind: 0 chat, 1 text, 2 ids.
        lacks: number of the last segments of that tower that it does not have: it ends within a run.
        leaf_prefix: first 4 bytes of the id of its own last segment.
    """

    id: bytes
    tenant: str
    name: str
    version: int
    time: int
    tags: dict[str, str]
    leaf: bytes
    kind: int
    target: bytes
    tokenizer: bytes
    forgotten: bool
    location: Location
    leaf_prefix: bytes
    lacks: int = 0

    @property
    def order(self) -> tuple[int, int, bytes]:
        """Return the sort key that puts versions of a session oldest first."""
        return self.version, self.time, self.leaf_prefix


def version_of(item: Found) -> bytes:
    """Return the id, 16 bytes, of the version in the fields of a session's record."""
    r = item.record
    return version_id(key_of_session(r, item.context), r.version, r.leaf, r.time)


def older_versions(item: Found) -> dict[bytes, OlderVersion]:
    """Return the versions of a session that a record has beside that in its fields, by their ids.

    Raises CorruptError.
    """
    if not item.context.mode & RUN or item.record.name is None:
        return {}
    key = key_of_session(item.record, item.context)
    return {version_id(key, v.number, v.leaf, v.time): v for v in unpack_run(item.record).versions}


def _rank(item: Found) -> int:
    """Return the sort key that puts records within runs first, then runs, and last those that have a neighbour."""
    if item.record.neighbour != NONE:
        return 3
    return 0 if item.context.mode == WITHIN else 1 if item.context.mode & RUN else 2


class RecordLookup:
    """Looks up records in the packs that a listing has."""

    def __init__(self, listing: Listing, keys: Encryption, problems: Problems) -> None:
        self._listing, self._keys, self._problems = listing, keys, problems
        self._read: dict[Location, Found] = {}  # records of sessions, for `versions`

    def find(self, section: int, identity: bytes) -> list[Found]:
        """Return the records whose full segment id, session key or version id matches, sorted by location.

        Those of a segment within a run come first, then runs: its other records may be about to be collected. Those
        that have a neighbour come last: it may be collected or erased once there are others. Damaged records are noted
        as problems and left out. Raises StoreError.
        """
        found = []
        for location in self.places(section, identity):
            item = self._maybe(location)
            if item is None or (section, identity) not in keys_of(item.record, item.context):
                continue
            if section == MARKS or not self._keys.gone(item.context, identity):
                found.append(item)
        special = any(item.context.mode >= RUN or item.record.neighbour != NONE for item in found)
        return sorted(found, key=_rank) if special else found

    def at(self, location: Location) -> Found:
        """Return the record at a location. Raises FormatError, FileNotFoundError, StoreError."""
        pack = self._listing.opened(location.pack)
        record = pack.record(location.offset)
        return Found(location, record, pack.head.contexts[record.context])

    def is_sound(self, location: Location) -> bool:
        """Return whether a record reads now. `versions` may remember one that was damaged since. Raises StoreError."""
        try:
            self.at(location)
        except (FormatError, FileNotFoundError):
            return False
        return True

    def places(self, section: int, identity: bytes) -> list[Location]:
        """Return the sorted locations, in packs that are there, where records of this identity may lie.

        Only indexes are read.
        """
        places = [at for at in self.named(section, identity) if at.pack in self._listing.packs]
        return sorted(places) if len(places) > 1 else places

    def named(self, section: int, identity: bytes) -> set[Location]:
        """Return the locations that the indexes name for an identity, including those in absent packs."""
        places = set(self._listing.tail.find(section, identity))
        for index in list(self._listing.indexes.values()):
            places.update(self._ask(index, lambda i: i.find(section, identity)))
        return places

    def known(self, section: int, identities: Sequence[bytes]) -> set[bytes]:
        """Return those identities that some index may hold.

        The others are not in the archive. Only indexes are read.
        """
        if not identities:
            return set()
        keys = keys_in(identities)
        hit = self._listing.tail.has(section, keys)
        for index in list(self._listing.indexes.values()):
            hit |= self._ask(index, lambda i: i.has(section, keys))
        return {identities[n] for n in np.flatnonzero(hit).tolist()}

    def versions(self, domain: bytes, name: str) -> list[Version]:
        """Return the versions of a session, oldest first, forgotten ones included.

        Raises:
            CorruptError: there are versions, and none of them is sound.
            ArchiveError: a collector kept moving the records.
            StoreError: the store failed.
        """
        return self._listing.stable(lambda: self._versions(domain, name))

    def all_versions(self) -> list[Version]:
        """Return all versions of all sessions, sorted by tenant and name. Raises ArchiveError, StoreError."""
        return self._listing.stable(self._all_versions)

    def histories(self) -> Iterator[list[Version]]:
        """Yield the list of versions of each session, oldest first, in the order of session keys.

        Memory stays small for a large catalogue because one session is decoded at a time. Raises StoreError.
        """
        self._listing.absent()  # adds packs that an incomplete listing omitted
        packs = sorted(self._listing.packs)
        starts = {pack: number << PACK_BITS for number, pack in enumerate(packs)}
        for index in self._listing.lookups:
            self._ask(index, lambda i: i.columns(SESSIONS))  # a damaged index is dropped here
        keys, places = gather(self._listing.lookups, SESSIONS, starts)
        bounds = [*np.flatnonzero(np.diff(keys, prepend=keys[:1] - np.uint64(1))).tolist(), len(keys)]
        for begin, end in itertools.pairwise(bounds):
            at = [divmod(place, 1 << PACK_BITS) for place in places[begin:end].tolist()]
            found = (self._maybe(Location(packs[number], offset)) for number, offset in at)
            versions = self._distinct((item for item in found if item), [])
            for _, rows in itertools.groupby(versions, key=lambda v: (v.tenant, v.name)):
                yield list(rows)

    def marked(self) -> bool:
        """Return whether any version was ever forgotten or undeleted."""
        return any(index.holds(MARKS) for index in self._listing.lookups)

    def mark(self, version: bytes) -> tuple[int, int]:
        """Return (verb, counter) of the mark in force for a version; (UNDELETE, 0) without a mark."""
        if not self.marked():
            return UNDELETE, 0
        marks = [item.record.mark for item in self.find(MARKS, version) if item.record.mark]
        counter, verb = max(((m.counter, -m.verb) for m in marks), default=(0, UNDELETE))
        return -verb, counter

    def _versions(self, domain: bytes, name: str) -> list[Version]:
        self._listing.absent()  # adds packs that an incomplete listing omitted
        found = self._sessions(self._keys.session_key(domain, name))
        failures: list[CorruptError] = []
        sound = self._distinct(iter(found), failures)
        if failures and not sound:
            raise failures[0]
        return [v for v in sound if v.name == name]

    def _sessions(self, key: bytes) -> list[Found]:
        """Return the records of a session, as `find`. Each is read once: a session grows by a version per turn.

        A record at a place of a pack never changes, but may be damaged later. Whoever relies on one reads it again.
        """
        found = []
        for location in self.places(SESSIONS, key):
            item = self._read.get(location) or self._maybe(location)
            if item is None or (SESSIONS, key) not in keys_of(item.record, item.context):
                continue
            if len(self._read) >= READ:
                self._read.clear()
            self._read[location] = item
            if not self._keys.gone(item.context, key):
                found.append(item)
        return found

    def _all_versions(self) -> list[Version]:
        self._listing.absent()  # adds packs that an incomplete listing omitted
        packs, places = self._listing.packs, set[Location]()
        for index in self._listing.lookups:
            places.update(self._ask(index, lambda i: [at for _, at in i.entries(SESSIONS) if at.pack in packs]))
        return self._distinct((item for item in map(self._maybe, sorted(places)) if item), [])

    def _in_record(self, item: Found) -> Iterator[Version]:
        """Yield the versions that a session's record has.

        Raises CorruptError where its tags or its older versions are damaged, Erased.
        """
        r, c = item.record, item.context
        tenant, name, packed = self._keys.session(c, r)
        tags = unpack_tags(packed)
        own = OlderVersion(0, r.version, r.time, r.leaf[:LEAF])
        for identity, v in ({version_of(item): own} | older_versions(item)).items():
            yield Version(
                identity,
                tenant,
                name,
                v.number,
                v.time,
                tags,
                r.leaf,
                c.kind,
                c.target,
                c.tokenizer,
                self.mark(identity)[0] == FORGET,
                item.location,
                v.leaf,
                v.lacks,
            )

    def _distinct(self, items: Iterator[Found], failures: list[CorruptError]) -> list[Version]:
        """Return each version once, however many records it has.

        A record in a pack that is not condemned is preferred, and the longest run. Erased sessions are left out.
        """
        found: dict[bytes, Version] = {}
        ranks: dict[bytes, tuple[bool, int]] = {}
        for item in items:
            if item.record.name is None:
                continue
            if self._keys.gone(item.context, key_of_session(item.record, item.context)):
                continue
            try:
                versions = list(self._in_record(item))
            except CorruptError as exc:
                self._problems.note("session", f"{item.location.pack.hex()} at {item.location.offset}", str(exc))
                failures.append(exc)
                continue
            rank = item.location.pack in self._listing.condemned, -(item.record.tokens if len(versions) > 1 else 0)
            for version in versions:
                if version.id not in found or rank < ranks[version.id]:
                    found[version.id], ranks[version.id] = version, rank
        return sorted(found.values(), key=lambda v: (v.tenant, v.name, v.order))

    def _maybe(self, location: Location) -> Found | None:
        """Return the record at a location, None where it is damaged or its pack was deleted."""
        try:
            return self.at(location)
        except FormatError as exc:
            where = f"{location.pack.hex()} at {location.offset}"
            self._problems.note("record", where, str(exc), pack=location.pack)
        except FileNotFoundError:
            self._listing.note_stale()
        return None

    def _ask(self, index: Lookup, question: Callable[[Lookup], T]) -> T:
        """Ask an index. If it turns out to be damaged, drop it, scan its packs and ask the tail."""
        try:
            return question(index)
        except FormatError as exc:
            self._listing.drop_index(index, str(exc))
            return question(self._listing.tail)

"""The view of one process on an archive: packs, indexes, plans, and records by identity.

`View.refresh` lists plans, then packs, then indexes. Packs that no index covers are scanned into memory.
`View.absent` says what became of packs that something names and that are not listed. Lookups go through
indexes, which give hints, to records, which decide. A damaged index is dropped and its packs are scanned.
Damage to a pack costs only the damaged bytes. Every problem met is listed once in ``View.problems``.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from pltz.archive.catalog.ledger import Ledger, Loss, PackState
from pltz.archive.encryption.keys import Encryption, Plaintext
from pltz.archive.errors import ArchiveError, UnreadableError
from pltz.archive.format import object_names
from pltz.archive.format.context import Context
from pltz.archive.format.ids import version_id
from pltz.archive.format.index_file import (
    MARKS,
    SESSIONS,
    Entries,
    FileIndex,
    Location,
    Lookup,
    MemoryIndex,
    by_section,
    gather,
    joined,
    key_of,
    key_of_session,
    keys_in,
    keys_of,
)
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.plan import Plan
from pltz.archive.format.record import FORGET, UNDELETE, Record, unpack_tags
from pltz.archive.storage.store import Store, is_there
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError

T = TypeVar("T")

OPEN_PACKS = 256  # packs whose header and tables stay in memory
LOOKS = 8  # attempts of a look-up whose packs a collector deletes meanwhile
MOST_PROBLEMS = 10_000  # at most this many are listed
AT_ONCE = 1 << 14  # keys of a scanned pack collected as Python objects before they become columns
PACK_BITS = 30  # bits of an offset in an address: a pack has at most 2^30 bytes
MAX_PLAN = 1 << 26  # bytes


@dataclass(frozen=True)
class Problem:
    """A problem found in the archive.

    ``kind``: the kind of file or object it concerns, such as pack, record, index, plan, ledger, loss,
    session, settings, parity, keys, erase or freshness.
    """

    kind: str
    name: str  # name of the file, or of the session's version
    what: str


def tell(problems: list[Problem], told: set[Problem], found: Problem) -> None:
    """Append a problem to ``problems`` unless it is in ``told``.

    After MOST_PROBLEMS entries, one last entry says that there are more.
    """
    if found in told or len(problems) > MOST_PROBLEMS:
        return
    if len(problems) == MOST_PROBLEMS:
        found = Problem(found.kind, "", f"more than {MOST_PROBLEMS} problems: no more are listed")
    told.add(found)
    problems.append(found)


class Found(NamedTuple):
    """A record, its location and the context that its pack gives it."""

    location: Location
    record: Record
    context: Context


@dataclass(frozen=True)
class Version:
    """One version of a session as the catalogue has it.

    ``time``: seconds since 1970; ``kind``: 0 chat, 1 text, 2 ids.
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

    @property
    def order(self) -> tuple[int, int, bytes]:
        """Return the sort key that puts versions of a session oldest first."""
        return self.version, self.time, self.leaf


def version_of(item: Found) -> bytes:
    """Return the version id, 16 bytes, of a session's record."""
    r = item.record
    return version_id(key_of_session(r, item.context), r.version, r.leaf, r.time)


class View:
    """The packs, indexes, plans and problems of an archive as one process sees them."""

    def __init__(self, store: Store, keys: Encryption | None = None, unused: Iterable[str] = ()):
        self.store = store
        self.keys = keys or Plaintext()
        self.packs: dict[bytes, int] = {}  # id -> bytes
        self.indexes: dict[str, FileIndex] = {}
        self.tail = MemoryIndex()
        self.epoch = 0
        self.condemned: frozenset[bytes] = frozenset()
        self.problems: list[Problem] = []
        self._told: set[Problem] = set()
        self.unreadable: set[bytes] = set()  # packs with bytes that could not be read
        self.newest: bytes | None = None  # the last pack that was put through this view
        self.vanished = 0  # look-ups of a record in a pack that was gone: a collector moved it
        self.ledger = Ledger(store)
        self.unlisted: set[bytes] = set()  # packs that exist although the listing of packs/ omits them
        self._seen: set[bytes] = set()  # packs ever listed, less those that the ledger says are deleted
        self._absent: dict[bytes, PackState] | None = None  # valid until packs are listed again
        self._plans: dict[int, Plan] = {}
        self._bad = set(unused)  # names of index files that are skipped
        self._opened: OrderedDict[bytes, Pack] = OrderedDict()

    def refresh(self) -> None:
        """Read the changes that others made.

        Raises:
            StoreError: the store failed.
            ArchiveError: a plan is damaged.
        """
        self.read_plans()
        self.keys.refresh()
        self._list()

    def _list(self) -> None:
        """List packs and indexes again. Plans and keys stay as the writer knows them."""
        packs = object_names.packs_listed(self.store.list(object_names.PACKS))
        for pack in [p for p in self._opened if packs.get(p) != self.packs.get(p)]:
            del self._opened[pack]
        self.packs = packs
        self._seen |= set(packs)
        self._absent = None
        self.unlisted = set()
        self._read_indexes()
        covered = set(self.tail.packs.items()).union(*(i.packs.items() for i in self.indexes.values()))
        for pack, _ in sorted(self.packs.items() - covered):
            self._cover(pack)

    def read_plans(self) -> frozenset[bytes]:
        """Read new plans and return the packs that they condemn.

        Raises:
            ArchiveError: a plan is damaged. Garbage collection must wait until a person has looked at it.
            StoreError: the store failed.
        """
        before = self.condemned
        listed = object_names.plans_among(self.store.list(object_names.PLANS))
        for epoch in sorted(listed - set(self._plans)):
            name = object_names.plan(epoch)
            try:
                plan = Plan.decode(self.store.read(name, 0, MAX_PLAN))
                if plan.epoch != epoch:
                    raise VersionError(f"{name} says it is {plan.name}")
            except FormatError as exc:
                self.problem("plan", object_names.last_part(name), str(exc))
                raise ArchiveError(
                    f"{name} is damaged ({exc}): writing is not safe before it is looked at"
                ) from exc
            except FileNotFoundError:  # deleted since it was listed, as old plans may be
                continue
            self._plans[epoch] = plan
        self.epoch = max((plan.epoch for plan in self._plans.values()), default=0)
        self.condemned = frozenset[bytes]().union(*(plan.condemned for plan in self._plans.values()))
        return self.condemned - before

    def condemned_by(self, time: int) -> frozenset[bytes]:
        """Return the packs condemned by plans of ``time`` (seconds since 1970) or earlier."""
        plans = [plan.condemned for plan in self._plans.values() if plan.time <= time]
        return frozenset[bytes]().union(*plans)

    def has_plan(self, epoch: int) -> bool:
        """Return whether the plan of an epoch was read."""
        return epoch in self._plans

    def absent(self) -> dict[bytes, PackState]:
        """Return the packs that something names and that are not there, with the state of each.

        Indexes name packs, a parity file names its pack, and a plan names those that it condemned. A pack
        that was listed before is named too. A pack that exists although it is not listed is added to the
        view. It is in ``unlisted`` as well where a second listing omits it too. The answer holds until packs
        are listed again. Raises StoreError.
        """
        if self._absent is None:
            names = set(self.store.list(object_names.PARITY))
            self.ledger.refresh(names)
            parity = object_names.packs_among(names)
            named = parity.union(
                self._seen, self.condemned, self.tail.packs, *(i.packs for i in self.indexes.values())
            )
            unseen = named - set(self.packs)
            unexplained = {pack for pack in unseen if self.ledger.state(pack) is None}
            there = {pack for pack in unexplained if is_there(self.store, object_names.pack(pack))}
            taken = self._take_in(there) if there else set()
            if unexplained - taken:
                self.ledger.refresh(names)  # after seeing the absence: entries precede deletions
            state = self.ledger.state
            self._absent = {pack: state(pack) or PackState.MISSING for pack in unseen - taken}
            self._seen -= self.ledger.deleted
            for name, why in self.ledger.damaged.items():
                self.problem("ledger", name, why)
        return self._absent

    def _take_in(self, there: set[bytes]) -> set[bytes]:
        """Add packs that exist although they were not listed, and return those that still exist.

        Raises StoreError.
        """
        sizes, taken = object_names.packs_listed(self.store.list(object_names.PACKS)), set[bytes]()
        for pack in sorted(there):
            try:
                size = sizes[pack] if pack in sizes else self.store.open(object_names.pack(pack)).size
            except FileNotFoundError:  # a collector deleted it meanwhile, and the ledger says so
                continue
            except UnreadableError:
                size = 0
            if pack not in sizes:
                self.unlisted.add(pack)
                self.problem("pack", pack.hex(), "is there, and the list of packs/ leaves it out: check the store")
            self.packs[pack] = size
            self._cover(pack)
            taken.add(pack)
        self._seen |= taken
        return taken

    def state_of(self, pack: bytes) -> PackState:
        """Return the state of a pack that something named. Raises StoreError."""
        absent = self.absent()
        return PackState.PRESENT if pack in self.packs else absent.get(pack, PackState.MISSING)

    def missing(self) -> set[bytes]:
        """Return the absent packs that neither a collector nor repair accounts for. Raises StoreError."""
        return {pack for pack, state in self.absent().items() if state is PackState.MISSING}

    def losses(self) -> list[Loss]:
        """Return the unacknowledged losses of packs that did not come back. Raises StoreError."""
        self.absent()
        known = self.ledger.losses()
        return [loss for loss in known if loss.acknowledged is None and loss.pack not in self.packs]

    def missing_plans(self) -> set[int]:
        """Return the epochs of plans that are not listed although their copies are there. Raises StoreError.

        It is unknown which packs such a plan condemns.
        """
        copies = object_names.plans_among(self.store.list(object_names.PARITY))
        if copies - set(self._plans):
            self.read_plans()
        return copies - set(self._plans)

    def problem(self, kind: str, name: str, what: str) -> None:
        """Record a problem once. Beyond MOST_PROBLEMS only the fact that there are more is recorded."""
        tell(self.problems, self._told, Problem(kind, name, what))

    def add_pack(self, pack: bytes, size: int, sections: Mapping[int, Entries]) -> None:
        """Add a pack that this process has just put, with its index entries by section."""
        self.packs[pack] = size
        self.newest = pack
        self.tail.add_pack(pack, size, sections)

    def reset_tail(self) -> None:
        """Drop the scanned entries, which an index file has now.

        `refresh` scans packs that no index covers.
        """
        self.tail = MemoryIndex()

    def pack(self, pack: bytes) -> Pack:
        """Return a pack opened for reading. Raises FormatError, FileNotFoundError, StoreError."""
        if pack not in self._opened:
            name = object_names.pack(pack)
            self._opened[pack] = Pack(
                lambda at, size: self.store.read(name, at, size),
                self.packs.get(pack, 0),
                archive=self.ledger.archive,
            )
            if len(self._opened) > OPEN_PACKS:
                self._opened.popitem(last=False)
        self._opened.move_to_end(pack)
        return self._opened[pack]

    def scan(self, pack: bytes) -> Iterator[Found | Damage]:
        """Yield all records and damaged ranges of a pack, read from end to end in pieces.

        Raises FormatError, FileNotFoundError, StoreError.
        """
        file = self.store.open(object_names.pack(pack))
        opened = Pack(file.read, file.size, archive=self.ledger.archive)
        for copy in opened.damaged_copies:
            yield Damage(0, opened.head.size, f"the {copy} is damaged, the other is used")
        for item in opened.scan():
            if isinstance(item, Damage):
                yield item
            else:
                yield Found(Location(pack, item[0]), item[1], opened.head.contexts[item[1].context])

    def find(self, section: int, identity: bytes) -> list[Found]:
        """Return the records whose full segment id, session key or version id matches, sorted by location.

        Damaged records are listed as problems and left out. Raises StoreError.
        """
        found = []
        for location in self.places(section, identity):
            try:
                item = self.at(location)
            except FormatError as exc:
                self.problem("record", f"{location.pack.hex()} at {location.offset}", str(exc))
                self.unreadable.add(location.pack)
                continue
            except FileNotFoundError:
                self.vanished += 1
                continue
            if (section, identity) not in keys_of(item.record, item.context):
                continue
            if section == MARKS or not self.keys.gone(item.context, identity):
                found.append(item)
        return found

    def at(self, location: Location) -> Found:
        """Return the record at a location. Raises FormatError, FileNotFoundError, StoreError."""
        pack = self.pack(location.pack)
        record = pack.record(location.offset)
        return Found(location, record, pack.head.contexts[record.context])

    def versions(self, domain: bytes, name: str) -> list[Version]:
        """Return the versions of a session, oldest first, forgotten ones included.

        Raises:
            CorruptError: there are versions, and none of them is sound.
            ArchiveError: a collector kept moving the records.
            StoreError: the store failed.
        """
        return self.look(lambda: self._versions(domain, name))

    def look(self, work: Callable[[], T]) -> T:
        """Return the result of ``work`` from an attempt during which no pack vanished.

        Records that a collector moved are in packs that were not listed yet, so packs are listed again before
        each new attempt. Raises ArchiveError after LOOKS attempts.
        """
        for _ in range(LOOKS):
            vanished, found = self.vanished, work()
            if self.vanished == vanished:
                return found
            self._list()
        raise ArchiveError("a collector keeps moving what is looked at: try again")

    def _versions(self, domain: bytes, name: str) -> list[Version]:
        self.absent()  # adds packs that an incomplete listing omitted
        found = self.find(SESSIONS, self.keys.session_key(domain, name))
        failures: list[CorruptError] = []
        sound = self._distinct(iter(found), failures)
        if failures and not sound:
            raise failures[0]
        return [v for v in sound if v.name == name]

    def all_versions(self) -> list[Version]:
        """Return all versions of all sessions, sorted by tenant and name. Raises ArchiveError, StoreError."""
        return self.look(self._all_versions)

    def _all_versions(self) -> list[Version]:
        self.absent()  # adds packs that an incomplete listing omitted
        places = set[Location]()
        for index in self._lookups():
            places.update(
                self._guard(index, lambda i: [at for _, at in i.entries(SESSIONS) if at.pack in self.packs])
            )
        return self._distinct((item for item in map(self._maybe, sorted(places)) if item), [])

    def histories(self) -> Iterator[list[Version]]:
        """Yield the list of versions of each session, oldest first, in the order of session keys.

        Memory stays small for a large catalogue because one session is decoded at a time. Raises StoreError.
        """
        self.absent()  # adds packs that an incomplete listing omitted
        packs = sorted(self.packs)
        starts = {pack: number << PACK_BITS for number, pack in enumerate(packs)}
        for index in self._lookups():
            self._guard(index, lambda i: i.columns(SESSIONS))  # a damaged index is dropped here
        keys, places = gather(self._lookups(), SESSIONS, starts)
        bounds = [*np.flatnonzero(np.diff(keys, prepend=keys[:1] - np.uint64(1))).tolist(), len(keys)]
        for begin, end in itertools.pairwise(bounds):
            at = [divmod(place, 1 << PACK_BITS) for place in places[begin:end].tolist()]
            found = (self._maybe(Location(packs[number], offset)) for number, offset in at)
            versions = self._distinct((item for item in found if item), [])
            for _, rows in itertools.groupby(versions, key=lambda v: (v.tenant, v.name)):
                yield list(rows)

    def state(self, version: bytes) -> tuple[int, int]:
        """Return (verb, counter) of the mark in force for a version; (UNDELETE, 0) without a mark."""
        if not self.marked():
            return UNDELETE, 0
        marks = [item.record.mark for item in self.find(MARKS, version) if item.record.mark]
        counter, verb = max(((m.counter, -m.verb) for m in marks), default=(0, UNDELETE))
        return -verb, counter

    def version(self, item: Found) -> Version:
        """Return a session's record as a version.

        Raises CorruptError where its tags are damaged, Erased.
        """
        r, c = item.record, item.context
        identity = version_of(item)
        tenant, name, tags = self.keys.session(c, r)
        return Version(
            identity,
            tenant,
            name,
            r.version,
            r.time,
            unpack_tags(tags),
            r.leaf,
            c.kind,
            c.target,
            c.tokenizer,
            self.state(identity)[0] == FORGET,
            item.location,
        )

    def _distinct(self, items: Iterator[Found], failures: list[CorruptError]) -> list[Version]:
        """Return each version once, however many records it has.

        A record in a pack that is not condemned is preferred. Erased sessions are left out.
        """
        found: dict[bytes, Version] = {}
        for item in items:
            if item.record.name is None:
                continue
            if self.keys.gone(item.context, key_of_session(item.record, item.context)):
                continue
            try:
                version = self.version(item)
            except CorruptError as exc:
                self.problem("session", f"{item.location.pack.hex()} at {item.location.offset}", str(exc))
                failures.append(exc)
                continue
            if version.id not in found or found[version.id].location.pack in self.condemned:
                found[version.id] = version
        return sorted(found.values(), key=lambda v: (v.tenant, v.name, v.order))

    def _maybe(self, location: Location) -> Found | None:
        try:
            return self.at(location)
        except FormatError as exc:
            self.problem("record", f"{location.pack.hex()} at {location.offset}", str(exc))
            self.unreadable.add(location.pack)
        except FileNotFoundError:
            self.vanished += 1
        return None

    def places(self, section: int, identity: bytes) -> list[Location]:
        """Return the sorted locations, in packs that are there, where records of this identity may lie.

        Only indexes are read.
        """
        named = self._named(section, identity)
        places = [at for at in named if at.pack in self.packs]
        return sorted(places) if len(places) > 1 else places

    def _named(self, section: int, identity: bytes) -> set[Location]:
        """Return the locations that the indexes name for an identity, including those in absent packs."""
        places = set(self.tail.find(section, identity))
        for index in list(self.indexes.values()):
            places.update(self._guard(index, lambda i: i.find(section, identity)))
        return places

    @property
    def hurt(self) -> bool:
        """Return whether damage may hide records. `lost` and `blind` say which. Raises StoreError."""
        return bool(self.missing() or self.losses() or self.unreadable)

    def lost(self, section: int, identity: bytes, since: int = 0) -> PackState | None:
        """Return the state of the pack that keeps a record of this identity from being read.

        - MISSING: an index names the record in a missing pack.
        - LOST: an unacknowledged loss, recorded at ``since`` (seconds since 1970) or later, names it.
        - PRESENT: an index names it at a damaged place.
        - None: no such pack is known.

        Raises ArchiveError, StoreError.
        """
        return self.look(lambda: self._lost(section, identity, since))

    def _lost(self, section: int, identity: bytes, since: int) -> PackState | None:
        missing = self.missing()
        named = self._named(section, identity)
        if any(location.pack in missing for location in named):
            return PackState.MISSING
        key = key_of(identity)
        for loss in self.losses():
            keys = loss.entry.sessions if section == SESSIONS else loss.entry.segments
            if key in keys and loss.entry.time >= since:
                return PackState.LOST
        for location in named:
            try:
                if location.pack in self.packs:
                    self.at(location)
            except FormatError:
                return PackState.PRESENT
            except FileNotFoundError:
                self.vanished += 1
        return None

    def hiding(self) -> set[bytes]:
        """Return the packs that may hold sessions that look-ups miss: damaged, missing or lost.

        Raises StoreError.
        """
        lost = {loss.pack for loss in self.losses()}
        return (self.unreadable & set(self.packs)) | self.missing() | lost

    def blind(self) -> set[bytes]:
        """Return the packs of `hiding` whose contents neither an index nor a complete loss entry lists.

        Raises StoreError.
        """
        covered = set[bytes]().union(*(index.packs for index in self.indexes.values()))
        told = {loss.pack for loss in self.losses() if loss.entry.complete}
        untold = {loss.pack for loss in self.losses() if not loss.entry.complete}
        return (self.hiding() - covered - told) | untold

    def known(self, section: int, identities: Sequence[bytes]) -> set[bytes]:
        """Return those identities that some index may hold.

        The others are not in the archive. Only indexes are read.
        """
        if not identities:
            return set()
        keys = keys_in(identities)
        hit = self.tail.has(section, keys)
        for index in list(self.indexes.values()):
            hit |= self._guard(index, lambda i: i.has(section, keys))
        return {identities[n] for n in np.flatnonzero(hit).tolist()}

    def marked(self) -> bool:
        """Return whether any version was ever forgotten or undeleted."""
        return any(index.holds(MARKS) for index in self._lookups())

    def _lookups(self) -> list[Lookup]:
        return [*self.indexes.values(), self.tail]

    def _guard(self, index: Lookup, ask: Callable[[Lookup], T]) -> T:
        """Ask an index. If it turns out to be damaged, drop it, scan its packs and ask the tail."""
        try:
            return ask(index)
        except FormatError as exc:
            for name, known in list(self.indexes.items()):
                if known is index:
                    self.problem("index", name, str(exc))
                    self._bad.add(name)
                    del self.indexes[name]
            for pack in sorted(index.packs):
                self._cover(pack)
            return ask(self.tail)

    def _read_indexes(self) -> None:
        listed = object_names.indexes_among(self.store.list(object_names.INDEXES))
        for name in set(self.indexes) - listed:
            del self.indexes[name]
        for name in sorted(listed - set(self.indexes) - self._bad):
            try:
                self.indexes[name] = FileIndex(self.store.open(object_names.index(name)))
            except FormatError as exc:
                self.problem("index", name, str(exc))
                self._bad.add(name)
            except FileNotFoundError:
                continue

    def _cover(self, pack: bytes) -> None:
        """Scan a pack into the tail unless an index covers it."""
        size = self.packs.get(pack)
        if size is None or self.tail.packs.get(pack) == size:
            return
        if any(index.packs.get(pack) == size for index in self.indexes.values()):
            return
        rows: list[tuple[int, bytes, int]] = []
        parts = [by_section(rows)]
        try:
            for item in self.scan(pack):
                if isinstance(item, Damage):
                    self.problem("pack", pack.hex(), f"{item.size} bytes at {item.offset}: {item.why}")
                    self.unreadable.add(pack)
                else:
                    at, record, context = item
                    rows += [(section, name, at.offset) for section, name in keys_of(record, context)]
                if len(rows) >= AT_ONCE:
                    parts.append(by_section(rows))
                    rows = []
        except FormatError as exc:
            self.problem("pack", pack.hex(), str(exc))
            self.unreadable.add(pack)
        except FileNotFoundError:
            self.vanished += 1
            self.packs.pop(pack, None)
        self.tail.add_pack(pack, size, joined([*parts, by_section(rows)]))

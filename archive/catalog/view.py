"""What one process sees of an archive: its packs, the indexes over them, the plans, and records by identity.

`refresh` lists plans, then packs, then indexes; packs that no index covers are scanned into memory. `absent` says what became of
packs that something names and that are not listed. Lookups go through indexes (hints) to records (which decide). A damaged index is dropped and its packs are scanned; a damaged pack costs what was damaged.
Everything wrong that was met is in ``problems``, once.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from pltz.archive.catalog.ledger import Ledger, Loss, PackState
from pltz.archive.encryption.keys import Clear, Keys
from pltz.archive.errors import ArchiveError, UnreadableError
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
from pltz.archive.format.record import FORGET, RESTORE, Record, unpack_labels
from pltz.archive.storage.store import Store, is_there
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError

T = TypeVar("T")

OPEN_PACKS = 256  # headers and tables kept
LOOKS = 8  # at what a collector moves meanwhile
MOST_PROBLEMS = 10_000  # listed
AT_ONCE = 1 << 14  # names of a scanned pack held as they are, before they are made columns
PACK_BITS = 30  # of an address: a pack is at most 2^30 bytes
NAME = re.compile(r"[0-9a-f]{32}")
PLAN_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Problem:
    """Something in the archive that is not as it should be.

    ``kind``: pack, record, index, plan, ledger, loss, session or settings.
    """

    kind: str
    name: str  # of the file, or of the session's version
    what: str


def tell(problems: list[Problem], told: set[Problem], found: Problem) -> None:
    """Add a problem that is not among those ``told``; beyond MOST_PROBLEMS only that there are more."""
    if found in told or len(problems) > MOST_PROBLEMS:
        return
    if len(problems) == MOST_PROBLEMS:
        found = Problem(found.kind, "", f"more than {MOST_PROBLEMS} problems: no more are listed")
    told.add(found)
    problems.append(found)


class Found(NamedTuple):
    """A record, where it is and what its pack says of it."""

    location: Location
    record: Record
    context: Context


@dataclass(frozen=True)
class Version:
    """One version of a session, as the catalogue has it. ``time``: seconds since 1970; ``kind``: 0 chat, 1 text, 2 ids."""

    id: bytes
    tenant: str
    name: str
    number: int
    time: int
    labels: dict[str, str]
    leaf: bytes
    kind: int
    target: bytes
    tokenizer: bytes
    forgotten: bool
    location: Location

    @property
    def order(self) -> tuple[int, int, bytes]:
        """Versions of a session, oldest first."""
        return self.number, self.time, self.leaf


def version_of(item: Found) -> bytes:
    """Version id of a session's record."""
    r = item.record
    return version_id(key_of_session(r, item.context), r.number, r.leaf, r.time)


class View:
    """See the head of this file."""

    def __init__(self, store: Store, keys: Keys | None = None, unused: Iterable[str] = ()):
        self.store = store
        self.keys = keys or Clear()
        self.packs: dict[bytes, int] = {}  # id -> bytes
        self.indexes: dict[str, FileIndex] = {}
        self.tail = MemoryIndex()
        self.epoch = 0
        self.condemned: frozenset[bytes] = frozenset()
        self.problems: list[Problem] = []
        self._told: set[Problem] = set()
        self.unreadable: set[bytes] = set()  # packs of which not every byte was understood
        self.newest: bytes | None = None  # the last pack that was put through this view
        self.vanished = 0  # records that were looked for in a pack that was gone: a collector moved them
        self.ledger = Ledger(store)
        self.unlisted: set[bytes] = set()  # packs that are there and that no list of packs/ had: it is short
        self._seen: set[bytes] = (
            set()
        )  # packs that were listed at any time, and that the ledger does not say are deleted
        self._absent: dict[bytes, PackState] | None = None  # since the last list of packs
        self._plans: dict[str, Plan] = {}
        self._bad = set(unused)  # names of index files that are not read
        self._opened: OrderedDict[bytes, Pack] = OrderedDict()

    def refresh(self) -> None:
        """See what others did. Raises StoreError, ArchiveError where a plan is damaged."""
        self.read_plans()
        self.keys.refresh()
        self._list()

    def _list(self) -> None:
        """What packs and indexes there are. Plans and keys stay as a writer has them in its hand."""
        packs = {bytes.fromhex(n): size for n, size in self.store.list("packs").items() if NAME.fullmatch(n)}
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
        """Look for new plans; the packs they condemn. Raises ArchiveError where one is damaged: collecting must wait for a person."""
        before = self.condemned
        for name in sorted(self.store.list("collect")):
            if PLAN_NAME.fullmatch(name) and name not in self._plans:
                try:
                    plan = Plan.decode(self.store.read(f"collect/{name}", 0, 1 << 26))
                    if plan.name != f"collect/{name}":
                        raise VersionError(f"plan {name} says it is {plan.name}")
                except FormatError as exc:
                    self.problem("plan", name, str(exc))
                    raise ArchiveError(
                        f"collect/{name} is damaged ({exc}): writing is not safe before it is looked at"
                    ) from exc
                except FileNotFoundError:  # deleted since, as older ones may be
                    continue
                self._plans[name] = plan
        self.epoch = max((plan.epoch for plan in self._plans.values()), default=0)
        self.condemned = frozenset[bytes]().union(*(plan.condemned for plan in self._plans.values()))
        return self.condemned - before

    def condemned_by(self, time: int) -> frozenset[bytes]:
        """Packs that a plan of ``time`` (seconds since 1970) or earlier condemned."""
        plans = [plan.condemned for plan in self._plans.values() if plan.time <= time]
        return frozenset[bytes]().union(*plans)

    def has_plan(self, epoch: int) -> bool:
        """Whether the plan of an epoch was seen."""
        return f"{epoch:016x}" in self._plans

    def absent(self) -> dict[bytes, PackState]:
        """Return the packs that something names and that are not there, and what became of each. Raises StoreError.

        An index names packs, a parity file its pack, a plan those that it condemned; a pack that was listed before is named by that. A
        pack that is there although it is not listed is taken in, and is in ``unlisted`` where another list leaves it out too.
        The answer holds until packs are listed again.
        """
        if self._absent is None:
            names = set(self.store.list("parity"))
            self.ledger.refresh(names)
            parity = {bytes.fromhex(name) for name in names if NAME.fullmatch(name)}
            named = parity.union(
                self._seen, self.condemned, self.tail.packs, *(i.packs for i in self.indexes.values())
            )
            unseen = named - set(self.packs)
            unexplained = {pack for pack in unseen if self.ledger.state(pack) is None}
            there = {pack for pack in unexplained if is_there(self.store, f"packs/{pack.hex()}")}
            taken = self._take_in(there) if there else set()
            if unexplained - taken:
                self.ledger.refresh(
                    names
                )  # after the absence was seen: who deletes a pack puts the entry first
            state = self.ledger.state
            self._absent = {pack: state(pack) or PackState.MISSING for pack in unseen - taken}
            self._seen -= self.ledger.deleted
            for name, why in self.ledger.damaged.items():
                self.problem("ledger", name, why)
        return self._absent

    def _take_in(self, there: set[bytes]) -> set[bytes]:
        """Take packs for present that are there and were not listed; those that are still there. Raises StoreError."""
        sizes, taken = self.store.list("packs"), set[bytes]()
        for pack in sorted(there):
            name = pack.hex()
            try:
                size = sizes[name] if name in sizes else self.store.open(f"packs/{name}").size
            except FileNotFoundError:  # a collector deleted it meanwhile, which the ledger says
                continue
            except UnreadableError:
                size = 0
            if name not in sizes:
                self.unlisted.add(pack)
                self.problem("pack", name, "is there, and the list of packs/ leaves it out: check the store")
            self.packs[pack] = size
            self._cover(pack)
            taken.add(pack)
        self._seen |= taken
        return taken

    def state_of(self, pack: bytes) -> PackState:
        """Return what became of a pack that something named. Raises StoreError."""
        absent = self.absent()
        return PackState.PRESENT if pack in self.packs else absent.get(pack, PackState.MISSING)

    def missing(self) -> set[bytes]:
        """Return the packs that something took which was neither a collector nor repair. Raises StoreError."""
        return {pack for pack, state in self.absent().items() if state is PackState.MISSING}

    def losses(self) -> list[Loss]:
        """Return the losses that nobody acknowledged, of packs that are not back. Raises StoreError."""
        self.absent()
        known = self.ledger.losses()
        return [loss for loss in known if loss.acknowledged is None and loss.pack not in self.packs]

    def missing_plans(self) -> set[str]:
        """Return the names of plans whose copy is there and which are not listed: what they condemn is not known. Raises StoreError."""
        copies = {name for name in self.store.list("parity") if PLAN_NAME.fullmatch(name)}
        if copies - set(self._plans):
            self.read_plans()
        return copies - set(self._plans)

    def problem(self, kind: str, name: str, what: str) -> None:
        """Remember it, once; of very many, that there are more."""
        tell(self.problems, self._told, Problem(kind, name, what))

    def add_pack(self, pack: bytes, size: int, sections: Mapping[int, Entries]) -> None:
        """A pack that this process has just put, with what it holds."""
        self.packs[pack] = size
        self.newest = pack
        self.tail.add_pack(pack, size, sections)

    def reset_tail(self) -> None:
        """Forget what was scanned: an index file has it now, and `refresh` scans what none has."""
        self.tail = MemoryIndex()

    def pack(self, pack: bytes) -> Pack:
        """An open pack. Raises FormatError, FileNotFoundError."""
        if pack not in self._opened:
            name = f"packs/{pack.hex()}"
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
        """All records of a pack, read from end to end, some at a time. Raises FormatError, FileNotFoundError."""
        file = self.store.open(f"packs/{pack.hex()}")
        opened = Pack(file.read, file.size, archive=self.ledger.archive)
        for copy in opened.damaged_copies:
            yield Damage(0, opened.head.size, f"the {copy} is damaged, the other is used")
        for item in opened.scan():
            if isinstance(item, Damage):
                yield item
            else:
                yield Found(Location(pack, item[0]), item[1], opened.head.contexts[item[1].context])

    def find(self, section: int, identity: bytes) -> list[Found]:
        """Records by segment id, session key or version id, whose full identity fits. In the order of their places."""
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
        """The record at a place. Raises FormatError, FileNotFoundError."""
        pack = self.pack(location.pack)
        record = pack.record(location.offset)
        return Found(location, record, pack.head.contexts[record.context])

    def versions(self, domain: bytes, name: str) -> list[Version]:
        """Versions of a session, oldest first, forgotten ones too. Raises CorruptError where there are some and none is sound."""
        return self.look(lambda: self._versions(domain, name))

    def look(self, work: Callable[[], T]) -> T:
        """What ``work`` finds where no pack vanishes meanwhile. What a collector moves is in none of the packs that were listed: list again."""
        for _ in range(LOOKS):
            vanished, found = self.vanished, work()
            if self.vanished == vanished:
                return found
            self._list()
        raise ArchiveError("a collector keeps moving what is looked at: try again")

    def _versions(self, domain: bytes, name: str) -> list[Version]:
        self.absent()  # takes in what a short list left out
        found = self.find(SESSIONS, self.keys.session_key(domain, name))
        failures: list[CorruptError] = []
        sound = self._distinct(iter(found), failures)
        if failures and not sound:
            raise failures[0]
        return [v for v in sound if v.name == name]

    def all_versions(self) -> list[Version]:
        """The whole catalogue, in the order of tenants and names."""
        return self.look(self._all_versions)

    def _all_versions(self) -> list[Version]:
        self.absent()  # takes in what a short list left out
        places = set[Location]()
        for index in self._lookups():
            places.update(
                self._guard(index, lambda i: [at for _, at in i.entries(SESSIONS) if at.pack in self.packs])
            )
        return self._distinct((item for item in map(self._maybe, sorted(places)) if item), [])

    def histories(self) -> Iterator[list[Version]]:
        """The versions of each session, oldest first; one session at a time, so that a large catalogue takes little memory.

        In the order of session keys.
        """
        self.absent()  # takes in what a short list left out
        packs = sorted(self.packs)
        starts = {pack: number << PACK_BITS for number, pack in enumerate(packs)}
        for index in self._lookups():
            self._guard(index, lambda i: i.columns(SESSIONS))  # a damaged one is dropped
        keys, places = gather(self._lookups(), SESSIONS, starts)
        bounds = [*np.flatnonzero(np.diff(keys, prepend=keys[:1] - np.uint64(1))).tolist(), len(keys)]
        for begin, end in itertools.pairwise(bounds):
            at = [divmod(place, 1 << PACK_BITS) for place in places[begin:end].tolist()]
            found = (self._maybe(Location(packs[number], offset)) for number, offset in at)
            versions = self._distinct((item for item in found if item), [])
            for _, rows in itertools.groupby(versions, key=lambda v: (v.tenant, v.name)):
                yield list(rows)

    def state(self, version: bytes) -> tuple[int, int]:
        """(verb, counter) that holds for a version; (RESTORE, 0) where no mark was made."""
        if not self.marked():
            return RESTORE, 0
        marks = [item.record.mark for item in self.find(MARKS, version) if item.record.mark]
        counter, verb = max(((m.counter, -m.verb) for m in marks), default=(0, RESTORE))
        return -verb, counter

    def version(self, item: Found) -> Version:
        """A session's record as a version. Raises CorruptError where its labels are damaged, Erased."""
        r, c = item.record, item.context
        identity = version_of(item)
        tenant, name, labels = self.keys.session(c, r)
        return Version(
            identity,
            tenant,
            name,
            r.number,
            r.time,
            unpack_labels(labels),
            r.leaf,
            c.kind,
            c.target,
            c.tokenizer,
            self.state(identity)[0] == FORGET,
            item.location,
        )

    def _distinct(self, items: Iterator[Found], failures: list[CorruptError]) -> list[Version]:
        """Each version once, whatever the number of its records; those in packs that stay first. What is erased is left out."""
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
        """Where records by this name may lie, in packs that are there; nothing is read."""
        named = self._named(section, identity)
        places = [at for at in named if at.pack in self.packs]
        return sorted(places) if len(places) > 1 else places

    def _named(self, section: int, identity: bytes) -> set[Location]:
        """Where the indexes say that records by this name lie, in packs that are gone, too."""
        places = set(self.tail.find(section, identity))
        for index in list(self.indexes.values()):
            places.update(self._guard(index, lambda i: i.find(section, identity)))
        return places

    @property
    def hurt(self) -> bool:
        """Whether damage may be in the way of what is looked for; `lost` and `blind` say of what. Raises StoreError."""
        return bool(self.missing() or self.losses() or self.unreadable)

    def lost(self, section: int, identity: bytes, since: int = 0) -> PackState | None:
        """Return the state of a pack that keeps a record by this name from being read, None where none is known.

        MISSING: an index names it in a missing pack. LOST: a loss names it that was recorded at ``since`` (seconds
        since 1970) or later and that nobody acknowledged. PRESENT: an index names it at a damaged place. Raises StoreError.
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
        """Return the packs that may have sessions which are not found: damaged, missing or lost. Raises StoreError."""
        lost = {loss.pack for loss in self.losses()}
        return (self.unreadable & set(self.packs)) | self.missing() | lost

    def blind(self) -> set[bytes]:
        """Return those of them of which nothing says what was in them: no index covers them, no loss lists their sessions."""
        covered = set[bytes]().union(*(index.packs for index in self.indexes.values()))
        told = {loss.pack for loss in self.losses() if loss.entry.complete}
        untold = {loss.pack for loss in self.losses() if not loss.entry.complete}
        return (self.hiding() - covered - told) | untold

    def known(self, section: int, identities: Sequence[bytes]) -> set[bytes]:
        """Those of many that some index may hold; all others are not in the archive. Nothing is read but indexes."""
        if not identities:
            return set()
        keys = keys_in(identities)
        hit = self.tail.has(section, keys)
        for index in list(self.indexes.values()):
            hit |= self._guard(index, lambda i: i.has(section, keys))
        return {identities[n] for n in np.flatnonzero(hit).tolist()}

    def marked(self) -> bool:
        """Whether any version was ever forgotten or restored."""
        return any(index.holds(MARKS) for index in self._lookups())

    def _lookups(self) -> list[Lookup]:
        return [*self.indexes.values(), self.tail]

    def _guard(self, index: Lookup, ask: Callable[[Lookup], T]) -> T:
        """Ask an index; where it turns out damaged, do without it and scan its packs."""
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
        listed = {n for n in self.store.list("index") if NAME.fullmatch(n)}
        for name in set(self.indexes) - listed:
            del self.indexes[name]
        for name in sorted(listed - set(self.indexes) - self._bad):
            try:
                self.indexes[name] = FileIndex(self.store.open(f"index/{name}"))
            except FormatError as exc:
                self.problem("index", name, str(exc))
                self._bad.add(name)
            except FileNotFoundError:
                continue

    def _cover(self, pack: bytes) -> None:
        """Scan a pack that no index covers."""
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

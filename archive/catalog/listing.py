"""The listing: the packs, indexes and plans of an archive as one process sees them.

`Listing.read_plans` lists plans, `Listing.read` packs and then indexes. Packs that no index covers are scanned
into memory, the ``tail``. A damaged index is dropped and its packs are scanned. Damage to a pack costs only the
damaged bytes.

`Listing.absent` returns the state of packs that something names and that are not listed. `Listing.stable` repeats
work during which the listing turned out to be stale, because a collector deleted packs.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from pltz.archive.catalog.ledger import PackLedger, PackState
from pltz.archive.catalog.problems import Problems
from pltz.archive.errors import ArchiveError, UnreadableError
from pltz.archive.format import object_names
from pltz.archive.format.context import RUN, Context
from pltz.archive.format.index_file import (
    Entries,
    FileIndex,
    Location,
    Lookup,
    MemoryIndex,
    by_section,
    joined,
    keys_of,
)
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.plan import MAX_PLAN, CollectionPlan
from pltz.archive.format.record import Record
from pltz.archive.storage.store import Store, is_there
from pltz.plt_codec.errors import FormatError, PltzError, VersionError

T = TypeVar("T")

OPEN_PACKS = 256  # packs whose header and tables stay in memory
ATTEMPTS = 8  # at work whose packs a collector deletes meanwhile
AT_ONCE = 1 << 14  # keys of a scanned pack collected as Python objects before they become columns


class Found(NamedTuple):
    """A record, its location and the context that its pack gives it."""

    location: Location
    record: Record
    context: Context


class Listing:
    """The packs, indexes and plans of an archive. Only its methods change the attributes.

    Attributes:
        packs: size of each pack in bytes, by id.
        indexes: index files by their digest in hex.
        tail: entries of the packs that were scanned, because no index covered them.
        epoch: number of the newest plan, 0 without plans.
        condemned: packs that plans condemn.
        newest: the last pack that this process put, None where it put none.
        unlisted: packs that exist although the listing of packs/ leaves them out.
        staleness: how often a listed pack turned out to be deleted.

    ``unused``: digests, in hex, of index files that are skipped.
    """

    def __init__(self, store: Store, ledger: PackLedger, problems: Problems, unused: Iterable[str] = ()) -> None:
        self.store, self.ledger, self._problems = store, ledger, problems
        self.packs: dict[bytes, int] = {}
        self.indexes: dict[str, FileIndex] = {}
        self.tail = MemoryIndex()
        self.epoch = 0
        self._plans: dict[int, CollectionPlan] = {}
        self.condemned: frozenset[bytes] = frozenset()
        self.newest: bytes | None = None
        self.unlisted: set[bytes] = set()
        self._seen: set[bytes] = set()  # packs ever listed, less those that the ledger says are deleted
        self._absent: dict[bytes, PackState] | None = None  # valid until packs are listed again
        self._missing: frozenset[bytes] | None = None  # those of them that are missing
        self._skipped = set(unused)  # index files that are damaged or unused
        self._opened: OrderedDict[bytes, Pack] = OrderedDict()
        self.staleness = 0

    def read(self) -> None:
        """List packs and indexes again, and scan packs that no index covers. Raises StoreError."""
        listed, indexes = self.store.list(object_names.PACKS), self.store.list(object_names.INDEXES)
        packs, names = object_names.packs_listed(listed), object_names.indexes_among(indexes)
        for pack in [p for p in self._opened if packs.get(p) != self.packs.get(p)]:
            del self._opened[pack]
        self.packs = packs
        self._seen |= set(packs)
        self._absent = self._missing = None
        self.unlisted = set()
        self._read_indexes(names)
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
                plan = CollectionPlan.decode(self.store.read(name, 0, MAX_PLAN))
                if plan.epoch != epoch:
                    raise VersionError(f"{name} says it is {plan.name}")
            except FormatError as exc:
                self._problems.note("plan", object_names.last_part(name), str(exc))
                raise ArchiveError(f"{name} is damaged ({exc}): writing is not safe before it is looked at") from exc
            except FileNotFoundError:  # deleted since it was listed, as old plans may be
                continue
            self._plans[epoch] = plan
        self.epoch = max(self._plans, default=0)
        self.condemned = frozenset[bytes]().union(*(plan.condemned for plan in self._plans.values()))
        return self.condemned - before

    def condemned_by(self, time: int) -> frozenset[bytes]:
        """Return the packs condemned by plans of ``time`` (seconds since 1970) or earlier."""
        plans = [plan.condemned for plan in self._plans.values() if plan.time <= time]
        return frozenset[bytes]().union(*plans)

    def has_plan(self, epoch: int) -> bool:
        """Return whether the plan of an epoch was read."""
        return epoch in self._plans

    def missing_plans(self) -> set[int]:
        """Return the epochs of plans that are not listed although their copies are there. Raises StoreError.

        It is unknown which packs such a plan condemns.
        """
        copies = object_names.plans_among(self.store.list(object_names.PARITY))
        if copies - set(self._plans):
            self.read_plans()
        return copies - set(self._plans)

    def absent(self) -> Mapping[bytes, PackState]:
        """Return the packs that something names and that are not there, with the state of each.

        Indexes name packs, a parity file names its pack, and a plan names those that it condemned. A pack
        that was listed before is named too. A pack that exists although it is not listed is added to the
        listing. It is in ``unlisted`` as well where a second listing omits it too. The answer holds until packs
        are listed again. Raises StoreError.
        """
        if self._absent is None:
            names = set(self.store.list(object_names.PARITY))
            self.ledger.refresh(names)
            named = object_names.packs_among(names).union(
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
                self._problems.note("ledger", name, why)
        return self._absent

    def missing(self) -> frozenset[bytes]:
        """Return the packs of `absent` that no entry of the ledger explains. Raises StoreError."""
        absent = self.absent()
        if self._missing is None:
            self._missing = frozenset(pack for pack, state in absent.items() if state is PackState.MISSING)
        return self._missing

    def stable(self, work: Callable[[], T]) -> T:
        """Return the result of ``work`` from an attempt during which no listed pack was deleted.

        Records that a collector moved are in packs that were not listed yet, so packs are listed again before
        each new attempt. An error of an attempt with a stale listing proves nothing: the attempt is repeated, and so
        is one that ends with FileNotFoundError. Raises ArchiveError after ATTEMPTS attempts.
        """
        for _ in range(ATTEMPTS):
            before = self.staleness
            try:
                result = work()
            except FileNotFoundError:
                self.note_stale()
            except PltzError:
                if self.staleness == before:
                    raise
            else:
                if self.staleness == before:
                    return result
            self.read()
        raise ArchiveError("a collector keeps moving what is looked at: try again")

    def note_stale(self) -> None:
        """Note that a listed pack is deleted by now, so that `stable` lists packs again."""
        self.staleness += 1

    def add_pack(self, pack: bytes, size: int, sections: Mapping[int, Entries]) -> None:
        """Add a pack that this process has just put, with its index entries by section."""
        self.packs[pack] = size
        self.newest = pack
        self.tail.add_pack(pack, size, sections)

    def reset_tail(self) -> None:
        """Drop the scanned entries, which an index file has now.

        `read` scans packs that no index covers.
        """
        self.tail = MemoryIndex()

    def drop_index(self, index: Lookup, why: str) -> None:
        """Drop an index that turned out to be damaged, and scan its packs."""
        for name, known in list(self.indexes.items()):
            if known is index:
                self._problems.note("index", name, why)
                self._skipped.add(name)
                del self.indexes[name]
        for pack in sorted(index.packs):
            self._cover(pack)

    def opened(self, pack: bytes) -> Pack:
        """Return a pack opened for reading. Raises FormatError, FileNotFoundError, StoreError."""
        if pack not in self._opened:
            name = object_names.pack(pack)
            if (size := self.packs.get(pack)) is None:  # deleted since the caller was told of it
                raise FileNotFoundError(errno.ENOENT, "no longer listed", name)
            self._opened[pack] = Pack(
                lambda at, size: self.store.read(name, at, size), size, archive=self.ledger.archive
            )
            if len(self._opened) > OPEN_PACKS:
                self._opened.popitem(last=False)
        self._opened.move_to_end(pack)
        return self._opened[pack]

    def scan(self, pack: bytes, *, bodies: bool = True) -> Iterator[Found | Damage]:
        """Yield all records and damaged ranges of a pack.

        The pack is read from end to end in pieces. Without ``bodies`` the records come without their bitstrings, but
        for runs of sessions, whose bitstrings have their older versions. A run whose bitstring is damaged comes without
        it then, behind the damage. Raises FormatError, FileNotFoundError, StoreError.
        """
        file = self.store.open(object_names.pack(pack))
        opened = Pack(file.read, file.size, archive=self.ledger.archive)
        for copy in opened.damaged_copies:
            yield Damage(0, opened.head.size, f"the {copy} is damaged, the other is used", ())
        for item in opened.blocks(bodies=bodies):
            if isinstance(item, Damage):
                yield item
                continue
            block, rows = item
            for row, record in rows:
                context = opened.head.contexts[record.context]
                if not bodies and context.mode & RUN and record.name is not None:
                    try:
                        record = opened.of_block(block, row)
                    except FormatError as exc:
                        yield Damage(block.offset, block.size, str(exc), [(row, record)], block.offset)
                yield Found(Location(pack, block.offset, row), record, context)

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
                self._problems.note(
                    "pack", pack.hex(), "is there, and the list of packs/ leaves it out: check the store"
                )
            self.packs[pack] = size
            self._cover(pack)
            taken.add(pack)
        self._seen |= taken
        return taken

    def _read_indexes(self, listed: set[str]) -> None:
        for name in set(self.indexes) - listed:
            del self.indexes[name]
        for name in sorted(listed - set(self.indexes) - self._skipped):
            try:
                self.indexes[name] = FileIndex(self.store.open(object_names.index(name)))
            except FormatError as exc:
                self._problems.note("index", name, str(exc))
                self._skipped.add(name)
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
                    what = f"{item.size} bytes at {item.offset}: {item.why}"
                    self._problems.note("pack", pack.hex(), what, pack=pack, blind=item.rows is None)
                    contexts = self.opened(pack).head.contexts if item.rows else []
                    for _, record in item.rows or ():  # look-ups must find what is damaged
                        found = keys_of(record, contexts[record.context])
                        rows += [(section, name, item.block) for section, name in found]
                    continue
                at, record, context = item
                rows += [(section, name, at.offset) for section, name in keys_of(record, context)]
                if len(rows) >= AT_ONCE:
                    parts.append(by_section(rows))
                    rows = []
        except FormatError as exc:
            self._problems.note("pack", pack.hex(), str(exc), pack=pack, blind=True)
        except FileNotFoundError:
            self.note_stale()
            self.packs.pop(pack, None)
        self.tail.add_pack(pack, size, joined([*parts, by_section(rows)]))

"""The listing: the packs, indexes and plans of an archive as one process sees them.

`Listing.read_plans` lists plans, `Listing.read` packs and then indexes. Packs that no index covers are scanned
into memory, the ``tail``. A damaged index is dropped and its packs are scanned. Damage to a pack costs only the
damaged bytes.

With a manifest `Listing.follow` takes the same from that, by one request (FORMAT.md, "Manifest"). It leaves to the
listing whatever a manifest does not explain: a pack that is gone, damage, an index that cannot be opened. `publish`
puts the next manifest. Packs of puts that were cut off before theirs are `orphans`, and no part of the archive.

`Listing.absent` returns the state of packs that something names and that are not listed. `Listing.stable` repeats
work during which the listing turned out to be stale, because a collector deleted packs.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from pltz.archive.catalog.ledger import PackLedger, PackState
from pltz.archive.catalog.problems import Problems
from pltz.archive.catalog.register import ManifestRegister
from pltz.archive.errors import ArchiveError, Fenced, Outdated, StoreError, UnreadableError
from pltz.archive.format import index_file, object_names
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
    packs_of,
)
from pltz.archive.format.manifest import (
    MOST_HEADS,
    MOST_LATE,
    MOST_PACKS,
    MOST_PLANS,
    IndexHead,
    Manifest,
    NamedPack,
)
from pltz.archive.format.pack import AHEAD, FOOTER, FRONT, Damage, Pack
from pltz.archive.format.plan import MAX_PLAN, CollectionPlan
from pltz.archive.format.record import Record
from pltz.archive.storage.ranged import RangedFile
from pltz.archive.storage.store import Store, is_there
from pltz.plt_codec.errors import CorruptError, FormatError, PltzError, VersionError
from pltz.plt_codec.identity import SIZE

T = TypeVar("T")

OPEN_PACKS = 256  # packs whose header and tables stay in memory
SMALL = AHEAD + FRONT  # bytes of a pack that come in one request; of a larger one they have header and first block
ATTEMPTS = 8  # at work whose packs a collector deletes meanwhile
AT_ONCE = 1 << 14  # keys of a scanned pack collected as Python objects before they become columns


class Found(NamedTuple):
    """A record, its location and the context that its pack gives it."""

    location: Location
    record: Record
    context: Context


class PackFront:
    """Reads a pack over a network. Its first bytes, and the last ones read, stay in memory until the next look.

    So a small pack is one request, and a block is asked for once, although several look-ups want it.

    ``size``: of the pack, in bytes. ``data``: the first bytes.
    """

    def __init__(self, store: Store, name: str, size: int) -> None:
        self._store, self._name = store, name
        self.data = b""
        self._begin, self._last = 0, b""
        self._end, self._foot = max(0, size - FOOTER.size), b""
        self._whole = False  # whether the first bytes are all there are

    def read(self, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes at ``offset``. Raises the errors of `Store.read`."""
        if offset == 0 < size and not self.data:
            self.ask(0)
        if self._whole or (offset == self._end and self._foot):
            return self.data[offset : offset + size] if self._whole else self._foot[:size]
        for begin, held in (0, self.data), (self._begin, self._last):
            if begin <= offset and offset + size <= begin + len(held):
                return held[offset - begin : offset - begin + size]
        if size > AHEAD:
            return self._store.read(self._name, offset, size)
        self._begin, self._last = offset, self._store.read(self._name, offset, AHEAD)
        return self._last[:size]

    def ask(self, offset: int) -> None:
        """Ask for header, footer and a block at ``offset``, side by side or in one. Raises the errors of `read`."""
        if self._end + FOOTER.size <= SMALL:
            self.data = self._store.read(self._name, 0, SMALL)
            self._whole = len(self.data) < SMALL
            return
        ahead = offset > FRONT
        # one byte more than the footer has tells that the pack is longer
        ranges = (0, FRONT if ahead else SMALL), (self._end, FOOTER.size + 1), (offset, AHEAD)
        self.data, self._foot, *block = self._store.read_ranges(self._name, ranges if ahead else ranges[:2])
        if block:
            self._begin, [self._last] = offset, block

    def forget(self) -> None:
        """Drop the bytes in memory."""
        self.data = self._last = b""
        self._whole = False


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
        following: whether all this is from the manifest, and nothing was listed.
        orphans: listed packs that no manifest named, with their sizes; none of them is in ``packs``, but in
            `showing_orphans`.
        late: packs that may be such: taken up all the same, because the manifest that would tell was lost, or is of
            an archive without parity whose packs had no markers.

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
        self.last: CollectionPlan | None = None  # the newest plan, which says what is over
        self._forgetting = False  # whether entries were dropped since the last listing
        self._seen: set[bytes] = set()  # packs ever listed, less those that the ledger says are deleted
        self._absent: dict[bytes, PackState] | None = None  # valid until packs are listed again
        self._missing: frozenset[bytes] | None = None  # those of them that are missing
        self._ranged = set[str]()  # indexes of which only ranges are read
        self._skipped = set(unused)  # index files that are damaged or unused
        self._unusable = frozenset[str]()  # of those that the manifest named when packs were listed last
        self._opened: OrderedDict[bytes, Pack] = OrderedDict()
        self.staleness = 0
        self._fronts: dict[bytes, PackFront] = {}  # of the opened packs
        self.following = False
        self.orphans: dict[bytes, int] = {}
        self.late = frozenset[bytes]()
        self._showing = False
        self._followed: Manifest | None = None  # whose state this is
        self._listed_by: Manifest | None = None  # that told which of the listed packs were named
        self._listed = self._followed_once = False  # whether packs were listed, and whether a manifest was followed
        self._doubted = False  # something was met since the last listing that the manifest does not explain
        self._trusted = frozenset[bytes]()  # packs that are no late ones
        self._unnamed = frozenset[bytes]()  # listed packs that the manifest does not name, and an earlier one may have
        self._returned = frozenset[bytes]()  # those of them that an earlier one surely named
        self._pending: set[bytes] = set()  # packs put by this process that no manifest names yet
        self._refused = set[bytes]()  # packs of puts of this process that no manifest was to name
        self._went_back = False  # whether the last look knew that an older manifest was brought back

    @cached_property
    def register(self) -> ManifestRegister | None:
        """Return the register of the manifest; None where there is none, or no archive.json. Raises StoreError."""
        try:
            return ManifestRegister(self.store) if self.ledger.settings.manifest else None
        except CorruptError:  # nothing can be put then either
            return None

    def follow(self) -> bool:
        """Take the state from the manifest, and return whether that is possible. Otherwise packs have to be listed.

        Raises StoreError, VersionError.
        """
        self._forget_fronts()
        if self._doubted or self._problems.packs or self.register is None:
            return False
        if not self.following and self._listed and (self.unlisted or self.missing()):
            return False  # since the last listing something is wrong
        manifest = self.register.load()
        for _ in range(ATTEMPTS):
            if manifest is None or manifest.gaps or manifest.archive != self.ledger.archive:
                return False
            if manifest is self._followed or self._take(manifest):
                self._went_back = bool(self.behind)
                return True
            before, manifest = manifest, self.register.load()
            if manifest is before:  # else an index that it names may have been replaced meanwhile
                return False
        return False

    def read_again(self) -> None:
        """Take the state from a newer manifest, as `follow` does, or where there is none, list as `read` does.

        For who met an index that another replaced meanwhile. Raises the errors of both.
        """
        before = self._followed
        if not (self.following and self.follow() and self._followed is not before):
            self.read()

    def _take(self, manifest: Manifest) -> bool:
        """Take the state from a manifest, and return whether all that it names could be opened."""
        self._read_plans_of(manifest)
        self._read_indexes(set(manifest.indexes), manifest.heads, ranges=True)
        known = manifest.plans <= self._plans.keys() and self.indexes.keys() == manifest.indexes
        covered = {pack: size for index in self.indexes.values() for pack, size in index.packs.items()}
        # of a lost pack that an index names it is not clear whether it came back
        if not known or not self.ledger.follow(manifest.losses) or self.ledger.lost & covered.keys():
            self.following, self._followed = False, None
            return False
        rows = {pack: row for pack, row in manifest.packs.items() if pack not in covered}
        if self.tail.packs.keys() - rows.keys():
            self.tail = MemoryIndex()
        for pack, row in rows.items():
            if pack not in self.tail.packs:
                self.tail.add_pack(pack, row.size, row.sections)
        self._set_packs(covered | self.tail.packs)
        self.late = manifest.late
        self._absent, self._missing = {}, frozenset()
        self.following = self._followed_once = True
        self._followed = manifest
        return True

    def _read_plans_of(self, manifest: Manifest) -> frozenset[bytes]:
        """Read the plans that a manifest names, and those up to its epoch; return what they condemn that is new."""
        before = self.condemned
        between = range(self.epoch + 1, manifest.epoch + 1) if self._listed or self._followed_once else range(0)
        newer: Iterable[int] = between
        if len(between) > MOST_PLANS:  # nearly all of them are over and gone
            newer = filter(between.__contains__, object_names.plans_among(self.store.list(object_names.PLANS)))
        for epoch in sorted({*manifest.plans, *newer} - self._plans.keys()):
            self._read_plan(epoch)
        self.epoch = max([manifest.epoch, *self._plans])
        self._settle_plans()
        return self.condemned - before

    def new_plans(self) -> frozenset[bytes]:
        """Read the plans that were published before what this process put, and return the packs that they condemn.

        They are those up to the epoch of the manifest that `publish` put, or, without one, those that are listed.
        Raises the errors of `read_plans`.
        """
        manifest = self.register.manifest if self.register else None
        return self._read_plans_of(manifest) if manifest else self.read_plans()

    def publish(
        self,
        made: Mapping[str, FileIndex] = MappingProxyType({}),
        replaced: Iterable[str] = (),
        *,
        repaired: bool = False,
        epoch: int | None = None,
    ) -> bool:
        """Put a manifest that names what this process put, and after a listing all that was listed.

        ``made``: indexes that were put. ``replaced``: those whose place they take.
        ``repaired``: all was looked at, so it tells no more that an older one was brought back. ``epoch``: of the
        newest plan that may be there. Returns whether a manifest was put.

        Raises ArchiveError where a plan is damaged, or too many packs have no index, Fenced where a later plan is
        there, Outdated where an older manifest was brought back and the last look did not know it, StoreError,
        WriterFailed. Nothing may be acknowledged then.
        """
        if self.register is None:
            return False
        if not self.following and self.packs.keys() - self._pending:
            self.store.settle(object_names.PACKS)  # the writer of a pack that was listed may be between link and sync
        change = partial(self._next, dict(made), set(replaced), repaired, epoch=epoch)
        changed = self.register.swap(change, always=not self.following, repaired=repaired)
        self._pending.clear()
        self._followed, self._listed_by, self._went_back = None, self.register.manifest, bool(self.behind)
        return changed

    def draft(self) -> bytes | None:
        """Return the manifest that `publish` puts next, if no other is put before; None where it takes a listing.

        Raises the errors of `publish`.
        """
        base = self.register.manifest if self.register and self.following else None
        if not (self.register and base and base.epoch <= self.epoch):
            return None
        return self.register.draft(self._next({}, set(), False, base))

    def named_indexes(self) -> frozenset[str]:
        """Return the indexes that the manifest names, as far as this process knows; none without one."""
        manifest = self.register.manifest if self.register else None
        return manifest.indexes if manifest else frozenset()

    def check_epoch(self, epoch: int | None, manifest: Manifest | None = None) -> None:
        """Raise Fenced where a plan later than ``epoch`` is known, or a manifest knows one; never for None."""
        if epoch is not None and max(self.epoch, manifest.epoch if manifest else 0) > epoch:
            raise Fenced("a collector planned meanwhile what to delete: nothing was acknowledged, try again")

    def _next(
        self,
        made: dict[str, FileIndex],
        replaced: set[str],
        repaired: bool,
        base: Manifest | None,
        *,
        epoch: int | None = None,
    ) -> Manifest:
        """Return the manifest to put in place of another, or of none that can be used. Arguments as of `publish`."""
        decided = self._went_back
        if base is None if self.following else base is not self._listed_by:
            self.read_plans()  # lost, or replaced since the listing: packs and indexes may be deleted that it shows
            self.read()
        if self.behind and not decided:
            raise Outdated("an older manifest was brought back meanwhile: nothing was acknowledged, try again")
        self.check_epoch(epoch, base)
        if base and base.epoch > self.epoch:
            self._forget_collected()
        names = set(base.indexes if base else self.indexes) - replaced | made.keys()
        known = {name: index for name, index in {**self.indexes, **made}.items() if name in names}
        covered = set[bytes]().union(*(index.packs for index in known.values()))
        rows = dict(base.packs) if base else {}
        wanted = self._pending if self.following and not replaced else self.packs.keys() - self.orphans.keys()
        gaps = bool(self.missing())
        if not self.following and not gaps:  # an index that could not be opened is left out, and its packs get rows
            names -= self._unusable - made.keys()
        unread = set[bytes]()
        for pack in wanted - covered - rows.keys():
            kept = {name for name, index in self.indexes.items() if pack in index.packs}
            if pack in self._problems.packs or pack not in self.tail.sections:  # a scan may have missed records
                names |= kept
                unread |= set() if kept else {pack}
            else:
                rows[pack] = NamedPack(self.packs[pack], self.tail.sections[pack])
        gaps |= bool(unread)
        explained = set[bytes]() if self.following else {p for p in rows.keys() - self.packs if self.ledger.state(p)}
        rows = {pack: row for pack, row in rows.items() if pack not in covered | explained}
        if len(rows) > MOST_PACKS:
            raise ArchiveError(f"{len(rows)} packs have no index: run pltz archive rebuild, then try again")
        epoch = max(self.epoch, base.epoch if base else 0)
        plans = {e for e, plan in self._plans.items() if e <= epoch and not plan.condemned.isdisjoint(self.packs)}
        plans |= (base.plans if base else frozenset()) - self._plans.keys()
        losses = base.losses if base and self.following else self.ledger.loss_names
        parts = frozenset(names), rows, frozenset(plans), losses
        late = base.late if base else frozenset[bytes]()
        late = late if self.following else (late | self.late | unread) & self.packs.keys()  # late ones need no row
        late = late if len(late) <= MOST_LATE else frozenset()
        marked = self.takes_marks and (base.marked if base and self.following else True)
        rolled_back = self.is_rolled_back and not repaired
        heads = self._heads(names, known, base)
        flags = gaps, marked, rolled_back
        return Manifest(self.ledger.settings, 0, bytes(SIZE), epoch, *parts, late, *flags, heads)

    def _heads(
        self, names: Collection[str], known: Mapping[str, FileIndex], base: Manifest | None
    ) -> dict[str, IndexHead]:
        """Return the heads of large indexes among those named, of the smallest first, while there is room for them.

        On a directory none: there a head is read as fast. ``known``: indexes that this process has.
        """
        if not self.store.remote:
            return {}
        heads = {name: head for name, head in base.heads.items() if name in names} if base else {}
        for name in (known.keys() & names) - heads.keys():
            if known[name].size > index_file.RANGED:
                with suppress(FormatError, FileNotFoundError, StoreError):  # whoever looks it up is told
                    heads[name] = IndexHead(known[name].size, known[name].head)
        room, kept = MOST_HEADS, dict[str, IndexHead]()
        for name, head in sorted(heads.items(), key=lambda item: (len(item[1].data), item[0])):
            room -= len(head.data)
            kept |= {name: head} if room >= 0 else {}
        return kept

    @property
    def is_rolled_back(self) -> bool:
        """Return whether an older manifest was brought back, as far as the last look tells, and no repair ran since."""
        if not self.register or self.following:
            return bool(self.behind)
        return bool(self.behind or self._returned - self.ledger.deleted - self.ledger.lost)

    def _forget_fronts(self) -> None:
        for front in self._fronts.values():
            front.forget()

    def _forget_collected(self) -> None:
        """Forget packs of this process that a collector deleted before they were named: it copied what was in them."""
        gone = {pack for pack in self._pending if not is_there(self.store, object_names.pack(pack))}
        if not gone:
            return
        self.ledger.refresh()
        for pack in gone & self.ledger.deleted:
            self.store.delete(object_names.parity(pack))  # put after the pack was deleted
            self._pending.discard(pack)
            self.packs.pop(pack, None)
        self.note_stale()

    def _set_packs(self, packs: dict[bytes, int]) -> None:
        for pack in [p for p in self._opened if packs.get(p) != self.packs.get(p)]:
            del self._opened[pack]
            self._fronts.pop(pack, None)
        self.packs = packs
        self._seen |= set(packs)
        self.unlisted = set()

    def read(self) -> None:
        """List packs and indexes again, and scan packs that no index covers. Raises StoreError."""
        self._forget_fronts()
        self.following, self._followed, self._doubted = False, None, False
        if self._forgetting:  # the ledger no longer explains what was seen before
            self._forgetting, self.tail = False, MemoryIndex()
            self._seen.clear()
        for _ in range(ATTEMPTS):
            manifest = self.register.load() if self.register else None  # before the listing: it names what is durable
            listed, indexes = self.store.list(object_names.PACKS), self.store.list(object_names.INDEXES)
            packs, names = object_names.packs_listed(listed), object_names.indexes_among(indexes)
            self._read_indexes(names)
            base = manifest or (self.register.older if self.register else None)  # which tells what it hides
            named = self._named_by(base)
            self._unusable = (manifest.indexes if manifest else frozenset()) - self.indexes.keys()
            if manifest is None or named is not None or self.register is None or self.register.load() is manifest:
                break
        self._listed_by = manifest
        rows = set(manifest.packs) if manifest else set[bytes]()
        strangers = self._strangers(packs, rows if named is None else named)
        told = named is not None and manifest is not None and manifest.tells_orphans
        self.orphans = {pack: packs[pack] for pack in (strangers if told else strangers & self._refused)}
        unnamed = packs.keys() - (packs if named is None else named) - self.orphans.keys()
        self._unnamed = frozenset(unnamed - self._pending)
        self._returned = self._unnamed - strangers
        self.late = base.late if base else frozenset()
        if not told and (named is not None or self._has_marks(packs, strangers)):
            self.late |= strangers - self._trusted
        if self.behind:
            self._problems.note("manifest", "", self.behind)
        self._set_packs(packs if self._showing else {p: size for p, size in packs.items() if p not in self.orphans})
        self._seen |= named or set() if manifest else set()  # so that one which is gone is missed
        self._absent = self._missing = None
        self._listed, self._went_back = True, bool(self.behind)
        covered = set(self.tail.packs.items()).union(*(i.packs.items() for i in self.indexes.values()))
        for pack, _ in sorted(self.packs.items() - covered):
            self._cover(pack)
        for pack, row in self.rows.items():  # so that what is gone is named
            if pack not in self.packs and pack not in self.tail.packs:
                self.tail.add_pack(pack, row.size, row.sections)

    def counts(self, pack: bytes) -> tuple[bool, bool]:
        """Return the sort key that puts those packs first whose record of a version counts before others'.

        Readers see no orphan: an erase that went by its record would destroy the keys of theirs.
        """
        return pack in self.orphans, pack in self.condemned

    def left_out(self) -> frozenset[bytes]:
        """Return packs that the manifest does not name, and that an earlier one may have: it may be that of a backup.

        As of the last listing. What others put since counts for nothing. Raises StoreError, VersionError.
        """
        if not (self.register and self._unnamed - self.ledger.deleted):
            return frozenset()
        named = self._named_by(self.register.load())
        return frozenset() if named is None else self._unnamed - named - self.ledger.deleted

    @property
    def behind(self) -> str:
        """Return why the archive may be older than it was.

        Its manifest has a generation below one that was seen, or is made from such a one and was not repaired since.
        """
        register = self.register
        if register and register.behind:
            here, known = register.behind
            why = f"the manifest is of generation {here}, and {known} was seen: "
        elif register and register.manifest and register.manifest.rolled_back:
            why = ""
        else:
            return ""
        return (
            f"{why}the archive or its manifest was brought back from a backup; run pltz archive repair, and put again "
            "what was put since that backup"
        )

    @property
    def takes_marks(self) -> bool:
        """Return whether each named pack has a marker: an empty file where its parity would be."""
        return self.register is not None and not self.ledger.settings.parity[0]

    def put_marks(self, *, dry_run: bool = False) -> list[str]:
        """Put the markers that named packs lack, and return their names. Raises StoreError, WriterFailed."""
        if not self.takes_marks:
            return []
        marked = object_names.packs_among(self.store.list(object_names.PARITY))
        names = [object_names.parity(pack) for pack in sorted(self.packs.keys() - marked - self.ledger.deleted)]
        for name in () if dry_run else names:
            self.store.put(name, b"")
        return names

    def _has_marks(self, packs: Collection[bytes], strangers: frozenset[bytes]) -> bool:
        """Return whether parity or markers tell which packs were named. ``strangers``: those without either."""
        return self.register is not None and (not self.takes_marks or len(strangers) < len(packs))

    def trust(self, packs: Iterable[bytes]) -> None:
        """Take packs for no late ones, also without parity: they were there when the archive had no manifest yet."""
        self._trusted = frozenset(packs)

    def _named_by(self, manifest: Manifest | None) -> set[bytes] | None:
        """Return the packs that a manifest names; None without one, or where it does not name all there are.

        Raises StoreError.
        """
        if manifest is None or manifest.archive != self.ledger.archive:
            return None
        named = manifest.packs.keys() | manifest.late
        for name in manifest.indexes:
            if name in self.indexes:
                named.update(self.indexes[name].packs)
            elif (table := self._table_of(name)) is not None:
                named |= table
            else:
                return None
        return named

    def _table_of(self, name: str) -> set[bytes] | None:
        """Return the packs of an index that is not used, because it is damaged or gone; None where nothing tells them.

        Raises StoreError.
        """
        with suppress(FormatError, FileNotFoundError):
            return {*packs_of(bytes(self.store.view(object_names.table_copy(name))))}
        with suppress(FormatError, FileNotFoundError):
            return {*FileIndex(self.store.open(object_names.index(name)), name).packs}
        return None

    def _strangers(self, packs: dict[bytes, int], named: set[bytes]) -> frozenset[bytes]:
        """Return the listed packs of which nothing tells that they were in a manifest.

        Parity, or a marker, is put once a pack was; and one that repair gave up was, and may come back. ``named``:
        those in the present one. Raises StoreError.
        """
        if self.register is None or not (left := packs.keys() - named - self._pending):
            return frozenset()
        names = self.store.list(object_names.PARITY)
        self.ledger.refresh(names)
        return frozenset(left - object_names.packs_among(names) - self.ledger.lost)

    @contextmanager
    def showing_orphans(self) -> Iterator[None]:
        """Read orphans too in what is listed inside: an erase has to reach what no put finished. None gets named."""
        self._showing = True
        if not self.following:  # else the next look lists them
            self._set_packs(self.packs | self.orphans)
            for pack in sorted(self.orphans):
                self._cover(pack)
        try:
            yield
        finally:
            self._showing = False
            self.following, self._followed = False, None
            self._set_packs({pack: size for pack, size in self.packs.items() if pack not in self.orphans})

    def read_plans(self) -> frozenset[bytes]:
        """Read new plans and return the packs that they condemn.

        Raises:
            ArchiveError: a plan is damaged. Garbage collection must wait until a person has looked at it.
            StoreError: the store failed.
        """
        before = self.condemned
        listed = object_names.plans_among(self.store.list(object_names.PLANS))
        for epoch in sorted(listed - set(self._plans)):
            self._read_plan(epoch)
        self.epoch = max(self._plans, default=0)
        self._settle_plans()
        return self.condemned - before

    def _settle_plans(self) -> None:
        """Set what the plans that are not over condemn, and forget what the newest plan drops."""
        self.last = self._plans[max(self._plans)] if self._plans else None
        going = (plan.condemned for epoch, plan in self._plans.items() if epoch > self.ended)
        self.condemned = frozenset[bytes]().union(*going)
        if self.last and (over := frozenset(name.hex() for name in self.last.entries)) - self.ledger.over:
            self.ledger.drop(over)
            self._forgetting, self._absent, self._missing = True, None, None

    @property
    def ended(self) -> int:
        """Return the epoch up to which plans are over, and may be gone."""
        return self.last.ended if self.last else 0

    @property
    def rows(self) -> Mapping[bytes, NamedPack]:
        """Return the packs of which the manifest has the entries, which count as those of an index do."""
        manifest = self._followed or self._listed_by
        return manifest.packs if manifest else {}

    def _read_plan(self, epoch: int) -> None:
        """Read a plan. Raises ArchiveError where it is damaged, StoreError."""
        name = object_names.plan(epoch)
        try:
            plan = CollectionPlan.decode(self.store.read(name, 0, MAX_PLAN))
            if plan.epoch != epoch:
                raise VersionError(f"{name} says it is {plan.name}")
        except FormatError as exc:
            self._problems.note("plan", object_names.last_part(name), str(exc))
            raise ArchiveError(f"{name} is damaged ({exc}): writing is not safe before it is looked at") from exc
        except FileNotFoundError:  # deleted since it was listed, as old plans may be
            return
        self._plans[epoch] = plan

    def condemned_by(self, time: int) -> frozenset[bytes]:
        """Return the packs condemned by plans of ``time`` (seconds since 1970) or earlier."""
        plans = [plan.condemned for plan in self._plans.values() if plan.epoch > self.ended and plan.time <= time]
        return frozenset[bytes]().union(*plans)

    def finished(self, before: int) -> int:
        """Return the epoch up to which plans can end: older than ``before`` (seconds since 1970), all packs gone."""
        epoch = self.ended
        for plan in (self._plans[e] for e in sorted(self._plans) if e > epoch):
            if plan.time >= before or not plan.condemned.isdisjoint(self.packs):
                break
            epoch = plan.epoch
        return epoch

    def condemned_in(self, epochs: range) -> frozenset[bytes]:
        """Return the packs that plans of these epochs condemn."""
        return frozenset[bytes]().union(*(plan.condemned for epoch, plan in self._plans.items() if epoch in epochs))

    def next_plan(self, packs: Iterable[bytes], time: int = 0) -> CollectionPlan:
        """Return a plan for the next epoch that condemns packs and ends no more than the newest one does."""
        last, fresh = self.last, (self.epoch + 1, self.store.random(SIZE), frozenset(packs), time)
        return CollectionPlan(*fresh, last.ended, last.dropped, last.known) if last else CollectionPlan(*fresh)

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
        return {epoch for epoch in copies - set(self._plans) if epoch > self.ended}

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
            own = () if self._forgetting else (self._seen, self.tail.packs)
            named = object_names.packs_among(names).union(
                self.condemned, *own, *(index.packs for index in self.indexes.values())
            )
            unseen = named - self.packs.keys() - self.orphans.keys()
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
        self._doubted = True

    def add_pack(self, pack: bytes, size: int, sections: Mapping[int, Entries]) -> None:
        """Add a pack that this process has just put, with its index entries by section."""
        self.packs[pack] = size
        self.newest = pack
        self._pending.add(pack)
        self.tail.add_pack(pack, size, sections)

    def drop_unnamed(self) -> None:
        """Forget the packs of a put that failed: named later, they would be newer than what others put meanwhile."""
        self._refused |= self._pending
        for pack in self._pending:
            self.packs.pop(pack, None)
            if self.newest == pack:
                self.newest = None
        if not self.tail.packs.keys().isdisjoint(self._pending):  # they may not be there, and would count as missing
            before, self.tail = self.tail, MemoryIndex()
            for pack in before.packs.keys() - self._pending:
                self.tail.add_pack(pack, before.packs[pack], before.sections[pack])
        self._pending.clear()
        self._followed = None

    def reset_tail(self) -> None:
        """Drop the scanned entries, which an index file has now.

        `read` scans packs that no index covers.
        """
        self.tail = MemoryIndex()

    def drop_index(self, index: Lookup, why: str) -> None:
        """Drop an index that turned out to be damaged, and scan its packs."""
        self._doubted = True
        for name, known in list(self.indexes.items()):
            if known is index:
                self._problems.note("index", name, why)
                self._skipped.add(name)
                del self.indexes[name]
        for pack in sorted(index.packs):
            self._cover(pack)

    def opened(self, pack: bytes, block: int = 0) -> Pack:
        """Return a pack opened for reading. ``block``: the offset of one that is read next.

        Raises FormatError, FileNotFoundError, StoreError.
        """
        if pack not in self._opened:
            name = object_names.pack(pack)
            if (size := self.packs.get(pack)) is None:  # deleted since the caller was told of it
                raise FileNotFoundError(errno.ENOENT, "no longer listed", name)
            reader = PackFront(self.store, name, size) if self.store.remote else None
            if reader:
                reader.ask(block if block < size else 0)
            read = reader.read if reader else partial(self.store.read, name)
            opened = Pack(read, size, archive=self.ledger.archive, name=pack, both=False)
            if opened.nameless:  # opened again each time: it may be replaced
                self._problems.note("pack", pack.hex(), opened.nameless, pack=pack)
                return opened
            self._opened[pack] = opened
            if reader:
                self._fronts[pack] = reader
            if len(self._opened) > OPEN_PACKS:
                closed, _ = self._opened.popitem(last=False)
                if front := self._fronts.pop(closed, None):
                    front.forget()
        self._opened.move_to_end(pack)
        return self._opened[pack]

    def scan(self, pack: bytes, *, bodies: bool = True) -> Iterator[Found | Damage]:
        """Yield all records and damaged ranges of a pack.

        The pack is read from end to end in pieces. Without ``bodies`` the records come without their bitstrings, but
        for runs of sessions, whose bitstrings have their older versions. A run whose bitstring is damaged comes without
        it then, behind the damage. Raises FormatError, FileNotFoundError, StoreError.
        """
        file = self.store.open(object_names.pack(pack))
        opened = Pack(file.read, file.size, archive=self.ledger.archive, name=pack)
        for copy in opened.damaged_copies:
            yield Damage(0, opened.head.size, f"the {copy} is damaged, the other is used", ())
        if opened.nameless:  # nothing tells what else the pack of this name has
            yield Damage(file.size - FOOTER.size, FOOTER.size, opened.nameless)
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

    def _read_indexes(
        self, listed: set[str], heads: Mapping[str, IndexHead] = MappingProxyType({}), *, ranges: bool = False
    ) -> None:
        """Open the indexes that are listed. ``ranges``: for look-ups, so that little of a large one is fetched."""
        for name in set(self.indexes) - (listed if ranges else listed - self._ranged):
            del self.indexes[name]
        self._ranged &= self.indexes.keys()
        for name in sorted(listed - set(self.indexes) - self._skipped):
            try:
                path = object_names.index(name)
                file = self.store.open_ranges(path, heads.get(name)) if ranges else self.store.open(path)
                self.indexes[name] = FileIndex(file, "" if name in heads else name)  # the manifest has the head
                self._ranged |= {name} if isinstance(file, RangedFile) else set()
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
        parts: list[Mapping[int, Entries]] = [by_section(rows)]
        whole = True
        try:
            for item in self.scan(pack):
                if isinstance(item, Damage):
                    whole = False
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
            whole = False
            self._problems.note("pack", pack.hex(), str(exc), pack=pack, blind=True)
        except FileNotFoundError:
            self.note_stale()
            self.packs.pop(pack, None)
        if not whole and pack in self.rows:
            parts.append(self.rows[pack].sections)
        self.tail.add_pack(pack, size, joined([*parts, by_section(rows)]))

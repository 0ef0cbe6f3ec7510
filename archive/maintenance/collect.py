"""Collect: garbage collection and merging of small packs, in two phases.

Spec: FORMAT.md, "Collect" and "The fence".

A forgotten version is live, with its tower, until its mark is older than the grace period. It does
not matter when its pack was condemned.

A run first finishes the plans of earlier runs. It copies live records that lie only in condemned packs, then
finds every live record by reading it in a pack that stays. Other packs, which never change, are read once per run. The
ledger then lists the packs to delete, and
only after that they are deleted. If anything names an absent pack that the ledger does not explain, the run
stops before it deletes anything. Then it condemns packs with enough dead bytes, and small ones, by putting a
plan. Turns of one session that they have are joined before, so that the next run copies one record of them (`join`).
As long as a forgotten version is there, `undelete` brings it back.

    run 1: join turns; condemn A, B        A, B readable, nothing relies on them any more
    run 2: copy live of A, B to C, put a ledger entry of A and B, delete A, B; condemn ...

Small packs are merged in tiers, so that a byte is written a bounded number of times: see `_tiers`. Plans whose packs
are all deleted, and the ledger entries of these, are dropped a month later by a plan that says so.

Files that killed writers left in ``tmp/`` are deleted when a day old. A writer that is still alive then finds
its file gone when it links it, and acknowledges nothing. Such a file is never overwritten, because it may
already have its final name. Key files are left to an erasure, which overwrites them.

On a full disk, where the copies do not fit, packs without live records go first, then those with the least to
copy. Plans and ledger entries, which precede a deletion, may use a part of the store's reserve that copies
may not.

A crash leaves copies beside originals, or some condemned packs deleted whose live records are elsewhere. The
next run goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.freshness import count_of
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import older_versions, version_of
from pltz.archive.encryption.key_files import MAGIC as KEYS
from pltz.archive.errors import ArchiveError, FullError, StoreError, UnreadableError
from pltz.archive.format import object_names
from pltz.archive.format.block import Block
from pltz.archive.format.context import RUN, Context
from pltz.archive.format.index_file import Location, key_of_session
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.record import TICK_BITS, Record
from pltz.archive.maintenance.join import TurnJoiner
from pltz.archive.maintenance.live_set import SEGMENT, SESSION, LiveSet, weight
from pltz.archive.storage.store import is_there
from pltz.archive.writing.writer import ArchiveWriter, segment_only, session_only
from pltz.plt_codec.errors import FormatError
from pltz.plt_codec.varint import MAX_VALUE

DEAD_SHARE = 0.2  # share of dead bytes that makes it worth copying the rest of a pack
SMALL = 16 << 20  # bytes; packs smaller than this are merged
FIRST_TIER = 64 << 10  # bytes; of packs smaller than this two are enough for a merge
FANOUT = 4  # a larger pack is merged only into one that is so many times its size, about
KEPT = 30 * 86400  # seconds for which plans and ledger entries stay, at least, once all their packs are deleted
LEFT = 86400  # seconds after which a file in tmp/ counts as left by a killed writer
COPYING, NOTING = 1, 2  # parts of the store's reserve that each may use
FEW = 512  # packs per plan where there is no room for a longer one
COPIED = 2 * SMALL  # bytes of records copied at once, about: enough that no new pack is small, and bounded memory
STOPS = "collecting stops and deletes nothing"
GOING = "another collector is deleting what was condemned: collect again"
PART = {SEGMENT: segment_only, SESSION: session_only}  # copies one part where only that is live


@dataclass(frozen=True)
class Collected:
    """The result of a run. ``freed``: bytes of deleted packs less those of the copies."""

    copied: int
    deleted: int
    freed: int
    condemned: int
    live_segments: int
    live_versions: int


class Collector:
    """One run of garbage collection. Several may run at once: plans are numbered, and copies do no harm.

    ``joiner``: joins turns of sessions that are copied; None: they stay as they are.
    """

    def __init__(
        self, catalog: Catalog, writer: ArchiveWriter, indexes: IndexKeeper, joiner: TurnJoiner | None = None
    ) -> None:
        self.catalog, self.writer, self.indexes, self.joiner = catalog, writer, indexes, joiner
        self._block: tuple[Location, Pack, Block] | None = None  # the last one copied from
        self._before = MAX_VALUE  # seconds since 1970; what was forgotten later is live
        self._keys = frozenset[str]()  # key files there were when the records of the census were read

    def run(
        self,
        *,
        dead_share: float = DEAD_SHARE,
        small: int = SMALL,
        grace: int = 0,
        kept: int = KEPT,
        dry_run: bool = False,
    ) -> Collected:
        """Finish earlier plans, then condemn packs in a new one.

        Args:
            dead_share: share of dead bytes from which a pack is condemned.
            small: bytes below which packs are merged, tier by tier.
            kept: least age of plans and ledger entries that are dropped, in seconds.
            grace: least time that a condemned pack stays, and that a forgotten version can be undeleted, in seconds.
                With 0 what is forgotten is not live, whatever clock its mark is of.
            dry_run: only report the work to do.

        Raises:
            ArchiveError: something is damaged, missing or unreadable.
            FullError: there is no room to free even one pack.
            StoreError: the store failed.
        """
        reserve = nullcontext() if dry_run else self.catalog.store.using_reserve(COPYING)
        with reserve, LiveSet() as self._census:
            done = self._run(dead_share, small, grace, kept, dry_run)
        if not dry_run and (done.copied or done.deleted):
            self.indexes.try_to_write()  # the collection stands; an index can be written later
        return done

    def _run(self, dead_share: float, small: int, grace: int, kept: int, dry_run: bool) -> Collected:
        """Do the work of `run`, but for the index."""
        self.catalog.refresh()
        self._want_evidence()
        if not dry_run and self._publish():  # writers have to know all plans before packs are listed
            self.catalog.refresh()
        check = self.catalog.key_check
        if check and (faults := check.faults()):
            raise ArchiveError(f"{faults[min(faults)]}; {STOPS}")
        # what an earlier run condemned is finished first
        before = self.catalog.store.now() - grace
        self._before = before if grace else MAX_VALUE
        condemned = self.catalog.listing.condemned_by(before)
        copied = deleted = freed = 0
        if condemned & set(self.catalog.listing.packs):
            copied, deleted, freed = self._finish(condemned, dry_run)
        if not dry_run:
            self._sweep()
            self._tidy()
            self._drop_ended()
        # then packs are chosen for the next run
        census = self._settled()
        weights = census.weights()
        plan = self._choose(weights, dead_share, small)
        if plan and self.joiner and not dry_run and self._join(self.joiner, census, plan):
            weights = self._settled().weights()  # what was joined is dead, and there is one more pack
            plan = self._choose(weights, dead_share, small)
        plan |= self._from_the_future()
        live = census.live_segments, census.live_versions
        # the plan is put even on a full disk, with fewer packs if need be
        least = sorted(plan, key=lambda pack: weights.get(pack, (0, 0))[1])[:FEW]
        ending = self._ending(self.catalog.store.now() - max(grace, kept))
        if (plan or ending) and not dry_run:
            with self.catalog.store.using_reserve(NOTING):
                try:
                    plan = self._condemn(plan, ending)
                except FullError:
                    plan = self._condemn(set(least), ending)
            self.catalog.listing.read_plans()
            self._publish()
        return Collected(copied, deleted, freed, len(plan), *live)

    def _publish(self) -> bool:
        """Put a manifest with all plans and packs, on a full disk too; return whether there is another one now."""
        with self.catalog.store.using_reserve(NOTING):
            return self.catalog.listing.publish()

    def _condemn(self, packs: AbstractSet[bytes], ending: Mapping[str, Any]) -> set[bytes]:
        """Put a plan that condemns packs and return them; none where another collector was faster.

        ``ending``: what it ends, as `_ending` says. Raises FullError where there is no room for it.
        """
        store = self.catalog.store
        plan = replace(self.catalog.listing.next_plan(packs, store.now()), **ending)
        if not store.put(plan.name, plan.encode()):
            return set()
        store.put(plan.copy, plan.encode())
        return set(packs)

    def _ending(self, before: int) -> dict[str, Any]:
        """Return the fields of a plan that ends what is older than ``before``; none where too little would end.

        Plans end whose packs are all deleted. Ledger entries are dropped where nothing else names their packs.
        """
        listing, ledger = self.catalog.listing, self.catalog.ledger
        ended = listing.finished(before)
        parity = object_names.packs_among(self.catalog.store.list(object_names.PARITY))
        going = listing.condemned_in(range(ended + 1, listing.epoch + 1))
        indexed = (index.packs for index in listing.indexes.values())
        named = parity.union(listing.packs, listing.orphans, going, *indexed)
        entries = ledger.outdated(before, named)
        if not entries and not listing.condemned_in(range(listing.ended + 1, ended + 1)):
            return {}
        fields: dict[str, Any] = {"ended": ended}
        if entries:
            fields["dropped"] = (listing.last.dropped if listing.last else 0) + sum(entries.values())
            fields["known"] = count_of(self.catalog)
            fields["entries"] = frozenset(map(bytes.fromhex, entries))
        return fields

    def _drop_ended(self) -> None:
        """Delete the plans that are over, and the ledger entries that the newest plan drops.

        The copy of a plan goes first: one that is left alone looks like a lost plan.
        """
        store, ended = self.catalog.store, self.catalog.listing.ended
        copies = object_names.plans_among(store.list(object_names.PARITY))
        for epoch in sorted(e for e in copies if e <= ended):
            store.delete(object_names.plan_copy(epoch))
        for epoch in sorted(e for e in object_names.plans_among(store.list(object_names.PLANS)) if e <= ended):
            store.delete(object_names.plan(epoch))
        over = self.catalog.ledger.over
        there = object_names.ledger_entries_among(store.list(object_names.LEDGER))
        there |= object_names.ledger_copies_among(store.list(object_names.PARITY))
        for name in sorted(over & there):
            for path in object_names.ledger_copies(name)[::-1]:
                store.delete(path)

    def _finish(self, condemned: frozenset[bytes], dry_run: bool) -> tuple[int, int, int]:
        """Copy the live records of condemned packs, prove the copies and delete the packs.

        Returns records copied, packs deleted and bytes freed. A full disk is freed in several rounds. Raises
        FullError where there is no room to free even one pack.
        """
        copied = deleted = freed = 0
        short = True
        while short and (condemned := condemned & set(self.catalog.listing.packs)):
            census = self._settled()
            known = dict(self.catalog.listing.packs)
            condemned &= set(known)  # another collector may have been faster
            if dry_run:
                return sum(1 for _ in census.stranded()), len(condemned), sum(known[p] for p in condemned)
            try:
                going, number, short = self._make_room(census, condemned)
            except FullError:
                if freed > 0:  # the next run reports how much is needed
                    break
                raise
            with self.catalog.store.using_reserve(NOTING):
                freed += self._delete(going, known)
            copied, deleted = copied + number, deleted + len(going)
        return copied, deleted, freed

    def _join(self, joiner: TurnJoiner, census: LiveSet, plan: AbstractSet[bytes]) -> int:
        """Join turns of sessions that have several live records in packs to be condemned; return the sessions."""
        keys = self.catalog.keys
        heads = (self._at(location) for location in census.grown(self.catalog.listing.condemned | plan))
        return joiner.sessions(keys.session(context, record)[:2] for record, context in heads)

    def _make_room(self, census: LiveSet, condemned: frozenset[bytes]) -> tuple[frozenset[bytes], int, bool]:
        """Copy live records of condemned packs, of as many packs as fit.

        Returns the packs that may be deleted, the number of records copied, and whether the disk was full.
        Raises FullError where no pack can go.
        """
        try:
            return condemned, self._copy(census), False
        except FullError:
            sizes = Counter[bytes]()
            for location, _ in census.stranded():
                sizes[location.pack] += weight(self._at(location)[0])
        if empty := condemned - set(sizes):
            return empty, 0, True
        some = sorted(condemned, key=lambda pack: sizes[pack])
        while True:  # halve until they fit: deleting one by one would cost a ledger entry each
            some = some[: len(some) // 2] or some
            try:
                return frozenset(some), self._copy(census, some), True
            except FullError as exc:
                if len(some) > 1:
                    continue
                raise FullError(
                    f"the disk is full, and collecting needs about {sizes[some[0]]} bytes to copy the live records "
                    f"of pack {some[0].hex()}, which has the fewest: free so many bytes, or forget more sessions and "
                    "collect twice"
                ) from exc

    def _delete(self, condemned: frozenset[bytes], known: dict[bytes, int]) -> int:
        """Delete condemned packs whose live records were all copied.

        Returns the bytes freed, less those of packs that are new since ``known``.
        """
        freed = sum(known[pack] for pack in condemned)
        self.catalog.refresh()
        self.catalog.store.settle(object_names.PACKS)  # another collector may be between link and fsync of a copy
        self._prove(condemned)
        self.catalog.refresh()
        self._want_evidence()
        self.catalog.ledger.put_deleted(condemned)
        for pack in sorted(condemned):  # parity first: left-over parity must never bring a pack back
            self.catalog.store.delete(object_names.parity(pack))
            self.catalog.store.delete(object_names.pack(pack))
        freed -= sum(size for pack, size in self.catalog.listing.packs.items() if pack not in known)
        self.catalog.refresh()
        return freed

    def _copy(self, census: LiveSet, packs: Collection[bytes] | None = None) -> int:
        """Put live records of condemned packs again, a pack's worth at a time; return their number.

        ``packs``: copy only from these.
        """
        rows: list[tuple[Context, Record]] = []
        copied = size = 0
        for location, parts in census.stranded():
            if packs is not None and location.pack not in packs:
                continue
            record, context = self._next(location)
            if parts in PART and not context.mode & RUN:  # a run is copied whole, with all its versions
                record = PART[parts](record)
            rows.append((context, record))
            copied, size = copied + 1, size + weight(record)
            if size >= COPIED:
                self.writer.copy(rows)
                rows, size = [], 0
        if rows:
            self.writer.copy(rows)
        return copied

    def _next(self, location: Location) -> tuple[Record, Context]:
        """Read a record that is to be copied, from the last block where it is there too. Raises ArchiveError."""
        if self._block is None or self._block[0] != location.block:
            try:
                self._block = location.block, *self.catalog.lookup.block(location)
            except FileNotFoundError:
                raise ArchiveError(GOING) from None
        _, pack, block = self._block
        record = pack.of_block(block, location.row)
        return record, pack.head.contexts[record.context]

    def _at(self, location: Location) -> tuple[Record, Context]:
        """Read a record that is to be copied. Raises ArchiveError where its pack was deleted meanwhile."""
        try:
            _, record, context = self.catalog.lookup.at(location)
        except FileNotFoundError:
            raise ArchiveError(GOING) from None
        return record, context

    def _prove(self, condemned: frozenset[bytes]) -> None:
        """Find every live record, by reading it, in a pack that stays.

        Raises ArchiveError where one is not found.
        """
        self._census.drop(self._census.sharing(condemned))  # where records of condemned packs were found: read again
        for location, _ in self._settled(condemned).stranded():
            raise ArchiveError(
                f"the record at byte {location.offset} of {location.pack.hex()} is live "
                "and was not found in a pack that stays: "
                "nothing was deleted; where another collector is at work, collect again"
            )

    def _settled(self, condemned: frozenset[bytes] | None = None) -> LiveSet:
        """Read every pack that was not read yet, and settle which records are live, and in condemned packs only.

        ``condemned``: None stands for all packs that plans name. Packs are listed again where another collector
        deleted one meanwhile, because its live records are in a pack not listed before. Raises ArchiveError
        where something is damaged, newer or missing.
        """
        listing = self.catalog.listing
        listing.stable(self._read_all)
        self._census.settle(listing.condemned if condemned is None else condemned, self._before, listing.packs)
        return self._census

    def _read_all(self) -> None:
        self._want_evidence()
        keys = frozenset(self.catalog.store.list(object_names.KEYS)) if self.catalog.key_check else frozenset[str]()
        if keys != self._keys:  # something was erased since: its records are not live
            self._census.drop(self._census.packs)
            self.catalog.keys.refresh()  # they are at least as new as this list
            self._keys = keys
        unread = sorted(self.catalog.listing.packs.keys() - self._census.packs, key=self._age)
        for pack in unread:
            try:
                self._read(pack, self._census)
            except BaseException:
                self._census.drop([pack])
                raise

    def _age(self, pack: bytes) -> tuple[int, bytes]:
        """Return the time of a pack and its id. In this order the times in a block differ by few bits."""
        try:
            return self.catalog.listing.opened(pack).head.moment, pack
        except (FormatError, FileNotFoundError):  # `_read` reports it
            return 0, pack

    def _read(self, pack: bytes, census: LiveSet) -> None:
        census.begin(pack)
        try:
            for item in self.catalog.listing.scan(pack):
                if isinstance(item, Damage):
                    raise ArchiveError(f"pack {pack.hex()} is damaged ({item.why}): collecting stops")
                self._count(census, item)
        except FormatError as exc:
            raise ArchiveError(f"pack {pack.hex()} cannot be read ({exc}): collecting stops") from exc
        except FileNotFoundError:
            self.catalog.ledger.refresh()
            if pack not in self.catalog.ledger.deleted:
                raise ArchiveError(
                    f"pack {pack.hex()} vanished, and no collector deleted it: collecting stops; "
                    "run pltz archive repair"
                ) from None
            census.drop([pack])
            self.catalog.listing.note_stale()

    def _count(self, census: LiveSet, item: Found) -> None:
        """Add a record to the census. Erased content is never live, so nothing keeps it."""
        r, gone = item.record, self.catalog.keys.gone
        named = r.name is not None and not gone(item.context, key_of_session(r, item.context))
        segment = r.id if r.id is not None and not gone(item.context, r.id) else None
        older = older_versions(item) if named else ()
        census.add(item.location, r, version_of(item) if named else None, segment, item.context.mode, older)

    def _sweep(self) -> None:
        """Delete what is left of packs that the ledger says are deleted, and that no manifest names any more.

        A slow writer may put parity after its pack was collected, and a killed collector may leave a pack.
        """
        store = self.catalog.store
        for pack in self.catalog.ledger.deleted & self.catalog.listing.orphans.keys():
            store.delete(object_names.pack(pack))
        protected = object_names.packs_among(store.list(object_names.PARITY))
        for pack in sorted(self.catalog.ledger.deleted & protected):
            if not is_there(store, object_names.pack(pack)):  # else both were left by a killed collector
                store.delete(object_names.parity(pack))

    def _want_evidence(self) -> None:
        """Raise ArchiveError where anything names an absent pack, plan or key file that the ledger does not explain."""
        catalog = self.catalog
        if lacking := catalog.keyless():
            raise ArchiveError(f"{lacking[min(lacking)]}; {STOPS}")
        if missing := catalog.damage.missing():
            raise ArchiveError(
                f"pack {min(missing).hex()} is gone, and no collector deleted it: "
                "collecting stops and deletes nothing; "
                "run pltz archive repair"
            )
        if catalog.listing.unlisted:
            raise ArchiveError(
                f"pack {min(catalog.listing.unlisted).hex()} is there, and the list of packs/ leaves it out: "
                "collecting stops and deletes nothing; check the store, then collect again"
            )
        if plans := catalog.listing.missing_plans():
            raise ArchiveError(
                f"{object_names.plan(min(plans))} is gone, and its copy is left: collecting stops and deletes nothing; "
                "run pltz archive repair"
            )

    def _from_the_future(self) -> set[bytes]:
        """Return packs that a clock ahead of ours condemned, to condemn them again.

        Otherwise their grace would not end before that time. Packs whose own time is in the future are left
        out: there it is this clock that is behind.
        """
        listing, now = self.catalog.listing, self.catalog.store.now()
        ahead = (listing.condemned & set(listing.packs)) - listing.condemned_by(now)
        return {pack for pack in ahead if listing.opened(pack).head.moment >> TICK_BITS <= now}

    def _tidy(self) -> None:
        """Delete files that killed writers left. Files that cannot be read or deleted stay."""
        store = self.catalog.store
        for name in store.left(LEFT):
            try:
                if store.read(name, 0, len(KEYS)) != KEYS:
                    store.delete(name)
            except (FileNotFoundError, StoreError, UnreadableError):
                continue

    def _choose(self, weights: Mapping[bytes, tuple[int, int]], dead_share: float, small: int) -> set[bytes]:
        """Return the packs worth emptying. The census stops at a damaged pack, so none is among them."""
        listing = self.catalog.listing
        staying = set(listing.packs) - listing.condemned
        dead = {
            p for p in staying & set(weights) if weights[p][0] - weights[p][1] > dead_share * weights[p][0]
        }
        return dead | _tiers({p: self.catalog.listing.packs[p] for p in staying}, small)


def _tiers(sizes: Mapping[bytes, int], small: int) -> set[bytes]:
    """Return the packs to merge into one, of sizes in bytes: the most of the smallest for which a merge is worth it.

    Packs below FIRST_TIER are merged where there are two. A larger one is merged where it and all smaller ones together
    have FANOUT times its size. So its bytes are copied at most log(small / FIRST_TIER) / log(FANOUT) times, which is 4,
    before it is no longer small, but for those of dead records. At most 25 packs above FIRST_TIER stay small.

    >>> [len(_tiers(dict.fromkeys(range(n), size), SMALL)) for n, size in ((1, 9), (2, 9), (3, 1 << 20), (4, 1 << 20))]
    [0, 2, 0, 4]
    """
    little = sorted((size, pack) for pack, size in sizes.items() if size < small)
    total = worth = 0
    for number, (size, _) in enumerate(little, 1):
        total += size
        if size < FIRST_TIER or size * FANOUT <= total:
            worth = number
    return {pack for _, pack in little[:worth]} if worth > 1 else set()

"""Collect: garbage collection and merging of small packs, in two phases.

Spec: WRITING.md, "Collect".

A forgotten version is live, with its tower, until its mark is older than the grace period, and as long as a hold keeps
it. It does not matter when its pack was condemned.

A run first finishes what earlier runs condemned. It copies live records that lie only in condemned packs, then finds
every live record by reading it in a pack that stays. Other packs, which never change, are read once per run. The
manifest then says that the condemned packs are gone, and only after that their files are deleted. If a named pack is
missing, the run stops before anything is taken out. Then it condemns packs with enough dead bytes, and small ones, in
the manifest. Turns of one session that they have are joined before, so that the next run copies one record of them
(`join`). As long as a forgotten version is there, `undelete` brings it back.

    run 1: join turns; condemn A, B        A, B readable, nothing relies on them any more
    run 2: copy live of A, B to C, take A, B out, delete their files; condemn ...

Small packs are merged in tiers, so that a byte is written a bounded number of times: see `_tiers`.

Files that killed writers left in ``tmp/`` are deleted when a day old. A writer that is still alive then finds
its file gone when it links it, and acknowledges nothing. Such a file is never overwritten, because it may
already have its final name. Key files are left to an erasure, which overwrites them.

On a full disk, where the copies do not fit, packs without live records go first, then those with the least to copy.

A crash leaves copies beside originals, or files of packs that are gone. The next run goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import ATTEMPTS, Found
from pltz.archive.catalog.lookup import Blocks, older_versions, version_of
from pltz.archive.encryption.key_files import MAGIC as KEYS, generation_of
from pltz.archive.errors import ArchiveError, FullError, Outdated, StoreError, UnreadableError
from pltz.archive.format import object_names
from pltz.archive.format.audit import Verb
from pltz.archive.format.index_file import Location, key_of_session
from pltz.archive.format.manifest import MOST_OVER, Manifest
from pltz.archive.format.pack import Damage
from pltz.archive.format.record import RUN, TICK_BITS, Context, Record, segment_only, session_only, unpack_about
from pltz.archive.maintenance.join import TurnJoiner
from pltz.archive.maintenance.live_set import SEGMENT, SESSION, LiveSet, weight
from pltz.archive.storage.store import is_there
from pltz.archive.writing.writer import ArchiveWriter
from pltz.plt_codec.errors import FormatError
from pltz.plt_codec.varint import MAX_VALUE

DEAD_SHARE = 0.2  # share of dead bytes that makes it worth copying the rest of a pack
SMALL = 16 << 20  # bytes; packs smaller than this are merged
FIRST_TIER = 64 << 10  # bytes; of packs smaller than this two are enough for a merge
FANOUT = 4  # a larger pack is merged only into one that is so many times its size, about
LEFT = 86400  # seconds after which a file in tmp/ counts as left by a killed writer
COPIED = 2 * SMALL  # bytes of records copied at once, about: enough that no new pack is small, and bounded memory
STOPS = "collecting stops and deletes nothing"
HELD = "something was held or released meanwhile: collect again"
GOING = "another collector is deleting what was condemned: collect again"
PART = {SEGMENT: segment_only, SESSION: session_only}  # copies one part where only that is live


@dataclass(frozen=True)
class Collected:
    """The result of a run. ``freed``: bytes of deleted packs less those of the copies.

    ``kept``: packs that were deleted, and of which the bucket keeps a version: what was forgotten can be read in it.
    """

    copied: int
    deleted: int
    freed: int
    condemned: int
    live_segments: int
    live_versions: int
    kept: tuple[str, ...] = ()


class Collector:
    """One run of garbage collection. Several may run at once: the manifest tells each of the others.

    ``joiner``: joins turns of sessions that are copied; None: they stay as they are.
    """

    def __init__(
        self, catalog: Catalog, writer: ArchiveWriter, indexes: IndexKeeper, joiner: TurnJoiner | None = None
    ) -> None:
        self.catalog, self.writer, self.indexes, self.joiner = catalog, writer, indexes, joiner
        self._before = MAX_VALUE  # seconds since 1970; what was forgotten later is live
        self._deleted = set[bytes]()  # packs whose files this run deleted
        self._keys = frozenset[str]()  # key files there were when the records of the census were read
        self._holds = frozenset[bytes]()  # the same of holds in force

    def run(
        self,
        *,
        dead_share: float = DEAD_SHARE,
        small: int = SMALL,
        grace: int = 0,
        forgotten: bool = True,
        dry_run: bool = False,
        believed: int | None = None,
    ) -> Collected:
        """Finish what earlier runs condemned, then condemn packs.

        Args:
            dead_share: share of dead bytes from which a pack is condemned.
            small: bytes below which packs are merged, tier by tier.
            grace: least time that a condemned pack stays, and that a forgotten version can be undeleted, in seconds.
                With 0 what is forgotten is not live, whatever clock its mark is of.
            forgotten: else what is forgotten stays, however long ago that was.
            dry_run: only report the work to do.
            believed: time by which the grace counts, in seconds since 1970; None: this clock.

        Raises:
            ArchiveError: something is damaged, missing or unreadable.
            FullError: there is no room to free even one pack.
            StoreError: the store failed.
        """
        with LiveSet() as self._census:
            done = self._run(dead_share, small, grace, forgotten, dry_run, believed)
        if not dry_run:
            if done.copied or done.deleted:
                self.indexes.try_to_write()  # the collection stands; an index can be written later
            self._forget_gone()
        kept = (name for name in self.catalog.store.kept if object_names.folder_of(name) == object_names.PACKS)
        return replace(done, kept=tuple(kept))

    def _run(
        self, dead_share: float, small: int, grace: int, forgotten: bool, dry_run: bool, believed: int | None
    ) -> Collected:
        """Do the work of `run`, but for the index."""
        listing, now = self.catalog.listing, self.catalog.store.now()
        self.catalog.holds.want_agreed()
        self.catalog.refresh()
        self._want_evidence()
        check = self.catalog.key_check
        if check and (faults := check.faults()):
            raise ArchiveError(f"{faults[min(faults)]}; {STOPS}")
        # what an earlier run condemned is finished first
        past = (now if believed is None or not grace else believed) - grace
        self._before = 0 if not forgotten else past if grace else MAX_VALUE
        due = frozenset(pack for pack, since in listing.present.condemned.items() if since <= past)
        copied = deleted = freed = 0
        if due:
            copied, deleted, freed = self._finish(due, dry_run)
        if not dry_run:
            self._sweep()
            self._tidy()
        # then packs are chosen for the next run
        census = self._settled()
        plan = self._choose(census.weights(), dead_share, small)
        if plan and self.joiner and not dry_run and self._join(self.joiner, census, plan):
            plan = self._choose(self._settled().weights(), dead_share, small)  # what was joined is dead
        live = census.live_segments, census.live_versions
        if (plan or self._from_the_future(now)) and not dry_run:
            plan = self._condemn(plan, now)
        return Collected(copied, deleted, freed, len(plan), *live)

    def _condemn(self, packs: AbstractSet[bytes], now: int) -> set[bytes]:
        """Condemn packs, and return them. ``now``: seconds since 1970."""
        chosen, ahead = set[bytes](), self._from_the_future(now)

        def condemning(manifest: Manifest) -> Manifest:
            chosen.clear()  # those that another collector took out meanwhile cannot be condemned
            room = MOST_OVER - len(manifest.condemned)
            chosen.update(sorted(packs & self.catalog.listing.packs.keys() - manifest.condemned.keys())[:room])
            since = {pack: now if pack in ahead else time for pack, time in manifest.condemned.items()}
            return replace(manifest, condemned=since).condemning(chosen, now)

        self.catalog.listing.publish(condemning)
        return chosen

    def _from_the_future(self, now: int) -> set[bytes]:
        """Return packs that a clock ahead of ours condemned: they would stay until then.

        Packs whose own time is in the future are left out: there it is this clock that is behind.
        """
        listing = self.catalog.listing
        ahead = {pack for pack, since in listing.present.condemned.items() if since > now and pack in listing.packs}
        return {pack for pack in ahead if listing.opened(pack).head.moment >> TICK_BITS <= now}

    def _forget_gone(self) -> None:
        """Delete files that are left of packs that are gone, and let the manifest forget those that no index has."""
        listing, store = self.catalog.listing, self.catalog.store
        self.catalog.look(0)
        if not listing.present.gone:
            return
        for pack in sorted(listing.present.gone.keys() - self._deleted):
            store.delete(object_names.parity(pack))
            store.delete(object_names.pack(pack))
        left = object_names.pack.listed(store.list)

        def forgetting(manifest: Manifest) -> Manifest:
            indexed = set[bytes]().union(*(index.packs for index in listing.indexes.values()))
            if len(listing.indexes) < len(manifest.indexes):  # one cannot be read
                return manifest
            return replace(manifest, gone={p: t for p, t in manifest.gone.items() if p in left or p in indexed})

        listing.publish(forgetting)

    def _finish(self, condemned: frozenset[bytes], dry_run: bool) -> tuple[int, int, int]:
        """Copy the live records of condemned packs, prove the copies and delete the packs.

        Returns records copied, packs deleted and bytes freed. A full disk is freed in several rounds. Raises
        FullError where there is no room to free even one pack.
        """
        copied = deleted = freed = 0
        short, turns, listing = True, ATTEMPTS, self.catalog.listing
        while short and (condemned := condemned & listing.condemned & set(listing.packs)):
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
            except Outdated:  # by what others freed or condemned meanwhile, other records are live
                if not (turns := turns - 1):
                    raise
                self.catalog.refresh()
                continue
            number_deleted, bytes_freed = self._delete(going, known)
            copied, deleted, freed = copied + number, deleted + number_deleted, freed + bytes_freed
        return copied, deleted, freed

    def _join(self, joiner: TurnJoiner, census: LiveSet, plan: AbstractSet[bytes]) -> int:
        """Join turns of sessions that have several live records in packs to be condemned; return the sessions."""
        keys = self.catalog.keys
        heads = (self._at(location) for location in census.grown(self.catalog.listing.condemned | plan))
        found = (keys.session(context, record) for record, context in heads)
        return joiner.sessions((tenant, name, unpack_about(about)[0]) for tenant, name, about in found)

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
        while True:  # halve until they fit: taking them out one by one would cost a manifest each
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

    def _delete(self, condemned: frozenset[bytes], known: dict[bytes, int]) -> tuple[int, int]:
        """Take condemned packs out whose live records were all copied, and delete their files.

        Returns their number, and the bytes freed, less those of packs that are new since ``known``.
        """
        listing, store = self.catalog.listing, self.catalog.store
        for turn in range(ATTEMPTS):
            self.catalog.refresh()
            self._want_evidence()
            condemned &= listing.condemned  # another collector may have been faster
            self._prove(condemned)
            try:
                taking_out = partial(self._taking_out, condemned, listing.packs.keys() - condemned)
                listing.publish(taking_out, record=self.catalog.record(Verb.COLLECT, len(condemned)))
                break
            except Outdated:
                if turn + 1 == ATTEMPTS:
                    raise
        for pack in sorted(condemned):  # parity first: left-over parity must never bring a pack back
            store.delete(object_names.parity(pack))
            store.delete(object_names.pack(pack))
        self._deleted |= condemned
        self.catalog.refresh()
        fresh = sum(size for pack, size in listing.packs.items() if pack not in known)
        return len(condemned), sum(known[pack] for pack in condemned) - fresh

    def _taking_out(self, condemned: frozenset[bytes], staying: AbstractSet[bytes], manifest: Manifest) -> Manifest:
        """Return the manifest without condemned packs. ``staying``: packs in which all that is live in them was found.

        A writer that was faster relies on no condemned pack, or was refused. Raises Outdated where repair or another
        collector was faster.
        """
        if not (condemned <= manifest.condemned.keys() and staying <= self.catalog.listing.packs.keys()):
            raise Outdated(GOING)
        if manifest.holds.keys() != self._holds:  # what was forgotten may be live again
            raise Outdated(HELD)
        return manifest.taking_out(condemned, self.catalog.store.now())

    def _copy(self, census: LiveSet, packs: Collection[bytes] | None = None) -> int:
        """Put live records of condemned packs again, a pack's worth at a time; return their number.

        ``packs``: copy only from these.
        """
        listing, rows = self.catalog.listing, list[tuple[Context, Record]]()
        condemned, copied, size, blocks = listing.condemned, 0, 0, Blocks()

        def fence() -> None:  # what another freed would be back
            if listing.condemned != condemned:
                raise Outdated(GOING)

        for location, parts in census.stranded():
            if packs is not None and location.pack not in packs:
                continue
            with self.catalog.lookup.keeping_blocks(blocks):  # records of a block follow each other
                record, context = self._at(location)
            if parts in PART and not record.mode & RUN:  # a run is copied whole, with all its versions
                record = PART[parts](record)
            rows.append((context, record))
            copied, size = copied + 1, size + weight(record)
            if size >= COPIED:
                self.writer.publisher.put(rows, fence=fence)
                rows, size = [], 0
        if rows:
            self.writer.publisher.put(rows, fence=fence)
        return copied

    def _at(self, location: Location) -> tuple[Record, Context]:
        """Read a record that is to be copied. Raises ArchiveError where its pack was deleted meanwhile."""
        try:
            _, record, context = self.catalog.lookup.at(location)
        except FileNotFoundError:
            raise ArchiveError(GOING) from None
        return record, context

    def _prove(self, condemned: frozenset[bytes]) -> None:
        """Find every live record, by reading it, in a pack that stays. Raises ArchiveError where one is not found."""
        self._census.drop(self._census.sharing(condemned))  # where records of condemned packs were found: read again
        for location, _ in self._settled(condemned).stranded():
            raise ArchiveError(
                f"the record at byte {location.offset} of {location.pack.hex()} is live "
                "and was not found in a pack that stays: "
                "nothing was deleted; where another collector or an erase is at work, collect again"
            )

    def _settled(self, condemned: frozenset[bytes] | None = None) -> LiveSet:
        """Read every pack that was not read yet, and settle which records are live, and in condemned packs only.

        ``condemned``: None stands for all that are. The manifest is read again where another collector took a pack out
        meanwhile, because its live records are in a pack not named before. Raises ArchiveError
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
        if (holds := frozenset(self.catalog.holds.rows)) != self._holds:
            self._census.drop(self._census.packs)
            self._holds = holds
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
                    raise ArchiveError(f"pack {pack.hex()} is damaged ({item.why}): {STOPS}; run pltz archive repair")
                self._count(census, item)
        except FormatError as exc:
            raise ArchiveError(f"pack {pack.hex()} cannot be read ({exc}): {STOPS}; run pltz archive repair") from exc
        except FileNotFoundError:
            census.drop([pack])
            self.catalog.listing.note_stale()

    def _count(self, census: LiveSet, item: Found) -> None:
        """Add a record to the census. Erased content is never live, so nothing keeps it."""
        r, gone = item.record, self.catalog.keys.gone
        named = r.name is not None and not gone(item.context, key_of_session(r, item.context))
        segment = r.id if r.id is not None and not gone(item.context, r.id) else None
        older = older_versions(item) if named else ()
        held = named and self.catalog.holds.keeps(item)
        version, root = version_of(item) if named else None, generation_of(item.context.root)
        census.add(item.location, r, version, segment, older, root=root, held=held)

    def _sweep(self) -> None:
        """Delete parity of packs that are neither named nor there: a slow writer put it after they were collected."""
        store, listing = self.catalog.store, self.catalog.listing
        protected = object_names.parity.listed(store.list).keys()
        there = object_names.pack.listed(store.list)  # after: parity is put after the pack
        named = listing.packs.keys() | listing.missing()  # one that vanished comes back by its parity
        for pack in sorted(protected - there.keys() - named):
            if not is_there(store, object_names.pack(pack)):
                store.delete(object_names.parity(pack))

    def _want_evidence(self) -> None:
        """Raise ArchiveError where a pack or key file is missing."""
        catalog = self.catalog
        if lacking := catalog.keyless():
            raise ArchiveError(f"{lacking[min(lacking)]}; {STOPS}")
        if missing := catalog.listing.missing():
            what = f"pack {min(missing).hex()} is gone, and no collector took it out"
            raise ArchiveError(f"{what}: {STOPS}; run pltz archive repair")

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
        dead = {p for p in staying & set(weights) if weights[p][0] - weights[p][1] > dead_share * weights[p][0]}
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

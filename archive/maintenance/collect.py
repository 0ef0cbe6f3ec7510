"""Collect: free what no session needs, and merge small packs, in two phases. Spec: FORMAT.md, "Collect" and "The fence".

A run first finishes what earlier runs condemned: live records that lie only in condemned packs are copied, every live record is
found by reading it in a pack that stays, the ledger says which packs go, and only then they are deleted. Where anything names a pack that
is not there and that the ledger does not explain, it stops before it deletes anything. Then it condemns: packs with
enough dead bytes, and small ones, by putting a plan. Between two runs `restore` brings back what was forgotten.

    run 1: condemn A, B            A, B readable, nothing relies on them any more
    run 2: copy live of A, B to C, put a ledger entry of A and B, delete A, B; condemn ...

What killed writers left in ``tmp/`` goes too, when it is a day old; whoever still stands there and links it then is told that it is gone, and acknowledges
nothing. It is never overwritten, for it may have its name already; files of keys are left to an erasure, which overwrites them.

A full disk: where the copies do not fit, packs without anything live go first, then the one with the least to copy, and so on. What is
noted before a deletion (plans) may use a part of the store's reserve that copies may not.

A crash leaves: copies beside originals, or some condemned packs deleted whose live records are elsewhere. The next run goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from pltz.archive.catalog.view import Found, View, version_of
from pltz.archive.encryption.key_files import MAGIC as KEYS
from pltz.archive.errors import ArchiveError, FullError, StoreError, UnreadableError
from pltz.archive.format.context import Context
from pltz.archive.format.index_file import Location, key_of_session
from pltz.archive.format.pack import Damage
from pltz.archive.format.plan import Plan
from pltz.archive.format.record import Record
from pltz.archive.maintenance.live_set import SEGMENT, SESSION, Census, weight
from pltz.archive.storage.store import is_there
from pltz.archive.writing.writer import Writer, segment_only, session_only
from pltz.plt_codec.errors import FormatError

DEAD_SHARE = 0.2  # of a pack's bytes, before it is worth copying the rest
SMALL = 16 << 20  # bytes; two packs smaller than this are merged
LEFT = 86400  # seconds after which a file in tmp/ is what a kill left
COPYING, NOTING = 1, 2  # parts of the reserve that may be used
FEW = 512  # packs of a plan, where there is no room for a longer one
COPIED = 2 * SMALL  # bytes of records, about, copied at once: packs that are not small, and no more in memory
PART = {SEGMENT: segment_only, SESSION: session_only}  # of a record of which only that is live


@dataclass(frozen=True)
class Collected:
    """What a run did. ``freed``: bytes of deleted packs less those of the copies."""

    copied: int
    deleted: int
    freed: int
    condemned: int
    live_segments: int
    live_versions: int


class Collector:
    """One run. Several may go on at once: plans are numbered, and copies do no harm."""

    def __init__(self, view: View, writer: Writer):
        self.view, self.writer = view, writer

    def run(
        self, *, dead_share: float = DEAD_SHARE, small: int = SMALL, grace: int = 0, dry_run: bool = False
    ) -> Collected:
        """See the head of this file. ``grace``: seconds that a condemned pack stays at least; ``dry_run``: only say what would be done.

        Raises ArchiveError where anything is unreadable.
        """
        self.view.refresh()
        self._want_evidence()
        condemned = self.view.condemned_by(self.view.store.now() - grace)
        copied = deleted = freed = 0
        if condemned & set(self.view.packs):
            copied, deleted, freed = self._finish(condemned, dry_run)
        if not dry_run:
            self._sweep_parity()
            self._tidy()
        with self._census() as census:
            plan = self._choose(census, dead_share, small) | self._from_the_future()
            live = census.live_segments, census.live_versions
            least = sorted(plan, key=lambda pack: census.weights().get(pack, (0, 0))[1])[:FEW] if plan else []
        if plan and not dry_run:
            with self.view.store.using_reserve(NOTING):
                try:
                    plan = self._condemn(plan)
                except FullError:
                    plan = self._condemn(set(least))
            self.view.read_plans()
        return Collected(copied, deleted, freed, len(plan), *live)

    def _condemn(self, packs: AbstractSet[bytes]) -> set[bytes]:
        """Put a plan of packs; none where another collector was faster. Raises FullError where there is no room for it."""
        store = self.view.store
        plan = Plan(self.view.epoch + 1, store.random(16), frozenset(packs), store.now())
        if not store.put(plan.name, plan.encode()):
            return set()
        store.put(plan.copy, plan.encode())
        return set(packs)

    def _finish(self, condemned: frozenset[bytes], dry_run: bool) -> tuple[int, int, int]:
        """Copy what is live of condemned packs, prove it, delete them; records copied, packs deleted, bytes freed.

        On a full disk some of them at a time. Raises FullError where there is no room to free even one.
        """
        copied = deleted = freed = 0
        short = True
        while short and (condemned := condemned & set(self.view.packs)):
            with self._census() as census:
                known = dict(self.view.packs)
                condemned &= set(known)  # another collector may have been faster
                if dry_run:
                    return sum(1 for _ in census.stranded()), len(condemned), sum(known[p] for p in condemned)
                try:
                    going, number, short = self._make_room(census, condemned)
                except FullError:
                    if freed > 0:  # the next run says how much is needed
                        break
                    raise
            with self.view.store.using_reserve(NOTING):
                freed += self._delete(going, known)
            copied, deleted = copied + number, deleted + len(going)
        return copied, deleted, freed

    def _make_room(self, census: Census, condemned: frozenset[bytes]) -> tuple[frozenset[bytes], int, bool]:
        """Copy what is live of condemned packs. Return those that may go, how many records were copied, and whether the disk was full.

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
        while True:  # as many as fit, by halves: each deletion costs a ledger entry
            some = some[: len(some) // 2] or some
            try:
                return frozenset(some), self._copy(census, some), True
            except FullError as exc:
                if len(some) > 1:
                    continue
                raise FullError(
                    f"collecting needs about {sizes[some[0]]} bytes for a copy of what is live in pack {some[0].hex()}, which "
                    f"has the least of it, and the disk is full: free so many bytes, or forget more sessions and collect twice"
                ) from exc

    def _delete(self, condemned: frozenset[bytes], known: dict[bytes, int]) -> int:
        """Delete condemned packs of which every live record was copied; bytes freed, those of new packs since ``known`` taken off."""
        freed = sum(known[pack] for pack in condemned)
        self.view.refresh()
        self.view.store.settle("packs")  # another collector may stand between the link of a copy and its sync
        self._prove(condemned)
        self.view.refresh()
        self._want_evidence()
        self.view.ledger.put_deleted(condemned)
        for pack in sorted(condemned):  # parity first: what is left of it must never bring a pack back
            self.view.store.delete(f"parity/{pack.hex()}")
            self.view.store.delete(f"packs/{pack.hex()}")
        freed -= sum(size for pack, size in self.view.packs.items() if pack not in known)
        self.view.refresh()
        return freed

    def _copy(self, census: Census, packs: Collection[bytes] | None = None) -> int:
        """Put live records of condemned packs again, or of some of them, a pack's worth at a time; how many."""
        rows: list[tuple[Context, Record]] = []
        copied = size = 0
        for location, parts in census.stranded():
            if packs is not None and location.pack not in packs:
                continue
            record, context = self._at(location)
            if parts in PART:
                record = PART[parts](record)
            rows.append((context, record))
            copied, size = copied + 1, size + weight(record)
            if size >= COPIED:
                self.writer.copy(rows)
                rows, size = [], 0
        if rows:
            self.writer.copy(rows)
        return copied

    def _at(self, location: Location) -> tuple[Record, Context]:
        """Read a record that is to be copied. Raises ArchiveError where its pack was deleted meanwhile."""
        try:
            _, record, context = self.view.at(location)
        except FileNotFoundError:
            raise ArchiveError("another collector is deleting what was condemned: collect again") from None
        return record, context

    def _prove(self, condemned: frozenset[bytes]) -> None:
        """Every live record is found, by reading it, in a pack other than these. Raises ArchiveError where one is not."""
        with self._census(condemned) as census:
            for location, _ in census.stranded():
                raise ArchiveError(
                    f"the record at byte {location.offset} of {location.pack.hex()} is live and was not found in a pack that stays: "
                    "nothing was deleted; where another collector is at work, collect again"
                )

    def _census(self, condemned: frozenset[bytes] | None = None) -> Census:
        """Read every pack, and settle what is live and lies in condemned ones alone (None: all that plans name); again where another collector deleted one meanwhile, whose live records are in a pack that was not listed.

        Raises ArchiveError where something is damaged, newer or missing.
        """
        census = self.view.look(self._read_all)
        try:
            census.settle(self.view.condemned if condemned is None else condemned)
        except BaseException:
            census.close()
            raise
        return census

    def _read_all(self) -> Census:
        self._want_evidence()
        census, vanished = Census(), self.view.vanished
        try:
            for pack in sorted(self.view.packs):
                self._read(pack, census)
        except BaseException:
            census.close()
            raise
        if self.view.vanished != vanished:
            census.close()  # it will be asked for again
        return census

    def _read(self, pack: bytes, census: Census) -> None:
        try:
            for item in self.view.scan(pack):
                if isinstance(item, Damage):
                    raise ArchiveError(f"pack {pack.hex()} is damaged ({item.why}): collecting stops")
                self._count(census, item)
        except FormatError as exc:
            raise ArchiveError(f"pack {pack.hex()} cannot be read ({exc}): collecting stops") from exc
        except FileNotFoundError:
            self.view.ledger.refresh()
            if pack not in self.view.ledger.deleted:
                raise ArchiveError(
                    f"pack {pack.hex()} vanished, and no collector deleted it: collecting stops; run pltz archive repair"
                ) from None
            self.view.vanished += 1

    def _count(self, census: Census, item: Found) -> None:
        """Sort a record in. What was erased is in the way and no more: nothing keeps it."""
        r, gone = item.record, self.view.keys.gone
        named = r.name is not None and not gone(item.context, key_of_session(r, item.context))
        segment = r.id if r.id is not None and not gone(item.context, r.id) else None
        census.add(item.location, r, version_of(item) if named else None, segment)

    def _sweep_parity(self) -> None:
        """Delete the parity of packs that the ledger says are deleted: a writer that stood still put it after they were collected."""
        store = self.view.store
        deleted = {pack.hex() for pack in self.view.ledger.deleted}
        for name in sorted(deleted & set(store.list("parity"))):
            if not is_there(store, f"packs/{name}"):  # a killed collector left it: it goes with the pack
                store.delete(f"parity/{name}")

    def _want_evidence(self) -> None:
        """Raises ArchiveError where anything names a pack or a plan that is not seen, and the ledger does not say why."""
        view = self.view
        if missing := view.missing():
            raise ArchiveError(
                f"pack {min(missing).hex()} is gone, and no collector deleted it: collecting stops and deletes nothing; "
                "run pltz archive repair"
            )
        if view.unlisted:
            raise ArchiveError(
                f"pack {min(view.unlisted).hex()} is there, and the list of packs/ leaves it out: "
                "collecting stops and deletes nothing; check the store, then collect again"
            )
        if plans := view.missing_plans():
            raise ArchiveError(
                f"collect/{min(plans)} is gone, and its copy is left: collecting stops and deletes nothing; "
                "run pltz archive repair"
            )

    def _from_the_future(self) -> set[bytes]:
        """Packs that were condemned by a clock that was ahead: they are condemned again, or their grace would not end before that time.

        Where packs are from the future too, it is this clock that is behind.
        """
        now = self.view.store.now()
        ahead = (self.view.condemned & set(self.view.packs)) - self.view.condemned_by(now)
        return {pack for pack in ahead if self.view.pack(pack).head.time <= now}

    def _tidy(self) -> None:
        """Take away what killed writers left; what is of somebody else, and cannot be read or deleted, stays."""
        store = self.view.store
        for name in store.left(store.now() - LEFT):
            try:
                if store.read(name, 0, len(KEYS)) != KEYS:
                    store.delete(name)
            except (FileNotFoundError, StoreError, UnreadableError):
                continue

    def _choose(self, census: Census, dead_share: float, small: int) -> set[bytes]:
        """Packs worth emptying. A damaged one is not reached: the census stops at it."""
        weights = census.weights()
        staying = set(self.view.packs) - self.view.condemned
        dead = {
            p for p in staying & set(weights) if weights[p][0] - weights[p][1] > dead_share * weights[p][0]
        }
        little = {p for p in staying if self.view.packs[p] < small}
        return dead | (little if len(little) > 1 else set())

"""Thawer: turns archived sessions into caches of the serving target, without repeating work that is hot.

    version --path--> segment ids --hold--> | hot | missing ...
                                                    read, decode, verify      sessions side by side
                                            | KV  | ids
                                                    prefill over the hot KV   many sessions in one pass
                                            | KV of the whole tower |         every new segment goes into the store

    thawer = Thawer(cold, target, HotStore.open(device_bytes=20 << 30))
    thawed = thawer.thaw("support/7", tenant="acme")             # cache, ids, logits: continue from here
    many = thawer.thaw_many([Wanted("a"), Wanted("b")])          # Thawed or the error of each

* Any thread may call at any time. Calls that arrive during a batch wait and run together in the next one.
  Their lanes are decoded side by side and their prefills padded into one pass. Two calls for one version are
  one piece of work, whenever they come.
* Segments that several sessions of a batch share, and that the store lacks, are decoded once and prefilled
  once, first.
* KV is served only under the ids it was computed from: the ids of every hot segment are compared with the
  tower's.
* A sealed archive is decoded every time, hot or not, so that an erased session is refused at once. It is not
  thawed over files (`FORMAT.md`). In an archive in the clear, a hot tower is not read again.
* A target whose layers keep windows, latents or states is thawed too, but none of its KV is kept hot.
* A session of one segment, archived as the target's own ids, is prefilled by work queued behind its decoder
  on the GPU (`queued_prefill.py`).
* With ``refine`` a session is served from a small form at once. One thread computes the exact KV between the batches
  that callers wait for (`background_worker.py`). A process that is killed meanwhile leaves the small form as it was.
* Stages are timed in milliseconds (`stage_timer.py`): ``read`` (find version and segments in the archive's
  catalogue and records), ``wait`` (for a batch under way), ``lookup`` (hot store and warm files, including
  the copy to the device), ``decode``, ``prefill``, ``insert``, ``total``.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pltz.archive.catalog.chain import MAX_SEGMENTS, KnownSegment
from pltz.archive.errors import LostError
from pltz.archive.format.context import RUN, WITHIN
from pltz.archive.sessions import base_of
from pltz.archive.thaw.queued_prefill import QueuedPrefill
from pltz.archive.thaw.target_tokens import TargetTokenReader, TargetTokens
from pltz.archive.thaw.thawed import Thawed, check_target
from pltz.archive.tower_archive import Tower
from pltz.kv.errors import WarmFileError
from pltz.kv.port.codec import loss
from pltz.kv.store.background_worker import BackgroundWorker
from pltz.kv.store.kv_block import can_cut, cut, join_kv
from pltz.kv.store.lease import Lease
from pltz.kv.store.stage_timer import StageTimer
from pltz.kv.store.store import HotStore, space_of
from pltz.models.target.cache import share
from pltz.plt_codec.errors import CorruptError, ModelError, PltzError, UsageError
from pltz.plt_codec.identity import NONE

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache

    from pltz.archive.catalog.lookup import Version
    from pltz.archive.sessions import SessionArchive
    from pltz.kv.calibrate.watch import Watch
    from pltz.models.target.target import Target

TOGETHER = 8192  # padded tokens of one pass over several sessions
WASTE = 0.25  # largest share of them that may be padding
PAST = 4  # limit of padded past, as a multiple of TOGETHER
BATCH = 256  # sessions of one batch
REFINED = 64  # sessions that wait for their exact KV at once; one more is not refined


class Wanted(NamedTuple):
    """A session to thaw: its last version, or the one with number ``version``.

    Immutable: any thread may use it.
    """

    name: str
    tenant: str = "default"
    version: int | None = None


@dataclass(eq=False)
class _Flight:
    """One version being thawed, for all callers that asked for it.

    ``max_kl``: bits per token that hot KV may lose. ``kl``: what the KV that was found may lose, by receipts.
    ``lossy``: whether some of it is in a form that is not exact, whatever its receipt says. ``asked``,
    ``boarded``: when the first caller asked, and when the version was known, in seconds of the performance counter.
    ``exact``: whether ``path`` is known before it is decoded, as that within a run is not. ``shared``: number of base
    segments that tenants share. ``hot``: number of segments found hot. ``at``: number of segments done. ``cache``: KV
    of the segments done. ``logits``: of their last id, where known. ``watch``: of the pass that ended the flight, in
    which it was row ``place``.
    """

    version: Version
    born: float
    asked: float
    boarded: float
    max_kl: float
    done: Event = field(default_factory=Event)
    answer: Thawed | PltzError | None = None
    path: list[bytes] = field(default_factory=list)
    exact: bool = True
    lease: Lease = field(default_factory=lambda: Lease([], lambda node: None))
    tower: Tower | None = None
    seen: TargetTokens = field(default_factory=lambda: TargetTokens(np.zeros(0, np.int32), [0]))
    shared: int = 0
    hot: int = 0
    at: int = 0
    end_of_run: int = 0
    kl: float = 0.0
    lossy: bool = False
    cache: DynamicCache | None = None
    logits: torch.Tensor | None = None
    watch: Watch | None = None
    place: int = 0

    def end(self, answer: Thawed | PltzError) -> None:
        """Set the answer for all callers. Only the first answer counts."""
        if self.answer is None:
            self.answer = answer

    @property
    def new(self) -> int:
        """Return the number of ids in the current run."""
        return self.seen.cuts[self.end_of_run] - self.seen.cuts[self.at]

    @property
    def needs_pass(self) -> bool:
        """Return whether there are ids to run, or the last one's logits to compute."""
        return self.new > 0 or (self.end_of_run == len(self.path) and self.logits is None)

    @property
    def prefix(self) -> bytes:
        """Return a key for everything that the KV up to the end of the run depends on.

        Flights with equal keys compute it once.
        """
        ids = self.seen.ids[: self.seen.cuts[self.end_of_run]].tobytes()
        return self.path[self.end_of_run - 1] + struct.pack("<d?", self.kl, self.lossy) + ids

    @property
    def row(self) -> tuple[NDArray[np.int32], DynamicCache | None]:
        """Return the ids up to the end of the run, (T,) int32, and the KV of the first of them."""
        return self.seen.ids[: self.seen.cuts[self.end_of_run]], self.cache

    def follow(self, other: _Flight) -> None:
        """Adopt the result of another flight for the same prefix."""
        self.cache = None if other.cache is None else share(other.cache)
        self.logits = other.logits
        self.watch, self.place = other.watch, other.place
        if isinstance(other.answer, PltzError):
            self.end(other.answer)


class Thawer:
    """A thawer of one archive for one target (see the top of this file).

    Any thread may use it.

    Args:
        cold: the archive.
            No other thread may use it while the thawer is in use.
        target: the model that serves.
        hot: the store in which KV is looked up and kept; None for none.
        any_target: also accept sessions that were frozen for another target.
        chunk: prefill at most this number of tokens of one session at a time.
        together: most padded tokens of a pass that several sessions share.
        max_kl: bits per token that KV from the store may lose, by the receipt of its form. 0 takes exact KV only.
            What is computed over lossy KV is not kept in the store.
        refine: compute the exact KV of what was served with a loss, in the background. It takes the place of the small
            form in the store, and `Thawed.exact` tells when it is there.
        max_age: seconds for which a thaw may rely on what the archive object saw before; None: as the archive says. A
            thaw serves the newest version that any process had acknowledged so long before.

    Raises UsageError for a sealed archive with a store that has a warm folder, and for ``refine`` without ``max_kl`` or
    without a tier of memory that keeps exact KV.
    """

    def __init__(
        self,
        cold: SessionArchive,
        target: Target,
        hot: HotStore | None = None,
        *,
        any_target: bool = False,
        chunk: int | None = None,
        together: int = TOGETHER,
        max_kl: float = 0.0,
        refine: bool = False,
        max_age: float | None = None,
    ) -> None:
        self._sealed = cold.archive.settings.sealed
        if self._sealed and hot is not None and hot.shared:
            raise UsageError(
                "this archive is sealed, and files of a hot store are in the clear: use one without a folder"
            )
        self.cold, self.target, self.hot = cold, target, hot
        self._any_target, self._chunk, self._together = any_target, chunk, together
        if refine and (hot is None or not max_kl or not any(tier.codec.exact for tier in hot.memory)):
            raise UsageError("to refine needs a bound on the loss (max_kl), and a tier of memory that keeps exact KV")
        self._max_kl, self._max_age = max_kl, max_age
        self._refiner = BackgroundWorker[Thawed]("pltz-refine", REFINED) if refine else None
        self._eyes = TargetTokenReader(cold, target)
        self._space = b"" if hot is None else space_of(target.fingerprint, str(target.model.dtype))
        self._lock = Lock()  # over flights
        self._reading = Lock()  # an archive belongs to one thread
        self._working = Lock()  # one batch at a time
        self._flights: dict[tuple[bytes, float], _Flight] = {}
        self._waiting: list[_Flight] = []

    def thaw(self, name: str, tenant: str = "default", version: int | None = None) -> Thawed:
        """Make a session hot and return its cache, ids and logits.

        Raises:
            NotFound, BundleMismatch, ModelError, UsageError: as `pltz.Archive.thaw`.
            LostError: it is damaged.
            TargetMismatch: it was frozen for other weights.
            ContentError: the target cannot take its ids.
            TokenizerMismatch: its ids are of another tokenizer.
        """
        answer = self.thaw_many([Wanted(name, tenant, version)])[0]
        if isinstance(answer, PltzError):
            raise answer
        return answer

    def token_ids(self, name: str, tenant: str = "default", version: int | None = None) -> NDArray[np.int32]:
        """Return the ids that `thaw` would prefill, (T,) int32, for an engine that keeps its own KV.

        Raises the errors of `thaw`.
        """
        with self._reading, self.cold.archive.catalog.one_look(self._max_age):
            chosen = self.cold.archive.version(name, tenant, version)
            self._eyes.prepare(chosen)
            return self._eyes.see(self.cold.archive.tower(chosen)).ids

    def thaw_many(self, wanted: Sequence[Wanted]) -> list[Thawed | PltzError]:
        """Make sessions hot. Returns for each one the result of `thaw`, or the error it would raise.

        All their KV is on the device at once when this returns. The stages' times are those of the session's
        batch.
        """
        boarded = self._board_all(wanted)
        answers = [one if isinstance(one, PltzError) else self._answer(one) for one in boarded]
        return [self._refined(*each) for each in zip(wanted, boarded, answers, strict=True)]

    def close(self) -> None:
        """End the work in the background, if any: what has begun is waited for."""
        if self._refiner is not None:
            self._refiner.close()

    def _refined(
        self, wanted: Wanted, flight: _Flight | PltzError, answer: Thawed | PltzError
    ) -> Thawed | PltzError:
        """Let the exact KV of a lossy answer be computed in the background, of the same version."""
        if isinstance(flight, PltzError) or isinstance(answer, PltzError) or self._refiner is None or not flight.lossy:
            return answer
        same = wanted._replace(version=flight.version.version)

        def work() -> Thawed:
            with self._reading:
                flight = self._board(same, 0.0)
            exact = flight if isinstance(flight, PltzError) else self._answer(flight)
            if isinstance(exact, PltzError):
                raise exact
            return exact

        return replace(answer, exact=self._refiner.submit(flight.version.id, work))

    # ---- flights

    def _board_all(self, wanted: Sequence[Wanted]) -> list[_Flight | PltzError]:
        """Return the flight of each, or its error, all by one look at the archive."""
        try:
            with self._reading, self.cold.archive.catalog.one_look(self._max_age):
                return [self._board(one) for one in wanted]
        except PltzError as exc:  # the look failed
            return [exc for _ in wanted]

    def _board(self, wanted: Wanted, max_kl: float | None = None) -> _Flight | PltzError:
        """Return the flight of a version: one under way, or a new one that waits.

        ``max_kl``: if not the thawer's. The caller holds ``_reading``.
        """
        max_kl = self._max_kl if max_kl is None else max_kl
        asked = time.perf_counter()
        try:
            version = self.cold.archive.version(wanted.name, wanted.tenant, wanted.version)
            born = min(v.time for v in self.cold.archive.history(wanted.name, wanted.tenant))
        except PltzError as exc:
            return exc
        with self._lock:
            flight = self._flights.get((version.id, max_kl))
            if flight is None:
                flight = _Flight(version, born, asked, time.perf_counter(), max_kl)
                self._flights[version.id, max_kl] = flight
                self._waiting.append(flight)
            return flight

    def _answer(self, flight: _Flight) -> Thawed | PltzError:
        """Work, or wait for the thread that works, until a flight is done.

        Returns a cache of the caller's own.
        """
        while not flight.done.is_set():
            with self._working:
                # The previous worker may have done it. Threads that wait now work for themselves.
                if not flight.done.is_set():
                    self._work()
        answer = flight.answer
        assert answer is not None
        return answer if isinstance(answer, PltzError) else replace(answer, cache=share(answer.cache))

    def _work(self) -> None:
        """Thaw the next batch of waiting flights, if any."""
        with self._lock:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        if not batch:
            return
        failure: PltzError = UsageError("the thaw was broken off: thaw again")
        try:
            self._thaw(batch)
        finally:
            with self._lock:
                for flight in batch:
                    flight.lease.release()
                    flight.end(failure)
                    del self._flights[flight.version.id, flight.max_kl]
                    flight.done.set()

    def _thaw(self, batch: list[_Flight]) -> None:
        laps = StageTimer(self.target.device)
        with self._reading:
            self._each(batch, self._find_path)
            laps.end("read")
            self._each(batch, self._hold)
            laps.end("lookup")
            ahead = self._ahead(_alive(batch))
            self._decode(_alive(batch), ahead)
            self._each(batch, self._hold_run)
            self._each(batch, self._find_base)
        self._each(batch, self._see)
        taken = ahead is not None and self._take(ahead, _alive(batch))
        laps.end("decode", wait=not taken)
        self._prefill(batch)
        if taken and ahead is not None and not ahead.agrees():  # it ran over other ids
            taken = False
            batch[0].cache = batch[0].logits = batch[0].watch = None
            batch[0].at = 0
            self._prefill(batch)
        laps.end("prefill")
        if taken and ahead is not None and (decode_ms := ahead.decode_ms()) is not None:
            laps.split("decode", "prefill", decode_ms)
        self._each(batch, lambda flight: flight.lease.promote())
        self._each(batch, self._insert)
        laps.end("insert")
        for flight in _alive(batch):
            assert flight.cache is not None and flight.logits is not None
            stages = laps.since(flight.asked, flight.boarded)
            flight.end(Thawed(flight.cache, flight.seen.ids.astype(np.int64), flight.logits, stages, flight.kl))

    def _each(self, batch: list[_Flight], step: Callable[[_Flight], None]) -> None:
        """Apply a step to all flights without an error. An error affects its own flight only."""
        for flight in _alive(batch):
            try:
                step(flight)
            except PltzError as exc:
                flight.end(exc)

    # ---- steps

    def _find_path(self, flight: _Flight) -> None:
        """Find the segments of a tower from the root: from hot nodes where possible, else from the archive's
        records.
        """
        self._eyes.prepare(flight.version)
        frozen_for = flight.version.target if any(flight.version.target) else None
        if frozen_for is not None:
            check_target(frozen_for, self.target.fingerprint, any_target=self._any_target)
        path: list[bytes] = []
        at, flight.exact = flight.version.leaf, not flight.version.lacks
        while at != NONE:
            if len(path) >= MAX_SEGMENTS:
                raise LostError(f"a tower of more than {MAX_SEGMENTS} segments: damaged")
            path.append(at)
            above = None if self.hot is None or self._sealed else self.hot.parent(self._space, at)
            if above is None:
                item = self.cold.archive.record(at)
                above = item.record.parent
                flight.exact = flight.exact and not item.context.mode & (RUN | WITHIN)
            at = above
        flight.path = path[::-1]

    def _hold(self, flight: _Flight) -> None:
        if self.hot is not None and flight.exact:
            flight.lease = self.hot.hold(self._space, flight.path, flight.born, max_kl=flight.max_kl)

    def _hold_run(self, flight: _Flight) -> None:
        """Hold the hot segments of a tower that were not known before its run was decoded."""
        if not flight.exact:
            flight.exact = True
            self._hold(flight)

    def _ahead(self, batch: list[_Flight]) -> QueuedPrefill | None:
        """Return the queued prefill for the batch's only flight, or None.

        It needs segments of which nothing is hot, whose tokens are the target's ids. Decoders that do not decode
        all of them at once never announce that many ids.
        """
        if len(batch) != 1 or len(batch[0].lease) or batch[0].version.lacks:
            return None
        flight = batch[0]
        if not self._eyes.as_they_are(flight.version):
            return None
        with suppress(PltzError):
            count = sum(self.cold.archive.record(segment).record.tokens for segment in flight.path)
            most = min(self._chunk or count, self.target.max_positions or count)
            return QueuedPrefill(self.target, count, self._watch(count)) if 0 < count <= most else None
        return None

    def _take(self, ahead: QueuedPrefill, batch: list[_Flight]) -> bool:
        """Give the queued prefill to the only flight. Returns False if it does not match the flight's ids."""
        found = ahead.found(batch[0].seen.ids) if batch else None
        if found is None:
            return False
        flight = batch[0]
        flight.cache, flight.logits = found
        flight.watch, flight.place = ahead.watch, 0
        flight.at = len(flight.path)
        return True

    def _decode(self, batch: list[_Flight], ahead: QueuedPrefill | None = None) -> None:
        """Decode the towers of all flights, except hot segments. ``ahead``: told of ids that are still being decoded.

        If one is lost, decode one by one to learn which.
        """
        try:
            towers = self.cold.archive.towers([f.version for f in batch], self._known(batch), ahead)
        except PltzError as exc:
            if len(batch) == 1:
                batch[0].end(exc)
                return
            for flight in batch:
                self._decode([flight])
            return
        for flight, tower in zip(batch, towers, strict=True):
            flight.tower = tower
            flight.path = [segment for segment, _ in tower.segments]  # those inside a run are known only now

    def _find_base(self, flight: _Flight) -> None:
        """Count the segments that tenants share. Those of a hot flight were pinned when they came."""
        assert flight.tower is not None
        if self.hot is not None and not len(flight.lease):
            flight.shared, _ = base_of(self.cold.archive, flight.tower)

    def _known(self, batch: list[_Flight]) -> dict[bytes, KnownSegment]:
        """Return the archive's tokens for the hot segments of a batch."""
        known: dict[bytes, KnownSegment] = {}
        for flight in () if self._sealed else batch:
            above = NONE
            for segment, block in zip(flight.lease.segments, flight.lease.blocks, strict=True):
                known[segment] = KnownSegment(above, block.tokens)
                above = segment
        return known

    def _see(self, flight: _Flight) -> None:
        """Find the target's ids, and count the hot segments that were computed from exactly these."""
        assert flight.tower is not None
        flight.seen = self._eyes.see(flight.tower)
        self.target.check_ids(flight.seen.ids)
        blocks = flight.lease.blocks
        count = 0
        while count < len(blocks) and np.array_equal(blocks[count].ids, flight.seen.of(count)):
            count += 1
        flight.lease.keep(count)
        if flight.seen.cuts[count]:
            count, flight.cache = self._joined(flight)
        flight.at = flight.hot = count
        flight.kl = max((loss(block.codec) for block in blocks[:count]), default=0.0)
        flight.lossy = not all(block.codec.exact for block in blocks[:count])
        if count == len(flight.path) and blocks[-1].logits is not None:
            flight.logits = blocks[-1].logits.to(self.target.device)

    def _joined(self, flight: _Flight) -> tuple[int, DynamicCache | None]:
        """Join the blocks that a flight holds, up to the first damaged one, which is dropped.

        Returns their number and the cache, None where no id is in it. Raises ModelError where the device has no room.
        """
        import torch

        device = self.target.device
        filled: list[torch.Tensor] = []
        count = 0
        try:
            for block in flight.lease.blocks:
                if len(block.ids):
                    filled.append(block.kv_near(device))
                count += 1
        except CorruptError:  # damage of a file that shows late, or of a coded block behind its checks: from the tokens
            self._drop(flight, count)
        except torch.OutOfMemoryError as exc:
            raise self._no_room() from exc
        try:
            return count, join_kv(filled, self.target.model.config, device) if filled else None
        except torch.OutOfMemoryError as exc:
            raise self._no_room() from exc

    def _no_room(self) -> ModelError:
        return ModelError(f"out of memory on {self.target.device}: thaw fewer sessions at once")

    def _drop(self, flight: _Flight, number: int) -> None:
        """Forget a block that cannot be decoded, and hold only those above it."""
        segment, damaged = flight.lease.segments[number], flight.lease.blocks[number].damaged
        flight.lease.keep(number)
        if self.hot is not None and not damaged:  # a damaged file is gone already
            with suppress(WarmFileError):  # the folder cannot be written: the session is served all the same
                self.hot.discard(self._space, segment)

    def _prefill(self, batch: list[_Flight]) -> None:
        """Prefill run by run: first the segments that most flights share, last each flight's own.

        A run ends where sharing changes.
        """
        while left := [f for f in _alive(batch) if f.logits is None or f.at < len(f.path)]:
            shared = Counter(segment for f in left for segment in f.path[f.at :])
            runs: dict[bytes, list[_Flight]] = {}
            for flight in left:
                flight.end_of_run = _end_of_run(flight, shared)
                runs.setdefault(flight.prefix, []).append(flight)
            for group in self._groups([flights[0] for flights in runs.values() if flights[0].needs_pass]):
                self._pass(group)
            for first, *others in runs.values():
                for flight in others:
                    flight.follow(first)
            for flight in left:
                flight.at = flight.end_of_run

    def _groups(self, flights: list[_Flight]) -> list[list[_Flight]]:
        """Group flights of similar length, as many as fit in one pass.

        A flight with none like it stays alone.
        """
        groups: list[list[_Flight]] = []
        for flight in sorted(flights, key=lambda f: f.new):
            if groups and self._fits([*groups[-1], flight]):
                groups[-1].append(flight)
            else:
                groups.append([flight])
        return groups

    def _fits(self, group: list[_Flight]) -> bool:
        width = len(group) * group[-1].new  # sorted: the last is the longest
        past = len(group) * max(f.seen.cuts[f.at] for f in group)
        waste = width - sum(f.new for f in group)
        return width <= self._together and past <= PAST * self._together and waste <= WASTE * width

    def _pass(self, group: list[_Flight]) -> None:
        """Run the target once over the runs of several flights.

        If that fails, run each alone to find the faulty one.
        """
        watch = self._watch(*(flight.new for flight in group))
        try:
            with watch or nullcontext():
                found = self.target.prefill_many([flight.row for flight in group]) if len(group) > 1 else []
        except PltzError:
            found = []
        for number, (flight, (cache, logits)) in enumerate(zip(group, found, strict=False)):
            flight.cache, flight.logits = cache, logits
            flight.watch, flight.place = watch, number
        if not found:
            self._each(group, self._alone)

    def _alone(self, flight: _Flight) -> None:
        ids, cache = flight.row
        own = None if cache is None else share(cache)
        flight.watch, flight.place = self._watch(flight.new), 0
        with flight.watch or nullcontext():
            flight.cache, flight.logits = self.target.prefill(ids, cache=own, chunk=self._chunk)

    def _watch(self, *new: int) -> Watch | None:
        """Return a watch of the prefill of so many ids per row, if a form of the store can use what it sees."""
        from pltz.kv.calibrate.watch import Watch

        return Watch(new) if self.hot is not None and self.hot.lossy else None

    def _insert(self, flight: _Flight) -> None:
        """Put every segment that was not hot into the store, and pin a base that tenants share."""
        import torch

        if self.hot is None or flight.cache is None or flight.lossy or not can_cut(flight.cache):
            return
        with suppress(torch.OutOfMemoryError):  # out of memory: the session is hot, but none of it is kept
            self._keep(self.hot, flight, flight.cache)

    def _keep(self, hot: HotStore, flight: _Flight, cache: DynamicCache) -> None:
        assert flight.tower is not None
        mass = None if flight.watch is None else flight.watch.mass(flight.place, len(flight.seen.ids))
        for number in range(flight.hot, len(flight.path)):
            ids, start = flight.seen.of(number), flight.seen.cuts[number]
            tokens = flight.tower.segments[number][1].astype(np.int32)
            logits = flight.logits if number == len(flight.path) - 1 else None
            parent = flight.path[number - 1] if number else NONE
            block = cut(cache, start, ids, tokens, logits)
            if mass is not None:
                block = replace(block, mass=mass[start : start + len(ids)])
            hot.insert(self._space, flight.path[number], parent, block, flight.born)
        if flight.shared:
            hot.pin(self._space, flight.path[: flight.shared])


def _alive(batch: list[_Flight]) -> list[_Flight]:
    return [flight for flight in batch if flight.answer is None]


def _end_of_run(flight: _Flight, shared: Counter[bytes]) -> int:
    """Return the number of the segment up to which as many flights share as at the next one."""
    end = flight.at
    while end < len(flight.path) and shared[flight.path[end]] == shared[flight.path[flight.at]]:
        end += 1
    return end

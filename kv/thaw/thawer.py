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

from pltz.archive import MAX_SEGMENTS, NO_SEGMENT, RUN, KnownSegment, LostError, Tower, arguments, tenant_of
from pltz.coding import as_target
from pltz.kv.errors import WarmFileError
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import loss, recall_loss
from pltz.kv.store.kv_block import can_cut, cut, join_kv
from pltz.kv.store.lease import Lease
from pltz.kv.store.stage_timer import StageTimer
from pltz.kv.store.store import HotStore, space_of
from pltz.kv.thaw.target_tokens import TargetTokenReader, TargetTokens
from pltz.kv.thaw.thawed import Thawed, check_target
from pltz.models import share
from pltz.plt_codec import CorruptError, ModelError, PltzError, UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache

    from pltz.archive import Archive, Version, VersionName
    from pltz.coding import Path_
    from pltz.kv.calibrate.watch import Watch
    from pltz.models import Target

TOGETHER = 8192  # padded tokens of one pass over several sessions
WASTE = 0.25  # largest share of them that may be padding
PAST = 4  # limit of padded past, as a multiple of TOGETHER
BATCH = 256  # sessions of one batch


class Wanted(NamedTuple):
    """A session to thaw: its last version, or the one that ``version`` names.

    Immutable: any thread may use it.
    """

    name: str
    tenant: str = "default"
    version: VersionName | None = None


@dataclass(eq=False)
class _ThawRequest:
    """One version being thawed, for all callers that asked for it.

    ``kl``, ``kl_recall``: what the KV that was found may lose, by receipts.
    ``beyond``: ids by which the session is longer than the contexts of these.
    ``lossy``: whether some of it is in a form that is not exact, whatever its receipt says. ``began``: when the oldest
    version of the session did, in seconds since 1970. ``asked_at``, ``admitted_at``: when the first caller asked, and
    when the version was known, in seconds of the performance counter. ``exact``: whether ``path`` is known before it is
    decoded, as that within a run is not. ``shared``: number of base segments that tenants share. ``hot``: number of
    segments found hot. ``at``: number of segments done. ``cache``: KV of the segments done. ``logits``: of their last
    id, where known. ``watch``: of the pass that ended the request, in which it was row ``place``.
    """

    version: Version
    began: float
    asked_at: float
    admitted_at: float
    done: Event = field(default_factory=Event)
    answer: Thawed | PltzError | None = None
    path: list[bytes] = field(default_factory=list)
    exact: bool = True
    lease: Lease = field(default_factory=lambda: Lease([], lambda node: None))
    tower: Tower | None = None
    target_tokens: TargetTokens = field(default_factory=lambda: TargetTokens(np.zeros(0, np.int32), [0]))
    shared: int = 0
    hot: int = 0
    at: int = 0
    end_of_run: int = 0
    kl: float = 0.0
    kl_recall: float = 0.0
    beyond: int = 0
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
        return self.target_tokens.cuts[self.end_of_run] - self.target_tokens.cuts[self.at]

    @property
    def needs_pass(self) -> bool:
        """Return whether there are ids to run, or the last one's logits to compute."""
        return self.new > 0 or (self.end_of_run == len(self.path) and self.logits is None)

    @property
    def prefix(self) -> bytes:
        """Return a key for everything that the KV up to the end of the run depends on.

        Requests with equal keys compute it once.
        """
        ids = self.target_tokens.ids[: self.target_tokens.cuts[self.end_of_run]].tobytes()
        return self.path[self.end_of_run - 1] + struct.pack("<dd?", self.kl, self.kl_recall, self.lossy) + ids

    @property
    def row(self) -> tuple[NDArray[np.int32], DynamicCache | None]:
        """Return the ids up to the end of the run, (T,) int32, and the KV of the first of them."""
        return self.target_tokens.ids[: self.target_tokens.cuts[self.end_of_run]], self.cache

    def adopt(self, other: _ThawRequest) -> None:
        """Adopt the result of another request for the same prefix."""
        self.cache = None if other.cache is None else share(other.cache)
        self.logits = other.logits
        self.watch, self.place = other.watch, other.place
        if isinstance(other.answer, PltzError):
            self.end(other.answer)


class Thawer:
    """A thawer of one archive for one target (see the top of this file).

    Any thread may use it.

    Args:
        archive: where the sessions are. No other thread may use it while the thawer is in use.
        target: the model that serves, by name or folder, or loaded; None: the one that ships with pltz.
        hot: the store in which KV is looked up and kept; None for none.
        any_target: also accept sessions that were frozen for another target.
        chunk: prefill at most this number of tokens of one session at a time.
        together: most padded tokens of a pass that several sessions share.
        max_kl: bits per token that KV from the store may lose, by the receipt of its form. 0 takes exact KV only.
            What is computed over lossy KV is not kept in the store.
        max_kl_recall: bits per token that it may lose where early passages are asked for; None: four times ``max_kl``.
        max_age: seconds for which a thaw may rely on what the archive object saw before; None: as the archive says. A
            thaw serves the newest version that any process had acknowledged so long before.

    Raises UsageError for a sealed archive with a store that has a warm folder.
    """

    def __init__(
        self,
        archive: Archive,
        target: Path_ | Target | None = None,
        hot: HotStore | None = None,
        *,
        any_target: bool = False,
        chunk: int | None = None,
        together: int = TOGETHER,
        max_kl: float = 0.0,
        max_kl_recall: float | None = None,
        max_age: float | None = None,
    ) -> None:
        parts, self.target, self.hot = archive.parts, as_target(target), hot
        self._sealed = parts.settings.sealed
        if self._sealed and hot is not None and hot.shared:
            raise UsageError(
                "this archive is sealed, and files of a hot store are in the clear: use one without a folder"
            )
        self._catalog, self._directory, self._towers = parts.catalog, parts.directory, parts.reader
        self._any_target, self._chunk, self._together = any_target, chunk, together
        self._bound, self._max_age = Bound.of(max_kl, max_kl_recall), max_age
        if max_age is not None:
            arguments.seconds(max_age=max_age)
        self._reader = TargetTokenReader(archive, self.target)
        self._space = b"" if hot is None else space_of(self.target.fingerprint, str(self.target.model.dtype))
        self._lock = Lock()  # over requests
        self._reading = Lock()  # an archive belongs to one thread
        self._working = Lock()  # one batch at a time
        self._requests: dict[bytes, _ThawRequest] = {}  # by ids of versions
        self._waiting: list[_ThawRequest] = []

    def thaw(
        self, name: str, tenant: str = "default", version: VersionName | None = None, *, salt: str | bytes | None = None
    ) -> Thawed:
        """Make a session hot and return its cache, ids and logits. Arguments are those of `Archive.get`.

        Raises:
            NotFound, BundleMismatch, ModelError, UsageError: as `pltz.Archive.get`.
            LostError: it is damaged.
            TargetMismatch: it was frozen for other weights.
            ContentError: the target cannot take its ids.
            TokenizerMismatch: its ids are of another tokenizer.
        """
        arguments.text(name=name, tenant=tenant)
        arguments.version_or_none(version)
        answer = self.thaw_many([Wanted(name, tenant_of(tenant, salt), version)])[0]
        if isinstance(answer, PltzError):
            raise answer
        return answer

    def token_ids(self, name: str, tenant: str = "default", version: VersionName | None = None) -> NDArray[np.int32]:
        """Return the ids that `thaw` would prefill, (T,) int32, for an engine that keeps its own KV.

        Raises the errors of `thaw`.
        """
        with self._reading, self._catalog.one_look(self._max_age):
            chosen = self._directory.version(name, tenant, version)
            self._reader.prepare(chosen)
            return self._reader.read(self._towers.tower(chosen)).ids

    def thaw_many(self, wanted: Sequence[Wanted]) -> list[Thawed | PltzError]:
        """Make sessions hot. Returns for each one the result of `thaw`, or the error it would raise.

        All their KV is on the device at once when this returns. The stages' times are those of the session's
        batch.
        """
        requests = self._admit_all(wanted)
        return [one if isinstance(one, PltzError) else self._answer(one) for one in requests]

    # ---- requests

    def _admit_all(self, wanted: Sequence[Wanted]) -> list[_ThawRequest | PltzError]:
        """Return the request of each, or its error, all by one look at the archive."""
        try:
            with self._reading, self._catalog.one_look(self._max_age):
                return [self._admit(one) for one in wanted]
        except PltzError as exc:  # the look failed
            return [exc for _ in wanted]

    def _admit(self, wanted: Wanted) -> _ThawRequest | PltzError:
        """Return the request of a version: one under way, or a new one that waits. The caller holds ``_reading``."""
        asked_at = time.perf_counter()
        try:
            version = self._directory.version(wanted.name, wanted.tenant, wanted.version)
            began = min(v.time for v in self._directory.sight(wanted.name, wanted.tenant).versions)
        except PltzError as exc:
            return exc
        with self._lock:
            request = self._requests.get(version.id)
            if request is None:
                request = _ThawRequest(version, began, asked_at, time.perf_counter())
                self._requests[version.id] = request
                self._waiting.append(request)
            return request

    def _answer(self, request: _ThawRequest) -> Thawed | PltzError:
        """Work, or wait for the thread that works, until a request is done.

        Returns a cache of the caller's own.
        """
        while not request.done.is_set():
            with self._working:
                # The previous worker may have done it. Threads that wait now work for themselves.
                if not request.done.is_set():
                    self._work()
        answer = request.answer
        assert answer is not None
        return answer if isinstance(answer, PltzError) else replace(answer, cache=share(answer.cache))

    def _work(self) -> None:
        """Thaw the next batch of waiting requests, if any."""
        with self._lock:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        if not batch:
            return
        failure: PltzError = UsageError("the thaw was broken off: thaw again")
        try:
            self._thaw(batch)
        finally:
            with self._lock:
                for request in batch:
                    request.lease.release()
                    request.end(failure)
                    del self._requests[request.version.id]
                    request.done.set()

    def _thaw(self, batch: list[_ThawRequest]) -> None:
        timer = StageTimer(self.target.device)
        with self._reading, self._catalog.lookup.keeping_blocks():
            self._each(batch, self._find_path)
            timer.end("read")
            self._each(batch, self._hold)
            timer.end("lookup")
            self._decode(_pending(batch))
            self._each(batch, self._hold_run)
            self._each(batch, self._find_base)
        self._each(batch, self._find_ids)
        timer.end("decode")
        self._prefill(batch)
        if self._forget_broken(batch):
            self._prefill(batch)
        self._each(batch, self._check_numbers)
        timer.end("prefill")
        self._each(batch, lambda request: request.lease.promote())
        self._each(batch, self._insert)
        timer.end("insert")
        for request in _pending(batch):
            assert request.cache is not None and request.logits is not None
            stages = timer.since(request.asked_at, request.admitted_at)
            ids = request.target_tokens.ids.astype(np.int64)
            thawed = Thawed(request.cache, ids, request.logits, stages, request.kl, lossy=request.lossy)
            request.end(replace(thawed, kl_recall=request.kl_recall, beyond=request.beyond))

    def _each(self, batch: list[_ThawRequest], step: Callable[[_ThawRequest], None]) -> None:
        """Apply a step to all requests without an error. An error affects its own request only."""
        for request in _pending(batch):
            try:
                step(request)
            except PltzError as exc:
                request.end(exc)

    # ---- steps

    def _find_path(self, request: _ThawRequest) -> None:
        """Find the segments of a tower from the root: from hot nodes where possible, else from the archive's
        records. Without a store nothing can be hot, and the decoder finds them.
        """
        self._reader.prepare(request.version)
        frozen_for = request.version.target if any(request.version.target) else None
        if frozen_for is not None:
            check_target(frozen_for, self.target.fingerprint, any_target=self._any_target)
        if self.hot is None:
            return
        path: list[bytes] = []
        at, request.exact = request.version.leaf, not request.version.lacks
        while at != NO_SEGMENT:
            if len(path) >= MAX_SEGMENTS:
                raise LostError(f"a tower of more than {MAX_SEGMENTS} segments: damaged")
            path.append(at)
            above = None if self._sealed else self.hot.parent(self._space, at)
            if above is None:
                item = self._towers.record(at)
                above = item.record.parent
                request.exact = request.exact and not item.record.mode & RUN
            at = above
        request.path = path[::-1]

    def _hold(self, request: _ThawRequest) -> None:
        if self.hot is not None and request.exact:
            request.lease = self.hot.hold(
                self._space, request.path, request.began, max_kl=self._bound.kl, max_kl_recall=self._bound.recall
            )

    def _hold_run(self, request: _ThawRequest) -> None:
        """Hold the hot segments of a tower that were not known before its run was decoded."""
        if not request.exact:
            request.exact = True
            self._hold(request)

    def _decode(self, batch: list[_ThawRequest]) -> None:
        """Decode the towers of all requests, except hot segments.

        If one is lost, decode one by one to learn which.
        """
        try:
            towers = self._towers.towers([r.version for r in batch], self._known(batch))
        except PltzError as exc:
            if len(batch) == 1:
                batch[0].end(exc)
                return
            for request in batch:
                self._decode([request])
            return
        for request, tower in zip(batch, towers, strict=True):
            request.tower = tower
            request.path = [segment for segment, _ in tower.segments]  # those inside a run are known only now

    def _find_base(self, request: _ThawRequest) -> None:
        """Count the segments that tenants share. Those of a hot request were pinned when they came."""
        assert request.tower is not None
        if self.hot is not None and not len(request.lease):
            request.shared, _ = self._towers.base_of(request.tower)

    def _known(self, batch: list[_ThawRequest]) -> dict[bytes, KnownSegment]:
        """Return the archive's tokens for the hot segments of a batch."""
        known: dict[bytes, KnownSegment] = {}
        for request in () if self._sealed else batch:
            above = NO_SEGMENT
            for segment, block in zip(request.lease.segments, request.lease.blocks, strict=True):
                known[segment] = KnownSegment(above, block.tokens)
                above = segment
        return known

    def _find_ids(self, request: _ThawRequest) -> None:
        """Find the target's ids, and count the hot segments that were computed from exactly these."""
        assert request.tower is not None
        request.target_tokens = self._reader.read(request.tower)
        self.target.check_ids(request.target_tokens.ids)
        blocks = request.lease.blocks
        count = 0
        while count < len(blocks) and np.array_equal(blocks[count].ids, request.target_tokens.of(count)):
            count += 1
        request.lease.keep(count)
        if request.target_tokens.cuts[count]:
            count, request.cache = self._joined(request)
        request.at = request.hot = count
        request.kl = max((loss(block.codec) for block in blocks[:count]), default=0.0)
        request.kl_recall = max((recall_loss(block.codec) for block in blocks[:count]), default=0.0)
        lossy = [b.codec.receipt for b in blocks[:count] if not b.codec.exact and b.codec.receipt is not None]
        measured = min((receipt.context for receipt in lossy), default=len(request.target_tokens.ids))
        request.beyond = max(len(request.target_tokens.ids) - measured, 0)
        request.lossy = not all(block.codec.exact for block in blocks[:count])
        known = blocks[-1].logits if count == len(request.path) else None
        if known is not None and known.shape == self.target.outline[1].shape:
            request.logits = known.to(self.target.device)

    def _joined(self, request: _ThawRequest) -> tuple[int, DynamicCache | None]:
        """Join the blocks that a request holds, up to the first damaged one, which is dropped.

        Returns their number and the cache, None where no id is in it. Raises ModelError where the device has no room.
        """
        import torch

        device = self.target.device
        filled: list[torch.Tensor] = []
        count = 0
        try:
            for block in request.lease.blocks:
                if len(block.ids):
                    filled.append(self._of_target(block.kv_near(device), len(block.ids)))
                count += 1
        except CorruptError:  # damage that shows late, or behind the checks of a form, or KV of another target
            self._drop(request, count)
        except torch.OutOfMemoryError as exc:
            raise self._no_room() from exc
        try:
            return count, join_kv(filled, self.target.model.config, device) if filled else None
        except torch.OutOfMemoryError as exc:
            raise self._no_room() from exc

    def _of_target(self, kv: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return KV that came from the store. Raises CorruptError unless it has the target's shape and type."""
        like = self.target.outline[0]
        shape = (*like.shape[:3], tokens, like.shape[4])
        if kv.shape != shape or kv.dtype != like.dtype:
            raise CorruptError(f"expected KV {shape} in {like.dtype}, found {tuple(kv.shape)} in {kv.dtype}")
        return kv

    def _forget_broken(self, batch: list[_ThawRequest]) -> bool:
        """Forget hot KV from which the target computes no numbers, and begin its requests again. Returns whether any.

        The last id attends to all others, so its logits are NaN wherever some KV is, or is infinite.
        """
        broken = [request for request in _pending(batch) if request.hot and not _has_numbers(request.logits)]
        for request in broken:
            for number in reversed(range(len(request.lease))):
                self._drop(request, number)
            request.cache = request.logits = request.watch = None
            request.at = request.hot = 0
            request.kl = request.kl_recall = 0.0
            request.lossy = False
        return bool(broken)

    def _check_numbers(self, request: _ThawRequest) -> None:
        """Refuse a session of which the target computes no numbers. Nothing of it enters the store."""
        if not _has_numbers(request.logits):
            raise ModelError(
                f"the target computes no numbers (NaN) from this session in {self.target.model.dtype}: load it in "
                "another dtype (bfloat16 or float32), and check its weights"
            )

    def _no_room(self) -> ModelError:
        return ModelError(f"out of memory on {self.target.device}: thaw fewer sessions at once")

    def _drop(self, request: _ThawRequest, number: int) -> None:
        """Forget a block that cannot be decoded, and hold only those above it."""
        segment, damaged = request.lease.segments[number], request.lease.blocks[number].damaged
        request.lease.keep(number)
        if self.hot is not None and not damaged:  # a damaged file is gone already
            with suppress(WarmFileError):  # the folder cannot be written: the session is served all the same
                self.hot.discard(self._space, segment)

    def _prefill(self, batch: list[_ThawRequest]) -> None:
        """Prefill run by run: first the segments that most requests share, last each request's own.

        A run ends where sharing changes.
        """
        while left := [r for r in _pending(batch) if r.logits is None or r.at < len(r.path)]:
            shared = Counter(segment for r in left for segment in r.path[r.at :])
            runs: dict[bytes, list[_ThawRequest]] = {}
            for request in left:
                request.end_of_run = _end_of_run(request, shared)
                runs.setdefault(request.prefix, []).append(request)
            for group in self._groups([requests[0] for requests in runs.values() if requests[0].needs_pass]):
                self._pass(group)
            for first, *others in runs.values():
                for request in others:
                    request.adopt(first)
            for request in left:
                request.at = request.end_of_run

    def _groups(self, requests: list[_ThawRequest]) -> list[list[_ThawRequest]]:
        """Group requests of similar length, as many as fit in one pass.

        A request with none like it stays alone.
        """
        groups: list[list[_ThawRequest]] = []
        for request in sorted(requests, key=lambda r: r.new):
            if groups and self._fits([*groups[-1], request]):
                groups[-1].append(request)
            else:
                groups.append([request])
        return groups

    def _fits(self, group: list[_ThawRequest]) -> bool:
        width = len(group) * group[-1].new  # sorted: the last is the longest
        past = len(group) * max(r.target_tokens.cuts[r.at] for r in group)
        waste = width - sum(r.new for r in group)
        return width <= self._together and past <= PAST * self._together and waste <= WASTE * width

    def _pass(self, group: list[_ThawRequest]) -> None:
        """Run the target once over the runs of several requests.

        If that fails, run each alone to find the faulty one.
        """
        watch = self._watch(*(request.new for request in group))
        try:
            with watch or nullcontext():
                found = self.target.prefill_many([request.row for request in group]) if len(group) > 1 else []
        except PltzError:
            found = []
        for number, (request, (cache, logits)) in enumerate(zip(group, found, strict=False)):
            request.cache, request.logits = cache, logits
            request.watch, request.place = watch, number
        if not found:
            self._each(group, self._pass_alone)

    def _pass_alone(self, request: _ThawRequest) -> None:
        ids, cache = request.row
        own = None if cache is None else share(cache)
        request.watch, request.place = self._watch(request.new), 0
        with request.watch or nullcontext():
            request.cache, request.logits = self.target.prefill(ids, cache=own, chunk=self._chunk)

    def _watch(self, *new: int) -> Watch | None:
        """Return a watch of the prefill of so many ids per row, if a form of the store can use what it sees."""
        from pltz.kv.calibrate.watch import Watch

        return Watch(new) if self.hot is not None and self.hot.lossy else None

    def _insert(self, request: _ThawRequest) -> None:
        """Put every segment that was not hot into the store, and pin a base that tenants share."""
        import torch

        if self.hot is None or request.cache is None or request.lossy or not can_cut(request.cache):
            return
        with suppress(torch.OutOfMemoryError):  # out of memory: the session is hot, but none of it is kept
            self._keep(self.hot, request, request.cache)

    def _keep(self, hot: HotStore, request: _ThawRequest, cache: DynamicCache) -> None:
        assert request.tower is not None
        mass = None if request.watch is None else request.watch.mass(request.place, len(request.target_tokens.ids))
        for number in range(request.hot, len(request.path)):
            ids, start = request.target_tokens.of(number), request.target_tokens.cuts[number]
            tokens = request.tower.segments[number][1].astype(np.int32)
            logits = request.logits if number == len(request.path) - 1 else None
            parent = request.path[number - 1] if number else NO_SEGMENT
            block = cut(cache, start, ids, tokens, logits)
            if mass is not None:
                block = replace(block, mass=mass[start : start + len(ids)])
            hot.insert(self._space, request.path[number], parent, block, request.began)
        if request.shared:
            hot.pin(self._space, request.path[: request.shared])


def _pending(batch: list[_ThawRequest]) -> list[_ThawRequest]:
    return [request for request in batch if request.answer is None]


def _has_numbers(logits: torch.Tensor | None) -> bool:
    """Return whether logits are known, and none of them is NaN."""
    return logits is not None and not bool(logits.isnan().any())


def _end_of_run(request: _ThawRequest, shared: Counter[bytes]) -> int:
    """Return the number of the segment up to which as many requests share as at the next one."""
    end = request.at
    while end < len(request.path) and shared[request.path[end]] == shared[request.path[request.at]]:
        end += 1
    return end

"""Thawer: turns archived sessions into caches of the serving target, without repeating work that is hot.

    version --known, or read, decoded, verified--> ids      sessions side by side
    ids     --store--> | KV of their beginning | missing ...
                                                 prefill over it, many sessions in one pass
                       | KV of all ids         |            new blocks go into the store

    thawer = Thawer(cold, target, KVStore.open(target, tokens=100_000))
    thawed = thawer.thaw("support/7", tenant="acme")             # cache, ids, logits: continue from here
    many = thawer.thaw_many([Wanted("a"), Wanted("b")])          # Thawed or the error of each

* Any thread may call at any time. Calls that arrive during a batch wait and run together in the next one.
  Their lanes are decoded side by side and their prefills padded into one pass. Two calls for one version are
  one piece of work, whenever they come.
* Segments that several sessions of a batch share are decoded once and prefilled once, first.
* KV is named by its ids and the tenant, so it is served only under the ids it was computed from.
* A sealed archive is decoded every time, hot or not, so that an erased session is refused at once. Its files of KV are
  encrypted, by keys of its tenants (`FORMAT.md`). The ids of a version in the clear are kept, in memory and with the
  store's files, so it is not read again.
* A target whose layers keep windows, latents or states has no KV in blocks: whole caches are kept (`Snapshots`).
* Stages are timed in milliseconds (`stage_timer.py`): ``read`` (find version and segments in the archive's
  catalogue and records), ``wait`` (for a batch under way), ``decode``, ``lookup`` (the store, including
  the copy to the device), ``prefill``, ``insert``, ``total``.
"""

from __future__ import annotations

import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from threading import Event, Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pltz.archive import NO_SEGMENT, KnownSegment, Tower, arguments, tenant_of
from pltz.coding import as_target
from pltz.kv.errors import WarmFileError
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import loss, recall_loss
from pltz.kv.store.kv_file import KVFile
from pltz.kv.store.kv_folder import IDS
from pltz.kv.store.snapshots import Snapshots
from pltz.kv.store.store import KVStore
from pltz.kv.thaw.cache_kv import can_cut, cut, join
from pltz.kv.thaw.stage_timer import StageTimer
from pltz.kv.thaw.target_tokens import TargetTokenReader, TargetTokens
from pltz.kv.thaw.thawed import Thawed, check_target
from pltz.models import share
from pltz.plt_codec import ModelError, PltzError, UsageError

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
KNOWN_BYTES = 1 << 26  # of tokens of towers that stay in memory


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

    ``kl``, ``kl_recall``: what the KV that was found may lose, by receipts. ``beyond``: ids by which the session is
    longer than the contexts of these. ``keys``: changes of the keys of files when it was admitted. ``lossy``: whether
    some of it is in a form that is not exact, whatever its receipt says. ``asked_at``, ``admitted_at``: when the first
    caller asked, and when the version was known, in seconds of the performance counter. ``ran``: number of ids in
    ``cache``. ``at``: number of segments all of whose ids are. ``hot``: number of ids found hot. ``logits``: of the
    last id done, where known. ``watch``: of the pass that ended the request, in which it was row ``place``.
    """

    version: Version
    asked_at: float
    admitted_at: float
    keys: int = 0
    done: Event = field(default_factory=Event)
    answer: Thawed | PltzError | None = None
    path: list[bytes] = field(default_factory=list)
    tower: Tower | None = None
    target_tokens: TargetTokens = field(default_factory=lambda: TargetTokens(np.zeros(0, np.int32), [0]))
    hot: int = 0
    ran: int = 0
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
        return self.target_tokens.cuts[self.end_of_run] - self.ran

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
        hot: the store of the target in which KV is looked up and kept; None for none.
        any_target: also accept sessions that were frozen for another target.
        chunk: prefill at most this number of tokens of one session at a time.
        together: most padded tokens of a pass that several sessions share.
        max_kl: bits per token that KV from the store may lose, by the receipt of its form. 0 takes exact KV only.
            What is computed over lossy KV is not kept in the store.
        max_kl_recall: bits per token that it may lose where early passages are asked for; None: four times ``max_kl``.
        max_age: seconds for which a thaw may rely on what the archive object saw before; None: as the archive says. A
            thaw serves the newest version that any process had acknowledged so long before.

    Raises UsageError for the store of another target, and for one whose files are of another archive where one of the
    two is sealed.
    """

    def __init__(
        self,
        archive: Archive,
        target: Path_ | Target | None = None,
        hot: KVStore | Snapshots | None = None,
        *,
        any_target: bool = False,
        chunk: int | None = None,
        together: int = TOGETHER,
        max_kl: float = 0.0,
        max_kl_recall: float | None = None,
        max_age: float | None = None,
    ) -> None:
        parts, self.target, self.hot, self._archive = archive.parts, as_target(target), hot, archive
        self._sealed = parts.settings.sealed
        if hot is not None and hot.fingerprint not in (b"", self.target.fingerprint):
            raise UsageError("this store has the KV of another target: open one for this")
        if hot is not None:
            hot.admit(archive)
        self._catalog, self._directory, self._towers = parts.catalog, parts.directory, parts.reader
        self._any_target, self._chunk, self._together = any_target, chunk, together
        self._bound, self._max_age = Bound.of(max_kl, max_kl_recall), max_age
        if max_age is not None:
            arguments.seconds(max_age=max_age)
        self._reader = TargetTokenReader(archive, self.target)
        self._towers_known: OrderedDict[bytes, Tower] = OrderedDict()  # by ids of versions, the least used first
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

        All their KV is on the device at once when this returns. The stages' times are those of the session's batch.
        """
        requests = self._admit_all(wanted)
        return [one if isinstance(one, PltzError) else self._answer(one) for one in requests]

    # ---- requests

    def _admit_all(self, wanted: Sequence[Wanted]) -> list[_ThawRequest | PltzError]:
        """Return the request of each, or its error, all by one look at the archive."""
        try:
            with self._reading, self._catalog.one_look(self._max_age):
                if self._sealed and self.hot is not None:
                    self.hot.admit(self._archive, {one.tenant for one in wanted})
                return [self._admit(one) for one in wanted]
        except PltzError as exc:  # the look failed
            return [exc for _ in wanted]

    def _admit(self, wanted: Wanted) -> _ThawRequest | PltzError:
        """Return the request of a version: one under way, or a new one that waits. The caller holds ``_reading``."""
        asked_at = time.perf_counter()
        try:
            version = self._directory.version(wanted.name, wanted.tenant, wanted.version)
        except PltzError as exc:
            return exc
        with self._lock:
            request = self._requests.get(version.id)
            if request is None:
                request = _ThawRequest(version, asked_at, time.perf_counter(), self._changes())
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
                    request.end(failure)
                    del self._requests[request.version.id]
                    request.done.set()

    def _thaw(self, batch: list[_ThawRequest]) -> None:
        timer = StageTimer(self.target.device)
        with self._reading, self._catalog.lookup.keeping_blocks():
            self._each(batch, self._check_target)
            timer.end("read")
            self._decode(_pending(batch))
        self._each(batch, self._find_ids)
        timer.end("decode")
        self._each(batch, self._look_up)
        timer.end("lookup")
        self._prefill(batch)
        if self._forget_broken(batch):
            self._prefill(batch)
        self._each(batch, self._check_numbers)
        timer.end("prefill")
        self._each(batch, self._insert)
        timer.end("insert")
        for request in _pending(batch):
            assert request.cache is not None and request.logits is not None
            stages = timer.since(request.asked_at, request.admitted_at)
            ids = request.target_tokens.ids.astype(np.int64)
            thawed = Thawed(request.cache, ids, request.logits, stages, request.kl, lossy=request.lossy)
            left_out = request.target_tokens.left_out
            request.end(replace(thawed, kl_recall=request.kl_recall, beyond=request.beyond, left_out=left_out))

    def _each(self, batch: list[_ThawRequest], step: Callable[[_ThawRequest], None]) -> None:
        """Apply a step to all requests without an error. An error affects its own request only."""
        for request in _pending(batch):
            try:
                step(request)
            except PltzError as exc:
                request.end(exc)

    # ---- steps

    def _check_target(self, request: _ThawRequest) -> None:
        self._reader.prepare(request.version)
        frozen_for = request.version.target if any(request.version.target) else None
        if frozen_for is not None:
            check_target(frozen_for, self.target.fingerprint, any_target=self._any_target)

    def _decode(self, batch: list[_ThawRequest]) -> None:
        """Decode the towers of all requests, but what is known of them.

        If one is lost, decode one by one to learn which.
        """
        for request in batch:
            if (tower := self._known_tower(request.version)) is not None:
                request.tower = tower
        new = [request for request in batch if request.tower is None]
        try:
            towers = self._towers.towers([r.version for r in new], self._known_segments()) if new else []
        except PltzError as exc:
            if len(batch) == 1:
                batch[0].end(exc)
                return
            for request in new:
                self._decode([request])
            return
        for request, tower in zip(new, towers, strict=True):
            request.tower = tower
            self._know(tower)

    def _known_tower(self, version: Version) -> Tower | None:
        """Return the tower of a version that was decoded before: by this object, or by another that left its tokens."""
        if (found := self._towers_known.get(version.id)) is not None:
            self._towers_known.move_to_end(version.id)
            return found
        folder = None if self.hot is None or self._sealed else self.hot.folder
        file = None if folder is None else folder.read(_ids_name(version), IDS)
        if file is None:
            return None
        head = {name: tensor.numpy() for name, tensor in file.head.items()}
        ids, tokens, cuts = head.get("segments"), head.get("ids"), head.get("cuts")
        if ids is None or tokens is None or cuts is None or ids.ndim != 2 or ids[-1:].tobytes() != version.leaf:
            return None
        parts = np.split(tokens.astype(np.int64), np.clip(cuts[:-1], 0, len(tokens)))
        if len(parts) != len(ids):
            return None
        tower = Tower(version, [(row.tobytes(), part) for row, part in zip(ids, parts, strict=True)])
        self._know(tower, write=False)
        return tower

    def _know(self, tower: Tower, *, write: bool = True) -> None:
        """Keep the tokens of a tower, so that it is not read again: in memory, and in the store's folder."""
        import torch

        if self.hot is None or self._sealed:
            return
        self._towers_known[tower.version.id] = tower
        size = sum(len(one.tokens) * 4 for one in self._towers_known.values())
        while size > KNOWN_BYTES and len(self._towers_known) > 1:
            size -= 4 * len(self._towers_known.popitem(last=False)[1].tokens)
        if write and self.hot.folder is not None and tower.segments:
            rows = [np.frombuffer(segment, np.uint8) for segment, _ in tower.segments]
            head = {
                "ids": torch.from_numpy(tower.tokens.astype(np.int32)),
                "cuts": torch.from_numpy(np.cumsum([len(part) for _, part in tower.segments]).astype(np.int32)),
                "segments": torch.from_numpy(np.stack(rows)),
            }
            name, owner = _ids_name(tower.version), self.hot.folder.owner(tower.version.tenant)
            self.hot.folder.write(KVFile(IDS, self.hot.folder.space, name, head, tenant=owner))

    def _known_segments(self) -> dict[bytes, KnownSegment]:
        """Return the archive's tokens for the segments of towers that are known."""
        known: dict[bytes, KnownSegment] = {}
        for tower in self._towers_known.values():
            above = NO_SEGMENT
            for segment, tokens in tower.segments:
                known[segment] = KnownSegment(above, tokens)
                above = segment
        return known

    def _find_ids(self, request: _ThawRequest) -> None:
        assert request.tower is not None
        request.path = [segment for segment, _ in request.tower.segments]
        request.target_tokens = self._reader.read(request.tower)
        self.target.check_ids(request.target_tokens.ids)

    def _look_up(self, request: _ThawRequest) -> None:
        """Find the KV of the longest beginning of the ids that the store has."""
        import torch

        if self.hot is None:
            return
        ids, cuts = request.target_tokens.ids, request.target_tokens.cuts
        try:
            found = self.hot.read(request.version.tenant, ids, self.target.device, bound=self._bound)
            request.cache = join(found.pieces, self.target.model.config) if found.pieces else found.cache
        except torch.OutOfMemoryError as exc:
            raise ModelError(f"out of memory on {self.target.device}: thaw fewer sessions at once") from exc
        request.hot, request.ran, request.logits = found.tokens, found.tokens, found.logits
        request.at = max(int(np.searchsorted(cuts, found.tokens, "right")) - 1, 0)
        request.kl = max(map(loss, found.forms), default=0.0)
        request.kl_recall = max(map(recall_loss, found.forms), default=0.0)
        measured = [form.receipt.context for form in found.forms if form.receipt is not None]
        request.beyond = max(len(ids) - min(measured, default=len(ids)), 0)
        request.lossy = bool(found.forms)

    def _forget_broken(self, batch: list[_ThawRequest]) -> bool:
        """Forget hot KV from which the target computes no numbers, and begin its requests again. Returns whether any.

        The last id attends to all others, so its logits are NaN wherever some KV is, or is infinite.
        """
        broken = [request for request in _pending(batch) if request.hot and not _has_numbers(request.logits)]
        for request in broken:
            with suppress(WarmFileError):  # the folder cannot be written: the session is served all the same
                assert self.hot is not None
                self.hot.discard(request.version.tenant, request.target_tokens.ids)
            request.cache = request.logits = request.watch = None
            request.at = request.hot = request.ran = 0
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
                request.at, request.ran = request.end_of_run, request.target_tokens.cuts[request.end_of_run]

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
        past = len(group) * max(r.ran for r in group)
        waste = width - sum(r.new for r in group)
        return width <= self._together and past <= PAST * self._together and waste <= WASTE * width

    def _pass(self, group: list[_ThawRequest]) -> None:
        """Run the target once over the runs of several requests.

        If that fails, run each alone to find the faulty one.
        """
        watch = self._watch(group)
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
        request.watch, request.place = self._watch([request]), 0
        with request.watch or nullcontext():
            request.cache, request.logits = self.target.prefill(ids, cache=own, chunk=self._chunk)

    def _watch(self, group: list[_ThawRequest]) -> Watch | None:
        """Return a watch of the prefill of requests, if a form of the store can use what it sees of one of them."""
        from pltz.kv.calibrate.watch import Watch

        if self.hot is None or not self.hot.lossy or all(request.lossy for request in group):
            return None
        return Watch([request.new for request in group])

    def _changes(self) -> int:
        return 0 if self.hot is None or self.hot.folder is None else self.hot.folder.changes

    def _insert(self, request: _ThawRequest) -> None:
        """Offer the store what was computed, where nothing was lost on the way."""
        import torch

        hot, cache, ids = self.hot, request.cache, request.target_tokens.ids
        if hot is None or cache is None or request.lossy or request.hot == len(ids):
            return
        tenant, logits = request.version.tenant, request.logits
        # out of memory: the session is hot, but none of it is kept. Keys change under the lock alone
        with suppress(torch.OutOfMemoryError), self._reading if self._sealed else nullcontext():
            if request.keys != self._changes():  # something was erased meanwhile, perhaps this
                return
            if isinstance(hot, Snapshots):
                assert logits is not None
                hot.keep(tenant, ids, cache, logits)
            elif can_cut(cache):
                mass = None if request.watch is None else request.watch.mass(request.place, len(ids))
                hot.keep(tenant, ids, partial(cut, cache), mass, logits=logits)


def _ids_name(version: Version) -> bytes:
    """Return the name of the file with the tokens of a version."""
    return blake2b(version.id, digest_size=32, person=b"pltz version ids").digest()


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

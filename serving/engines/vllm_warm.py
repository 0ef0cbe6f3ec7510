"""Warm KV for vLLM: full blocks go to a folder as they are computed, and come back as the same bytes.

    scheduler   PageNames of a request -> the pages that are there -> so many tokens from outside
                -> a plan per step: pages to load, pages to save, verdicts on what was saved before
    worker      loads in a thread, while steps of other requests run; copies the blocks to save behind a step's forward
                pass, and writes those whose step turned out sound

This module does not import vLLM. A page holds one block of all layers, as vLLM keeps it, in no other form: what is
loaded are the bytes that were saved. Anything else is a load error, and vLLM computes the block again
(``kv_load_failure_policy``: "recompute").

A request waits for its own pages alone (vLLM's ``load_kv_async``). Its blocks are its own until the worker says that
they arrived, and no step computes over them before.

A step that ran over a block that failed to load has computed KV which must not be kept. That block may be of another
connector, or of another worker. So a step's blocks wait in host memory until the scheduler has seen the step's output.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pltz.kv.store.page_folder import PageFolder
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import SIZE
from pltz.serving.engines.cache_rows import CacheRows
from pltz.serving.engines.pages import PageNames, space_of

if TYPE_CHECKING:
    import torch

log = logging.getLogger("vllm.pltz")  # below "vllm", which vLLM shows
READERS = 4  # threads that read pages
SPECS = ("FullAttentionSpec", "MLAAttentionSpec")
COUNTS = ("warm_offered_tokens", "warm_saved_pages", "warm_loaded_pages", "warm_failed_pages", "warm_dropped_pages")


@dataclass(frozen=True)
class WarmPlace:
    """The place of pages: a folder, its budget, and a space that says what all workers share."""

    folder: str
    budget: int
    queue: int
    space: bytes

    def pages(self, rank: int) -> PageFolder:
        """Open the pages of a rank, which has a space of its own. Raises UsageError."""
        return PageFolder(self.folder, space_of("vllm rank", self.space, rank), self.budget)


@dataclass
class WarmPlan:
    """The work of the workers in one step. Pages are pairs of a name and the number of a block.

    ``load``: pages by the request that waits for them. ``verdicts``: steps whose output the scheduler saw since the
    last plan, and whether it was sound.
    """

    step: int
    place: WarmPlace
    load: dict[str, list[tuple[bytes, int]]] = field(default_factory=dict)
    save: list[tuple[bytes, int]] = field(default_factory=list)
    verdicts: list[tuple[int, bool]] = field(default_factory=list)


@dataclass
class _Following:
    """A request that the scheduler follows.

    ``start``, ``there``: the pages that were offered, from one up to another. ``saved``: pages from the front that
    need no saving. ``loading``: blocks that are being loaded. ``refused``: some could not be, so no more are offered.
    """

    request: Any
    names: PageNames
    start: int = 0
    there: int = 0
    saved: int = 0
    loading: frozenset[int] = frozenset()
    refused: bool = False


class WarmScheduler:
    """The scheduler's half. One thread calls it.

    Args:
        place: of the pages.
        page: tokens of a block.
        ranks: workers, which must all have a page before it is offered.
    """

    def __init__(self, place: WarmPlace, page: int, ranks: int) -> None:
        self._place, self._page, self._ranks = place, page, ranks
        self._pages = [place.pages(rank) for rank in range(ranks)]
        self._following: dict[str, _Following] = {}
        self._load: dict[str, list[tuple[bytes, int]]] = {}
        self._verdicts: list[tuple[int, bool]] = []
        self._step = self._void = 0
        self.offered = 0  # tokens that were taken

    def matched(self, request: Any, computed: int) -> int:
        """Return how many tokens behind the first ``computed`` ones are warm, in whole blocks.

        At least one token is left to compute. A request with images, embeddings or an adapter has none: its ids do not
        say what its KV is. Nor has one that wants all of its prompt computed, for log-probabilities of it. vLLM asks
        for a request that waits at every step, so pages that were offered before are not looked for again. A request
        whose pages could not be loaded is offered none: a file that cannot be read would be tried for ever.
        """
        one = self._follow(request)
        if one is None or one.refused or computed % self._page or getattr(request, "skip_reading_prefix_cache", False):
            return 0
        first = computed // self._page
        last = (request.num_tokens - 1) // self._page
        number = max(first, min(one.there, last)) if first >= one.start else first
        try:
            while number < last and self._there(one.names.name(request.all_token_ids, number)):
                number += 1
        except UsageError:  # ids that name no page: vLLM's scheduler serves all others, so nothing is raised into it
            del self._following[request.request_id]
            return 0
        one.start, one.there = first, number
        return (number - first) * self._page

    def allocated(self, request: Any, blocks: Sequence[int], tokens: int) -> None:
        """Plan to load what was offered.

        Args:
            blocks: numbers of all blocks of the request.
            tokens: from outside, at most as many as were offered.
        """
        one = self._following.get(request.request_id)
        if one is None or tokens < self._page:
            return
        end = one.start + tokens // self._page
        one.there = 0  # a preempted request looks anew
        names = one.names.extend(request.all_token_ids, end)
        self._load[request.request_id] = [(names[n], blocks[n]) for n in range(one.start, end)]
        one.loading = frozenset(blocks[one.start : end])
        self.offered += tokens

    def plan(self, scheduled: Mapping[str, int], blocks_of: Any) -> WarmPlan:
        """Return the plan of a step.

        Args:
            scheduled: tokens that the step computes, by request.
            blocks_of: function from a request's id to the numbers of its blocks, by group; None where unknown.
        """
        self._step += 1
        plan = WarmPlan(self._step, self._place, self._load, verdicts=self._verdicts)
        self._load, self._verdicts = {}, []
        for request_id, tokens in scheduled.items():
            one = self._following.get(request_id)
            if one is None:
                continue
            # Ids that are known: behind them lie drafts, which may be refused.
            done = min(one.request.num_computed_tokens + tokens, len(one.request.all_token_ids)) // self._page
            one.saved = min(one.saved, one.request.num_computed_tokens // self._page)  # where a step was taken back
            if done <= one.saved or (blocks := blocks_of(request_id)) is None:
                continue
            try:
                names = one.names.extend(one.request.all_token_ids, done)
            except UsageError:
                del self._following[request_id]
                continue
            numbers = range(one.saved, min(done, len(blocks[0])))
            plan.save += [(names[n], blocks[0][n]) for n in numbers if not self._there(names[n])]
            one.saved = done
        return plan

    def seen(self, step: int | None, invalid: AbstractSet[int] = frozenset(), arrived: Iterable[str] = ()) -> None:
        """Take the output of a step.

        Args:
            step: as the workers said; None where they said none.
            invalid: blocks that failed to load, of anybody; for a request that failed without blocks, -1.
            arrived: requests whose pages are loaded now, but for invalid ones.
        """
        if invalid:
            self._void = self._step  # steps under way may have used what it computed
            for one in self._following.values():
                one.refused = one.refused or not invalid.isdisjoint(one.loading)
        for request_id in arrived:
            if (waited := self._following.get(request_id)) is not None:
                waited.loading = frozenset()
        if step is not None:
            self._verdicts.append((step, step > self._void))

    def finished(self, request_id: str) -> None:
        """Follow a request no longer."""
        self._following.pop(request_id, None)

    def clear(self) -> None:
        """Remove all pages, and let those to come be found by this server only: its weights may have changed.

        Requests that run on keep KV of the old weights, so what they compute is not kept. Others are followed anew.
        """
        self._following.clear()
        self._verdicts = [(step, False) for step, _ in self._verdicts]
        for pages in self._pages:
            pages.clear()
        old = self._place
        self._place = WarmPlace(old.folder, old.budget, old.queue, os.urandom(SIZE))
        self._pages = [self._place.pages(rank) for rank in range(self._ranks)]
        self._void = self._step

    def _follow(self, request: Any) -> _Following | None:
        one = self._following.get(request.request_id)
        told = request.mm_features or request.prompt_embeds is not None or request.lora_request is not None
        if one is None and not told:
            one = _Following(request, PageNames(self._page, request.cache_salt))
            self._following[request.request_id] = one
        return one

    def _there(self, name: bytes) -> bool:
        return all(pages.has(name) for pages in self._pages)


class WarmWorker:
    """A worker's half. The worker's thread calls it; a thread of its own loads, another one writes.

    Args:
        rank: of the worker.
        rows: the blocks of the cache that the worker reads and writes.
        about: what the bytes of the cache follow from beside its form, such as the kernel of each layer.
    """

    def __init__(self, rank: int, rows: CacheRows, about: str) -> None:
        self._rank, self._rows = rank, rows
        self._mark = space_of("vllm cache", bytes(SIZE), [about, rows.form])  # before the bytes of every page
        self._place: WarmPlace | None = None
        self._pages: PageFolder | None = None
        self._failed: set[int] = set()
        self._arrived: set[str] = set()
        self._waiting: dict[int, _Saved] = {}
        self._queue: deque[_Saved] = deque()
        self._bytes = 0  # in both
        self._lock = threading.Condition()
        self._ended = self._busy = False
        self._writer: threading.Thread | None = None
        self._loader = ThreadPoolExecutor(1, "pltz-warm-load")
        self._readers = ThreadPoolExecutor(READERS, "pltz-warm-read")
        self.counts = dict.fromkeys(COUNTS[1:], 0)

    def load(self, plan: WarmPlan) -> None:
        """Begin to load the pages of a plan into the cache. `arrived` and `failed` tell how that went."""
        self._open(plan)
        assert self._pages is not None
        after = self._rows.now() if plan.load else None
        for request, wanted in plan.load.items():
            self._loader.submit(self._load, request, wanted, self._pages, after)
        self._judge(plan.verdicts)

    def _load(self, request: str, wanted: Sequence[tuple[bytes, int]], pages: PageFolder, after: Any) -> None:
        """Load the pages of a request. Those that fail are told before, or with, its arrival."""
        failed = {block for _, block in wanted}
        try:
            some = min(self._rows.some, len(wanted))
            room = self._rows.room(some)
            for begin in range(0, len(wanted), some):
                part = wanted[begin : begin + some]
                read = self._readers.map(self._read, [pages] * len(part), [name for name, _ in part], room)
                sound = [n for n, there in enumerate(read) if there]
                if sound:
                    blocks = [part[n][1] for n in sound]
                    self._rows.put(blocks, room[: len(part)] if len(sound) == len(part) else room[sound], after)
                    failed.difference_update(blocks)
        except Exception as exc:  # noqa: BLE001  # such as no memory: a request that is not told of waits for ever
            log.warning("warm KV of %d blocks was not loaded, vLLM computes them: %s", len(failed), exc)
        with self._lock:
            if pages is not self._pages:  # of weights that changed meanwhile
                failed = {block for _, block in wanted}
            self._failed |= failed
            self._arrived.add(request)
            self.counts["warm_loaded_pages"] += len(wanted) - len(failed)
            self.counts["warm_failed_pages"] += len(failed)
            self._lock.notify_all()

    def _read(self, pages: PageFolder, name: bytes, room: torch.Tensor) -> bool:
        mark = bytearray(SIZE)
        if not pages.read(name, [memoryview(mark), room.numpy().data]):
            return False
        if mark != self._mark:  # of another kernel, which lays its bytes out otherwise
            pages.discard(name)
            return False
        return True

    def save(self, plan: WarmPlan) -> None:
        """Copy the blocks of a plan to host memory. They are written once the step's output was seen."""
        size = (self._rows.size + SIZE) * len(plan.save)
        if not size:
            return
        with self._lock:
            fits = self._bytes + size <= plan.place.queue
            self._bytes += size if fits else 0
        if not fits:
            self.counts["warm_dropped_pages"] += len(plan.save)
            return
        try:
            room = self._rows.room(len(plan.save))
            done = self._rows.take([block for _, block in plan.save], room)
        except (RuntimeError, MemoryError):  # no memory for it now
            self.counts["warm_dropped_pages"] += len(plan.save)
            with self._lock:
                self._bytes -= size
            return
        assert self._pages is not None  # `load` of the same plan opened it
        self._waiting[plan.step] = _Saved([name for name, _ in plan.save], room, self._pages, size, done)

    def arrived(self) -> set[str]:
        """Return the requests whose pages were loaded, but for failed ones, since the last call."""
        with self._lock:
            arrived, self._arrived = self._arrived, set()
        return arrived

    def failed(self) -> set[int]:
        """Return the blocks that failed to load since the last call."""
        with self._lock:
            failed, self._failed = self._failed, set()
        return failed

    def settle(self) -> None:
        """Wait until what is to be written is written."""
        with self._lock:
            self._lock.wait_for(lambda: not self._queue and not self._busy)

    def close(self) -> None:
        """Write what is known to be sound, and end the threads."""
        with self._lock:
            self._ended = True
            self._lock.notify_all()
        self._loader.shutdown(cancel_futures=True)
        self._readers.shutdown()
        if self._writer is not None:
            self._writer.join()

    def _open(self, plan: WarmPlan) -> None:
        if plan.place == self._place:
            return
        if self._pages is not None:  # a reset: what came to the old place behind the scheduler's `clear` goes, too
            with self._lock:
                while self._queue:
                    self._drop(self._queue.popleft())
                self._lock.wait_for(lambda: not self._busy)
            self._pages.clear()
        with self._lock:
            self._place, self._pages = plan.place, plan.place.pages(self._rank)

    def _judge(self, verdicts: Sequence[tuple[int, bool]]) -> None:
        """Let the blocks of sound steps be written, and drop the others."""
        for step, sound in verdicts:
            saved = self._waiting.pop(step, None)
            if saved is None:
                continue
            with self._lock:
                if sound:
                    self._queue.append(saved)
                    self._lock.notify_all()
                else:
                    self._drop(saved)
        if self._queue and self._writer is None:
            self._writer = threading.Thread(target=self._write, name="pltz warm", daemon=True)
            self._writer.start()

    def _drop(self, saved: _Saved) -> None:
        self._bytes -= saved.size
        self.counts["warm_dropped_pages"] += len(saved.names)

    def _write(self) -> None:
        """Write until the worker is closed."""
        while True:
            with self._lock:
                self._lock.wait_for(lambda: bool(self._queue) or self._ended)
                if not self._queue:
                    return
                saved, self._busy = self._queue.popleft(), True
            done = 0
            try:
                if saved.done is not None:
                    saved.done.synchronize()
                for name, row in zip(saved.names, saved.room, strict=True):
                    done += saved.pages.write(name, [memoryview(self._mark), row.numpy().data])
            finally:
                with self._lock:
                    self.counts["warm_saved_pages"] += done
                    self.counts["warm_dropped_pages"] += len(saved.names) - done
                    self._bytes -= saved.size
                    self._busy = False
                    self._lock.notify_all()


@dataclass
class _Saved:
    """The blocks of a step in host memory. ``room``: (blocks, bytes). ``done``: event when they are there."""

    names: list[bytes]
    room: torch.Tensor
    pages: PageFolder
    size: int
    done: torch.cuda.Event | None


def arrangement_of(config: Any, cache: Any, version: str) -> dict[str, Any]:
    """Return what a server's KV follows from beside its weights, for `pages.space_of`.

    Args:
        config: vLLM's configuration.
        cache: vLLM's ``kv_cache_config``.
        version: of vLLM.

    Raises UsageError for a cache that blocks of tokens do not bring back.
    """
    groups, parallel, model = cache.kv_cache_groups, config.parallel_config, config.model_config
    spec = groups[0].kv_cache_spec if len(groups) == 1 else None
    if type(spec).__name__ not in SPECS:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise UsageError(f"warm KV needs one group of layers with full attention, found {kinds}: leave warm out")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise UsageError(f"warm KV is not kept with {name} above 1: leave warm out")
    draft = getattr(config, "speculative_config", None)
    if draft is not None and getattr(draft, "method", None) != "ngram":
        raise UsageError("warm KV is not kept with a draft model, whose KV looks a token ahead: leave warm out")
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise UsageError("warm KV is not kept with scales that the server calculates: leave warm out")
    return {
        "version": version,
        "spec": repr(spec),
        "layers": list(groups[0].layer_names),
        "ranks": [parallel.world_size, parallel.tensor_parallel_size, parallel.pipeline_parallel_size],
        "cache_dtype": str(config.cache_config.cache_dtype),
        "model": [str(model.dtype), str(model.quantization), model.max_model_len, model.hf_config.to_json_string()],
    }

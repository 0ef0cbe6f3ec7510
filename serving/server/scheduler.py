"""Scheduler: runs the turns of many sessions on one model, prefilling in chunks between steps of decoding.

    submit --> waiting --room in the pool--> prefilling --> decoding --> ended
               first come, first served      256 ids of one turn per step,   one id of each turn per step
                                             turns in rotation

So a step takes at most one chunk and one decoding pass, however long a prompt is. A turn is admitted when the pool has
room for it at its longest. KV that nobody holds makes way for it, so a turn that runs never meets a full pool. A turn
that is cancelled or fails leaves its session's KV as it was.

A turn begins with the KV of the longest beginning of its ids that the store has. What it says does not depend on that:
raw pages are exact, and over others whole chunks are computed from pages alone (`_alike`). What answers left there is a
session's own. KV that comes back from a form that lost something is found by sessions alone, within ``bound``.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pltz.kv.errors import PoolFull
from pltz.kv.pool.batch_cache import FLUSH, BatchKVCache
from pltz.kv.pool.packed_session import KEEP, PackedSession
from pltz.kv.pool.page_attention import use_pages
from pltz.kv.port.bound import Bound
from pltz.kv.store.store import ANY, EXACT, HOST, KVStore, empty
from pltz.models import cache_argument
from pltz.plt_codec import PltzError, UsageError
from pltz.serving.server.errors import LEAVING, Refused
from pltz.serving.server.turn import Turn, choose

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from pltz.kv.port.codec import KVCodec
    from pltz.models import Target

CHUNK = 256  # ids of one turn per step
ROWS = 32  # turns that run at once
LOOKED = 64  # last ids of a session whose attention is looked at before its KV goes to a small form
log = logging.getLogger("pltz.serve")
T = TypeVar("T")

Events = list[tuple[Turn, int | None]]  # a new id of a turn, or None when it ended


@dataclass(eq=False)
class _Prefill:
    """Hold a turn whose ids are not all in its cache, a batch of one.

    ``alike``: ids that every prompt with this beginning runs in the same way, in whole chunks. ``again``: a batch that
    it was in failed, so its next step of decoding is run alone. ``lost``: a form that lost something of its beginning.
    """

    turn: Turn
    cache: BatchKVCache
    done: int
    alike: int
    again: bool
    lost: KVCodec | None = None


class Scheduler:
    """The turns of one target, all run by one thread. Other methods than `step` may be called from any thread.

    ``deliver``: called in that thread with what a step brought, in order. It must not wait. ``positions``: tokens of a
    turn at most, where that is fewer than the target has. Without `start`, the caller runs `step`.
    """

    def __init__(
        self,
        target: Target,
        store: KVStore,
        deliver: Callable[[Events], None],
        *,
        tenant: str = "default",
        rows: int = ROWS,
        chunk: int = CHUNK,
        bound: Bound = EXACT,
        positions: int | None = None,
    ) -> None:
        if store.pool is None:
            raise UsageError("expected a store with a pool: open it with `tokens`")
        if rows < 1 or chunk < 1:
            raise UsageError(f"expected at least one row and one id per chunk, got {rows} and {chunk}")
        use_pages(target.model)
        self.target, self.store, self.pool, self.rows, self.chunk = target, store, store.pool, rows, chunk
        self.tenant, self.bound = tenant, bound
        self.positions = min(target.max_positions or 1 << 30, positions or 1 << 30)
        self._lossy = self.pool.form.kind != "raw"
        self._shares = not self._lossy or (chunk >= FLUSH and chunk % self.pool.block == 0)
        self.prefilled = self.generated = self.cached = 0  # ids so far
        parameters = inspect.signature(target.model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._deliver = deliver
        self._events: Events = []
        self._waiting: deque[Turn] = deque()
        self._prefilling: deque[_Prefill] = deque()
        self._decoding: list[Turn] = []
        self._batch: BatchKVCache | None = None  # of those that decode, in their order
        self._calls: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="pltz-serve", daemon=True)
        self._thread.start()

    def submit(self, turn: Turn) -> None:
        """Queue a turn. Raises ContentError for ids that the target cannot take, UsageError where it has no room, and
        Refused where the server ends.

        The last id of a turn is never in the KV, so ids and ``limit`` may fill all positions.
        """
        self.target.check_ids(turn.ids)
        if turn.sampling.bias:
            self.target.check_ids([one for one, _ in turn.sampling.bias])
        needed = len(turn.ids) + turn.sampling.limit
        if needed > self.positions:
            new = turn.sampling.limit
            raise UsageError(f"{len(turn.ids)} tokens and {new} new ones exceed {self.positions} positions")
        if self._blocks(turn) > self.pool.device.blocks:
            raise UsageError(
                f"{needed} tokens do not fit in a pool of {self.pool.device.tokens}: "
                "ask for fewer, or open a larger pool"
            )
        with self._changed:
            if self._closing:
                raise Refused(503, LEAVING)
            self._waiting.append(turn)
            self._changed.notify_all()

    def cancel(self, turn: Turn) -> None:
        """End a turn at the next step. It does nothing to one that ended."""
        with self._changed:
            turn.cancelled = True
            self._changed.notify_all()

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run some work between two steps, in the scheduler's thread, and return its future."""
        future: Future[T] = Future()
        with self._changed:
            self._calls.append((work, future))  # type: ignore[arg-type]
            self._changed.notify_all()
        return future

    def counts(self) -> dict[str, int]:
        """Return how many turns wait, are prefilled and decode."""
        return {"waiting": len(self._waiting), "prefilling": len(self._prefilling), "decoding": len(self._decoding)}

    def close(self) -> None:
        """Cancel what runs, end the thread, and give all blocks back."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for turn in [*self._waiting, *(one.turn for one in self._prefilling), *self._decoding]:
            turn.cancelled = True
        self.step()

    # ---- sessions in the store

    def blocks(self, session: str, ids: Sequence[int] | NDArray[np.int32]) -> tuple[bytes, bytes]:
        """Return the name of the last block that the store has of a session, and of what others may find of it apart.

        b"" for none. ``ids``: all of its ids.
        """
        apart = self._apart(session)
        return self.store.name(self.tenant, ids, apart), self.store.name(self.tenant, ids) if apart else b""

    def fetch(self, turn: Turn) -> None:
        """Bring what only files have of a turn's beginning to the device. For a thread beside this one's."""
        if self.store.folder is not None:
            bound = self._bound(turn.session)
            apart = self._apart(turn.session)
            turn.tiers["disk"] += self.store.fetch(self.tenant, turn.ids, apart=apart, bound=bound)

    def let_go(self, session: str, ids: NDArray[np.int32]) -> None:
        """Write a session's KV to the store's folder, if any, and give up its memory. Between two steps, by `call`."""
        apart = self._apart(session)
        mass = self._mass(session, ids) if self.store.lossy else None
        self.store.save(self.tenant, ids[:-1], mass, apart=apart)
        self.store.release(self.tenant, ids[:-1], apart=apart)

    def _mass(self, session: str, ids: NDArray[np.int32]) -> NDArray[np.float32] | None:
        """Return the attention that each id of a session received from its last ones, by a pass over its KV."""
        import torch

        from pltz.kv.calibrate.watch import Watch
        from pltz.kv.thaw.cache_kv import join

        found = self.store.match(self.tenant, ids, apart=self._apart(session))
        if found is None:
            return None
        try:
            ids, device = ids[: found.tokens], self.target.device
            kv = found.kv()[:, :, :, : max(found.tokens - LOOKED, 0)]
        finally:
            found.release()
        new = len(ids) - kv.shape[3]
        with torch.inference_mode(), Watch([new]) as watch:
            self.target.prefill(ids, cache=join([kv.to(device)], self.target.model.config) if kv.shape[3] else None)
        return watch.mass(0, len(ids))

    def _apart(self, session: str | None) -> str:
        """Return what keeps a session's KV from others: over pages that lose something it depends on its answers."""
        return session or "" if self._lossy else ""

    def _bound(self, session: str | None) -> Bound:
        return ANY if self._lossy else self.bound if session is not None else EXACT

    def step(self) -> bool:
        """Run one step: at most one chunk of a prefill, and one id of each turn that decodes.

        Returns whether anything is left to do.
        """
        while self._calls:
            work, future = self._calls.popleft()
            try:
                future.set_result(work())
            except BaseException as exc:  # noqa: BLE001  # the caller's own
                future.set_exception(exc)
        self._drop_cancelled()
        self._admit()
        if self._prefilling:
            self._prefill()
        if self._decoding:
            self._decode()
        events, self._events = self._events, []
        if events:
            self._deliver(events)
        return bool(self._waiting or self._prefilling or self._decoding or self._calls)

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or any(self.counts().values()) or self._calls)
                if self._closing:
                    return
            try:
                self.step()
            except Exception:  # a bug: no client may end the thread
                log.exception("a step of the scheduler failed")
                self._fail_all("the scheduler failed: see the server's log")

    def _blocks(self, turn: Turn) -> int:
        """Return the blocks that a turn takes at most: one more, for a block that it shares with KV of the store."""
        return -(-(len(turn.ids) + turn.sampling.limit) // self.pool.block) + 1

    def _admit(self) -> None:
        """Begin turns that wait, in their order, as long as the pool has room for all at their longest."""
        running = [*(one.turn for one in self._prefilling), *self._decoding]
        reserved = sum(map(self._blocks, running))
        while self._waiting and len(running) < self.rows:
            turn = self._waiting[0]
            reserved += self._blocks(turn)
            if reserved > self.pool.device.blocks:
                return
            self._waiting.popleft()
            running.append(turn)
            self._begin(turn)

    def _begin(self, turn: Turn, again: bool = False) -> None:
        """Open the cache of a turn, over the KV that the store has of its beginning."""
        try:
            ids = [*turn.ids, *turn.new]
            own = None
            if turn.session is not None or not self._lossy:
                apart, bound = self._apart(turn.session), self._bound(turn.session)
                own = self.store.match(self.tenant, ids, apart=apart, bound=bound)
            alike = self._alike(len(ids), own=own is not None)
            base = own or self._known_prefix(ids, alike) or PackedSession(self.pool, [], 0, self._nothing())
            turn.tiers["memory"] = max(base.tokens - turn.tiers["disk"] - base.warmed, 0)
            turn.tiers[HOST] = base.warmed
            self.cached += base.tokens
            cache = BatchKVCache.merge([base])
            self._prefilling.append(_Prefill(turn, cache, base.tokens, alike, again, base.lost))
            base.release()
        except Exception as exc:  # noqa: BLE001  # a failure is this turn's alone
            self._end(turn, "error", exc)

    def _alike(self, tokens: int, *, own: bool) -> int:
        """Return how many ids of a prompt run as in every prompt with the same beginning: all for exact pages.

        Over pages that lose something these are whole chunks, and at least KEEP ids follow them, which stay exact. None
        are where the beginning was the session's ``own``: answers pack their KV in another order.
        """
        if not self._lossy:
            return tokens
        return 0 if own or not self._shares else max(tokens - KEEP, 0) // self.chunk * self.chunk

    def _known_prefix(self, ids: Sequence[int], alike: int) -> PackedSession | None:
        """Return the KV of the longest beginning of some ids that an earlier prompt had, over pages that lose."""
        found = self.store.match(self.tenant, ids, bound=ANY) if self._lossy and self._shares else None
        if found is not None:
            found.cut(min(found.tokens // self.chunk * self.chunk, alike))
        return found

    def _offer_prefix(self, one: _Prefill) -> None:
        """Offer the full blocks of a prompt to later ones, in memory where it is of no session.

        A failure loses KV only.
        """
        if not one.alike or one.lost is not None:
            return
        session, lasting = one.cache.extract(0, one.alike if self._lossy else None), one.turn.session is not None
        try:
            self.store.insert(self.tenant, [*one.turn.ids, *one.turn.new], session, lasting=lasting)
        except Exception as exc:  # noqa: BLE001  # of torch: the ids are there
            log.warning("the beginning of a prompt is not shared: %s", exc)
        finally:
            session.release()

    def _nothing(self) -> torch.Tensor:
        return empty(self.pool.form, self.pool.device.device)

    def _prefill(self) -> None:
        """Run a chunk of the turn that waited longest for one."""
        one = self._prefilling.popleft()
        turn = one.turn
        ids = [*turn.ids, *turn.new]
        if not turn.sampling.limit:
            ids.pop()  # nothing follows: no logits are needed
        chunk = ids[one.done : one.done + self.chunk]
        # A chunk that others may share attends to all before it in pages. So its KV depends on its ids and theirs
        # alone, not on whether these were here before: their exact tail would not be.
        one.cache.keep = 0 if self._lossy and one.done <= one.alike else KEEP
        try:  # until it is in a list again, nobody else could end the turn
            logits = self._pass(one.cache, [chunk], [one.done]) if chunk else None
            one.done += len(chunk)
            self.prefilled += len(chunk)
            if one.done < len(ids):
                self._prefilling.append(one)
                return
            one.cache.keep = KEEP
            self._offer_prefix(one)
            over = not turn.sampling.limit or logits is None or self._took(turn, choose(logits, [turn])[0])
            if one.again and not over:
                over = self._step([turn], one.cache)[0]
            turn.lost = one.lost
            if not over:
                self._join(turn, one.cache)
                return
            self._park(turn, one.cache, 0)
        except Exception as exc:  # noqa: BLE001  # of the model or of torch
            self._end(turn, "error", exc)
        else:
            self._end(turn, turn.end or "length")
        one.cache.release()

    def _join(self, turn: Turn, cache: BatchKVCache) -> None:
        """Let a turn decode with the others."""
        if self._batch is None:
            self._batch = cache
        else:
            sessions = [self._batch.extract(row) for row in range(len(self._decoding))] + [cache.extract(0)]
            for old in (self._batch, cache):
                old.release()
            try:
                self._batch = BatchKVCache.merge(sessions)
            finally:
                for session in sessions:
                    session.release()
        self._decoding.append(turn)

    def _decode(self) -> None:
        """Give each turn that decodes its next id."""
        assert self._batch is not None
        turns, batch = self._decoding, self._batch
        try:
            ended = self._step(turns, batch)
        except Exception as exc:  # noqa: BLE001  # of the model or of torch
            self._begin_again(exc)
            return
        for row, turn in enumerate(turns):
            if ended[row]:
                self._park(turn, batch, row)
                self._end(turn, turn.end)
        self._keep([row for row, over in enumerate(ended) if not over])

    def _step(self, turns: Sequence[Turn], batch: BatchKVCache) -> list[bool]:
        """Give each turn of a batch its next id. Returns which of them that ends."""
        logits = self._pass(batch, [[turn.new[-1]] for turn in turns], [turn.tokens - 1 for turn in turns])
        chosen = choose(logits, turns)
        self.generated += len(turns)
        return [self._took(turn, one) for turn, one in zip(turns, chosen, strict=True)]

    def _begin_again(self, exc: Exception) -> None:
        """Begin each turn of a batch that failed once more from its ids, since one may be at fault for all.

        Each computes two ids alone before it joins the others. So one that is at fault ends alone, and the others come
        to their end however often that happens.
        """
        log.warning("a decoding pass failed: %s", exc)
        turns, self._decoding = self._decoding, []
        if self._batch is not None:
            self._batch.release()
            self._batch = None
        for turn in turns:
            self._begin(turn, again=True)

    def _keep(self, rows: Sequence[int]) -> None:
        """Keep these rows of the batch."""
        assert self._batch is not None
        if len(rows) == len(self._decoding):
            return
        self._decoding = [self._decoding[row] for row in rows]
        if rows:
            self._batch.select(rows)
        else:
            self._batch.release()
            self._batch = None

    def _took(self, turn: Turn, chosen: int) -> bool:
        """Add an id to a turn. Returns whether that ends it."""
        turn.new.append(chosen)
        self._events.append((turn, chosen))
        try:
            halted = turn.halts is not None and turn.halts(chosen)
        except Exception as exc:  # noqa: BLE001  # a failure is this turn's alone
            turn.end, turn.failure = "error", f"{type(exc).__name__}: {exc}"
            return True
        if halted or chosen in self.target.eos_ids:
            turn.end = "stop"
        elif len(turn.new) >= turn.sampling.limit:
            turn.end = "length"
        return bool(turn.end)

    def _park(self, turn: Turn, cache: BatchKVCache, row: int) -> None:
        """Offer the store the KV of a turn that ended. A failure loses KV only."""
        if turn.session is None:
            return
        session = cache.extract(row)
        try:
            with suppress(PoolFull):  # then what is packed is kept
                session.pack(0)
            apart = self._apart(turn.session)
            self.store.insert(self.tenant, [*turn.ids, *turn.new], session, apart=apart, lost=turn.lost)
        except Exception as exc:  # noqa: BLE001  # of torch: the ids are there
            log.warning("the KV of a session is not kept: %s", exc)
        finally:
            session.release()

    def _end(self, turn: Turn, end: str, failure: Exception | None = None) -> None:
        turn.end = end
        if failure is not None:
            turn.failure = str(failure) if isinstance(failure, PltzError) else f"{type(failure).__name__}: {failure}"
        self._events.append((turn, None))

    def _drop_cancelled(self) -> None:
        with self._changed:
            for turn in [turn for turn in self._waiting if turn.cancelled]:
                self._waiting.remove(turn)
                self._end(turn, "cancelled")
        for one in [one for one in self._prefilling if one.turn.cancelled]:
            self._prefilling.remove(one)
            self._end(one.turn, "cancelled")
            one.cache.release()
        gone = [turn.cancelled for turn in self._decoding]  # one look at each: others may be cancelled meanwhile
        if any(gone):
            for turn in (turn for row, turn in enumerate(self._decoding) if gone[row]):
                self._end(turn, "cancelled")
            self._keep([row for row, over in enumerate(gone) if not over])

    def _fail_all(self, why: str) -> None:
        """End all turns after a step that failed, so that nobody waits for ever."""
        with self._changed:
            turns = [*self._waiting, *(one.turn for one in self._prefilling), *self._decoding]
            self._waiting.clear()
        caches = [*(one.cache for one in self._prefilling), *([self._batch] if self._batch else [])]
        self._prefilling.clear()
        self._decoding, self._batch = [], None
        for cache in caches:
            cache.release()
        for turn in turns:
            self._end(turn, "error", UsageError(why))
        events, self._events = self._events, []
        self._deliver(events)

    def _pass(self, cache: BatchKVCache, ids: Sequence[Sequence[int]], first: Sequence[int]) -> torch.Tensor:
        """Run ids (B, S) at positions from ``first``, and return the logits of the last ones, (B, vocab)."""
        import torch

        device = self.target.device
        inputs = torch.tensor(ids, device=device)
        positions = torch.tensor([list(range(at, at + len(row))) for at, row in zip(first, ids, strict=True)])
        with torch.inference_mode():
            found = self.target.model(
                inputs,
                position_ids=positions.to(device),
                **cache_argument(self.target.model, cache),
                use_cache=True,
                **self._last_only,
            )
        logits: torch.Tensor = found.logits[:, -1]
        return logits

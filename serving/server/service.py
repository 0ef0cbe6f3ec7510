"""Service: one model that answers requests, each as a stream of text that ends when the turn is durable.

    replies = await service.open(ask)     # refused here, before anything is sent; one for each answer
    number, piece = await replies[0].out.get()     # text of any of them, and likelihoods where they are asked for
    reply.done                            # finish reason, tokens, and the session as acknowledged
    reply.cancel()                        # in any case: it ends what still runs

The scheduler's thread hands ids to the event loop, which makes text of them, and a task of its own ends a turn. So a
client that goes away cancels the turn, and never leaves a session in use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import Histogram

from pltz.kv.store.store import EXACT
from pltz.plt_codec import PltzError
from pltz.serving.server.ask import Ask
from pltz.serving.server.errors import LEAVING, Refused
from pltz.serving.server.reply_text import ReplyText, chat_ids, prompt_ids
from pltz.serving.server.scheduler import ROWS, Events, Scheduler
from pltz.serving.server.sessions import ServedSession, Sessions
from pltz.serving.server.turn import Likelihood, Sampling, Turn

if TYPE_CHECKING:
    from pltz.archive import Archive
    from pltz.kv.port.bound import Bound
    from pltz.kv.store.store import KVStore
    from pltz.models import Target
    from pltz.serving.eviction.hook import EvictionHook

WAITING = 256  # requests that wait for the scheduler; one more is refused
SWEEP = 1.0  # seconds between looks for idle sessions
AUDIT = 60.0  # seconds between looks for KV that has to go
FIRST = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)  # seconds to a first token: ends of buckets
MAX_AGE = 604_800.0  # seconds that KV stays unused
log = logging.getLogger("pltz.serve")


@dataclass(frozen=True)
class Done:
    """The end of a reply. ``session``: name, tokens and digest as acknowledged; None where none was named.

    ``cached``: tokens of the prompt whose KV was there, by where it was.
    """

    reason: str
    prompt_tokens: int
    cached: dict[str, int]
    new_tokens: int
    session: dict[str, Any] | None


@dataclass(frozen=True)
class Piece:
    """A piece of a reply's text, and the ids that brought it with their likelihoods, where these are asked for."""

    text: str
    tokens: tuple[tuple[int, Likelihood], ...] = ()


@dataclass(eq=False)
class Reply:
    """A reply under way, the ``number``-th to a request.

    ``out``: queue of all replies to it: of each its pieces, then its end or what ended it early. ``done``: the end.
    """

    service: Service
    number: int
    turn: Turn
    text: ReplyText
    out: asyncio.Queue[tuple[int, Piece | Done | PltzError]]
    record: ServedSession | None
    done: Done | None = None
    _texts: deque[str] = field(default_factory=deque)  # that `halts` has made
    _held: list[tuple[int, Likelihood]] = field(default_factory=list)  # of ids whose text is not out yet
    _count: int = 0
    _begun: float = field(default_factory=time.monotonic)

    def halts(self, one: int) -> bool:
        """Return whether an id completes a stop string. Called in the scheduler's thread, which then makes the text."""
        self._texts.append(self.text.add(one))
        return self.text.ended

    def take(self, one: int | None) -> None:
        """Take the next id, None for the end. Called in the event loop."""
        if one is None:
            self.service.spawn(self.service.end(self), "turn")
            return
        if self.turn.sampling.top is not None and one not in self.service.target.eos_ids:
            self._held.append((one, self.turn.likelihoods[self._count]))
        if not self._count:
            self.service.first_token.observe(time.monotonic() - self._begun)
        self._count += 1
        if piece := self._texts.popleft() if self.turn.halts else self.text.add(one):
            self._give(piece)

    def finish(self) -> None:
        """Give out what was held back."""
        ended = self.text.ended
        if (piece := self.text.rest()) or (self._held and not ended):
            self._give(piece)

    def cancel(self) -> None:
        """Cancel the turn of a reply that has not ended."""
        if self.done is None:
            self.service.scheduler.cancel(self.turn)

    def _give(self, text: str) -> None:
        self.out.put_nowait((self.number, Piece(text, tuple(self._held))))
        self._held.clear()


class Service:
    """A target, its scheduler, its sessions and their hook. Used in one event loop, between `start` and `close`.

    ``name``: of the model, as clients know it. ``idle``: seconds until a session goes cold. ``new``: tokens of a reply
    at most, where the request does not say. ``bound``: what KV of a session may lose on its way through the store.
    ``max_age``: seconds after which KV that nobody used goes from memory and files. ``positions``: of `Scheduler`.
    """

    def __init__(
        self,
        target: Target,
        store: KVStore,
        hook: EvictionHook,
        archive: Archive,
        *,
        name: str,
        tenant: str = "default",
        idle: float = 300.0,
        rows: int = ROWS,
        new: int = 256,
        bound: Bound = EXACT,
        max_age: float = MAX_AGE,
        positions: int | None = None,
    ) -> None:
        self.target, self.store, self.hook, self.name, self.new = target, store, hook, name, new
        self.scheduler = Scheduler(
            target, store, self._deliver, tenant=tenant, rows=rows, bound=bound, positions=positions
        )
        self.pool, self.max_age = self.scheduler.pool, max_age
        self.sessions = Sessions(self.scheduler, hook, archive, tenant=tenant, idle=idle)
        self.ends: dict[str, int] = {}  # turns by their end
        what = "Seconds from the ids of a prompt to the first of its reply."
        self.first_token = Histogram("pltz_serve_first_token_seconds", what, registry=None, buckets=FIRST)
        self._texts = ThreadPoolExecutor(1, "pltz-serve-text")
        self._files = ThreadPoolExecutor(2, "pltz-serve-files")
        self._events: dict[Turn, Callable[[int | None], None]] = {}  # what takes the ids of each
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = False

    @property
    def longest(self) -> int:
        """Return how many tokens a turn may have, with its new ones."""
        return min(self.scheduler.positions, self.pool.device.tokens - self.pool.block)

    async def start(self) -> None:
        """Start the scheduler, and the task that lets idle sessions go cold."""
        self._loop = asyncio.get_running_loop()
        self.scheduler.start()
        self.spawn(self._sweep())

    async def close(self) -> None:
        """Cancel what runs, make what ended durable, and end."""
        await asyncio.to_thread(self.scheduler.close)
        for task in [task for task in self._tasks if task.get_name() == "sweep"]:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=10) if self._tasks else None
        await asyncio.to_thread(self.hook.close)
        await asyncio.to_thread(self.store.close)
        self.sessions.close()
        self._texts.shutdown(cancel_futures=True)
        self._files.shutdown(cancel_futures=True)

    async def leave(self, seconds: float) -> None:
        """Let turns end for some seconds, then cancel those under way, whose clients are told so."""
        await asyncio.sleep(seconds)
        self._leaving = True
        for turn in list(self._events):
            self.scheduler.cancel(turn)

    async def open(self, ask: Ask) -> list[Reply]:
        """Begin a reply for each answer. Raises Refused, and the errors of tokenizer, archive and scheduler."""
        self._want_room(ask.answers)
        before: Sequence[int] = ()
        if ask.parent is not None:
            parent = await self._claim_known(ask.parent)
            before = [] if parent.ids is None else parent.ids.tolist()
            self.sessions.free(parent)
        if ask.session is None:
            return await self._begin(ask, await self._ids(ask, before), None)
        record = await self.sessions.claim(ask.session)
        try:
            if ask.parent is not None:
                record.parent = ask.parent
                return await self._begin(ask, await self._ids(ask, before), record)
            if ask.session_tokens not in (None, record.tokens):
                raise Refused(409, f"session {ask.session!r} has {record.tokens} tokens, not {ask.session_tokens}")
            before = record.ids.tolist() if ask.append and record.ids is not None else []
            return await self._begin(ask, await self._ids(ask, before), record)
        except BaseException:
            self.sessions.free(record)
            raise

    async def freeze(self, name: str) -> dict[str, Any]:
        """Let a session go cold now. Returns how it is then."""
        record = await self._claim_known(name)
        try:
            await self.sessions.freeze([record])
        finally:
            self.sessions.free(record)
        return await self.sessions.look(name)

    async def thaw(self, name: str) -> dict[str, Any]:
        """Make a session hot. Returns how it is then, and the milliseconds that it took."""
        self._want_room(1)
        begun = time.perf_counter()
        record = await self._claim_known(name)
        assert record.ids is not None
        record.turn = turn = Turn(record.ids.tolist(), Sampling(0), name)
        ended = asyncio.get_running_loop().create_future()
        try:
            await self._fetch(turn)
            self._submit(turn, ended.set_result)
            await ended
        finally:
            self.scheduler.cancel(turn)
            self._events.pop(turn, None)
            self.sessions.free(record)
        if turn.end != "length":
            raise Refused(503, self._why(turn))
        return await self.sessions.look(name) | {"ms": round(1e3 * (time.perf_counter() - begun), 1)}

    # ---- one turn

    async def _claim_known(self, name: str) -> ServedSession:
        record = await self.sessions.claim(name)
        if not record.tokens:
            self.sessions.free(record)
            raise Refused(404, f"no session {name!r}")
        return record

    async def _ids(self, ask: Ask, before: Sequence[int]) -> list[int]:
        """Return all ids that the model is to see, tokenized in a thread: other clients do not wait for that."""
        loop = asyncio.get_running_loop()
        if ask.prompt is None:
            new = await loop.run_in_executor(
                self._texts, chat_ids, self.target, ask.messages, before, ask.tools, ask.system
            )
        else:
            new = await loop.run_in_executor(self._texts, prompt_ids, self.target, ask.prompt)
        return [*before, *new]

    def _want_room(self, turns: int) -> None:
        """Raise Refused where the server ends, or where too many wait already."""
        if self._leaving:
            raise Refused(503, LEAVING)
        if self.scheduler.counts()["waiting"] + turns > WAITING:
            raise Refused(429, f"{WAITING} requests wait already: try it again later")

    async def _fetch(self, turn: Turn) -> None:
        """Bring KV that only files have to the device, in a thread: other turns go on."""
        await asyncio.get_running_loop().run_in_executor(self._files, self.scheduler.fetch, turn)

    async def _begin(self, ask: Ask, ids: list[int], record: ServedSession | None) -> list[Reply]:
        most = self.scheduler.positions
        room = self.longest - len(ids)
        limit = ask.limit if ask.limit is not None else max(min(self.new, room), 1)
        if len(ids) + limit > most:
            why = f"{len(ids)} tokens and {limit} new ones exceed the {most} positions of this server"
            raise Refused(400, why, "context_length_exceeded")
        replies: list[Reply] = []
        out: asyncio.Queue[tuple[int, Piece | Done | PltzError]] = asyncio.Queue()
        try:
            for number, one in enumerate(ask.each()):
                turn = Turn(ids, one.sampling(limit), ask.session)
                reply = Reply(self, number, turn, ReplyText(self.target, ask.stops), out, record)
                turn.halts = reply.halts if ask.stops else None
                if self.store.folder is not None and not number:
                    await self._fetch(turn)
                self._submit(turn, reply.take)
                replies.append(reply)
                if record is not None:
                    record.turn = turn
        except BaseException:
            for reply in replies:
                reply.cancel()
            raise
        return replies

    async def end(self, reply: Reply) -> None:
        """Acknowledge a turn that ended, and let others use its session."""
        turn, record = reply.turn, reply.record
        found: Done | PltzError
        try:
            self.ends[turn.end] = self.ends.get(turn.end, 0) + 1
            if turn.end in ("cancelled", "error"):
                raise Refused(503, self._why(turn))
            reply.finish()
            acknowledged = None
            if record is not None:
                await self.sessions.keep(record, np.asarray([*turn.ids, *turn.new], np.int32))
                acknowledged = {"name": record.name, "tokens": record.tokens, "digest": record.digest}
            found = reply.done = Done(turn.end, len(turn.ids), dict(+turn.tiers), len(turn.new), acknowledged)
        except PltzError as exc:
            found = exc
        except Exception:
            log.exception("a turn failed")
            found = Refused(500, "this turn failed: the server's log says why")
        finally:
            self._events.pop(turn, None)
            if record is not None:
                self.sessions.free(record)
        reply.out.put_nowait((reply.number, found))

    def _why(self, turn: Turn) -> str:
        return turn.failure or (LEAVING if self._leaving else "this turn was cancelled")

    def _submit(self, turn: Turn, take: Callable[[int | None], None]) -> None:
        self._events[turn] = take
        try:
            self.scheduler.submit(turn)
        except BaseException:
            del self._events[turn]
            raise

    def _deliver(self, events: Events) -> None:
        """Hand events of the scheduler's thread to the event loop, all of a step by one call."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._sort, events)

    def _sort(self, events: Events) -> None:
        for turn, one in events:
            try:
                if (take := self._events.get(turn)) is not None:
                    take(one)
            except Exception:
                log.exception("a turn failed")
                turn.failure = "this turn failed: the server's log says why"
                self.scheduler.cancel(turn)

    async def _sweep(self) -> None:
        looked = time.monotonic()
        while True:
            await asyncio.sleep(min(SWEEP, self.sessions.idle))
            try:
                await self.sessions.sweep()
                if time.monotonic() - looked > min(AUDIT, self.max_age):
                    looked = time.monotonic()
                    await self.sessions.audit()
                    await asyncio.to_thread(self.store.expire, self.max_age)
            except Exception:
                log.exception("idle sessions do not go cold, or old KV does not go")

    def spawn(self, work: Any, name: str = "sweep") -> None:
        """Run work in a task, which `close` waits for."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

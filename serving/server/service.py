"""Service: one model that answers requests, each as a stream of text that ends when the turn is durable.

    replies = await service.open(ask)        # refused here, before anything is sent; one for each answer
    async for piece in reply.pieces(): ...   # text, and likelihoods where they are asked for
    reply.done                               # finish reason, tokens, and the session as acknowledged

A turn runs in a task of its own. So a client that goes away cancels the turn, and never leaves a session in use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.plt_codec.errors import PltzError
from pltz.serving.server.ask import Ask
from pltz.serving.server.errors import Refused
from pltz.serving.server.reply_text import ReplyText, chat_ids, prompt_ids
from pltz.serving.server.scheduler import ROWS, Events, Scheduler
from pltz.serving.server.sessions import PATIENCE, ServedSession, Sessions, digest
from pltz.serving.server.turn import Likelihood, Sampling, Turn

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.kv.pool.block_pool import BlockPool
    from pltz.models.target.target import Target
    from pltz.serving.eviction.hook import EvictionHook

WAITING = 256  # requests that wait for the scheduler; one more is refused
SWEEP = 1.0  # seconds between looks for idle sessions
LEAVING = "this server ends: ask again when it is back"
log = logging.getLogger("pltz.serve")


@dataclass(frozen=True)
class Done:
    """The end of a reply. ``session``: name, tokens and digest as acknowledged; None where none was named."""

    reason: str
    prompt_tokens: int
    new_tokens: int
    session: dict[str, Any] | None


@dataclass(frozen=True)
class Piece:
    """A piece of a reply's text, and the ids that brought it with their likelihoods, where these are asked for."""

    text: str
    tokens: tuple[tuple[int, Likelihood], ...] = ()


@dataclass(eq=False)
class Reply:
    """A reply under way. ``done``: set when `pieces` has ended."""

    turn: Turn
    _service: Service
    done: Done | None = None
    _out: asyncio.Queue[Piece | Done | PltzError] = field(default_factory=asyncio.Queue)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield text as it comes, none once per second without any. Raises what ended the turn early."""
        try:
            waited = 0.0
            while True:
                try:
                    found = await asyncio.wait_for(self._out.get(), 1.0)
                except TimeoutError:
                    # the turn ended, and the journal is not written
                    waited = waited + 1.0 if self.turn.end else 0.0
                    if waited >= PATIENCE:
                        raise Refused(503, "this turn is not durable yet: ask for the session's tokens later") from None
                    yield Piece("")
                    continue
                if isinstance(found, PltzError):
                    raise found
                if isinstance(found, Done):
                    self.done = found
                    return
                yield found
        finally:
            if self.done is None:
                self._service.scheduler.cancel(self.turn)


class Service:
    """A target, its scheduler, its sessions and their hook. Used in one event loop, between `start` and `close`.

    ``name``: of the model, as clients know it. ``idle``: seconds until a session goes cold. ``new``: tokens of a reply
    at most, where the request does not say.
    """

    def __init__(
        self,
        target: Target,
        pool: BlockPool,
        hook: EvictionHook,
        archive: Archive,
        *,
        name: str,
        tenant: str = "default",
        idle: float = 300.0,
        rows: int = ROWS,
        hot: int = 64,
        new: int = 256,
    ) -> None:
        self.target, self.pool, self.hook, self.name, self.new = target, pool, hook, name, new
        self.scheduler = Scheduler(target, pool, self._deliver, rows=rows, hot=hot)
        self.sessions = Sessions(self.scheduler, hook, archive, tenant=tenant, idle=idle)
        self.ends: dict[str, int] = {}  # turns by their end
        self._texts = ThreadPoolExecutor(1, "pltz-serve-text")
        self._events: dict[Turn, asyncio.Queue[int | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = False

    async def start(self) -> None:
        """Start the scheduler, and the task that lets idle sessions go cold."""
        self._loop = asyncio.get_running_loop()
        self.scheduler.start()
        self._spawn(self._sweep())

    async def close(self) -> None:
        """Cancel what runs, make what ended durable, and end."""
        await asyncio.to_thread(self.scheduler.close)
        for task in [task for task in self._tasks if task.get_name() == "sweep"]:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=10) if self._tasks else None
        await asyncio.to_thread(self.hook.close)
        self.sessions.close()
        self._texts.shutdown(cancel_futures=True)

    async def leave(self, seconds: float) -> None:
        """Let turns end for some seconds, then cancel those under way, whose clients are told so."""
        await asyncio.sleep(seconds)
        self._leaving = True
        for turn in list(self._events):
            self.scheduler.cancel(turn)

    async def open(self, ask: Ask) -> list[Reply]:
        """Begin a reply for each answer. Raises Refused, and the errors of tokenizer, archive and scheduler."""
        if self._leaving:
            raise Refused(503, LEAVING)
        if self.scheduler.counts()["waiting"] + ask.answers > WAITING:
            raise Refused(429, f"{WAITING} requests wait already: try it again later")
        if ask.session is None:
            ids = await self._ids(ask, ())
            return [self._begin(one, ids, None) for one in ask.each()]
        record = await self.sessions.claim(ask.session)
        try:
            if ask.session_tokens not in (None, record.tokens):
                raise Refused(409, f"session {ask.session!r} has {record.tokens} tokens, not {ask.session_tokens}")
            before = record.ids.tolist() if ask.append and record.ids is not None else []
            return [self._begin(ask, await self._ids(ask, before), record)]
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
        begun = time.perf_counter()
        record = await self._claim_known(name)
        try:
            assert record.ids is not None
            turn = Turn(record.ids.tolist(), Sampling(0), name)
            queue = self._submit(turn)
            while await queue.get() is not None:
                pass
            self._events.pop(turn, None)
        finally:
            self.sessions.free(record)
        if turn.failure:
            raise Refused(503, turn.failure)
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
            new = await loop.run_in_executor(self._texts, chat_ids, self.target, ask.messages, before)
        else:
            new = await loop.run_in_executor(self._texts, prompt_ids, self.target, ask.prompt)
        return [*before, *new]

    def _begin(self, ask: Ask, ids: list[int], record: ServedSession | None) -> Reply:
        most = self.target.max_positions or 1 << 30
        room = min(most, self.pool.device.tokens - self.pool.block) - len(ids)
        limit = ask.limit if ask.limit is not None else max(min(self.new, room), 1)
        if len(ids) + limit > most:
            why = f"{len(ids)} tokens and {limit} new ones exceed the {most} positions of this model"
            raise Refused(400, why, "context_length_exceeded")
        turn = Turn(ids, ask.sampling(limit), ask.session)
        if ask.stops:
            watched = ReplyText(self.target, ask.stops)

            def halts(one: int) -> bool:
                watched.add(one)
                return watched.ended

            turn.halts = halts
        queue = self._submit(turn)
        if record is not None:
            record.turn = turn
        reply = Reply(turn, self)
        self._spawn(self._drive(reply, ReplyText(self.target, ask.stops), queue, record), "turn")
        return reply

    async def _drive(
        self, reply: Reply, text: ReplyText, queue: asyncio.Queue[int | None], record: ServedSession | None
    ) -> None:
        """Follow a turn to its end, acknowledge it, and let others use its session."""
        turn, out = reply.turn, reply._out
        held: list[tuple[int, Likelihood]] = []  # of ids whose text is not out yet
        count = 0
        try:
            while (one := await queue.get()) is not None:
                if turn.sampling.top is not None and one not in self.target.eos_ids:
                    held.append((one, turn.likelihoods[count]))
                count += 1
                if piece := text.add(one):
                    out.put_nowait(Piece(piece, tuple(held)))
                    held.clear()
            self.ends[turn.end] = self.ends.get(turn.end, 0) + 1
            if turn.end in ("cancelled", "error"):
                raise Refused(503, turn.failure or (LEAVING if self._leaving else "this turn was cancelled"))
            ended = text.ended
            if (piece := text.rest()) or (held and not ended):
                out.put_nowait(Piece(piece, tuple(held)))
            acknowledged = None
            if record is not None:
                ids = np.asarray([*turn.ids, *turn.new], np.int32)
                await self.sessions.keep(record, ids)
                acknowledged = {"name": record.name, "tokens": len(ids), "digest": digest(ids)}
            out.put_nowait(Done(turn.end, len(turn.ids), len(turn.new), acknowledged))
        except PltzError as exc:
            out.put_nowait(exc)
        except Exception:
            log.exception("a turn failed")
            out.put_nowait(Refused(500, "this turn failed: the server's log says why"))
        finally:
            self._events.pop(turn, None)
            if record is not None:
                self.sessions.free(record)

    def _submit(self, turn: Turn) -> asyncio.Queue[int | None]:
        queue = self._events[turn] = asyncio.Queue()
        try:
            self.scheduler.submit(turn)
        except BaseException:
            del self._events[turn]
            raise
        return queue

    def _deliver(self, events: Events) -> None:
        """Hand events of the scheduler's thread to the event loop, all of a step by one call."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._sort, events)

    def _sort(self, events: Events) -> None:
        for turn, one in events:
            if (queue := self._events.get(turn)) is not None:
                queue.put_nowait(one)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP, self.sessions.idle))
            try:
                await self.sessions.sweep()
            except Exception:
                log.exception("idle sessions do not go cold")

    def _spawn(self, work: Any, name: str = "sweep") -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

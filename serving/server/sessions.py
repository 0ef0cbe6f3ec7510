"""Sessions: the named sessions of a server, their ids in memory until the archive has them, and their way back.

    hot, warm   KV in the pool, or in host memory
    disk        KV in files, ids in the archive
    journal     no KV; the ids are in memory, and durable in the journal
    cold        only the archive has them

A turn is acknowledged when the hook's journal has its ids on disk. A session goes cold when the archive gives the same
ids: only then memory forgets them. All methods run in the event loop; the archive is read by one thread beside it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.archive import Erased, NotFound, StoreError
from pltz.kv.thaw.thawed import check_target
from pltz.kv.thaw.thawer import Thawer
from pltz.plt_codec import PltzError
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.server.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.archive import Archive
    from pltz.serving.eviction.hook import EvictionHook
    from pltz.serving.server.scheduler import Scheduler
    from pltz.serving.server.turn import Turn

KNOWN = 10_000  # sessions that the server has a record of
PATIENCE = 30.0  # seconds until a client hears that its turn is not durable yet
GRACE = 1.0  # seconds that a turn waits for one whose client may just have left
POLL = 0.005  # seconds between looks at the journal, and at a session in use
SETTLE = 60.0  # seconds for the archive to take what is in the journal
LOOKED = 256  # sessions that are looked for in the archive at once
TIERS = {"device": "hot", "host": "warm", "disk": "disk"}  # of a store, as clients hear of them
log = logging.getLogger("pltz.serve")


@dataclass(eq=False, slots=True)
class ServedSession:
    """Hold one session.

    ``ids``: all acknowledged ones, (T,) int32; None where only the archive has them. ``digest``: of them. ``turns``:
    acknowledged here. ``turn``: under way. ``block``: the name of the last block of its KV; ``shared``: of what others
    may find of it, where that is apart. ``parent``: the session that it was forked from, for the archive, which shares
    its beginning.
    """

    name: str
    ids: NDArray[np.int32] | None = None
    tokens: int = 0
    digest: str = ""
    turns: int = 0
    busy: bool = False
    turn: Turn | None = None
    block: bytes = b""
    shared: bytes = b""
    parent: str | None = None
    used: float = field(default_factory=time.monotonic)
    stuck: bool = False  # the archive does not give its ids, which therefore stay in memory


def digest(ids: Sequence[int] | NDArray[Any]) -> str:
    """Return 32 hex digits that name ids (T,)."""
    return blake2b(np.asarray(ids, "<i4").tobytes(), digest_size=16).hexdigest()


class Sessions:
    """The sessions of one tenant.

    ``idle``: seconds without a turn after which a session goes cold. ``known``: sessions with a record, at most.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        hook: EvictionHook,
        archive: Archive,
        *,
        tenant: str = "default",
        idle: float = 300.0,
        known: int = KNOWN,
    ) -> None:
        self.scheduler, self.hook, self.tenant, self.idle, self.known = scheduler, hook, tenant, idle, known
        self.acknowledged = self.thaws = self.freezes = 0
        self._target = scheduler.target
        self._archive, self._thawer = archive, Thawer(archive, scheduler.target, max_age=0.0)
        scheduler.store.admit(archive, [tenant])
        self._records: OrderedDict[str, ServedSession] = OrderedDict()  # the least recently used first
        self._reader = ThreadPoolExecutor(1, "pltz-serve-archive")
        self._looking = asyncio.Lock()  # a look reads what no claim waits for: one at a time stands before a claim
        self._settler = ThreadPoolExecutor(1, "pltz-serve-settle")

    # ---- one turn

    async def claim(self, name: str) -> ServedSession:
        """Return the record of a session for one user at a time, with its ids; none if it is new. Call `free` after.

        A turn that is cancelled is waited for. Raises Refused where the session stays in use, or another turn was
        acknowledged meanwhile, and the errors of the archive: a session that cannot be read is not new.
        """
        await self._left(name)
        record = self._records.get(name)
        if record is None:
            self._make_room()
            record = self._records[name] = ServedSession(name)
        record.busy = True
        self._records.move_to_end(name)
        try:
            if record.ids is None:
                record.ids = await self._read(name)
                record.tokens, record.digest = len(record.ids), digest(record.ids)
                self.thaws += bool(len(record.ids))
        except BaseException:
            self.free(record)
            raise
        return record

    async def _left(self, name: str) -> None:
        """Wait while a session is in use by a turn that may be cancelled. Raises Refused for one that goes on."""
        begun, turns = time.monotonic(), -1
        while (record := self._records.get(name)) is not None:
            turns = record.turns if turns < 0 else turns
            leaving = record.turn is not None and record.turn.cancelled
            late = time.monotonic() - begun > (PATIENCE if leaving else GRACE)
            if record.turns != turns:
                raise Refused(409, f"session {name!r} took another turn, and has {record.tokens} tokens: ask again")
            if not record.busy:
                return
            if late:
                raise Refused(409, f"session {name!r} has a turn under way: wait for its end, or cancel it")
            await asyncio.sleep(POLL)

    def free(self, record: ServedSession) -> None:
        """Let others use a session."""
        record.busy, record.turn, record.used = False, None, time.monotonic()
        if record.ids is not None:
            record.block, record.shared = self.scheduler.blocks(record.name, record.ids)
        if not record.tokens:
            self._records.pop(record.name, None)

    async def keep(self, record: ServedSession, ids: NDArray[np.int32]) -> None:
        """Make all ids of a claimed session durable, then take them as its state.

        Raises Refused where the journal does not take them; the session is as before then.
        """
        request = EvictionRequest(
            record.name, ids, tenant=self.tenant, target=self._target.fingerprint, parent=record.parent
        )
        ticket = self.hook.on_evict(request)
        if not ticket:
            raise Refused(503, f"the journal does not take this turn: {self.hook.counts.refused}. Try it again later")
        begun = looked = time.monotonic()
        while not self.hook.durable(ticket):
            await asyncio.sleep(POLL)
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                if self.hook.flush(0) and not self.hook.durable(ticket):
                    raise Refused(500, "the journal refused this turn: the server's log says why")
                if looked - begun > PATIENCE:
                    log.warning("session %r waits for the journal's disk", record.name)
                    begun = looked
        record.ids, record.tokens, record.digest, record.stuck = ids, len(ids), digest(ids), False
        record.turns += 1
        self.acknowledged += 1

    # ---- going cold

    async def freeze(self, records: Sequence[ServedSession]) -> None:
        """Let sessions go cold: drop their ids, and give up the KV's memory, once the archive gives the same ids.

        The caller has claimed them, or nobody uses them. One that is used meanwhile stays.
        """
        loop = asyncio.get_running_loop()
        snapshots = [(record, record.ids, record.busy) for record in records]
        try:
            settled = await loop.run_in_executor(self._settler, self.hook.settle, SETTLE)
        except OSError as exc:
            raise Refused(503, f"the journal cannot be read: {exc.strerror or exc}") from exc
        if not settled:
            raise Refused(503, "the archive has not taken the journal yet: see /health, and try it again")
        for record, ids, busy in snapshots:
            try:
                found = await self._read(record.name)
            except PltzError as exc:
                record.stuck = not isinstance(exc, StoreError)
                if not record.stuck or len(records) == 1:
                    raise
                log.warning("the archive does not give session %r, which stays in memory: %s", record.name, exc)
                continue  # the others go cold
            if record.ids is not ids or record.busy != busy or ids is None:
                continue
            record.stuck = not np.array_equal(found, ids)
            if record.stuck:
                log.warning("the archive does not give session %r as it is: its ids stay in memory", record.name)
            else:
                record.ids = None
                self.freezes += 1
                work = partial(self.scheduler.let_go, record.name, ids)
                await asyncio.wrap_future(self.scheduler.call(work))

    async def sweep(self) -> None:
        """Freeze all sessions that were idle for long. Failures are logged and tried again."""
        now = time.monotonic()
        idle = [
            one for one in self._records.values()
            if not one.busy and not one.stuck and one.ids is not None and now - one.used > self.idle
        ]  # fmt: skip
        if not idle:
            return
        try:
            await self.freeze(idle)
        except PltzError as exc:
            log.warning("sessions do not go cold now: %s", exc)

    async def audit(self) -> None:
        """Drop sessions that the archive has no more, erased or forgotten by whatever process, and their KV."""
        idle = [(one, one.ids) for one in self._records.values() if not one.busy and one.tokens]
        loop = asyncio.get_running_loop()
        settled = await loop.run_in_executor(self._settler, self._settled)
        names, gone = [one.name for one, _ in idle], set[str]()
        for at in range(0, len(names), LOOKED):  # claims wait for some of them
            gone |= await loop.run_in_executor(self._reader, self._absent, names[at : at + LOOKED])
        for record, ids in idle:
            same = self._records.get(record.name) is record and record.ids is ids  # as when it was looked for
            if record.name in gone and same and not record.busy and (ids is None or settled):
                del self._records[record.name]  # first: it may be begun anew meanwhile
                for block in filter(None, (record.block, record.shared)):
                    work = partial(self.scheduler.store.erase, block)
                    await asyncio.wrap_future(self.scheduler.call(work))

    def _settled(self) -> bool:
        """Return whether the archive took all that was acknowledged so far, and nothing was laid aside."""
        try:
            return self.hook.settle(1.0) and not self.hook.status()["worker"].get("rejected", 0)
        except OSError:
            return False

    def _absent(self, names: Sequence[str]) -> set[str]:
        """Return which of some sessions the archive does not have."""
        found = set()
        with self._archive.parts.catalog.one_look(0.0):
            self.scheduler.store.admit(self._archive, [self.tenant])
            for name in names:
                try:
                    self._archive.directory.version(name, self.tenant)
                except NotFound:
                    found.add(name)
                except PltzError:  # what damage hides may be there
                    continue
        return found

    # ---- looking

    def table(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Return name, tier, tokens, seconds idle and use of the sessions used last."""
        now = time.monotonic()
        rows = []
        for record in list(reversed(self._records.values()))[:limit]:
            tier = self._tier(record)
            idle = 0.0 if record.busy else round(now - record.used, 1)
            rows.append(
                {"session": record.name, "tier": tier, "tokens": record.tokens, "idle": idle, "busy": record.busy}
            )
        return rows

    def tiers(self) -> dict[str, int]:
        """Return the number of sessions per tier."""
        found = dict.fromkeys((*TIERS.values(), "journal", "cold"), 0)
        for row in self.table(self.known):
            found[row["tier"]] += 1
        return found

    async def look(self, name: str) -> dict[str, Any]:
        """Return tokens, digest and tier of a session, as acknowledged. Raises Refused where there is none."""
        record = self._records.get(name)
        if record is None or not record.tokens:
            async with self._looking:
                ids = await self._read(name)
            block, shared = self.scheduler.blocks(name, ids)
            record = ServedSession(name, None, len(ids), digest(ids), block=block, shared=shared)
            with suppress(Refused):  # where there is room, the next look needs no reader
                if record.tokens and name not in self._records:
                    self._make_room()
                    self._records[name] = record
        if not record.tokens:
            raise Refused(404, f"no session {name!r}")
        tier = self._tier(record)
        return {"session": name, "tier": tier, "tokens": record.tokens, "digest": record.digest}

    def _tier(self, record: ServedSession) -> str:
        known = TIERS.get(self.scheduler.store.tier(record.block)) if record.block else None
        return known or ("cold" if record.ids is None else "journal")

    def close(self) -> None:
        """End the threads."""
        self._settler.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(cancel_futures=True)

    async def _read(self, name: str) -> NDArray[np.int32]:
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._ids, name)

    def _ids(self, name: str) -> NDArray[np.int32]:
        """Return the ids of a session in the archive, (T,), none where there is no such session.

        Raises TargetMismatch for one of other weights, and the errors of `Thawer.token_ids`.
        """
        try:
            ids = self._thawer.token_ids(name, self.tenant)
        except Erased:
            raise
        except NotFound:
            return np.zeros(0, np.int32)
        with self._archive.parts.catalog.one_look(None):
            self.scheduler.store.admit(self._archive, [self.tenant])
            frozen_for = self._archive.directory.version(name, self.tenant, None).target
        check_target(frozen_for if any(frozen_for) else None, self._target.fingerprint)
        return np.asarray(ids, np.int32)

    def _make_room(self) -> None:
        """Forget the record of the cold session used longest ago, where there are too many."""
        if len(self._records) < self.known:
            return
        for record in self._records.values():
            if record.ids is None and not record.busy:
                del self._records[record.name]
                return
        raise Refused(429, f"this server has {self.known} sessions that are not cold: try it again later")

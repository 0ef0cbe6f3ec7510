"""SlotArchiver: a thread that archives the idle slots of llama.cpp's ``llama-server``, and brings sessions back.

    archiver = SlotArchiver(LlamaServer(url), hook, "/tmp/slots", idle=60, keep=8 << 30)
    archiver.start()
    ...
    archiver.restore("chat-7", found.ids, frozen_for=found.target)    # found: cold.get("chat-7")

The server need not know of it: clients speak to the server as always. A slot that did not change for a while is saved,
its ids go to the eviction hook, and its file stays for a quick return, within a budget (`slot_keeper.SlotKeeper`). A
session that returns gets its KV from that file, else by one prefill of its ids. The result is the same.

The server knows no names. A slot's session is the one that was claimed for it (`claim`), else the one of which it has
all tokens and more, else a new one, named after its ids. Without a claim only sessions of the archiver's own tenant are
looked at: any client may send a prompt that begins like the session of another tenant. The last sampled token is not in
a slot yet, so the newest version of a session lacks it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pltz.archive import MAX_NAME, Tokens
from pltz.plt_codec import OpaqueContentError, PltzError, UsageError
from pltz.serving.engines.llama_server import Hot, LlamaServer, SlotState
from pltz.serving.engines.slot_keeper import KeptSlot, SlotKeeper, digest_ids
from pltz.serving.eviction.eviction import EvictionRequest
from pltz.serving.eviction.hook import EvictionHook

log = logging.getLogger("pltz.slots")
MAX_KNOWN = 4096  # sessions whose next version is known as theirs
FLUSH = 10.0  # seconds that a restore waits until what it archived is on disk


@dataclass(frozen=True)
class ArchivedSlot:
    """A session that was handed to the hook. ``kept``: its slot file stays."""

    slot: int
    session: str
    tenant: str
    tokens: int
    kept: bool


@dataclass
class _Watched:
    """A slot as it was seen.

    ``since``: monotonic seconds of its last change. ``done``: nothing is left to try. ``ticket``: that of the hook for
    its ids, 0 where there is nothing to lose, None where nobody else has them.
    """

    state: SlotState
    since: float
    done: bool = False
    ticket: int | None = None


class SlotArchiver:
    """Archives idle slots of one server. Any thread may use it.

    ``archived``, ``refused``, ``failed``: counts since the start. ``failed``: looks and saves that did not succeed, and
    are tried again.

    Args:
        server: started with ``--slot-save-path``.
        hook: that takes the ids.
        folder: the server's folder of slot files, as this machine sees it.
        idle: seconds without a change after which a slot is archived.
        poll: seconds between looks.
        keep: bytes that slot files may take; 0 keeps none.
        tenant: of sessions that were not claimed for another.
        variant: options of the server that change its KV, such as those of RoPE.

    Raises UsageError where there is no such folder or a time cannot be, ModelError where the server does not answer.
    """

    def __init__(
        self,
        server: LlamaServer,
        hook: EvictionHook,
        folder: str | Path,
        *,
        idle: float = 60.0,
        poll: float = 5.0,
        keep: int = 0,
        tenant: str = "default",
        variant: str = "",
    ) -> None:
        if not (idle >= 0 and poll > 0 and keep >= 0):
            raise UsageError("expected idle seconds and bytes to keep from 0 up, and seconds between looks above 0")
        self.server, self.hook = server, hook
        self.archived = self.refused = self.failed = 0
        self._idle, self._poll, self._tenant = idle, poll, tenant
        self._keeper = SlotKeeper(server, folder, keep, variant=variant)
        self._slots: dict[int, _Watched] = {}
        self._claims: dict[int, tuple[str, str]] = {}
        self._known: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()
        for kept in self._keeper.kept():
            self._know(kept.session, kept.tenant, kept.tokens, kept.ids)
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look at the slots, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="pltz slots", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Archive what changed since, idle or not, and end the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.look(idle=0)

    def claim(self, slot: int, session: str, tenant: str | None = None) -> None:
        """Say whose session a slot holds from now on: where requests choose slots.

        The claim ends when the slot is claimed for another session, or another one is restored into it. Raises
        UsageError for names that no archive takes.
        """
        with self._lock:
            self._claims[slot] = self._owner(session, tenant)

    def look(self, *, idle: float | None = None) -> list[ArchivedSlot]:
        """Look at all slots once, and archive those that are idle. Never raises for what the server does.

        ``idle``: seconds, in place of the setting.
        """
        found = []
        with self._lock:
            try:
                self.server.refresh()
                states = self.server.slot_states()
            except PltzError as exc:
                self._fail("the slots", exc)
                return []
            now = time.monotonic()
            for state in states:
                seen = self._slots.get(state.slot)
                if seen is None or seen.state != state:
                    seen = self._slots[state.slot] = _Watched(state, now)
                waited = now - seen.since >= (self._idle if idle is None else idle)
                if waited and not (state.busy or seen.done or not state.tokens):
                    done = self._archive(seen)
                    found += [done] if done else []
        return found

    def restore(
        self,
        session: str,
        ids: Tokens,
        *,
        tenant: str | None = None,
        slot: int | None = None,
        frozen_for: bytes | None = None,
        any_target: bool = False,
    ) -> Hot:
        """Bring a session's KV back: from its slot file where that is right, and by a prefill of the other ids.

        A claim of the slot for another session ends. A session of another tenant than the archiver's own goes on under
        its name only if its slot is claimed for it (`claim`, with the slot that is returned).

        Args:
            ids: (T,) of the session.
            slot: the slot to fill; None for one that is idle and empty, else for the one that was archived longest ago.
                Where there is none, idle slots are archived first. The server chooses only where none can be.
            frozen_for, any_target: as in `LlamaServer.thaw`, whose errors it raises.
        """
        session, tenant = self._owner(session, tenant)
        with self._lock:
            self.server.refresh()
            self.server.check_thaw(frozen_for, any_target=any_target)
            chosen = self._choice() if slot is None else slot
            if slot is None and chosen < 0:
                self.look(idle=0)
                self.hook.flush(FLUSH)
                chosen = self._choice()
            if chosen >= 0:
                self._keeper.restore(session, ids, chosen, tenant=tenant)
            hot = self.server.thaw(ids, slot=chosen, frozen_for=frozen_for, any_target=any_target)
            if self._claims.get(hot.slot) != (session, tenant):
                self._claims.pop(hot.slot, None)
            self._know(session, tenant, len(ids), digest_ids(ids))
            for state in self.server.slot_states():  # it is as it was archived
                if state.slot == hot.slot:
                    self._slots[hot.slot] = _Watched(state, time.monotonic(), done=True, ticket=0)
            return hot

    def status(self) -> Mapping[str, int]:
        """Return counts, and the slot files that are kept with their bytes."""
        kept = self._keeper.kept()
        counts = {"archived": self.archived, "refused": self.refused, "failed": self.failed}
        return counts | {"kept": len(kept), "kept_bytes": sum(one.size for one in kept)}

    # ---- below

    def _run(self) -> None:
        while not self._ended.wait(self._poll):
            self.look()

    def _archive(self, seen: _Watched) -> ArchivedSlot | None:
        """Save a slot and hand its ids to the hook. Returns None where that failed, or the slot has no ids."""
        state, named = seen.state, ("", self._tenant)

        def name(ids: Tokens) -> tuple[str, str]:
            nonlocal named
            named = self._name(state.slot, ids)
            return named

        kept: KeptSlot | None = None
        try:
            ids, kept = self._keeper.save(state, name)
        except OpaqueContentError as exc:
            seen.done = True
            self.refused += 1
            self.hook.refuse("multimodal", f"slot {state.slot}", self._tenant, str(exc))
            return None
        except PltzError as exc:
            seen.since = time.monotonic()  # after another wait
            self._fail(f"slot {state.slot}", exc)
            return None
        if not len(ids):  # emptied meanwhile
            seen.done, seen.ticket = True, 0
            return None
        session, tenant = named
        target = self.server.target
        asked = EvictionRequest(session, ids, tenant=tenant, target=target, adapter=state.adapter)
        ticket = self.hook.on_evict(asked)
        if not ticket:  # perhaps full: the slot still has it, so it is tried after another wait
            self.refused += 1
            seen.since = time.monotonic()
            return None
        seen.done, seen.ticket = True, ticket
        self.archived += 1
        self._know(session, tenant, len(ids), digest_ids(ids))
        return ArchivedSlot(state.slot, session, tenant, len(ids), kept is not None)

    def _name(self, slot: int, ids: Tokens) -> tuple[str, str]:
        """Return name and tenant of a slot's session."""
        if slot in self._claims:
            return self._claims[slot]
        digests = {len(ids): digest_ids(ids)}
        own = [item for item in self._known.items() if item[0][1] == self._tenant]
        for named, (tokens, known) in sorted(own, key=lambda item: -item[1][0]):
            if 0 < tokens <= len(ids):
                if tokens not in digests:
                    digests[tokens] = digest_ids(ids[:tokens])
                if digests[tokens] == known:
                    return named
        return f"slot-{digests[len(ids)][:16]}", self._tenant

    def _owner(self, session: str, tenant: str | None) -> tuple[str, str]:
        """Return name and tenant of a session. Raises UsageError for names that no archive takes."""
        found = session, tenant or self._tenant
        if not session or max(len(name.encode("utf-8", "replace")) for name in found) > MAX_NAME:
            raise UsageError(f"expected names of a session and its tenant, of 1 to {MAX_NAME} bytes")
        return found

    def _know(self, session: str, tenant: str, tokens: int, ids: str) -> None:
        self._known[session, tenant] = tokens, ids
        self._known.move_to_end((session, tenant))
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _choice(self) -> int:
        """Return a slot that loses nothing, -1 where there is none: the server chooses then."""
        free = []
        for state in self.server.slot_states():
            seen = self._slots.get(state.slot)
            ticket = seen.ticket if seen is not None and seen.state == state else None
            archived = ticket is not None and (not ticket or self.hook.durable(ticket))
            if not state.busy and (archived or not state.tokens):
                free.append((bool(state.tokens), seen.since if seen else 0.0, state.slot))
        return min(free)[2] if free else -1

    def _fail(self, where: str, failure: PltzError) -> None:
        self.failed += 1
        log.warning("%s: %s", where, failure)

"""Eviction hook: a serving loop hands over the tokens of a session whose KV cache it evicts, and goes on.

    hook = EvictionHook.open("/run/journal", "/data/cold", tokenizer=tokenizer_json, target=target.fingerprint)
    ticket = hook.on_evict("chat-7", token_ids, tenant="acme", prefixes=(len(system_ids),))
    hook.durable(ticket)                               # on disk: after 50 ms or so

    on_evict --copy, queue--> flusher thread --group write, sync--> journal --worker, nice--> archive
    microseconds              durable within HookSettings.flush_seconds + a sync            encoded, decoded back, compared

`on_evict` copies the ids (`token_buffer.py`), appends to a queue (`eviction_queue.py`) and returns; it does no I/O, waits for nothing and raises nothing. What it
cannot take is counted by reason, logged with session and tenant, and shown by `status`, `metrics` and ``pltz hook status`` (`refusals.py`). From the journal (`flusher.py`, FORMAT.md) on, a kill loses nothing.

The worker runs in a process of its own at low priority ("process", the default: the serving loop keeps its interpreter to itself), in a thread ("thread"), or
not at all ("none": drain the journal by `worker.drain`, `pltz hook drain` or the nightly job).

Back-pressure: the journal takes what comes, as far as the disk or ``journal_bytes`` goes (spill). Where it cannot be written, evictions wait in memory up to
``memory_bytes``; after that new ones are refused, or the oldest ones in memory dropped where ``when_full`` says so. Both are counted; what was reported
durable is never dropped.

The journal holds tokens in the clear, and so does the journal of a sealed archive: the worker needs them. Its directory is for its owner
alone (mode 0700). Put it on an encrypted disk where the archive is sealed (FORMAT.md, "Tokens in the clear").
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pltz.archive.eviction.eviction_queue import Counts, Waiting
from pltz.archive.eviction.flusher import Flusher
from pltz.archive.eviction.journal.lock import FileLocks, Locks
from pltz.archive.eviction.journal.reader import Backlog
from pltz.archive.eviction.journal.segment import Name
from pltz.archive.eviction.journal.writer import Journal
from pltz.archive.eviction.refusals import brief
from pltz.archive.eviction.settings import WORKERS, HookSettings, WorkerKind
from pltz.archive.eviction.token_buffer import Refused, Snapshots
from pltz.archive.eviction.tokenizers import Tokenizers
from pltz.archive.format.ids import NONE, SIZE
from pltz.archive.storage.disk import Disk, OsDisk
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import Secret
    from pltz.archive.eviction.background import Background
    from pltz.archive.eviction.metrics import HookCollector
    from pltz.models.bundle.bundle import Bundle

__all__ = ["EvictionHook", "HookSettings", "WorkerKind"]

log = logging.getLogger("pltz.hook")

ASIDE = "laid aside by the worker"
POLL = 0.02  # seconds between looks at what is archived


class EvictionHook:
    """See the head of this file. Make one with `open`; one a process, for a fork does not take threads along.

    Args:
        disk, locks: of the journal's directory.
        tokenizer, target: fingerprints of what is served; zeros are the bundle's own ids, and no target in particular.
    """

    def __init__(
        self,
        disk: Disk,
        locks: Locks,
        *,
        tokenizer: bytes = NONE,
        target: bytes = NONE,
        settings: HookSettings | None = None,
    ) -> None:
        self.settings = settings or HookSettings()
        self.disk, self.target = disk, target or NONE
        self.background: Background | None = None
        self.backlog = Backlog(disk, locks)
        self._journal = Journal(
            disk, locks, segment=self.settings.segment_bytes, quota=self.settings.journal_bytes
        )
        self._pid = os.getpid()
        self._aside = 0  # sessions that the worker laid aside
        self._opened = disk.now()
        self._snapshots = Snapshots()
        self._waiting = Waiting(self.settings)
        self._flusher = Flusher(self._waiting, self._journal, tokenizer)
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        journal: str | os.PathLike[str],
        archive: str | os.PathLike[str] | None = None,
        *,
        tokenizer: bytes | str | os.PathLike[str] | None = None,
        target: bytes | None = None,
        bundle: Bundle | str | os.PathLike[str] | None = None,
        key: Secret | None = None,
        worker: WorkerKind = "process",
        settings: HookSettings | None = None,
    ) -> EvictionHook:
        """A hook over a journal directory, which is made where there is none; what dead processes left in it is archived too.

        Args:
            archive: where the worker puts sessions; it must be there. None with worker "none".
            tokenizer: the served model's tokenizer.json, as bytes or a path; None: its ids are the bundle's own.
            target: fingerprint of the served weights (`Target.fingerprint`).
            bundle, key: what the archive is opened with. A sealed one needs its key (`keys.Secret`).

        Raises UsageError, ModelError, StoreError, OSError, and what opening the archive raises, KeyMismatch without its key: here,
        never later.
        """
        from pltz.archive.eviction.background import start

        if worker not in WORKERS:
            raise UsageError(f"expected worker as {', '.join(WORKERS)}, got {worker!r}")
        if (archive is None) != (worker == "none"):
            raise UsageError("a worker needs an archive, and worker='none' takes none")
        if archive is None and key is not None:
            raise UsageError("a key opens an archive, and none is named: give it to who drains the journal")
        if target is not None and len(target) != SIZE:
            raise UsageError(f"expected a target fingerprint of {SIZE} bytes, got {len(target)}")
        chosen = settings or HookSettings()
        root = Path(journal)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk, locks = OsDisk(root), FileLocks(root)
        spec = tokenizer if isinstance(tokenizer, bytes | None) else Path(tokenizer).read_bytes()
        named = Tokenizers(disk).keep(spec, locks) if spec is not None else NONE
        hook = cls(disk, locks, tokenizer=named, target=target or NONE, settings=chosen)
        if archive is not None:
            try:
                hook.background = start(worker, root, archive, bundle, key, chosen, hook._laid_aside)
            except BaseException:
                hook.close()
                raise
        return hook

    # ---- the serving loop's side

    def on_evict(
        self,
        session: str,
        token_ids: Any,
        *,
        tenant: str = "default",
        salt: str | bytes | None = None,
        tags: Mapping[str, str] | None = None,
        prefixes: Sequence[int] = (),
        base: str | None = None,
        parent: str | None = None,
        target: bytes | None = None,
        adapter: str | bytes | bool | None = None,
        multimodal: bool = False,
        has_embeds: bool = False,
        time: int | None = None,
    ) -> int:
        """Take the tokens of a session whose KV cache goes. Never raises, never blocks.

        Args:
            session: its name in the archive; the same name again is its next version.
            token_ids: all tokens the KV stands for and the one sampled last, (T,): a list, tuple, numpy array or torch tensor on the CPU, or bytes,
                4 an id, little-endian. Copied.
            salt: what its KV was shared under (vLLM's ``cache_salt``); kept as a digest, see `token_archive.tenant_of`.
            prefixes: token counts at which shared beginnings end, as a system prompt's; hints: those that do not fit are left out.
            base: name under which the first prefix is shared with all tenants. None: within the tenant.
            parent: session this one was forked from.
            target: fingerprint of the weights, where it is not the hook's.
            adapter: None, or its name, or 16 bytes that name its weights. True or "": there is one that nobody names, which is refused.
            multimodal, has_embeds: the KV holds more than tokens (images, prompt embeddings): refused.
            time: seconds since 1970, None is now.

        Returns:
            int: a ticket to ask `durable` for, ascending from 1; 0 where it was refused.
        """
        try:
            if os.getpid() != self._pid:
                return self._refuse_forked(session, tenant)
            if multimodal or has_embeds:
                raise Refused("multimodal" if multimodal else "prompt embeddings")
            if adapter is not None and (adapter is True or adapter is False or not adapter):
                raise Refused("adapter not named")
            ids, size = self._snapshots.take(token_ids)
            named = session, ids, tenant, salt, dict(tags) if tags else {}, tuple(prefixes)
            served = target or self.target, adapter, self.disk.now() if time is None else time
            ticket, full = self._waiting.add(size, (*named, base or "", parent or "", *served))
            if full or self._flusher.asleep:
                self._flusher.wake(full)
            return ticket
        except Refused as exc:
            return self.refuse(exc.reason, session, tenant, exc.why)
        except Exception as exc:  # noqa: BLE001  # whatever a caller hands over must not take the serving loop down
            self._flusher.error = why = f"{type(exc).__name__}: {exc}"
            return self.refuse("error", session, tenant, why)

    def refuse(self, reason: str, session: Any, tenant: Any = "default", why: str = "") -> int:
        """Count and log an eviction that is not taken, as those that the caller itself cannot hand over. Never raises, never blocks.

        Args:
            reason: one of a few words, as metrics have them; ``why``: more of it, for the log.

        Returns:
            int: 0, as `on_evict` returns it.
        """
        if os.getpid() != self._pid:
            return self._refuse_forked(session, tenant)
        if self._flusher.refusals.note(reason, self._waiting.refuse(reason), session, tenant, why):
            self._flusher.wake()
        return 0

    def _laid_aside(self, session: str, tenant: str, why: str) -> None:
        """Log what the worker laid aside, with what was refused; the worker counts it (`rejected`)."""
        self._aside += 1
        if self._flusher.refusals.note(ASIDE, self._aside, session, tenant, why):
            self._flusher.wake()

    def _refuse_forked(self, session: Any, tenant: Any) -> int:
        """In a child there is no flusher, and the lock may be held for good: counted and logged without either."""
        refused = self.counts.refused
        refused["forked"] = known = refused.get("forked", 0) + 1
        if known == 1:
            whose = f"session {brief(session)!r} of tenant {brief(tenant)!r}"
            log.warning("evictions are refused: forked: %s (open a hook in each process)", whose)
        return 0

    @property
    def counts(self) -> Counts:
        """What happened since the hook was opened."""
        return self._waiting.counts

    def durable(self, ticket: int) -> bool:
        """Whether the eviction of a ticket is on disk: no kill and no power cut loses it any more."""
        return self._waiting.durable(ticket)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was accepted is durable (or was dropped, where the settings say so); False when ``timeout`` seconds were not enough."""
        return self._flusher.flush(timeout)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was accepted is in the archive, or laid aside by the worker; False when ``timeout`` seconds were not enough.

        The worker must run, here or elsewhere. Raises OSError where the journal cannot be read.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if not self.flush(timeout):
            return False
        places = self._places()
        while places and (end is None or time.monotonic() < end):
            places = [(name, at) for name, at in places if not self._archived(name, at)]
            if places:
                time.sleep(POLL)
        return not places

    def _places(self) -> list[tuple[Name, int]]:
        """The segments of this hook, and their ends."""
        place = self._journal.place
        mine = [s for s in self.backlog.segments() if s.name.owner in self._journal.owners]
        return [(s.name, place[1] if place and s.name == place[0] else s.size) for s in mine]

    def _archived(self, name: Name, at: int) -> bool:
        found = [s for s in self.backlog.segments() if s.name == name]
        return not found or found[0].done >= at

    # ---- looking and ending

    def status(self) -> dict[str, Any]:
        """What goes on, for people and as JSON; reads the journal's directory. Bytes, seconds, counts since the hook was opened."""
        counts, (queued, memory) = self.counts, self._waiting.usage
        try:
            held: dict[str, Any] = asdict(self.backlog.status())
        except OSError as exc:
            held = {"failure": str(exc)}
        worker = self.background.done if self.background else {}
        since = max(int(worker.get("until", 0)), self._opened)
        ended = not (self._flusher.alive or self._waiting.closed)
        return {
            "accepted": counts.accepted,
            "durable": counts.durable,
            "refused": dict(counts.refused),
            "refusals": [asdict(one) for one in self._flusher.refusals.last],
            "dropped": counts.dropped,
            "queued": queued,
            "memory_bytes": memory,
            "failures": counts.failures,
            "failure": "the thread that writes ended: see the log" if ended else self._flusher.failure,
            "error": self._flusher.error,
            "lag_seconds": max(0, self.disk.now() - since) if held.get("waiting") else 0,
            "journal": held,
            "worker": worker,
        }

    def metrics(self) -> HookCollector:
        """A collector for prometheus_client: ``REGISTRY.register(hook.metrics())``. Needs the extra ``pltz[serve]``; raises UsageError without."""
        from pltz.archive.eviction.metrics import HookCollector

        return HookCollector(self)

    def close(self, timeout: float = 10.0) -> bool:
        """Take no more, make durable what was accepted, end the worker after its commit; what it did not come to stays in the journal.

        False where ``timeout`` seconds were not enough to make everything durable: the disk fails.
        """
        if os.getpid() != self._pid:
            return False
        atexit.unregister(self.close)
        self._waiting.close()
        self._flusher.close(timeout)
        if self.background:
            self.background.close(timeout)
        return self._waiting.last <= self._waiting.until

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

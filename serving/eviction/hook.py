"""Eviction hook: a serving loop hands over the tokens of an evicted session.

    hook = EvictionHook.open("/run/journal", "/data/cold", tokenizer=spec, target=target.fingerprint)
    ticket = hook.on_evict(EvictionRequest("chat-7", token_ids, tenant="acme", prefixes=(len(system_ids),)))
    hook.durable(ticket)                               # on disk: after about 50 ms

    on_evict --copy, queue--> flusher thread --write, sync--> journal --worker, nice--> archive
    microseconds              durable within flush_seconds + a sync     encoded, decoded back, compared

`on_evict` copies the ids (`eviction.py`), appends to a queue (`eviction_queue.py`) and returns. It does no I/O, does
not wait and raises nothing. Refused evictions are counted by reason, logged with session and tenant, and shown by
`status` and `metrics` (`refusals.py`). Once an eviction is in the journal (`flusher.py`, FORMAT.md), a kill does not
lose it.

The worker runs in a process of its own at low priority, which leaves the GIL to the serving loop. A hook without an
archive has none: drain its journal by `worker.drain`, `pltz hook drain` or the nightly job.

Back-pressure: the journal takes evictions as long as the disk or ``journal_bytes`` allows. Where it cannot be written,
evictions wait in memory up to ``memory_bytes``. After that, new ones are refused, or the oldest ones in memory are
dropped if ``when_full`` says so. Both are counted. An eviction that was reported durable is never dropped.

The journal holds tokens in the clear, even for a sealed archive, because the worker needs them. Only its owner can read
its directory (mode 0700). Put it on an encrypted disk where the archive is sealed (FORMAT.md, "Tokens in the clear").
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pltz.archive import Disk, OsDisk
from pltz.plt_codec import MAX_TOKENIZER, NONE, SIZE, UsageError, named_file
from pltz.serving.eviction.eviction import EvictionRefused, EvictionRequest, held
from pltz.serving.eviction.eviction_queue import Counts, EvictionQueue
from pltz.serving.eviction.flusher import Flusher
from pltz.serving.eviction.journal.lock import FileLocks, Locks
from pltz.serving.eviction.journal.reader import JournalReader
from pltz.serving.eviction.journal.segment import Name
from pltz.serving.eviction.journal.writer import Journal
from pltz.serving.eviction.refusals import brief
from pltz.serving.eviction.settings import HookSettings
from pltz.serving.eviction.tokenizers import Tokenizers

if TYPE_CHECKING:
    from pltz.archive import KeySource
    from pltz.models import Bundle
    from pltz.serving.eviction.background import Process
    from pltz.serving.eviction.metrics import HookCollector

__all__ = ["EvictionHook", "HookSettings"]

log = logging.getLogger("pltz.hook")

ASIDE = "laid aside by the worker"
POLL = 0.02  # seconds between looks at the archived part


class EvictionHook:
    """An open hook (see the top of this file).

    Any thread may use it.

    Make it with `open`, one per process: a fork does not copy threads.

    Args:
        disk, locks: of the journal's directory.
        tokenizer, target: fingerprints of the served model, 16 bytes each. Zeros mean the bundle's own ids,
            and no particular target.
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
        self.background: Process | None = None
        self.backlog = JournalReader(disk, locks)
        self._journal = Journal(disk, locks, segment=self.settings.segment_bytes, quota=self.settings.journal_bytes)
        self._pid = os.getpid()
        self._worker_ended = threading.Event()
        self._aside = 0  # sessions that the worker laid aside
        self._opened = disk.now()
        self._waiting = EvictionQueue(self.settings)
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
        key: KeySource | None = None,
        settings: HookSettings | None = None,
    ) -> EvictionHook:
        """Open a hook over a journal directory, made if missing.

        The remains of dead processes are archived, too.

        Args:
            archive: where the worker puts sessions; it must exist. None for no worker.
            tokenizer: the served model's tokenizer.json, as bytes or a path; None if its ids are the bundle's own.
            target: fingerprint of the served weights (`Target.fingerprint`), 16 bytes.
            bundle, key: used to open the archive. A sealed one needs its key (`keys.Secret`).

        Raises UsageError, ModelError, StoreError, OSError and the errors of opening the archive, such as
        KeyMismatch without its key. They are raised here and never later.
        """
        from pltz.serving.eviction.background import start

        if archive is None and key is not None:
            raise UsageError("a key opens an archive, and none is named: give it to who drains the journal")
        if target is not None and len(target) != SIZE:
            raise UsageError(f"expected a target fingerprint of {SIZE} bytes, got {len(target)}")
        chosen = settings or HookSettings()
        root = Path(journal)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk, locks = OsDisk(root), FileLocks(root)
        spec = tokenizer if isinstance(tokenizer, bytes | None) else named_file(tokenizer, MAX_TOKENIZER)
        named = Tokenizers(disk).keep(spec, locks) if spec is not None else NONE
        hook = cls(disk, locks, tokenizer=named, target=target or NONE, settings=chosen)
        if archive is not None:
            try:
                hook.background = start(root, archive, bundle, key, chosen, hook._laid_aside)
            except BaseException:
                hook.close()
                raise
        return hook

    # ---- the serving loop's side

    def on_evict(self, request: EvictionRequest) -> int:
        """Take the tokens of a session whose KV cache is evicted. Never raises, never blocks.

        Returns:
            int: a ticket for `durable`, ascending from 1; 0 where the eviction was refused.
        """
        session, tenant = getattr(request, "session", None), getattr(request, "tenant", "default")
        try:
            if os.getpid() != self._pid:
                return self._refuse_forked(session, tenant)
            if request.multimodal or request.has_embeds:
                raise EvictionRefused("multimodal" if request.multimodal else "prompt embeddings")
            if request.adapter is not None and (isinstance(request.adapter, bool) or not request.adapter):
                raise EvictionRefused("adapter not named")
            ids, size = held(request.token_ids)
            kept = request._replace(
                token_ids=ids,
                tags=dict(request.tags) if request.tags else {},
                prefixes=tuple(request.prefixes),
                target=request.target or self.target,
                time=self.disk.now() if request.time is None else request.time,
            )
            ticket, full = self._waiting.add(kept, size)
            if full or self._flusher.asleep:
                self._flusher.wake(full)
            return ticket
        except EvictionRefused as exc:
            return self.refuse(exc.reason, session, tenant, exc.why)
        except Exception as exc:  # noqa: BLE001  # no argument may take the serving loop down
            self._flusher.error = why = f"{type(exc).__name__}: {exc}"
            return self.refuse("error", session, tenant, why)

    def refuse(self, reason: str, session: Any, tenant: Any = "default", why: str = "") -> int:
        """Count and log an eviction that the caller itself cannot hand over. Never raises, never blocks.

        Args:
            reason: one of a few words, used in metrics; ``why``: a longer explanation for the log.

        Returns:
            int: 0, as `on_evict` returns it.
        """
        if os.getpid() != self._pid:
            return self._refuse_forked(session, tenant)
        if self._flusher.refusals.note(reason, self._waiting.refuse(reason), session, tenant, why):
            self._flusher.wake()
        return 0

    def _laid_aside(self, session: str, tenant: str, why: str) -> None:
        """Log a session that the worker laid aside, with the refusals. The worker counts it (`rejected`)."""
        self._aside += 1
        if self._flusher.refusals.note(ASIDE, self._aside, session, tenant, why):
            self._flusher.wake()

    def _refuse_forked(self, session: Any, tenant: Any) -> int:
        """Count and log an eviction in a forked child.

        Neither flusher nor lock is used: a child has no flusher, and the lock may stay held for ever.
        """
        refused = self.counts.refused
        refused["forked"] = known = refused.get("forked", 0) + 1
        if known == 1:
            whose = f"session {brief(session)!r} of tenant {brief(tenant)!r}"
            log.warning("evictions are refused: forked: %s (open a hook in each process)", whose)
        return 0

    @property
    def counts(self) -> Counts:
        """Return the counts since the hook was opened."""
        return self._waiting.counts

    def durable(self, ticket: int) -> bool:
        """Return whether the eviction of a ticket is on disk, where no kill and no power cut can lose it."""
        return self._waiting.durable(ticket)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every accepted eviction is durable, or was dropped where the settings say so.

        Returns False when ``timeout`` seconds were not enough.
        """
        return self._flusher.flush(timeout)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until every accepted eviction is in the archive, or was laid aside by the worker.

        Returns False when ``timeout`` seconds were not enough, or `close` ended the worker. The worker must run, here
        or elsewhere. Raises OSError where the journal cannot be read.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if not self.flush(timeout):
            return False
        places = self._places()
        while places and (end is None or time.monotonic() < end):
            ended = self._worker_ended.is_set()  # read first: what it archived until then is seen
            places = [(name, at) for name, at in places if not self._archived(name, at)]
            if ended:
                break
            if places:
                self._worker_ended.wait(POLL)
        return not places

    def _places(self) -> list[tuple[Name, int]]:
        """Return the segments of this hook and their ends."""
        place = self._journal.place
        mine = [s for s in self.backlog.segments() if s.name.owner in self._journal.owners]
        return [(s.name, place[1] if place and s.name == place[0] else s.size) for s in mine]

    def _archived(self, name: Name, at: int) -> bool:
        found = [s for s in self.backlog.segments() if s.name == name]
        return not found or found[0].done >= at

    # ---- looking and ending

    def status(self) -> dict[str, Any]:
        """Return the state of the hook, for people and for JSON.

        It has bytes, seconds, and counts since the hook was opened. Reads the journal's directory.
        """
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
        """Return a collector for prometheus_client: ``REGISTRY.register(hook.metrics())``.

        Needs the extra ``pltz[serve]``; raises UsageError without it.
        """
        from pltz.serving.eviction.metrics import HookCollector

        return HookCollector(self)

    def close(self, timeout: float = 10.0) -> bool:
        """Accept no more evictions, make the accepted ones durable, and end the worker after its commit.

        Entries the worker did not reach stay in the journal. Returns False where ``timeout`` seconds were not
        enough to make everything durable, as when the disk fails.
        """
        if os.getpid() != self._pid:
            return False
        atexit.unregister(self.close)
        self._waiting.close()
        self._flusher.close(timeout)
        if self.background:
            self.background.close(timeout)
            self._worker_ended.set()
        return self._waiting.last <= self._waiting.until

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

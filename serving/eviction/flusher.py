"""Flusher: the thread that moves evictions from memory to the journal, one group at a time.

Each group is encoded, written and synced. A failed write is repeated until it succeeds, at growing intervals,
while memory holds the group. The thread also writes the hook's log, because a log may block.

It polls every flush_seconds. Waking a thread would be the largest cost of `on_evict`: 4 us, and on a busy
machine its turn, which is milliseconds. Only after a time without evictions does it sleep until it is woken.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from pltz.plt_codec import PltzError
from pltz.serving.eviction.eviction import EvictionRefused, entry_of
from pltz.serving.eviction.eviction_queue import LATENCIES, EvictionQueue, QueuedEviction
from pltz.serving.eviction.journal.writer import Journal
from pltz.serving.eviction.refusals import Refusals

log = logging.getLogger("pltz.hook")

RETRY = 0.1, 5.0  # seconds before a failed write is repeated: first, longest
IDLE = 2.0  # seconds without anything to write before it sleeps


@dataclass
class _FlushBatch:
    """A group on its way to the journal.

    ``at``: when each of ``bodies`` came. ``size``: bytes the group took in memory.
    """

    last: int
    size: int
    bodies: list[bytes] = field(default_factory=list)
    at: list[float] = field(default_factory=list)


class Flusher:
    """A running flusher (see the top of this file).

    ``failure``: why nothing can be written, while that lasts. ``error``: the last unexpected error.
    """

    def __init__(self, waiting: EvictionQueue, journal: Journal, tokenizer: bytes) -> None:
        self.waiting, self.journal, self.tokenizer = waiting, journal, tokenizer
        self.refusals = Refusals()
        self.failure = self.error = ""
        self._signals: SimpleQueue[None] = SimpleQueue()
        self.asleep = self._urgent = self._ended = False
        self._told: set[str] = set()
        self._given_up = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pltz-hook", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    # ---- from other threads

    def wake(self, urgent: bool = False) -> None:
        """Announce something to write or log: within flush_seconds, or at once if ``urgent``. Never waits."""
        if self.asleep or (urgent and not self._urgent):
            self.asleep, self._urgent = False, urgent
            self._signals.put(None)

    def flush(self, timeout: float | None) -> bool:
        """Write everything that waits now. Returns False when ``timeout`` seconds were not enough."""
        wanted, waiting = self.waiting.last, self.waiting
        self._signals.put(None)
        with self._changed:
            return self._changed.wait_for(lambda: waiting.until >= wanted or self._ended, timeout) and (
                waiting.until >= wanted
            )

    def close(self, timeout: float) -> None:
        """Write the rest and end.

        Gives up what cannot be written within ``timeout`` seconds. Call after `EvictionQueue.close`.
        """
        self._signals.put(None)
        self._thread.join(timeout)
        self._given_up.set()
        self._thread.join(1.0)
        if not self.alive:
            self.journal.close()
        if self.waiting.last > self.waiting.until and "lost" not in self._told:
            self._told.add("lost")
            first, last = self.waiting.until + 1, self.waiting.last
            log.error("evictions of tickets %d to %d are not durable: %s", first, last, self.failure)

    # ---- the thread

    def _run(self) -> None:
        """Write groups until closed."""
        pause, idle = self.waiting.settings.flush_seconds, 0.0
        while not self._given_up.is_set() and (not self.waiting.closed or self.waiting):
            with suppress(Empty):
                self._signals.get(timeout=pause)
            self._urgent, idle = False, idle + pause
            self._log()
            while (batch := self._next()) and self._write(batch):
                idle = 0.0
            if idle >= IDLE:
                self._sleep()
        self._log(ended=True)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _sleep(self) -> None:
        """Sleep until woken. A producer reads ``asleep`` after it adds, so the queue is checked after
        ``asleep`` is set.
        """
        self.asleep = True
        self._log()
        if not (self.waiting or self.waiting.closed):
            self._signals.get()
        self.asleep = False

    def _next(self) -> _FlushBatch | None:
        """Return the next group as journal entries, or None if nothing waits.

        Evictions that cannot be kept are refused here.
        """
        group = self.waiting.take()
        if not group:
            return None
        batch = _FlushBatch(group[-1].ticket, sum(one.size for one in group))
        for one in group:
            if body := self._encoded(one):
                batch.bodies.append(body)
                batch.at.append(one.at)
        return batch

    def _encoded(self, one: QueuedEviction) -> bytes | None:
        try:
            return entry_of(one.request, self.tokenizer).encode()
        except EvictionRefused as exc:
            reason, why = exc.reason, exc.why
        except PltzError as exc:
            reason, why = "not valid", str(exc)
        except Exception as exc:  # noqa: BLE001  # a caller's arguments may raise anything when they are read
            self.error = why = f"{type(exc).__name__}: {exc}"
            reason = "error"
        self.refusals.note(reason, self.waiting.refuse(reason), one.request.session, one.request.tenant, why)
        self.waiting.lose(one.ticket)
        return None

    def _write(self, batch: _FlushBatch) -> bool:
        """Make a group durable, retrying until it is. Returns False where the hook gives up earlier."""
        pause, longest = RETRY
        while batch.bodies:
            try:
                self.journal.append(batch.bodies)
                break
            except Exception as exc:  # noqa: BLE001  # full, failing, a bug: this thread must live
                self.waiting.counts.failures += 1
                self.failure = str(exc)
                self._log()
            if self._given_up.wait(pause):
                return False
            pause = min(2 * pause, longest)
        self.failure = ""
        self._count(batch)
        return True

    def _count(self, batch: _FlushBatch) -> None:
        """Count a group as durable and notify waiting threads."""
        now, counts = time.monotonic(), self.waiting.counts
        for at in batch.at:
            counts.latency[bisect_left(LATENCIES, now - at)] += 1
            counts.latency_sum += now - at
        counts.durable += len(batch.bodies)
        counts.bytes += sum(map(len, batch.bodies))
        self.waiting.kept(batch.last, batch.size)
        with self._changed:
            self._changed.notify_all()

    def _log(self, *, ended: bool = False) -> None:
        """Log new refusals by name, and the reason why nothing can be written."""
        for row in self.refusals.rows(ended=ended):
            log.warning("%s", row)
        line = f"evictions cannot be written, and wait in memory: {self.failure}"
        if self.failure and line not in self._told:
            self._told.add(line)
            log.warning("%s", line)

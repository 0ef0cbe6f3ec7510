"""The queue of evictions: in memory, from `on_evict` until they are durable.

It keeps their tickets, the memory they take, and counts of refused and dropped ones.

    ticket, full = waiting.add(request, size)            # the serving loop; EvictionRefused where memory is full
    group = waiting.take()                               # the flusher: the oldest, still counted as memory
    waiting.kept(group[-1].ticket, size)                 # they are durable
    waiting.durable(ticket)

Any thread may call any method. Nothing here waits for a disk.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pltz.serving.eviction.eviction import EvictionRefused, EvictionRequest
from pltz.serving.eviction.settings import HookSettings

GROUP, MOST = 32 << 20, 1024  # bytes and evictions per write, taken while the lock is held
OVERHEAD = 512  # bytes per eviction in memory, without its ids
LOST_RANGES = 1024  # ranges of lost tickets that are kept apart
# seconds: upper ends of the buckets of `Counts.latency`
LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class QueuedEviction(NamedTuple):
    """An eviction in memory. ``at``: monotonic seconds. ``size``: bytes it takes."""

    ticket: int
    at: float
    size: int
    request: EvictionRequest


@dataclass
class Counts:
    """Counts since the hook was opened.

    ``latency``: evictions by time until durable, one bucket per value of LATENCIES and one for longer times.
    """

    accepted: int = 0
    durable: int = 0
    dropped: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    failures: int = 0
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCIES) + 1))
    latency_sum: float = 0.0


class EvictionQueue:
    """A queue of evictions (see the top of this file).

    ``closed``: no more are accepted. ``last``: the last ticket given out. ``until``: all tickets up to this
    one are durable, except the lost ones.
    """

    def __init__(self, settings: HookSettings) -> None:
        self.settings = settings
        self.counts = Counts()
        self.closed = False
        self.last = self.until = 0
        self._queue: deque[QueuedEviction] = deque()
        self._memory = 0  # bytes
        self._lost: list[list[int]] = []
        # Held for a few statements at a time. Reentrant, since an eviction may come from a finalizer.
        self._lock = threading.RLock()

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def usage(self) -> tuple[int, int]:
        """Return the number of waiting evictions, and the bytes of these and of those being written."""
        with self._lock:
            return len(self._queue), self._memory

    def add(self, request: EvictionRequest, size: int) -> tuple[int, bool]:
        """Queue an eviction and return its ticket, and whether enough waits to be written at once.

        ``size``: bytes its ids take. Raises EvictionRefused.
        """
        now = time.monotonic()
        size += OVERHEAD
        with self._lock:
            if self.closed:
                raise EvictionRefused("closed")
            while self._memory + size > self.settings.memory_bytes:
                if self.settings.when_full == "refuse" or not self._queue:
                    raise EvictionRefused("memory full")
                self._drop()
            self.last = ticket = self.last + 1
            self._queue.append(QueuedEviction(ticket, now, size, request))
            self._memory = memory = self._memory + size
            self.counts.accepted += 1
        return ticket, memory > self.settings.flush_bytes

    def close(self) -> None:
        """Accept no more evictions."""
        with self._lock:
            self.closed = True

    def refuse(self, reason: str) -> int:
        """Count a refused eviction and return the number refused for that reason so far."""
        with self._lock:
            count = self.counts.refused[reason] = self.counts.refused.get(reason, 0) + 1
        return count

    def take(self) -> list[QueuedEviction]:
        """Return the evictions of the next write. They stay counted as memory."""
        group: list[QueuedEviction] = []
        size = 0
        with self._lock:
            while self._queue and size < GROUP and len(group) < MOST:
                group.append(self._queue.popleft())
                size += group[-1].size
        return group

    def kept(self, ticket: int, size: int) -> None:
        """Record that all tickets up to this one are durable or lost, and free ``size`` bytes of memory."""
        with self._lock:
            self._memory -= size
            self.until = ticket

    def lose(self, ticket: int) -> None:
        """Record that a ticket will not become durable.

        If there are very many, some durable ones count as lost.
        """
        with self._lock:
            ranges = self._lost
            if ranges and ranges[-1][1] + 1 >= ticket >= ranges[-1][0]:
                ranges[-1][1] = max(ranges[-1][1], ticket)
            else:
                ranges.append([ticket, ticket])
                ranges.sort()
                if len(ranges) > LOST_RANGES:
                    ranges[:2] = [[ranges[0][0], ranges[1][1]]]

    def durable(self, ticket: int) -> bool:
        """Return whether the eviction of a ticket is on disk."""
        with self._lock:
            lost = any(first <= ticket <= last for first, last in self._lost)
            return 0 < ticket <= self.until and not lost

    def _drop(self) -> None:
        """Drop the oldest eviction that is not being written. Lock held."""
        oldest = self._queue.popleft()
        self._memory -= oldest.size
        self.counts.dropped += 1
        self.lose(oldest.ticket)

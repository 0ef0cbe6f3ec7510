"""Refiner: exact thaws in the background, for sessions that were served from a small form of their KV.

    thaw --> KV of the small form, at once --> the caller answers
         \\-> one thread: tokens -> prefill -> exact KV --> it takes the small form's place in the store

One thread works at a time, between the batches that callers wait for. Nothing depends on it: a process that is killed
meanwhile leaves the small form where it was, and the tokens are the only copy of the session all along.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pltz.archive.thaw import Thawed

MOST = 64  # sessions that wait at once; one more is not refined


class Refiner:
    """Runs exact thaws, one after the other. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[Hashable, Future[Thawed]] = {}

    def submit(self, key: Hashable, work: Callable[[], Thawed]) -> Future[Thawed] | None:
        """Return what will hold the result of ``work``; that of a call under way for the same key.

        Returns None where too many wait.
        """
        with self._lock:
            found = self._waiting.get(key)
            if found is not None or len(self._waiting) >= MOST:
                return found
            self._pool = self._pool or ThreadPoolExecutor(1, "pltz-refine")
            future = self._waiting[key] = self._pool.submit(work)
        future.add_done_callback(lambda _: self._forget(key))
        return future

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _forget(self, key: Hashable) -> None:
        with self._lock:
            self._waiting.pop(key, None)

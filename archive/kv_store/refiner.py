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
        self._waiting: dict[Hashable, tuple[Future[Thawed], Callable[[], Thawed]]] = {}  # the first is under way
        self._busy = False

    def submit(self, key: Hashable, work: Callable[[], Thawed]) -> Future[Thawed] | None:
        """Return what will hold the result of ``work``; that of a call under way for the same key.

        Returns None where too many wait.
        """
        with self._lock:
            found = self._waiting.get(key)
            if found is not None or len(self._waiting) >= MOST:
                return None if found is None else found[0]
            future: Future[Thawed] = Future()
            self._waiting[key] = future, work
            self._pool = self._pool or ThreadPoolExecutor(1, "pltz-refine")
            try:
                if not self._busy:
                    self._begin()
            except RuntimeError:  # the interpreter ends
                del self._waiting[key]
                return None
        return future

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has."""
        with self._lock:
            pool, self._pool = self._pool, None
            left = self._clear()
        _cancel(left)
        if pool is not None:
            pool.shutdown()

    def _begin(self) -> None:
        """Give the thread the next one, and never two: a process that ends waits for all that it has. Lock held."""
        assert self._pool is not None
        self._pool.submit(self._run)
        self._busy = True

    def _run(self) -> None:
        with self._lock:
            key, (future, work) = next(iter(self._waiting.items()), (None, (Future(), None)))
        if work is None or not future.set_running_or_notify_cancel():
            self._done(key)
            return
        try:
            found = work()
        except BaseException as exc:  # noqa: BLE001 - it belongs to those who wait
            self._done(key)
            future.set_exception(exc)
        else:
            self._done(key)  # first: whoever is told may ask again at once
            future.set_result(found)

    def _done(self, key: Hashable) -> None:
        """Forget what was done, and begin the next one."""
        left: list[Future[Thawed]] = []
        with self._lock:
            self._waiting.pop(key, None)
            self._busy = False
            if self._waiting and self._pool is not None:
                try:
                    self._begin()
                except RuntimeError:  # the interpreter ends
                    left = self._clear()
        _cancel(left)

    def _clear(self) -> list[Future[Thawed]]:
        """Return all that wait and have not begun, and forget them. Lock held."""
        left = [key for key, (future, _) in self._waiting.items() if not future.running()]
        return [self._waiting.pop(key)[0] for key in left]


def _cancel(futures: list[Future[Thawed]]) -> None:
    """Cancel outside of the lock: whoever is told may come back at once."""
    for future in futures:
        future.cancel()

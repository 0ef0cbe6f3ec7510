"""BackgroundWorker: one thread that does pieces of work, one after the other, while those who asked go on.

    submit --> waiting: 1 2 3 --> one thread: work() --> a future

`HotStore` codes evicted blocks on one, `Thawer` computes exact KV on another after an answer from a small form. What
waits is lost with the process, so nothing may depend on it. A process that ends without `close` waits for the piece
under way only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundWorker(Generic[T]):
    """Does work in the order in which it came. Any thread may use it.

    ``name``: of the thread. ``most``: pieces that wait or are under way at once.
    """

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self._changed = Condition()  # its lock protects the rest
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[Hashable, tuple[Future[T], Callable[[], T]]] = {}  # the first is under way
        self._busy = False

    def submit(self, key: Hashable, work: Callable[[], T]) -> Future[T] | None:
        """Return what will hold the result of ``work``; that of a call under way for the same key.

        Returns None where too many wait.
        """
        with self._changed:
            found = self._waiting.get(key)
            if found is not None or len(self._waiting) >= self.most:
                return None if found is None else found[0]
            future: Future[T] = Future()
            self._waiting[key] = future, work
            self._pool = self._pool or ThreadPoolExecutor(1, self.name)
            try:
                if not self._busy:
                    self._begin()
            except RuntimeError:  # the interpreter ends
                del self._waiting[key]
                return None
        return future

    def drain(self) -> None:
        """Wait until nothing waits and nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has. The worker can be used again."""
        with self._changed:
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
        with self._changed:
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
        left: list[Future[T]] = []
        with self._changed:
            self._waiting.pop(key, None)
            self._busy = False
            if self._waiting and self._pool is not None:
                try:
                    self._begin()
                except RuntimeError:  # the interpreter ends
                    left = self._clear()
            self._changed.notify_all()
        _cancel(left)

    def _clear(self) -> list[Future[T]]:
        """Return all that wait and have not begun, and forget them. Lock held."""
        left = [key for key, (future, _) in self._waiting.items() if not future.running()]
        futures = [self._waiting.pop(key)[0] for key in left]
        self._changed.notify_all()
        return futures


def _cancel(futures: list[Future[T]]) -> None:
    """Cancel outside of the lock: whoever is told may come back at once."""
    for future in futures:
        future.cancel()

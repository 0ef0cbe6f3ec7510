"""Threads: an executor whose threads each own an object, such as a coder whose device works while others go on.

    threads = Threads(decoder.twin, 2)
    later = threads.submit("decompress", data)
    later.result()                      # what the method returns, or what it raises
    threads.settle()                    # calls that wait are dropped, and those that run are waited for

The threads end with their owner.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

GIVE_WAY = 2e-4  # seconds after which a thread gives way: one that launches kernels waits for this again and again
COLLECT = 20_000  # new objects after which the garbage collector, for which all threads wait, looks through them

T = TypeVar("T")


class Threads(Generic[T]):
    """Threads that each own an object and run its methods in their order. They start with the first calls.

    Args:
        make: makes the object of a thread, in it.
        count: number of threads.
    """

    def __init__(self, make: Callable[[], T], count: int = 1) -> None:
        self._pool, self._own = ThreadPoolExecutor(count), threading.local()
        self._make, self._owned = make, list[T]()
        self._begun = weakref.WeakSet[Future[Any]]()

    def submit(self, method: str, *arguments: Any) -> Future[Any]:
        """Run a method of the object of the thread that is free first."""
        future = self._pool.submit(self._called, method, arguments)
        self._begun.add(future)
        return future

    def _called(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if not hasattr(self._own, "object"):
            self._own.object = self._make()
            self._owned.append(self._own.object)
        return getattr(self._own.object, method)(*arguments)

    def settle(self, last: Callable[[T], None] = lambda _: None) -> None:
        """Drop the calls that wait, wait for those that run, and call ``last`` with the object of each thread."""
        begun = [*self._begun]
        for future in begun:
            future.cancel()
        wait(begun)
        for owned in self._owned:
            last(owned)


class _Giving:
    """The number of callers for whom threads give way sooner, and the settings of before."""

    def __init__(self) -> None:
        self.lock, self.count, self.before, self.collect = threading.Lock(), 0, 0.0, gc.get_threshold()


_GIVING = _Giving()


@contextmanager
def giving_way() -> Iterator[None]:
    """Let threads of Python give way to each other sooner, and be held up less often by the garbage collector."""
    with _GIVING.lock:
        if not _GIVING.count:
            _GIVING.before = sys.getswitchinterval()
            sys.setswitchinterval(min(GIVE_WAY, _GIVING.before))
            _GIVING.collect = young, *older = gc.get_threshold()
            gc.set_threshold(max(COLLECT, young) if young else 0, *older)
        _GIVING.count += 1
    try:
        yield
    finally:
        with _GIVING.lock:
            _GIVING.count -= 1
            if not _GIVING.count:
                sys.setswitchinterval(_GIVING.before)
                gc.set_threshold(*_GIVING.collect)

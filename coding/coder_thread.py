"""CoderThread: a thread with a coder of its own, whose device works while the caller does something else.

    thread = CoderThread(decoder.twin)
    later = thread.submit(lambda twin, told: twin.model.decode(coded, progress=told), stop)
    later.result()                      # what the call returns, or what it raises
    stop.set()                          # calls of this run that wait are dropped; the one that runs ends soon

Calls run in their order. The thread ends with its owner.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

from pltz.coding.parts import Progress

GIVE_WAY = 2e-4  # seconds after which a thread gives way: one that launches kernels waits for this again and again
COLLECT = 20_000  # new objects after which the garbage collector, for which all threads wait, looks through them

T = TypeVar("T")
R = TypeVar("R")
Call = Callable[[T, Progress | None], R]
"""A call with what the executor owns, and a progress to tell, by which it learns that nobody waits for it."""


class NotWanted(Exception):
    """The run of a call was stopped. Nobody asks for its result."""


class CoderThread(Generic[T]):
    """A thread that owns something, such as a coder. It starts with the first call.

    ``make``: makes what it owns, in the thread.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._owned = make, list[T]()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, call: Call[T, R], stop: threading.Event) -> Future[R]:
        """Run a call in the thread. ``stop``: set where its result is asked for no more."""
        self._pool = self._pool or ThreadPoolExecutor(1)
        return self._pool.submit(_called, self._make, self._owned, call, stop)

    def settle(self, last: Callable[[T], None] = lambda _: None) -> None:
        """Wait until no call runs, and make a last one with what the thread owns."""
        if self._pool:
            self.submit(lambda owned, _: last(owned), threading.Event()).exception()


def _called(make: Callable[[], T], owned: list[T], call: Call[T, R], stop: threading.Event) -> R:
    """Return what a call returns. ``owned``: what the thread owns, once the first call has made it."""

    def told(_: int) -> None:
        if stop.is_set():
            raise NotWanted

    told(0)
    with _giving_way():
        if not owned:
            owned.append(make())
        return call(owned[0], told)


class _Giving:
    """The number of calls during which threads give way sooner, and the interval of before."""

    def __init__(self) -> None:
        self.lock, self.count, self.before, self.collect = threading.Lock(), 0, 0.0, gc.get_threshold()


_GIVING = _Giving()


@contextmanager
def _giving_way() -> Iterator[None]:
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

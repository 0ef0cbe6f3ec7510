"""Concurrency: run work in a thread beside the calling thread.

    with run_alongside(work) as result:
        ...                       # work that needs the GIL, or the disk
    result()                      # the result of the work, or its error

This pays where one of the two releases the GIL for long: a hash of many bytes, a wait for the disk. If no
thread can be started (at interpreter shutdown, or with too many threads), the work runs when its result is
requested. `contextlib.nullcontext(work)` stands for it where the work is not worth a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def run_alongside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Run ``work`` in a thread during the block; yield a function that returns its result or raises.

    The work is over when the block is left.
    """
    with ThreadPoolExecutor(1) as pool:
        try:
            result = pool.submit(work).result
        except RuntimeError:
            yield work
            return
        yield result

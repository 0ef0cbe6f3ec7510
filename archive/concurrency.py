"""Concurrency: run work in a thread beside the calling thread.

    with meanwhile(work) as result:
        ...                       # work that needs the GIL, or the disk
    result()                      # the result of the work, or its error

This pays where one of the two releases the GIL for long: a hash of many bytes, a wait for the disk. If no
thread can be started (at interpreter shutdown, or with too many threads), the work runs when its result is
requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def run_alongside(work: Callable[[], T], *, worth: bool = True) -> Iterator[Callable[[], T]]:
    """Run ``work`` in a thread during the block; yield a function that returns its result or raises.

    The work is over when the block is left. Work not ``worth`` a thread runs when its result is requested.
    """
    if not worth:
        yield work
        return
    with ThreadPoolExecutor(1) as pool:
        try:
            result = pool.submit(work).result
        except RuntimeError:
            yield work
            return
        yield result

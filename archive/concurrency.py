"""Meanwhile: a thread that does one thing while this one does another.

    with meanwhile(work) as result:
        ...                       # what needs the interpreter, or the disk
    result()                      # what the work gave, or raised

It pays where one of the two needs no interpreter for long: a hash of many bytes, a wait for the disk. Where no thread can be begun (a process
that ends, or that has too many) the work is done when its result is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def meanwhile(work: Callable[[], T], *, worth: bool = True) -> Iterator[Callable[[], T]]:
    """See the head of this file. The work is over when the block is left; what is not ``worth`` a thread is done when it is asked for."""
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

"""Queued: the tokens that a GPU is about to write, told to who has work to queue behind them.

A GPU that decodes one session needs nothing from the host until it is done. Who wants to go on with the tokens on the same GPU can have its
work in the queue by then, so that the device does not stand still while the host reads, checks and launches.

    with watching(told):            # told(Queued), from the thread that decodes
        coder.decode([item])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Queued(NamedTuple):
    """``tokens`` int32 token ids at ``address`` of ``device`` ("cuda:0"; "cpu" where one is emulated), there once what is in its stream
    ``stream`` (a CUstream as a number; 0: at once) has run. They are whatever the stream of bits gives: nothing of them is proved yet, damaged ones end
    in an error of the decoder. The memory is the decoder's and stays until what is queued in its stream meanwhile has run."""

    address: int
    tokens: int
    stream: int
    device: str


Told = Callable[[Queued], None]
_TOLD: ContextVar[Told | None] = ContextVar("pltz_queued", default=None)


@contextmanager
def watching(told: Told | None) -> Iterator[None]:
    """While this is open, decoders of this thread that work on a GPU call ``told`` where they decode one sequence of one block."""
    token = _TOLD.set(told)
    try:
        yield
    finally:
        _TOLD.reset(token)


def watcher() -> Told | None:
    """Who is to be told, if anyone."""
    return _TOLD.get()

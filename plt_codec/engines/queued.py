"""Queued: tokens that a GPU is about to write, so that a caller can queue work behind them.

A GPU that decodes one session needs nothing from the host until it is done. A caller that goes on with the
tokens on the same GPU can have its work in the queue by then. So the device does not stand still while the
host reads, checks and launches.

    coder.decode([item], told=told)            # told(Queued), from the thread that decodes

`CudaCoder` calls it where it decodes one sequence of one block, or one chain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Queued(NamedTuple):
    """Token ids that are queued on a GPU: ``tokens`` int32 values at ``address`` of ``device``.

    ``device`` is "cuda:0" or the like, or "cpu" where a device is emulated. The ids are there once the work
    in ``stream`` has run (a CUstream as a number; 0: at once). They are decoded but not yet checked: damaged
    ones end in an error of the decoder. The memory belongs to the decoder, and stays until the work queued in
    the stream meanwhile has run.
    """

    address: int
    tokens: int
    stream: int
    device: str


Told = Callable[[Queued], None]

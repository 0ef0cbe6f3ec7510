"""Node: a segment of a hot store, in the tier where it is now."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.tier import Queue, Tier


@dataclass(eq=False)
class Node:
    """A segment in memory, or in a shared tier while it is leased.

    ``parent``: a segment id. ``tier``: None while it is in no tier. Times are in seconds since 1970. ``level``: of the
    tier that it goes on to from the queue. ``submitted``: the queue's thread will look at it, with ``stream`` as the
    current one of a GPU.
    """

    space: bytes
    segment: bytes
    parent: bytes
    block: KVBlock
    tier: Tier | Queue | None
    born: float
    used: float
    leases: int = 0
    level: int = 0
    submitted: bool = False
    stream: AbstractContextManager[Any] = field(default_factory=nullcontext)
    moving: bool = False
    gone: bool = False  # discarded while in use: removed at the end of the last lease

    @property
    def key(self) -> bytes:
        """Return the key of the node in its store, 32 bytes."""
        return self.space + self.segment

"""Tiers: the places of KV blocks, from the fastest to the slowest. A store walks one list of them.

    DeviceTier   memory of the target's device                         in_memory: the store counts the bytes
    HostTier     host memory, page-locked where a GPU reads it         and chooses which block leaves
    DiskTier     files (`disk_tier.py`)                                shared: makes room itself, other processes
                                                                       read it, and it outlives the store

A new tier is one class of either kind, and a place in the list that `HotStore` is given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pltz.kv.port.codec import RAW, KVCodec
from pltz.kv.store.kv_block import KVBlock
from pltz.plt_codec import PltzError, UsageError

if TYPE_CHECKING:
    import torch

log = logging.getLogger("pltz.kv")

QUEUE = "queue"  # name of the queue in leases and statistics


@dataclass
class FormStats:
    """The blocks of one form in a tier. ``used``: bytes. ``hit_tokens``: ids whose KV was found here in this form."""

    blocks: int = 0
    used: int = 0
    tokens: int = 0
    hit_tokens: int = 0

    def add(self, size: int, tokens: int) -> None:
        """Count one more block of ``size`` bytes and ``tokens`` ids."""
        self.blocks += 1
        self.used += size
        self.tokens += tokens


@dataclass
class TierStats:
    """The contents of a tier.

    ``form``: name of the codec of new blocks. ``budget``, ``used``: bytes. ``blocks``, ``tokens``: of the blocks
    stored here. ``hits``: requests answered from here. ``damaged``: blocks that failed a check. ``failed``: reads and
    writes that the machine refused. ``forms``: by the name of a form, the complete blocks that are in it.
    """

    form: str
    budget: int
    used: int = 0
    blocks: int = 0
    tokens: int = 0
    hits: int = 0
    damaged: int = 0
    failed: int = 0
    forms: dict[str, FormStats] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Return the bytes of the budget that are not used."""
        return self.budget - self.used

    def enter(self, size: int, tokens: int) -> None:
        """Count one more block of ``size`` bytes and ``tokens`` ids."""
        self.used += size
        self.blocks += 1
        self.tokens += tokens

    def leave(self, size: int, tokens: int) -> None:
        """Count one block of ``size`` bytes and ``tokens`` ids less."""
        self.used -= size
        self.blocks -= 1
        self.tokens -= tokens


@dataclass(frozen=True, eq=False)
class StoredBlock:
    """A block in a shared tier. ``parent``: id of the segment above. ``born``: seconds since 1970."""

    block: KVBlock
    parent: bytes
    born: float


@runtime_checkable
class MemoryTier(Protocol):
    """A tier in the memory of this process. The store counts its bytes and chooses which block leaves."""

    @property
    def name(self) -> str:
        """Return its name in leases and statistics."""

    @property
    def budget(self) -> int:
        """Return the bytes that all its blocks together may take."""

    @property
    def codec(self) -> KVCodec:
        """Return the form that exact blocks are given here."""

    def size(self, block: KVBlock) -> int:
        """Return the most bytes that the block can take here."""

    def keep(self, block: KVBlock) -> KVBlock | None:
        """Return the block in this tier's form and memory.

        Returns None where its form cannot hold the block, or where the machine has less memory than the budget
        says. Any thread may call it, without a lock.
        """


@runtime_checkable
class SharedTier(Protocol):
    """A tier that other processes share and that outlives the store. It keeps its own budget.

    A failing disk or network is a miss and raises nothing, except in `discard`. Any thread may call any method.
    """

    @property
    def name(self) -> str:
        """Return its name in leases and statistics."""

    @property
    def codec(self) -> KVCodec:
        """Return the form that exact blocks are given here."""

    def read(self, space: bytes, segment: bytes, codecs: Sequence[KVCodec]) -> StoredBlock | None:
        """Return a segment's block in the first of the forms that is here, or None.

        Its parts may still arrive (`kv/port/arriving.py`): every byte is checked before it is handed out. A damaged
        block is removed, and is a miss, or an error of whoever decodes it.
        """

    def write(
        self,
        space: bytes,
        segment: bytes,
        stored: StoredBlock,
        in_use: frozenset[bytes] = frozenset(),
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Keep a block unless it is there. Returns False where that is not possible.

        ``in_use``: keys (space + segment) that must not be evicted for it. ``wanted``: called just before the
        block can be found; if false, it is not kept.
        """

    def discard(self, space: bytes, segment: bytes) -> None:
        """Remove a segment in all forms, and any unfinished write of it, by any process.

        Raises WarmFileError where that is not possible.
        """

    def clear(self) -> None:
        """Remove everything."""

    def stats(self) -> TierStats:
        """Return what is in it now, of all processes; ``hits`` is the store's to count."""


Tier = MemoryTier | SharedTier


@dataclass(frozen=True)
class Queue:
    """The place of blocks that wait to be coded or written. ``budget``: in bytes."""

    budget: int
    name: str = QUEUE


class DeviceTier:
    """Blocks in the memory of the target's device. Raises UsageError for a budget below zero."""

    name = "device"

    def __init__(self, budget: int, device: str | torch.device = "cpu", codec: KVCodec = RAW) -> None:
        import torch

        self.budget, self.codec = _checked(budget), codec
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())

    def size(self, block: KVBlock) -> int:
        """Return the most bytes that the block can take here."""
        return block.size_in(self.codec)

    def keep(self, block: KVBlock) -> KVBlock | None:
        """Return the block on the device. See `MemoryTier.keep`."""
        return _kept(block, self.codec, self.device, pin=False)


class HostTier:
    """Blocks in host memory, page-locked with ``pin``. Raises UsageError for a budget below zero."""

    name = "host"

    def __init__(self, budget: int, *, pin: bool = False, codec: KVCodec = RAW) -> None:
        self.budget, self.codec, self.pin = _checked(budget), codec, pin

    def size(self, block: KVBlock) -> int:
        """Return the most bytes that the block can take here."""
        return block.size_in(self.codec)

    def keep(self, block: KVBlock) -> KVBlock | None:
        """Return the block in host memory. See `MemoryTier.keep`."""
        import torch

        return _kept(block, self.codec, torch.device("cpu"), pin=self.pin)


def _checked(budget: int) -> int:
    if budget < 0:
        raise UsageError(f"expected a budget in bytes from 0 up, got {budget}")
    return budget


def _kept(block: KVBlock, codec: KVCodec, device: torch.device, *, pin: bool) -> KVBlock | None:
    """Return a block in a form and memory of its own, or None (see `MemoryTier.keep`)."""
    try:
        if block.codec.exact and codec.compact:  # code first, copy fewer bytes
            block = block.recode(codec)
        if not block.owns_memory_on(device, pin=pin):
            block = block.to(device, pin=pin)
        block.wait()
        return block.recode(codec)
    except (PltzError, RuntimeError, MemoryError) as exc:  # torch.OutOfMemoryError, no page to lock, an unfit shape
        log.info("a block of %d ids does not fit the tier: %s", len(block.ids), exc)
        return None

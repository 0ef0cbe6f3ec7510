"""Slab: the pages of a pool in one memory. One contiguous tensor each: [layer, block, position, head, packed].

Any set of blocks over all layers is copied by one indexed copy per tensor. Device and host memory hold the same
bytes, so nothing is coded on the way. A block that several hold is never written: `writable` gives the writer a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.errors import PoolFull
from pltz.kv.pool.block_copy import copy_blocks
from pltz.kv.pool.page_format import PageFormat
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.pool.page_format import Rows

BLOCKS = (16, 256)  # tokens of a block
ENDED = 1 << 14


class Slab:
    """Blocks of pages, and how many hold each.

    ``form``: of the pages. ``block``: tokens per block, 16 or 256. ``reclaimers``: asked in turn while blocks are
    missing, with their number; each gives up what nobody needs, and says whether it did. Any thread may call; a block
    is written by one at a time.

    Raises UsageError for another size of a block, and PoolFull where memory does not suffice.
    """

    def __init__(
        self, form: PageFormat, tokens: int, block: int, device: str | torch.device, *, pin: bool = False
    ) -> None:
        import torch

        if block not in BLOCKS:
            raise UsageError(f"expected blocks of {' or '.join(map(str, BLOCKS))} tokens, got {block}")
        if tokens < block:
            raise UsageError(f"expected a capacity of at least a block, {block} tokens, got {tokens}")
        self.form, self.block, self.device = form, block, torch.device(device)
        self.blocks = tokens // block
        shape = form.layers, self.blocks, block, form.heads
        try:
            self.tensors = {
                name: torch.zeros((*shape, size), dtype=dtype, device=device, pin_memory=pin)
                for name, (size, dtype) in form.types.items()
            }
        except (RuntimeError, MemoryError) as exc:  # torch.OutOfMemoryError, no page to lock
            needed = self.blocks * block * form.token_bytes
            raise PoolFull(f"no memory for a pool of {tokens} tokens, {needed} bytes: take fewer tokens") from exc
        self.reclaimers: list[Callable[[int], bool]] = []
        self.free = self.blocks  # blocks that hold nothing
        self._holders = np.zeros(self.blocks, np.int64)
        self.lock = RLock()
        # zeros, one per session and head: by them the parts of an attention see which of them ends last
        self.ended = torch.zeros(0 if pin else ENDED, dtype=torch.int32, device=device)

    @property
    def tokens(self) -> int:
        """Return the capacity in tokens."""
        return self.blocks * self.block

    def holders(self, block: int) -> int:
        """Return how many hold a block."""
        return int(self._holders[block])

    def allocate(self, count: int) -> list[int]:
        """Return blocks that the caller holds alone, side by side where there is such a place.

        Raises PoolFull where too few are free and no reclaimer frees any: then none is taken.
        """
        with self.lock:
            while count > self.free and any(reclaim(count - self.free) for reclaim in self.reclaimers):
                pass
            if count > self.free:
                raise PoolFull(
                    f"the pool has {self.free} free blocks of {self.blocks} on {self.device}, and {count} are "
                    "needed: release or spill sessions, or open a pool of more tokens"
                )
            free = np.flatnonzero(self._holders == 0)
            wide = free[count - 1 :] - free[: len(free) - count + 1] if count else free[:0]
            side_by_side = np.flatnonzero(wide == count - 1)  # a copy over the bus is faster there
            begin = int(side_by_side[0]) if len(side_by_side) else 0
            taken: list[int] = free[begin : begin + count].tolist()
            self._holders[taken] = 1
            self.free -= count
            return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Hold blocks once more. Raises UsageError for one that nobody holds."""
        with self.lock:
            np.add.at(self._holders, self._check(blocks), 1)

    def release(self, blocks: Sequence[int]) -> None:
        """Hold blocks once less. One that nobody holds is free. Raises UsageError for one that was free."""
        with self.lock:
            index = self._check(blocks)
            np.subtract.at(self._holders, index, 1)
            if (self._holders[index] < 0).any():
                np.add.at(self._holders, index, 1)
                raise UsageError("a block would be released more often than it is held")
            self.free += int((self._holders[np.unique(index)] == 0).sum())

    def writable(self, block: int) -> int:
        """Return the block if the caller holds it alone, else a copy of its own in exchange for it."""
        with self.lock:
            self._check([block])
            if self._holders[block] == 1:
                return block
            (own,) = self.allocate(1)
            self.copy([block], self, [own])
            self.release([block])
            return own

    def write(self, blocks: Sequence[int], first: int, rows: Rows) -> None:
        """Write rows (layers, T, heads, elements) at tokens from ``first`` of a table of blocks.

        Raises UsageError where the table is too short, and for a block that others hold too.
        """
        count = rows["kv"].shape[1]
        places = self._places(blocks, first, count)
        touched = list(blocks[first // self.block : -(-(first + count) // self.block)])
        if (self._holders[touched] != 1).any():
            raise UsageError("a block that others hold too is never written: ask for `writable` first")
        for name, tensor in self.tensors.items():
            tensor.flatten(1, 2).index_copy_(1, places, rows[name].to(self.device))

    def read(
        self, blocks: Sequence[int], first: int, count: int, device: torch.device | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the rows of ``count`` tokens from ``first`` of a table of blocks, as `write` took them.

        ``device``: to have them on, another than the slab's.
        """
        if device not in (None, self.device):
            return self._read_over_bus(self._check(blocks), first, count, device)
        places = self._places(blocks, first, count)
        return {name: tensor.flatten(1, 2).index_select(1, places) for name, tensor in self.tensors.items()}

    def _read_over_bus(
        self, index: NDArray[np.int64], first: int, count: int, device: torch.device | None
    ) -> dict[str, torch.Tensor]:
        """Return rows of blocks on another device. Whole blocks go there by one copy, and the host waits for it."""
        import torch

        there = {
            name: torch.empty((len(tensor), len(index), *tensor.shape[2:]), dtype=tensor.dtype, device=device)
            for name, tensor in self.tensors.items()
        }
        copy_blocks(self.tensors, index, there, np.arange(len(index)))
        if device is not None and device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # blocks may be given back after this
        return {name: tensor.flatten(1, 2)[:, first : first + count] for name, tensor in there.items()}

    def copy(self, blocks: Sequence[int], there: Slab, to: Sequence[int]) -> None:
        """Copy blocks to those of another slab of the same pages, or of this one, in all layers."""
        if there.form is not self.form or there.block != self.block or len(blocks) != len(to):
            raise UsageError("blocks go to as many blocks of the same pages")
        copy_blocks(self.tensors, self._check(blocks), there.tensors, there._check(to))

    def put_sinks(self, kv: torch.Tensor) -> list[int]:
        """Keep the KV (layers, 2, heads, S, D) of sinks, as computed, in blocks of this slab. Returns the blocks."""
        import torch

        form = self.form
        flat = kv.permute(0, 2, 1, 3, 4).contiguous().flatten(1).view(torch.uint8)  # (layers, bytes)
        each = self.block * form.heads * form.width * form.types["kv"][1].itemsize
        blocks = self.allocate(-(-flat.shape[1] // each))
        padded = flat.new_zeros((form.layers, len(blocks) * each))
        padded[:, : flat.shape[1]] = flat
        kind = self.tensors["kv"]
        index = torch.tensor(blocks, device=self.device)
        shaped = padded.view(kind.dtype).reshape(form.layers, len(blocks), *kind.shape[2:])
        kind.index_copy_(1, index, shaped.to(self.device))
        return blocks

    def sinks(self, blocks: Sequence[int]) -> torch.Tensor:
        """Return what `put_sinks` was given, of blocks that it returned."""
        import torch

        form = self.form
        index = torch.tensor(list(blocks), device=self.device)
        flat = self.tensors["kv"].index_select(1, index).flatten(1).view(torch.uint8)
        size = form.heads * 2 * form.sinks * form.dim
        kept = flat[:, : size * form.dtype.itemsize].contiguous().view(form.dtype)
        return kept.reshape(form.layers, form.heads, 2, form.sinks, form.dim).permute(0, 2, 1, 3, 4).contiguous()

    def _places(self, blocks: Sequence[int], first: int, count: int) -> torch.Tensor:
        """Return where tokens of a table lie, (count,), counted over all blocks."""
        import torch

        self._check(blocks)
        if first < 0 or first + count > len(blocks) * self.block:
            raise UsageError(f"tokens {first} to {first + count} are beyond {len(blocks)} blocks of {self.block}")
        token = np.arange(first, first + count)
        table = np.asarray(blocks, np.int64).reshape(-1)
        places = table[token // self.block] * self.block + token % self.block
        return torch.from_numpy(places).to(self.device)

    def _check(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        """Return the numbers of blocks. Raises UsageError unless somebody holds each."""
        index = np.asarray(blocks, np.int64).reshape(-1)
        if ((index < 0) | (index >= self.blocks)).any() or (self._holders[index] < 1).any():
            raise UsageError("expected blocks that are held: these were released, or are of another pool")
        return index

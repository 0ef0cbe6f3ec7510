"""The indexed copy of blocks over all layers, within a memory and between device and page-locked host memory.

    device [layer, block, ...]  --gather-->  a layer's blocks side by side  --DMA-->  host [layer, slot, ...]

The bus is used best by its copy engine, and that by large pieces: layers follow each other, while the device gathers
the next one. Slots of the host that lie side by side are one piece. Where they are scattered, one kernel reads and
writes both memories; it reaches four fifths of the bus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pltz.kv.pool.triton_found import there

if TYPE_CHECKING:
    import torch

PIECE = 1024  # words of 8 bytes of a program; the 16 rows of a block are a multiple of a word
LARGE = 1 << 21  # bytes per layer and piece from which the copy engine is used: each takes 10 us of Python


def copy_blocks(source: torch.Tensor, blocks: Sequence[int], target: torch.Tensor, to: Sequence[int]) -> None:
    """Set ``target[:, to]`` to ``source[:, blocks]``; both are (layers, blocks, ...) and contiguous.

    The host waits for a copy into its memory, and for none into a device's.
    """
    import torch

    if not len(blocks):
        return
    if source.device == target.device:
        here, places = torch.tensor([list(blocks), list(to)], device=source.device)
        target.index_copy_(1, places, source.index_select(1, here))
        return
    host, slots = (source, blocks) if target.is_cuda else (target, to)
    pieces = _side_by_side(slots)
    if host.is_pinned() and there() and host[0, 0].nbytes * len(slots) < LARGE * len(pieces):
        _by_kernel(source, blocks, target, to)
    else:
        _by_engine(source, blocks, target, to, pieces)
    if not target.is_cuda:
        torch.cuda.current_stream(source.device).synchronize()


def _side_by_side(slots: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return pieces of slots that ascend one by one: the place in the list, the slot, and the length of each."""
    pieces: list[tuple[int, int, int]] = []
    for at, slot in enumerate(slots):
        if pieces and slot == pieces[-1][1] + pieces[-1][2]:
            begin, first, count = pieces[-1]
            pieces[-1] = begin, first, count + 1
        else:
            pieces.append((at, slot, 1))
    return pieces


def _by_engine(
    source: torch.Tensor,
    blocks: Sequence[int],
    target: torch.Tensor,
    to: Sequence[int],
    pieces: Sequence[tuple[int, int, int]],
) -> None:
    """Copy layer by layer: gather and scatter in the current stream, the bus in one of its own."""
    import torch

    spills = source.is_cuda
    gpu = source.device if spills else target.device
    index = torch.tensor(list(blocks if spills else to), device=gpu)
    now, bus = torch.cuda.current_stream(gpu), torch.cuda.Stream(gpu)
    bus.wait_stream(now)
    for layer in range(len(source)):
        if spills:
            staged = source[layer].index_select(0, index)
            bus.wait_stream(now)
        with torch.cuda.stream(bus):
            if not spills:
                staged = target.new_empty((len(index), *target.shape[2:]))
            for at, slot, count in pieces:
                if spills:
                    target[layer, slot : slot + count].copy_(staged[at : at + count], non_blocking=True)
                else:
                    staged[at : at + count].copy_(source[layer, slot : slot + count], non_blocking=True)
        staged.record_stream(bus if spills else now)
        if not spills:
            now.wait_stream(bus)
            target[layer].index_copy_(0, index, staged)
    now.wait_stream(bus)


def _by_kernel(source: torch.Tensor, blocks: Sequence[int], target: torch.Tensor, to: Sequence[int]) -> None:
    """Copy by a kernel that reads and writes both memories."""
    import torch

    from pltz.kv.pool import gpu_kernels

    gpu = source.device if source.is_cuda else target.device
    begins, ends = torch.tensor([list(blocks), list(to)], device=gpu)
    layers, count = source.shape[:2]
    one, other = source.view(-1).view(torch.int64), target.view(-1).view(torch.int64)
    words = one.numel() // (layers * count)
    grid = len(blocks), layers, -(-words // PIECE)
    with torch.cuda.device(gpu):
        gpu_kernels.copy_pages[grid](
            one, other, begins, ends, one.numel() // layers, other.numel() // layers, words, PIECE=PIECE
        )

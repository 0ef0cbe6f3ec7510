"""The indexed copy of blocks over all layers, within a memory and between device and page-locked host memory.

    device [layer, block, ...]  --kernel-->  host [layer, slot, ...]
    device [layer, block, ...]  --gather-->  staged [layers, n, ...]  --DMA-->  host [layer, slot, ...]

One kernel reads and writes both memories. It was the fastest way in every case measured (models/LOG.md, 2026-11-28).
Where it cannot be compiled, or where the host's memory is not page-locked, a kernel gathers the blocks of several
layers into one of two buffers, while the other crosses the bus by the copy engine; warming scatters likewise. Slots of
the host that lie side by side are one piece per layer there.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pltz.kv.engines import cuda
from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

SOURCE = Path(__file__).with_name("copy_pages.cu")
WORD = 16  # bytes; the 16 rows of a block are a multiple of a word
THREADS, EACH = 128, 4  # of a CTA, and the words of a thread, as in copy_pages.cu
STAGED = 1 << 24  # bytes of a buffer; a layer whose blocks are more has a larger one


def copy_blocks(source: Tensors, blocks: Sequence[int], target: Tensors, to: Sequence[int]) -> None:
    """Set ``target[name][:, to]`` to ``source[name][:, blocks]``; all are (layers, blocks, ...) and contiguous.

    The host waits for a copy into its memory, and for none into a device's.
    """
    import torch

    if not len(blocks):
        return
    here, into = next(iter(source.values())), next(iter(target.values()))
    if here.device == into.device:
        index, places = torch.tensor([list(blocks), list(to)], device=here.device)
        for name, tensor in source.items():
            target[name].index_copy_(1, places, tensor.index_select(1, index))
        return
    spills = here.is_cuda
    host = into if spills else here
    way = by_kernel if host.is_pinned() and launcher(here.device if spills else into.device) else by_engine
    way(source, blocks, target, to, spills)
    if spills:
        torch.cuda.current_stream(here.device).synchronize()


def side_by_side(slots: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return pieces of slots that ascend one by one: the place in the list, the slot, and the length of each."""
    pieces: list[tuple[int, int, int]] = []
    for at, slot in enumerate(slots):
        if pieces and slot == pieces[-1][1] + pieces[-1][2]:
            begin, first, count = pieces[-1]
            pieces[-1] = begin, first, count + 1
        else:
            pieces.append((at, slot, 1))
    return pieces


def by_engine(source: Tensors, blocks: Sequence[int], target: Tensors, to: Sequence[int], spills: bool) -> None:
    """Copy over the bus by its engine: gather and scatter in the current stream, the bus in one of its own.

    ``spills``: from a device to the host; else back.
    """
    import torch

    gpu_side, index, host, slots = (source, blocks, target, to) if spills else (target, to, source, blocks)
    gpu = next(iter(gpu_side.values())).device
    places = torch.tensor(list(index), device=gpu)
    pieces = side_by_side(slots)
    jobs = _jobs(gpu_side, len(index))
    buffers = torch.empty((2, max(job.words for job in jobs)), dtype=torch.int64, device=gpu)
    streams: Any = torch.get_device_module(gpu)  # those of torch.cpu do nothing: so tests run all this on a CPU
    now, bus = streams.current_stream(gpu), streams.Stream(gpu)
    bus.wait_stream(now)
    emptied: list[Any] = []
    try:
        for number, job in enumerate(jobs):
            layers = slice(job.first, job.last)
            pages, there = _words(gpu_side[job.name])[layers], _words(host[job.name])[layers]
            staged = buffers[number % 2, : job.words].view(len(pages), len(index), -1)
            ours = [row for at, _, count in pieces for row in staged.narrow(1, at, count).unbind(0)]
            theirs = [row for _, slot, count in pieces for row in there.narrow(1, slot, count).unbind(0)]
            first, second = (now, bus) if spills else (bus, now)  # the one that fills the buffer, and that empties it
            if number >= 2:
                first.wait_event(emptied[number - 2])
            if spills:
                torch.index_select(pages, 1, places, out=staged)
                bus.wait_stream(now)
                with streams.stream(bus):
                    torch._foreach_copy_(theirs, ours, non_blocking=True)
            else:
                with streams.stream(bus):
                    torch._foreach_copy_(ours, theirs, non_blocking=True)
                now.wait_stream(bus)
                pages.index_copy_(1, places, staged)
            emptied.append(second.record_event())
    finally:
        now.wait_stream(bus)  # before the buffers are anyone else's


class _Job(NamedTuple):
    """Layers of a tensor that one kernel gathers, and the words of their blocks."""

    name: str
    first: int
    last: int
    words: int


def _jobs(tensors: Tensors, count: int) -> list[_Job]:
    """Return what is staged at once, for ``count`` blocks: the smallest tensor first, since it fills no buffer."""
    found = []
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].nbytes):
        layers, words = len(tensor), _words(tensor)[0, 0].numel() * count
        step = max(STAGED // (8 * words), 1)
        for first in range(0, layers, step):
            last = min(first + step, layers)
            found.append(_Job(name, first, last, words * (last - first)))
    return found


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return (layers, blocks, words) of 64 bits."""
    import torch

    return tensor.flatten(2).view(torch.int64)


def by_kernel(source: Tensors, blocks: Sequence[int], target: Tensors, to: Sequence[int], spills: bool) -> None:
    """Copy over the bus by a kernel that reads and writes both memories. The arguments are those of `by_engine`."""
    import torch

    gpu = next(iter((source if spills else target).values())).device
    begins, ends = torch.tensor([list(blocks), list(to)], device=gpu)
    launch(source, begins, target, ends)


def launch(source: Tensors, begins: torch.Tensor, target: Tensors, ends: torch.Tensor) -> None:
    """Start the kernel of `by_kernel` in the current stream. ``begins``, ``ends``: blocks, (n,), on the device."""
    kernels = launcher(begins.device)
    if kernels is None:
        raise ModelError("the kernel that copies blocks does not compile on this machine")
    for name, one in source.items():
        layers, words = len(one), one[0, 0].nbytes // WORD
        sizes = one[0].nbytes // WORD, target[name][0].nbytes // WORD
        pointers = cuda.addresses(one, target[name], begins, ends)
        args = [*pointers, *map(ctypes.c_int64, sizes), ctypes.c_int(words)]
        kernels.launch("copy_pages", (len(begins), layers, -(-words // (THREADS * EACH))), THREADS, args)


def launcher(device: torch.device) -> cuda.Launcher | None:
    """Return what launches the kernel on a GPU, None where it cannot run."""
    return cuda.compiled(cuda.number_of(device), source())


@functools.cache
def source() -> str:
    """Return the kernel as one text."""
    return gpu.whole(SOURCE.read_text("utf8"))

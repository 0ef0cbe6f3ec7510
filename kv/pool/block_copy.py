"""The indexed copy of blocks over all layers, within a memory and between device and page-locked host memory.

    device [layer, block, ...]  --kernel-->  host [layer, slot, ...]
    device [layer, block, ...]  --kernel-->  staged [layers, n, ...]  --copy engine-->  host [layer, slot, ...]

One kernel reads and writes both memories. It takes few CTAs: steps of decoding go on beside it, and the bus needs no
more. Where slots of the host lie side by side, the copy engine takes the bus, which holds up steps less. The kernel
gathers blocks of several layers into one of two buffers, while the other crosses; warming scatters likewise.
Where the kernel cannot be compiled, or the host's memory is not page-locked, torch gathers and scatters, always so.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pltz.kv.engines import cuda
from pltz.plt_codec import device as gpu

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Tensors = Mapping[str, torch.Tensor]
    Numbers = Sequence[int] | NDArray[np.int64]  # of blocks
    Moving = Callable[[torch.Tensor, torch.Tensor], object]

SOURCE = Path(__file__).with_name("copy_pages.cu")
WORD = 16  # bytes; the 16 rows of a block are a multiple of a word
THREADS, EACH, MOST = 128, 8, 480  # of a CTA, words that a thread has under way, blocks of a launch: copy_pages.cu
# CTAs of a copy, of few words so that others' loads do not queue behind them; writes to the host fill queues first.
SPILLING, WARMING, STAGING = 6, 16, 1024
WIDE = 1 << 20  # bytes side by side in a layer from which on the copy engine takes the bus
PITCH = (1 << 31) - 1  # bytes from row to row of a copy engine, at most
STAGED = 1 << 25  # bytes of a buffer; a layer whose blocks are more has a larger one


def copy_blocks(source: Tensors, blocks: Numbers, target: Tensors, to: Numbers) -> None:
    """Set ``target[name][:, to]`` to ``source[name][:, blocks]``; all are (layers, blocks, ...) and contiguous.

    The host waits for a copy into its memory, and for none into a device's.
    """
    import torch

    if not len(blocks):
        return
    here, into = next(iter(source.values())), next(iter(target.values()))
    if here.device == into.device:
        index, places = torch.from_numpy(np.stack([blocks, to]).astype(np.int64)).to(here.device)
        for name, tensor in source.items():
            target[name].index_copy_(1, places, tensor.index_select(1, index))
        return
    spills = here.is_cuda
    host, device = (into, here.device) if spills else (here, into.device)
    kernels = launcher(device) if host.is_pinned() else None
    if kernels is None or wide(host, to if spills else blocks):
        by_engine(source, blocks, target, to, spills, kernels)
    else:
        launch(kernels, source, blocks, target, to, SPILLING if spills else WARMING)
    if spills:
        torch.cuda.current_stream(device).synchronize()


def wide(host: torch.Tensor, slots: Numbers) -> bool:
    """Return whether pieces of slots are large enough for the copy engine."""
    size = len(slots) * host.stride(1) * host.itemsize
    return size >= WIDE and size >= WIDE * (1 + int(np.count_nonzero(np.diff(slots) != 1)))


def side_by_side(slots: Numbers) -> list[tuple[int, int, int]]:
    """Return pieces of slots that ascend one by one: the place in the list, the slot, and the length of each."""
    index = np.asarray(slots)
    begins = np.append(0, np.flatnonzero(np.diff(index) != 1) + 1)
    counts = np.diff(np.append(begins, len(index)))
    return list(zip(begins.tolist(), index[begins].tolist(), counts.tolist(), strict=True))


def by_engine(
    source: Tensors, blocks: Numbers, target: Tensors, to: Numbers, spills: bool, kernels: cuda.Launcher | None
) -> None:
    """Copy over the bus by its engine: gather and scatter in the current stream, the bus in one of its own.

    ``spills``: from a device to the host; else back. ``kernels``: gather and scatter; None: torch does.
    """
    import torch

    gpu_side, index, host, slots = (source, blocks, target, to) if spills else (target, to, source, blocks)
    gpu = next(iter(gpu_side.values())).device
    pieces = side_by_side(slots)
    jobs = _jobs(gpu_side, len(index))
    words = {name: (_words(tensor), _words(host[name])) for name, tensor in gpu_side.items()}
    gather, scatter = _by_kernel(kernels, index) if kernels else _by_torch(index, gpu)
    buffers = torch.empty((2, max(job.words for job in jobs)), dtype=torch.int64, device=gpu)
    streams: Any = torch.get_device_module(gpu)  # those of torch.cpu do nothing: so tests run all this on a CPU
    now, bus = streams.current_stream(gpu), streams.Stream(gpu)
    bus.wait_stream(now)
    emptied: list[Any] = []
    try:
        for number, job in enumerate(jobs):
            pages, there = (side[job.first : job.last] for side in words[job.name])
            staged = buffers[number % 2, : job.words].view(len(pages), len(index), -1)
            ours = [staged.narrow(1, at, count) for at, _, count in pieces]
            theirs = [there.narrow(1, slot, count) for _, slot, count in pieces]
            first, second = (now, bus) if spills else (bus, now)  # the one that fills the buffer, and that empties it
            if number >= 2:
                first.wait_event(emptied[number - 2])
            if spills:
                gather(pages, staged)
                bus.wait_stream(now)
                with streams.stream(bus):
                    cross(theirs, ours, kernels is not None)
            else:
                with streams.stream(bus):
                    cross(ours, theirs, kernels is not None)
                now.wait_stream(bus)
                scatter(staged, pages)
            emptied.append(second.record_event())
    finally:
        now.wait_stream(bus)  # before the buffers are anyone else's


def _by_kernel(kernels: cuda.Launcher, index: Numbers) -> tuple[Moving, Moving]:
    """Return what gathers blocks of pages into a buffer, and what scatters them from it, by the kernel."""
    order = np.arange(len(index))
    return (
        lambda pages, staged: launch(kernels, {"": pages}, index, {"": staged}, order, STAGING),
        lambda staged, pages: launch(kernels, {"": staged}, order, {"": pages}, index, STAGING),
    )


def _by_torch(index: Numbers, device: torch.device) -> tuple[Moving, Moving]:
    """Return the same, by torch."""
    import torch

    places = torch.tensor(list(index), device=device)
    return (
        lambda pages, staged: torch.index_select(pages, 1, places, out=staged),
        lambda staged, pages: pages.index_copy_(1, places, staged),
    )


def cross(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], locked: bool) -> None:
    """Copy tensors (layers, n, words) over the bus in the current stream; of each, the words of a layer lie together.

    ``locked``: the host's are page-locked, and one copy takes all layers of a piece where the engine can.
    """
    import torch

    for target, source in zip(targets, sources, strict=True):
        pitches = target.stride(0) * target.itemsize, source.stride(0) * source.itemsize
        if locked and (target.is_cuda or source.is_cuda) and max(pitches) <= PITCH:
            cuda.copy_rows(target, source)
        else:
            torch._foreach_copy_(list(target.unbind()), list(source.unbind()), non_blocking=True)


class _Job(NamedTuple):
    """Layers of a tensor that one kernel gathers, and the words of their blocks."""

    name: str
    first: int
    last: int
    words: int


def _jobs(tensors: Tensors, count: int) -> list[_Job]:
    """Return what is staged at once, for ``count`` blocks: the largest tensor first."""
    found = []
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].nbytes):
        layers, words = len(tensor), tensor.stride(1) * tensor.itemsize // 8 * count
        step = max(STAGED // (8 * words), 1)
        for first in range(0, layers, step):
            last = min(first + step, layers)
            found.append(_Job(name, first, last, words * (last - first)))
    return found


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return (layers, blocks, words) of 64 bits."""
    import torch

    return tensor.flatten(2).view(torch.int64)


class _Moved(ctypes.Structure):
    """A tensor, as struct Part of copy_pages.cu."""

    _fields_ = [
        ("source", ctypes.c_void_p), ("target", ctypes.c_void_p),
        ("source_layer", ctypes.c_int64), ("target_layer", ctypes.c_int64), ("words", ctypes.c_int),
    ]  # fmt: skip


class _BlockCopy(ctypes.Structure):
    """The argument of a launch, as struct Copy of copy_pages.cu."""

    _fields_ = [
        ("part", _Moved * 2), ("parts", ctypes.c_int), ("layers", ctypes.c_int), ("blocks", ctypes.c_int),
        ("begins", ctypes.c_int32 * MOST), ("ends", ctypes.c_int32 * MOST),
    ]  # fmt: skip


def launch(kernels: cuda.Launcher, source: Tensors, blocks: Numbers, target: Tensors, to: Numbers, ctas: int) -> None:
    """Start the kernel that copies blocks of one or two tensors in the current stream, with at most so many CTAs."""
    copy = _BlockCopy(parts=len(source), layers=len(next(iter(source.values()))))
    words = 0
    for part, (name, one) in zip(copy.part, source.items(), strict=False):
        pointers = cuda.addresses(one, target[name])
        part.source, part.target = (pointer.value for pointer in pointers)
        part.source_layer, part.target_layer = (t.stride(0) * t.itemsize // WORD for t in (one, target[name]))
        part.words = one.stride(1) * one.itemsize // WORD
        words += part.words * copy.layers
    for first in range(0, len(blocks), MOST):
        copy.blocks = min(len(blocks) - first, MOST)
        for numbers, some in ((copy.begins, blocks), (copy.ends, to)):
            np.frombuffer(numbers, np.int32)[: copy.blocks] = some[first : first + copy.blocks]
        grid = min(-(-words * copy.blocks // (THREADS * EACH)), ctas), 1, 1
        kernels.launch("copy_pages", grid, THREADS, [copy])


def launcher(device: torch.device) -> cuda.Launcher | None:
    """Return what launches the kernel on a GPU, None where it cannot run."""
    return cuda.compiled(cuda.number_of(device), source())


@functools.cache
def source() -> str:
    """Return the kernel as one text."""
    return gpu.whole(SOURCE.read_text("utf8"))

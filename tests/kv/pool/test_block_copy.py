"""Copies of blocks over a bus that is not there: streams of a CPU do nothing, or are late in the worst way."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pltz.kv.engines.cuda import copy_rows
from pltz.kv.pool import block_copy
from pltz.kv.pool.slab import Slab
from tests.kv.pool.pages import form

SCATTERED, IN_RUNS = [5, 0, 9, 3, 7, 1], [3, 4, 5, 9, 0, 1]


def slabs(kind: str) -> tuple[Slab, Slab]:
    """Return two slabs of random bytes, of different sizes."""
    both = Slab(form(kind), 12 * 16, 16, "cpu"), Slab(form(kind), 10 * 16, 16, "cpu")
    draw = torch.Generator().manual_seed(7)
    for slab in both:
        for tensor in slab.tensors.values():
            tensor.view(torch.uint8).random_(0, 256, generator=draw)
    return both


class LateStream:
    """A stream of which nothing runs until somebody waits for it."""

    def __init__(self, late: bool) -> None:
        self.late = late
        self.queue: list[tuple[Any, Any, Any]] = []
        self.ran = 0

    def run(self, until: int | None = None) -> None:
        """Run what was started, up to a count since the beginning."""
        while self.queue and (until is None or self.ran < until):
            work, args, kwargs = self.queue.pop(0)
            self.ran += 1
            with _disable_current_modes():
                work(*args, **kwargs)

    def wait_stream(self, other: LateStream) -> None:
        other.run()

    def record_event(self) -> tuple[LateStream, int]:
        return self, self.ran + len(self.queue)

    def wait_event(self, event: tuple[LateStream, int]) -> None:
        event[0].run(event[1])


class LateStreams(TorchDispatchMode):
    """Streams in place of torch.cuda's: ``late`` of "now" and "bus" runs as late as it may."""

    def __init__(self, late: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.bus = LateStream(late == "now"), LateStream(late == "bus")
        self.current = self.now
        self.module = SimpleNamespace(
            current_stream=lambda device: self.now, Stream=lambda device: self.bus, stream=self.on
        )

    @contextmanager
    def on(self, stream: LateStream) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copies = ("index_select.out", "index_copy_.default", "_foreach_copy_.default")
        if self.current.late and str(func).removeprefix("aten.") in copies:
            self.current.queue.append((func, args, kwargs or {}))
            return (kwargs or {}).get("out", None if "foreach" in str(func) else args[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("late", ["", "now", "bus"])
@pytest.mark.parametrize("spills", [True, False])
@pytest.mark.parametrize("slots", [SCATTERED, IN_RUNS])
@pytest.mark.parametrize("kind", ["raw", "q8", "q4"])
def test_the_bus_carries_the_same_bytes(
    kind: str, slots: list[int], spills: bool, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer is staged at a time, so that both buffers are used more than once."""
    source, target = slabs(kind)
    blocks = [8, 2, 3, 4, 0, 9]
    if not spills:
        blocks, slots = slots, blocks
    before = {name: tensor.clone() for name, tensor in target.tensors.items()}
    monkeypatch.setattr(block_copy, "STAGED", 1)
    streams = LateStreams(late)
    if late:
        monkeypatch.setattr(torch, "get_device_module", lambda device: streams.module)
        with streams:
            block_copy.by_engine(source.tensors, blocks, target.tensors, slots, spills, None)
            streams.now.run()
    else:
        block_copy.by_engine(source.tensors, blocks, target.tensors, slots, spills, None)
    assert not streams.bus.queue
    for name, tensor in target.tensors.items():
        before[name][:, slots] = source.tensors[name][:, blocks]
        assert torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8)), name


def test_the_engine_takes_pieces_of_a_megabyte() -> None:
    host = torch.empty(2, 40, 1 << 16, dtype=torch.uint8)
    assert block_copy.wide(host, range(3, 19)) and not block_copy.wide(host, range(3, 18))
    assert block_copy.wide(host, [*range(16), *range(20, 36)])
    assert not block_copy.wide(host, [*range(16), *range(20, 35)])


def test_rows_are_copied_by_their_pitches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of the test's own does what CUDA says of a copy in two dimensions."""

    def copied(copy: Any, stream: int) -> tuple[int]:
        assert stream == 7 and copy.srcMemoryType == copy.dstMemoryType == "unified"
        for row in range(copy.Height):
            to, source = copy.dstDevice + row * copy.dstPitch, copy.srcDevice + row * copy.srcPitch
            ctypes.memmove(to, source, copy.WidthInBytes)
        return (0,)

    kinds = SimpleNamespace(CU_MEMORYTYPE_UNIFIED="unified")
    bindings: Any = ModuleType("cuda.bindings")
    bindings.driver = SimpleNamespace(CUDA_MEMCPY2D=SimpleNamespace, CUmemorytype=kinds, cuMemcpy2DAsync=copied)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    source, target = torch.arange(3 * 9 * 4).reshape(3, 9, 4), torch.zeros(3, 12, 4, dtype=torch.int64)
    copy_rows(target.narrow(1, 5, 6), source.narrow(1, 2, 6))
    assert torch.equal(target[:, 5:11], source[:, 2:8]) and not target[:, :5].any() and not target[:, 11:].any()


@pytest.mark.parametrize("kind", ["raw", "q4"])
def test_rows_read_on_another_device_are_the_same(kind: str) -> None:
    slab, _ = slabs(kind)
    taken = slab.allocate(12)
    blocks = [taken[place] for place in SCATTERED]
    here, there = slab.read(blocks, 5, 80), slab.read(blocks, 5, 80, torch.device("cpu", 0))
    assert all(torch.equal(here[name].view(torch.uint8), there[name].view(torch.uint8)) for name in here)

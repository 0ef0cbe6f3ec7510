"""What a device's memory that was given back is kept for, and when it goes."""

import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pltz.benchmarks.random_weights import random_weights
from pltz.plt_codec.engines.cuda import device as gpu
from pltz.plt_codec.engines.cuda.coder import CudaCoder
from pltz.plt_codec.engines.cuda.pool import LEAST, OutOfMemory, Pool
from pltz.plt_codec.errors import ModelError


class Driver:
    """Memory of so many bytes."""

    def __init__(self, memory: int, kept: int | None = None) -> None:
        self.memory, self.calls = memory, 0
        self.held: dict[int, int] = {}
        self.pool = Pool(self.get, self.put, kept=kept)

    def get(self, size: int) -> int:
        if sum(self.held.values()) + size > self.memory:
            raise OutOfMemory(f"not enough GPU memory: {size} bytes more are needed")
        self.calls += 1
        self.held[self.calls] = size
        return self.calls

    def put(self, address: int) -> None:
        del self.held[address]


def test_what_was_given_back_is_given_again() -> None:
    driver = Driver(1 << 40)
    pool = driver.pool
    first = [pool.take(size) for size in (1, 600, 5000, 5000)]
    assert len(set(first)) == 4 and driver.held == {1: LEAST, 2: 1024, 3: 8192, 4: 8192}
    for address in first:
        pool.give(address)
    assert {pool.take(4097), pool.take(8192)} == {3, 4} and driver.calls == 4
    assert pool.take(8192) == 5 and pool.take(0) == 1


def test_large_buffers_are_kept_where_a_pool_may_keep_so_much() -> None:
    driver = Driver(1 << 40, kept=1 << 30)
    pool = driver.pool
    first, second = pool.take(100 << 20), pool.take(500 << 20)
    assert driver.held == {1: 112 << 20, 2: 512 << 20}  # an eighth of a power of two more, at most
    pool.give(first)
    pool.give(second)
    assert pool.kept == 624 << 20
    assert pool.take(60 << 20) == first  # not half of it is used; a smaller one would leave too much
    assert pool.take(40 << 20) == 3 and pool.take(400 << 20) == second and not pool.kept
    pool.give(second)
    pool.give(first)
    pool.give(pool.take(2 << 30))  # more than may be kept
    assert set(driver.held) == {1, 2, 3} and pool.kept == 624 << 20
    pool.give(pool.take(1023 << 20))  # with the others it is too much, so these go
    assert set(driver.held) == {3, 5} and pool.kept == 1 << 30


def test_other_pools_of_the_device_let_go_what_they_keep_before_memory_is_said_to_be_out() -> None:
    driver = Driver(200 << 20)
    other = Pool(driver.get, driver.put, kept=1 << 30)
    elsewhere = Pool(driver.get, driver.put, device=1, kept=1 << 30)
    other.give(other.take(96 << 20))
    elsewhere.give(elsewhere.take(64 << 20))
    assert driver.pool.take(64 << 20) and not other.kept and elsewhere.kept == 64 << 20
    with pytest.raises(ModelError, match="not enough GPU memory"):
        driver.pool.take(100 << 20)
    assert elsewhere.kept == 64 << 20


def test_what_is_kept_is_let_go_before_memory_is_said_to_be_out() -> None:
    driver = Driver(4000)
    pool = driver.pool
    pool.give(pool.take(2048))
    assert pool.take(1024) == 2 and pool.kept == 2048 and pool.take(1025) == 1
    pool.give(1)
    with pytest.raises(ModelError, match="4096"):
        pool.take(4000)
    assert pool.kept == 0 and list(driver.held) == [2]


def test_other_errors_of_a_driver_come_through_and_what_is_kept_stays() -> None:
    driver = Driver(1 << 20)
    pool = driver.pool
    pool.give(pool.take(2048))
    asked = []

    def broken(size: int) -> int:
        asked.append(size)
        raise ModelError("CUDA: CUDA_ERROR_LAUNCH_FAILED")

    pool._get = broken
    with pytest.raises(ModelError, match="LAUNCH_FAILED"):
        pool.take(4096)
    assert asked == [4096] and pool.kept == 2048


@pytest.mark.parametrize(("status", "kind"), [(2, OutOfMemory), (719, ModelError)])
def test_only_memory_that_is_out_is_called_so(status: int, kind: type[ModelError]) -> None:
    driver = SimpleNamespace(cuMemAlloc=lambda size: (Status(status), 0))
    with pytest.raises(ModelError) as caught:
        gpu._allocate(driver, 10)
    assert type(caught.value) is kind


class Status(int):
    """An error of the driver."""

    name = "CUDA_ERROR"


class Bindings:
    """The bindings of a driver that allocates. Every other call succeeds with the number 8, so the capability is 88."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.calls = 0

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        self.calls += 1
        self.held.add(self.calls)
        return 0, self.calls

    def cuMemFree(self, address: int) -> tuple[int]:
        self.held.remove(address)
        return (0,)

    def cuCtxGetStreamPriorityRange(self) -> tuple[int, int, int]:
        return 0, 0, -5

    def __getattr__(self, name: str) -> Any:
        if name == "CUdevice_attribute":
            return SimpleNamespace(
                CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1
            )
        return lambda *_: (0, 8)


def test_memory_goes_back_with_the_last_reference_to_a_coder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the collector comes by: that may be in the middle of another coder's work."""
    driver = Bindings()
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    monkeypatch.setattr(gpu, "count", lambda: 1)
    monkeypatch.setattr(gpu, "compile_kernels", lambda shape, capability: b"")
    gc.collect()
    gc.disable()
    try:
        coder = CudaCoder(random_weights(0, layers=1))
        kept = coder._device.alloc(1000)
        coder._device.free(kept)
        assert kept in driver.held and len(driver.held) > 1
        del coder
        assert not driver.held
    finally:
        gc.enable()

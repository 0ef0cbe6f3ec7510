"""A warm file is read while it is decoded: bytes are handed out when their chunk was checked. Damage never passes."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pltz.archive import NO_SEGMENT
from pltz.kv.port.arriving import ArrivingParts, shells
from pltz.kv.store import warm_file
from pltz.kv.store.disk_tier import UNDER_WAY, DiskTier
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore
from pltz.kv.store.tier import StoredBlock
from pltz.plt_codec.errors import CorruptError

SPACE, SEGMENT, PARENT = b"space...........", b"segment...", b"parent...."
BUDGET = 1 << 24
CHUNK = 256
PATIENCE = 180  # seconds


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_file, "CHUNK", CHUNK)


@pytest.fixture
def disk(tmp_path: Path) -> DiskTier:
    return DiskTier(tmp_path / "warm", BUDGET)


def block(tokens: int = 20, seed: int = 1) -> KVBlock:
    torch.manual_seed(seed)
    kv = torch.randn(3, 2, 1, tokens, 4).bfloat16()
    ids = np.arange(tokens, dtype=np.int32)
    return KVBlock.raw(kv, ids, ids, 0, torch.randn(7))


def written(disk: DiskTier, one: KVBlock) -> Path:
    assert disk.write(SPACE, SEGMENT, StoredBlock(one, PARENT, 5))
    return disk.path(SPACE, SEGMENT)


class Gate:
    """Lets threads read chunk after chunk: replaces `os.preadv` in the reader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed = threading.Semaphore(0)
        self.failure: OSError | None = None
        real = os.preadv

        def preadv(handle: int, buffers: Any, at: int) -> int:
            if threading.current_thread() is not threading.main_thread():
                assert self.allowed.acquire(timeout=PATIENCE)
                if self.failure is not None:
                    raise self.failure
            return real(handle, buffers, at)

        monkeypatch.setattr("os.preadv", preadv)

    def open(self, chunks: int = 1000) -> None:
        for _ in range(chunks):
            self.allowed.release()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate(monkeypatch)
    yield found
    found.open()


def test_a_block_is_there_before_its_file_was_read(disk: DiskTier, gate: Gate) -> None:
    one = block()
    written(disk, one)
    found = disk.read(SPACE, SEGMENT)
    assert found is not None and not found.block.there and not found.block.damaged
    assert np.array_equal(found.block.ids, one.ids) and found.block.size == one.size
    parts = found.block.parts
    assert isinstance(parts, ArrivingParts)
    assert shells(parts)["kv"].shape == one.kv.shape
    gate.open(2)
    there = parts.wait("kv", 10)
    assert 10 <= there < one.kv.numel()
    assert torch.equal(shells(parts)["kv"].view(-1)[:there], one.kv.view(-1)[:there])
    gate.open()
    assert torch.equal(found.block.kv, one.kv) and found.block.there


def test_any_reader_of_safetensors_opens_a_file_of_many_chunks(disk: DiskTier) -> None:
    one = block()
    found = load_file(written(disk, one))
    assert torch.equal(found["kv"], one.kv) and list(found["ids"]) == list(one.ids)
    assert len(found["checksums"]) > 5


def settled(disk: DiskTier) -> None:
    """Wait until no thread reads."""
    assert disk._threads is not None
    disk._threads.shutdown()
    disk._threads = ThreadPoolExecutor(2)


def test_a_file_that_is_cut_while_it_is_read_is_refused(disk: DiskTier, gate: Gate) -> None:
    path = written(disk, block())
    found = disk.read(SPACE, SEGMENT)
    assert found is not None
    os.truncate(path, path.stat().st_size - 300)
    gate.open()
    with pytest.raises(CorruptError, match="early"):
        _ = found.block.kv
    settled(disk)
    assert disk.damaged == 1 and not path.exists()


def test_a_disk_that_fails_during_a_read_is_a_miss_and_the_file_stays(disk: DiskTier, gate: Gate) -> None:
    path = written(disk, block())
    found = disk.read(SPACE, SEGMENT)
    gate.failure = OSError(5, "Input/output error")
    gate.open()
    assert found is not None
    with pytest.raises(CorruptError, match="Input/output"):
        _ = found.block.kv
    settled(disk)
    assert (disk.failed, disk.damaged) == (1, 0) and path.exists()


def test_damage_does_not_remove_the_sound_file_that_took_its_place(disk: DiskTier, gate: Gate, tmp_path: Path) -> None:
    path = written(disk, block())
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found = disk.read(SPACE, SEGMENT)
    (tmp_path / "new").write_bytes(data)
    (tmp_path / "new").replace(path)
    gate.open()
    assert found is not None
    with pytest.raises(CorruptError):
        found.block.wait()
    settled(disk)
    assert disk.damaged == 1 and path.read_bytes() == data


def test_files_are_closed_and_too_many_at_once_are_read_by_their_callers(disk: DiskTier, gate: Gate) -> None:
    names = [bytes([n]) * 10 for n in range(UNDER_WAY + 3)]
    for n, name in enumerate(names):
        assert disk.write(SPACE, name, StoredBlock(block(seed=n), PARENT, 0))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    found = [disk.read(SPACE, name) for name in names]
    assert [one is not None and one.block.there for one in found] == [False] * UNDER_WAY + [True] * 3
    gate.open(10_000)
    for n, one in enumerate(found):
        assert one is not None and torch.equal(one.block.kv, block(seed=n).kv)
    settled(disk)
    assert not before or len(os.listdir("/proc/self/fd")) == before
    assert disk._under_way == 0
    again = disk.read(SPACE, names[0])
    assert again is not None and again.block.damaged is False


def test_a_read_begun_when_the_interpreter_ends_is_done_by_its_caller(disk: DiskTier) -> None:
    one = block()
    written(disk, one)
    disk._threads = ThreadPoolExecutor(1)
    disk._threads.shutdown()  # it refuses new work, as all do at the end
    found = disk.read(SPACE, SEGMENT)
    assert found is not None and found.block.there and torch.equal(found.block.kv, one.kv)


def test_a_raw_block_enters_memory_when_it_is_there_and_a_damaged_one_ends_the_lease(disk: DiskTier) -> None:
    first, second = block(seed=1), block(seed=2)
    names = [bytes([n]) * 10 for n in (1, 2)]
    for name, one, parent in ((names[0], first, NO_SEGMENT), (names[1], second, names[0])):
        assert disk.write(SPACE, name, StoredBlock(one, parent, 0))
    store = HotStore.open(BUDGET, 0, BUDGET, folder=disk.folder)
    with store.hold(SPACE, names) as lease:
        assert lease.tiers == ["device", "device"] and torch.equal(lease.blocks[1].kv, second.kv)
    path = disk.path(SPACE, names[1])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    store = HotStore.open(BUDGET, 0, BUDGET, folder=disk.folder)
    with store.hold(SPACE, names) as lease:
        assert lease.tiers == ["device"] and torch.equal(lease.blocks[0].kv, first.kv)
    found = store.stats().tiers
    assert found["device"].blocks == 1 and found["disk"].damaged == 1 and not path.exists()
    assert store.insert(SPACE, names[1], names[0], second)
    with store.hold(SPACE, names) as lease:
        assert torch.equal(lease.blocks[1].kv, second.kv)

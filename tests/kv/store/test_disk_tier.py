"""Warm files: reads return what was written, bit for bit, or a miss. Several processes share one budget."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from pltz.archive import NO_SEGMENT
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore
from pltz.kv.store.tier import StoredBlock
from pltz.plt_codec.errors import UsageError
from tests.failing import NO_SPACE, raising
from tests.kv.store.conftest import Blocks

SPACE, SEGMENT, PARENT = b"space...........", b"segment...", b"parent...."
BUDGET = 1 << 20


def block(dtype: torch.dtype = torch.float32, tokens: int = 3, logits: int = 5) -> KVBlock:
    torch.manual_seed(1)
    kv = torch.randn(2, 2, 1, tokens, 3).to(dtype)
    known = torch.randn(logits).to(dtype) if logits else None
    return KVBlock.raw(kv, np.arange(7, 7 + tokens, dtype=np.int32), np.arange(9, dtype=np.int32), 11, known)


@pytest.fixture
def folder(tmp_path: Path) -> DiskTier:
    return DiskTier(tmp_path / "warm", BUDGET)


def written(folder: DiskTier, one: KVBlock) -> Path:
    assert folder.write(SPACE, SEGMENT, StoredBlock(one, PARENT, 1234.5))
    return folder.path(SPACE, SEGMENT)


def same(a: KVBlock, b: KVBlock) -> bool:
    logits = (a.logits is None) == (b.logits is None)
    if a.logits is not None and b.logits is not None:
        logits = torch.equal(a.logits, b.logits)
    arrays = np.array_equal(a.ids, b.ids) and np.array_equal(a.tokens, b.tokens)
    return logits and arrays and a.start == b.start and a.kv.dtype == b.kv.dtype and torch.equal(a.kv, b.kv)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("tokens", "logits"), [(3, 5), (3, 0), (0, 5), (1, 0)])
def test_what_is_read_is_what_was_written(folder: DiskTier, dtype: torch.dtype, tokens: int, logits: int) -> None:
    one = block(dtype, tokens, logits)
    written(folder, one)
    found = folder.read(SPACE, SEGMENT)
    assert found is not None and same(found.block, one)
    assert (found.parent, found.born) == (PARENT, 1234.0)


def test_a_sound_file_in_the_wrong_place_is_a_miss(folder: DiskTier) -> None:
    data = written(folder, block()).read_bytes()
    for space, segment in ((SPACE, PARENT), (PARENT, SEGMENT)):
        path = folder.path(space, segment)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        assert folder.read(space, segment) is None and not path.exists()


def test_the_least_recently_used_files_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.kv.store.disk_tier.KEPT", 1)
    size = written(DiskTier(tmp_path / "probe", BUDGET), block()).stat().st_size
    folder = DiskTier(tmp_path / "warm", 3 * size)
    names = [bytes([n]) * 10 for n in range(5)]
    for n in range(3):
        assert folder.write(SPACE, names[n], StoredBlock(block(), PARENT, 0))
        os.utime(folder.path(SPACE, names[n]), (n, n))
    assert folder.read(SPACE, names[0]) is not None  # now the last used
    assert folder.write(SPACE, names[3], StoredBlock(block(), PARENT, 0))
    left = [n for n in range(4) if folder.path(SPACE, names[n]).exists()]
    assert left == [0, 2, 3] and folder.evicted == 1 and folder.usage() == (3 * size, 3)
    assert not folder.write(SPACE, names[4], StoredBlock(block(), PARENT, 0), frozenset(SPACE + names[n] for n in left))
    assert folder.usage() == (3 * size, 3)


def test_the_folder_is_listed_when_it_is_full_and_not_at_each_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes count together in the ledger. After an eviction there is room for the next writes."""
    size = written(DiskTier(tmp_path / "probe", BUDGET), block()).stat().st_size
    folders = [DiskTier(tmp_path / "warm", 16 * size) for _ in range(2)]
    listed, inner = list[int](), DiskTier._files

    def counted(tier: DiskTier) -> object:
        listed.append(1)
        return inner(tier)

    monkeypatch.setattr(DiskTier, "_files", counted)
    for n in range(24):
        assert folders[n % 2].write(SPACE, bytes([n]) * 10, StoredBlock(block(), PARENT, 0))
    count = len(listed)
    assert count <= 1 + 24 // 2 - 16 // 2, "at first, and then for each eighth of the budget"
    assert folders[0].usage()[0] <= 16 * size and not folders[0].path(SPACE, bytes(10)).exists()
    assert sum(folder.evicted for folder in folders) >= 8


def test_the_ledger_follows_what_is_removed_and_is_counted_anew_where_it_is_damaged(tmp_path: Path) -> None:
    size = written(DiskTier(tmp_path / "probe", BUDGET), block()).stat().st_size
    folder = DiskTier(tmp_path / "warm", 4 * size)
    names = [bytes([n]) * 10 for n in range(8)]
    for round_ in range(3):  # each round fills the budget, were it not for what is removed
        for name in names[:3]:
            assert folder.write(SPACE, name, StoredBlock(block(), PARENT, 0))
        folder.discard(SPACE, names[0])
        damaged = folder.path(SPACE, names[1])
        damaged.write_bytes(bytes(size))
        assert folder.read(SPACE, names[1]) is None
        folder.clear()
        if round_ == 1:
            (folder.folder / "lock").write_bytes(b"\1" * 16)
    assert folder.usage() == (0, 0) and folder.evicted == 0


def test_failures_are_logged_and_a_full_disk_does_not_fill_the_log(
    folder: DiskTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(folder, block())
    path.write_bytes(b"damaged")
    assert folder.read(SPACE, SEGMENT) is None and "damaged warm file" in caplog.text
    caplog.clear()
    monkeypatch.setattr("pltz.kv.store.warm_file.WarmFile.fill", raising(NO_SPACE))
    for _ in range(100):
        assert not folder.write(SPACE, SEGMENT, StoredBlock(block(), PARENT, 0))
    assert len(caplog.records) == 7 and "No space left on device" in caplog.text  # 1, 2, 4, ..., 64


def part_of(path: Path, size: int) -> Path:
    """Leave what a killed writer leaves: a file of full size that nobody has locked."""
    part = path.with_name(f"{path.stem}.0123abcd.part")
    part.touch()
    os.truncate(part, size)
    (path.parent.parent / "lock").write_bytes(b"")  # nobody counted it: so all are counted anew
    return part


def test_what_a_kill_left_counts_and_goes_first(folder: DiskTier) -> None:
    path = written(folder, block())
    part = part_of(path, BUDGET - path.stat().st_size)
    assert folder.usage() == (BUDGET, 2)
    assert folder.write(SPACE, b"other.....", StoredBlock(block(), PARENT, 0))
    assert not part.exists() and path.exists() and folder.evicted == 1


def test_what_is_being_written_keeps_its_room(folder: DiskTier) -> None:
    """A writer holds a lock on its file. Another one has no room then, and evicts nothing for it."""
    path = written(folder, block())
    part = part_of(path, BUDGET - path.stat().st_size)
    with part.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert not folder.write(SPACE, b"other.....", StoredBlock(block(tokens=50), PARENT, 0))
        assert part.exists() and path.exists() and folder.evicted == 0
    assert folder.write(SPACE, b"other.....", StoredBlock(block(tokens=50), PARENT, 0))


def test_a_block_that_cannot_fit_evicts_nothing(tmp_path: Path) -> None:
    size = written(DiskTier(tmp_path / "probe", BUDGET), block()).stat().st_size
    folder = DiskTier(tmp_path / "warm", 4 * size)
    names = [bytes([n]) * 10 for n in range(4)]
    for name in names:
        assert folder.write(SPACE, name, StoredBlock(block(), PARENT, 0))
    assert not folder.write(SPACE, SEGMENT, StoredBlock(block(tokens=1000), PARENT, 0)), "larger than the budget"
    in_use = frozenset({SPACE + names[0], SPACE + names[1]})
    assert not folder.write(SPACE, SEGMENT, StoredBlock(block(tokens=100), PARENT, 0), in_use), "than what may leave"
    assert (folder.evicted, folder.usage()) == (0, (4 * size, 4))


def test_files_that_it_did_not_write_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have other names, or lie behind a link. They are not counted, evicted, discarded or cleared."""
    one = block()
    size = written(DiskTier(tmp_path / "probe", BUDGET), one).stat().st_size
    folder = DiskTier(tmp_path / "warm", 2 * size)
    own = written(folder, one)
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setattr("pltz.kv.store.disk_tier.KEPT", 1)
    theirs = [folder.folder / ("Qwen2.5-0.5B-Instruct-my-finetun") / "model.safetensors", outside / own.name]
    theirs += [own.with_name(name) for name in ("x.safetensors", ".safetensors", "x.part", f"{SEGMENT.hex()}.txt")]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
    links = [folder.folder / PARENT.hex(), own.with_name(f"{PARENT.hex()}.raw.safetensors")]
    links[0].symlink_to(outside)
    links[1].symlink_to(theirs[0])
    assert folder.usage() == (size, 1) and folder.stats().blocks == 1
    for name in (b"a", b"b"):
        assert folder.write(SPACE, name * 10, StoredBlock(one, PARENT, 0))
    assert folder.evicted == 1 and not own.exists(), "its own file made room"
    assert folder.read(PARENT, SEGMENT) is None and not folder.write(PARENT, b"a" * 10, StoredBlock(one, PARENT, 0))
    assert folder.read(SPACE, PARENT) is None and not folder.write(SPACE, PARENT, StoredBlock(one, PARENT, 0))
    folder.discard(SPACE, SEGMENT)
    folder.discard(SPACE, PARENT)
    folder.discard(PARENT, SEGMENT)
    folder.clear()
    assert folder.usage() == (0, 0) and folder.damaged == 0
    assert all(path.read_bytes() == bytes(size) for path in theirs) and all(path.is_symlink() for path in links)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_a_miss_and_nobody_waits_for_it(folder: DiskTier, make: Callable[[Path], None]) -> None:
    path = written(folder, block())
    path.unlink()
    make(path)
    for step in (lambda: folder.read(SPACE, SEGMENT), folder.stats, folder.usage):
        thread = Thread(target=step, daemon=True)
        thread.start()
        thread.join(120)
        assert not thread.is_alive()
    assert not folder.write(SPACE, SEGMENT, StoredBlock(block(), PARENT, 0))
    folder.clear()
    assert folder.read(SPACE, SEGMENT) is None and folder.usage() == (0, 0) and path.exists() and not folder.damaged


def test_a_lock_that_is_no_file_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="warm files"):
        DiskTier(tmp_path, 1)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("failure", [RuntimeError("CUDA error: out of memory"), MemoryError()])
def test_a_block_that_cannot_be_brought_to_the_host_is_not_kept(
    folder: DiskTier, monkeypatch: pytest.MonkeyPatch, failure: Exception, blocks: Blocks
) -> None:
    """And nobody hears of it: the session that pushed it out is served."""
    monkeypatch.setattr("pltz.kv.store.warm_file._bytes", raising(failure))
    assert not folder.write(SPACE, SEGMENT, StoredBlock(block(), PARENT, 0)) and folder.failed == 1
    one, two = blocks(1), blocks(2)
    store = HotStore.open(one.size, 0, BUDGET, folder=folder.folder)
    assert store.insert(SPACE, blocks.name(1), NO_SEGMENT, one) and store.insert(SPACE, blocks.name(2), NO_SEGMENT, two)
    store.drain()
    found = store.stats()
    assert (found.tiers["device"].blocks, found.dropped) == (1, 1)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kv_that_is_not_numbers_is_not_kept(folder: DiskTier, dtype: torch.dtype, number: float) -> None:
    broken = block(dtype)
    broken.kv[1, 1, 0, 2, 1] = number
    assert not folder.write(SPACE, SEGMENT, StoredBlock(broken, PARENT, 1234.5))
    assert folder.usage() == (0, 0)


def test_a_file_that_cannot_be_opened_now_is_a_miss_and_stays(
    folder: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(folder, block())
    too_many = raising(OSError(24, "Too many open files"))
    with monkeypatch.context() as context:
        context.setattr("os.open", too_many)
        assert folder.read(SPACE, SEGMENT) is None
    with monkeypatch.context() as context:
        context.setattr("os.utime", too_many)
        assert folder.read(SPACE, SEGMENT) is not None
    assert path.exists() and (folder.failed, folder.damaged) == (1, 0)


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="warm files"):
        DiskTier(tmp_path / "file", 1)


# Fresh interpreters, not forks: a fork of a process that has used torch's threads waits for them for ever.
WRITES = """
import sys
import numpy as np
import torch
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.tier import StoredBlock

place, seed, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
folder = DiskTier(place, budget)
for n in np.random.default_rng(seed).integers(0, 12, 60).tolist():
    ids = np.full(40, n, np.int32)
    one = KVBlock.raw(torch.full((1, 2, 1, 40, 4), float(n)), ids, ids, 0)
    found = folder.read(b"space...........", bytes([n]) * 10)
    assert found is None or torch.equal(found.block.kv, one.kv) and np.array_equal(found.block.ids, ids)
    folder.write(b"space...........", bytes([n]) * 10, StoredBlock(one, b"parent....", 0))
    assert folder.usage()[0] <= budget
assert not folder.damaged
"""


def started(script: str, *args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script, *map(str, args)])


def test_processes_share_a_folder_and_its_budget(tmp_path: Path) -> None:
    workers = [started(WRITES, tmp_path, seed, 12_000) for seed in range(2)]  # each imports torch
    assert [worker.wait(300) for worker in workers] == [0, 0]
    assert 0 < DiskTier(tmp_path, 12_000).usage()[0] <= 12_000

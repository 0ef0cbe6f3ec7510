"""Files of KV: reads return what was written, bit for bit, or a miss. Several processes share one budget."""

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
import torch

from pltz.kv.errors import MemoryFailed, WarmFileError
from pltz.kv.store import kv_file
from pltz.kv.store.kv_file import KVFile
from pltz.kv.store.kv_folder import AGENT, KVFolder
from pltz.plt_codec.errors import CorruptError, UsageError
from tests.failing import NO_SPACE, raising
from tests.kv.store.conftest import SPACE
from tests.watch import noted

BUDGET = 1 << 22


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def file(number: int = 0, tokens: int = 3, form: str = "ids", dtype: torch.dtype = torch.float32) -> KVFile:
    """Return a file that is no run, so that its name is free."""
    torch.manual_seed(number)
    head = {"ids": torch.arange(tokens, dtype=torch.int32)}
    parts = {"kv.scale": torch.randn(5).to(dtype), "kv": torch.randn(2, tokens, 3, 4).to(dtype)}
    return KVFile(form, SPACE, bytes([number]) * 32, head, parts, b"t" * 32, b"p" * 32, 16 * number, "a label")


def written(folder: KVFolder, one: KVFile) -> Path:
    assert folder.write(one)
    return folder.path(one.name, one.form)


def read(folder: KVFolder, number: int = 0) -> KVFile | None:
    return folder.read(bytes([number]) * 32, "ids")


@pytest.fixture
def folder(tmp_path: Path) -> KVFolder:
    return KVFolder(tmp_path / "new" / "kv", SPACE, BUDGET)


@pytest.fixture
def size(tmp_path: Path) -> int:
    return written(KVFolder(tmp_path / "probe", SPACE, BUDGET), file()).stat().st_size


def test_the_least_recently_used_go_first_and_what_must_stay_never(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pltz.kv.store.kv_folder.KEPT", 1)
    ranks = dict[bytes, float]()
    folder = KVFolder(tmp_path / "kv", SPACE, 4 * size, rank=lambda name: ranks.get(name, 0.0))
    folder.put(file(9, form=AGENT))
    os.utime(folder.path(bytes([9]) * 32, AGENT), (0, 0))
    for n in range(3):
        os.utime(written(folder, file(n)), (n, n))
    assert read(folder, 0) is not None  # now the last used
    written(folder, file(3))
    left = [n for n in range(4) if folder.path(bytes([n]) * 32, "ids").exists()]
    assert left == [0, 2, 3] and folder.evicted == 1 and folder.usage()[:2] == (folder.usage()[0], 4)
    ranks[bytes([2]) * 32] = 1.0
    written(folder, file(4))
    assert not folder.path(bytes(32), "ids").exists() and folder.path(bytes([2]) * 32, "ids").exists()
    assert not folder.write(file(5, tokens=4000)) and folder.evicted == 2, "nothing goes for what cannot fit"
    with pytest.raises(MemoryFailed, match="no room"):
        folder.put(file(6, tokens=4000, form=AGENT))
    assert folder.get(bytes([9]) * 32, AGENT) is not None


def test_the_folder_is_listed_when_it_is_full_and_not_at_each_write(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes count together in the ledger. After an eviction there is room for the next writes."""
    folders = [KVFolder(tmp_path / "kv", SPACE, 16 * size) for _ in range(2)]
    listed = noted(monkeypatch, KVFolder, "_files", lambda: 1)
    for n in range(24):
        written(folders[n % 2], file(n))
    assert len(listed) <= 1 + 24 // 2 - 16 // 2, "at first, and then for each eighth of the budget"
    assert folders[0].usage()[0] <= 16 * size and sum(one.evicted for one in folders) >= 8


def test_the_ledger_follows_what_is_removed_and_is_counted_anew_where_it_is_damaged(tmp_path: Path, size: int) -> None:
    folder = KVFolder(tmp_path / "kv", SPACE, 4 * size)
    for round_ in range(3):  # each round fills the budget, were it not for what is removed
        paths = [written(folder, file(n)) for n in range(3)]
        folder.discard({bytes(32)})
        paths[1].write_bytes(bytes(size))
        assert read(folder, 1) is None
        folder.clear()
        if round_ == 1:
            (folder.root / "lock").write_bytes(b"\1" * 16)
    assert folder.usage() == (0, 0, 0) and folder.evicted == 0


def test_failures_are_logged_and_a_full_disk_does_not_fill_the_log(
    folder: KVFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written(folder, file()).write_bytes(b"damaged")
    assert read(folder) is None and "damaged file of KV" in caplog.text
    caplog.clear()
    monkeypatch.setattr("pltz.kv.store.kv_file.KVFileWriter.fill", raising(NO_SPACE))
    for _ in range(100):
        assert not folder.write(file())
    assert len(caplog.records) == 7 and "No space left on device" in caplog.text  # 1, 2, 4, ..., 64
    with pytest.raises(MemoryFailed, match="No space left"):
        folder.put(file(form=AGENT))
    assert folder.usage() == (0, 0, 0)


def part_of(path: Path, size: int) -> Path:
    """Leave what a killed writer leaves: a file of full size that nobody has locked."""
    part = path.with_name(f"{path.stem}.0123abcd.part")
    part.touch()
    os.truncate(part, size)
    (path.parent.parent / "lock").write_bytes(b"")  # nobody counted it: so all are counted anew
    return part


def test_what_a_kill_left_counts_and_goes_first_and_what_is_being_written_keeps_its_room(folder: KVFolder) -> None:
    path = written(folder, file())
    part = part_of(path, BUDGET - path.stat().st_size)
    assert folder.usage()[:2] == (BUDGET, 2)
    with part.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert not folder.write(file(1, 50)) and part.exists() and path.exists() and folder.evicted == 0
    assert folder.write(file(1, 50)) and not part.exists() and path.exists() and folder.evicted == 1


def test_files_that_it_did_not_write_are_left_alone(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have other names, or lie behind a link. They are not counted, evicted, discarded or cleared."""
    monkeypatch.setattr("pltz.kv.store.kv_folder.KEPT", 1)
    folder = KVFolder(tmp_path / "kv", SPACE, 2 * size)
    own, outside = written(folder, file()), tmp_path / "outside"
    outside.mkdir()
    theirs = [folder.root / "my-finetune" / "model.safetensors", outside / own.name]
    theirs += [own.with_name(name) for name in ("x.safetensors", ".safetensors", "x.part", f"{bytes(32).hex()}.txt")]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
    links = [folder.root / (b"p" * 16).hex(), folder.path(b"x" * 32, "ids")]
    links[0].symlink_to(outside)
    links[1].symlink_to(theirs[0])
    assert folder.usage()[:2] == (size, 1)
    for n in (1, 2):
        written(folder, file(n))
    assert folder.evicted == 1 and not own.exists(), "its own file made room"
    assert folder.read(b"x" * 32, "ids") is None and not folder.damaged
    with pytest.raises(UsageError, match="cannot keep KV"):
        KVFolder(folder.root, b"p" * 16, size)
    folder.discard({b"x" * 32, bytes(32)})
    folder.expire(1e11)
    folder.clear()
    assert folder.usage() == (0, 0, 0)
    assert all(path.read_bytes() == bytes(size) for path in theirs) and all(path.is_symlink() for path in links)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_a_miss_and_nobody_waits_for_it(folder: KVFolder, make: Callable[[Path], None]) -> None:
    path = written(folder, file())
    path.unlink()
    make(path)
    for step in (lambda: read(folder), folder.usage, lambda: KVFolder(folder.root, SPACE, BUDGET).usage()):
        thread = Thread(target=step, daemon=True)
        thread.start()
        thread.join(120)
        assert not thread.is_alive()
    assert not folder.write(file())
    folder.clear()
    assert folder.usage() == (0, 0, 0) and path.exists() and not folder.damaged


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError, match="cannot keep KV"):
            KVFolder(place, SPACE, 1)
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(UsageError, match="above 0"):
        KVFolder(tmp_path / "kv", SPACE, 0)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_that_is_not_numbers_is_not_kept(folder: KVFolder, dtype: torch.dtype, number: float) -> None:
    broken = file(dtype=dtype)
    broken.parts["kv"][1, 1, 0, 2] = number
    assert not folder.write(broken) and folder.usage() == (0, 0, 0)


def test_file_that_cannot_be_opened_now_is_a_miss_and_stays(folder: KVFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(folder, file())
    too_many = raising(OSError(24, "Too many open files"))
    with monkeypatch.context() as context:
        context.setattr("os.open", too_many)
        assert read(folder) is None
    with monkeypatch.context() as context:
        context.setattr("os.utime", too_many)
        assert read(folder) is not None
    assert path.exists() and (folder.failed, folder.damaged) == (1, 0)


def test_what_must_stay_is_replaced_whole_synced_and_told_of(folder: KVFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def replaced(self: Path, target: Path) -> Path:
        done.append("named")
        return replace(self, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    for number in (1, 2):
        folder.put(KVFile(AGENT, SPACE, b"a" * 32, {"text": torch.full((9,), number)[:9].int()}, label="ann"))
    assert done == ["file", "named", "folder"] * 2
    found = folder.get(b"a" * 32, AGENT)
    assert found is not None and found.head["text"].tolist() == [2] * 9
    assert [one.label for one in folder.lasting(AGENT)] == ["ann"]
    path = folder.path(b"a" * 32, AGENT)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptError, match="damaged or foreign"):
        folder.get(b"a" * 32, AGENT)
    assert path.exists(), "it may be all that there is"
    folder.remove(b"a" * 32, AGENT)
    folder.remove(b"a" * 32, AGENT)
    assert folder.get(b"a" * 32, AGENT) is None and folder.usage() == (0, 0, 0)


def test_what_must_go_and_cannot_is_an_error(folder: KVFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder, file())
    monkeypatch.setattr(Path, "unlink", raising(PermissionError(13, "Permission denied")))
    calls: tuple[Callable[[], None], ...] = (
        folder.clear, lambda: folder.discard({bytes(32)}), lambda: folder.expire(1e11),
    )  # fmt: skip
    for remove in calls:
        with pytest.raises(WarmFileError, match="Make it writable"):
            remove()


# Fresh interpreters, not forks: a fork of a process that has used torch's threads waits for them for ever.
WRITES = """
import sys
import numpy as np
import torch
from tests.kv.store.conftest import SPACE
from tests.kv.store.test_kv_folder import file, read
from pltz.kv.store.kv_folder import KVFolder

place, seed, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
folder = KVFolder(place, SPACE, budget)
for n in np.random.default_rng(seed).integers(0, 12, 60).tolist():
    one = file(n, 40)
    found = read(folder, n)
    assert found is None or torch.equal(found.parts["kv"], one.parts["kv"])
    folder.write(one)
    assert folder.usage()[0] <= budget
assert not folder.damaged
"""


def test_processes_share_a_folder_and_its_budget(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WRITES, str(tmp_path)]
    workers = [subprocess.Popen([*words, str(seed), "30000"]) for seed in range(2)]
    assert [worker.wait(300) for worker in workers] == [0, 0]
    assert 0 < KVFolder(tmp_path, SPACE, 30_000).usage()[0] <= 30_000


def test_a_run_that_cannot_be_read_now_is_discarded_with_any_block(
    folder: KVFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = written(folder, file(1))
    monkeypatch.setattr(kv_file, "peek", raising(OSError(24, "too many open files")))
    runs = [written(folder, file(2, form="raw")), folder.path(bytes([3]) * 32, "raw").with_suffix(".0123abcd.part")]
    runs[1].touch()
    folder.discard({b"x" * 32})
    assert kept.exists() and not any(path.exists() for path in runs)

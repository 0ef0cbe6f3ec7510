"""A file of KV is read while it is decoded: bytes are handed out when their chunk was checked. Damage never passes."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pltz.kv.port.arriving import ArrivingParts, shells
from pltz.kv.store import kv_file
from pltz.kv.store.kv_file import KVFile
from pltz.kv.store.kv_folder import UNDER_WAY, KVFolder
from pltz.plt_codec.errors import CorruptError
from tests.kv.store.conftest import SPACE
from tests.kv.store.test_kv_folder import file, read, written

PATIENCE = 180  # seconds


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_file, "CHUNK", 256)


@pytest.fixture
def folder(tmp_path: Path) -> KVFolder:
    return KVFolder(tmp_path / "kv", SPACE, 1 << 24)


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


def test_a_part_is_there_before_its_file_was_read(folder: KVFolder, gate: Gate) -> None:
    one = file(tokens=50)
    written(folder, one)
    found = read(folder)
    assert found is not None and torch.equal(found.head["ids"], one.head["ids"])
    parts, kv = found.parts, one.parts["kv"]
    assert isinstance(parts, ArrivingParts) and not parts.complete and shells(parts)["kv"].shape == kv.shape
    begun = parts._progress.there
    while parts._progress.there == begun:  # one of the two threads may take what is let through again and again
        gate.open(1)
        time.sleep(0.01)
    there = parts.wait("kv", 10)
    assert 10 <= there < kv.numel() and torch.equal(shells(parts)["kv"].view(-1)[:there], kv.view(-1)[:there])
    gate.open()
    assert torch.equal(parts["kv"], kv) and parts.complete


def test_any_reader_of_safetensors_opens_a_file_of_many_chunks(folder: KVFolder) -> None:
    one = file(tokens=50)
    found = load_file(written(folder, one))
    assert torch.equal(found["kv"], one.parts["kv"]) and torch.equal(found["ids"], one.head["ids"])
    assert len(found["checksums"]) > 5


def test_a_header_that_names_another_tenant_is_damage(folder: KVFolder) -> None:
    path = written(folder, file())
    path.write_bytes(path.read_bytes().replace(b'"tenant":"74', b'"tenant":"75'))
    assert read(folder) is None and not path.exists() and folder.damaged == 1


def settled(folder: KVFolder) -> None:
    """Wait until no thread reads."""
    assert folder._threads is not None
    folder._threads.shutdown()
    folder._threads = ThreadPoolExecutor(2)


def arriving(folder: KVFolder) -> Any:
    found = read(folder)
    assert found is not None
    return found.parts


def test_a_file_that_is_cut_while_it_is_read_is_refused(folder: KVFolder, gate: Gate) -> None:
    path, parts = written(folder, file(tokens=50)), arriving(folder)
    os.truncate(path, path.stat().st_size - 300)
    gate.open()
    with pytest.raises(CorruptError, match="early"):
        parts["kv"]
    settled(folder)
    assert folder.damaged == 1 and not path.exists()


def test_a_disk_that_fails_during_a_read_is_a_miss_and_the_file_stays(folder: KVFolder, gate: Gate) -> None:
    path, parts = written(folder, file(tokens=50)), arriving(folder)
    gate.failure = OSError(5, "Input/output error")
    gate.open()
    with pytest.raises(CorruptError, match="Input/output"):
        parts["kv"]
    settled(folder)
    assert (folder.failed, folder.damaged) == (1, 0) and path.exists()


def test_damage_does_not_remove_sound_file_that_took_its_place(folder: KVFolder, gate: Gate, tmp_path: Path) -> None:
    path = written(folder, file(tokens=50))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    parts = arriving(folder)
    (tmp_path / "new").write_bytes(data)
    (tmp_path / "new").replace(path)
    gate.open()
    with pytest.raises(CorruptError):
        parts["kv"]
    settled(folder)
    assert folder.damaged == 1 and path.read_bytes() == data


def test_files_are_closed_and_too_many_at_once_are_read_by_their_callers(folder: KVFolder, gate: Gate) -> None:
    count = UNDER_WAY + 3
    for n in range(count):
        written(folder, file(n, 50))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    found = [read(folder, n) for n in range(count)]
    done = [one.parts.complete for one in found if one is not None and isinstance(one.parts, ArrivingParts)]
    assert done == [False] * UNDER_WAY + [True] * 3
    gate.open(10_000)
    for n, one in enumerate(found):
        assert one is not None and torch.equal(one.parts["kv"], file(n, 50).parts["kv"])
    settled(folder)
    assert not before or len(os.listdir("/proc/self/fd")) == before
    assert folder._under_way == 0


def test_a_read_begun_when_the_interpreter_ends_is_done_by_its_caller(folder: KVFolder) -> None:
    written(folder, file(tokens=50))
    folder._threads = ThreadPoolExecutor(1)
    folder._threads.shutdown()  # it refuses new work, as all do at the end
    assert torch.equal(arriving(folder)["kv"], file(tokens=50).parts["kv"])


def test_a_sparse_file_of_any_size_takes_no_memory(folder: KVFolder) -> None:
    path = written(folder, file(tokens=50))
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    wide = data[8:end].replace(b'"shape":[2,50,3,4]', b'"shape":[2,50,3,4000000000]')
    path.write_bytes(data[:8] + wide[: end - 8] + data[end:])
    os.truncate(path, 1 << 40)
    assert read(folder) is None and not path.exists()


def test_parts_of_any_other_name_are_not_written(folder: KVFolder) -> None:
    assert not folder.write(KVFile("ids", SPACE, bytes(32), {}, {"other": torch.zeros(1)}))
    assert not folder.write(KVFile("ids", SPACE, bytes(32), {}, {"kv": torch.zeros(1, dtype=torch.complex64)}))


def test_ids_in_numbers_that_numpy_has_not_are_damage(folder: KVFolder) -> None:
    data = KVFile("raw", SPACE, bytes(32), {"ids": torch.zeros(16, dtype=torch.bfloat16)})
    folder.path(data.name, data.form).touch(0o600)
    with folder.path(data.name, data.form).open("r+b") as stream:
        kv_file.KVFileWriter(data).fill(stream.fileno())
    folder.look()
    assert folder.damaged == 1 and not folder.path(data.name, data.form).exists()

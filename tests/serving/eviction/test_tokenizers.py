"""Tokenizers that a journal keeps: durable once reported, at any crash, and a crash leaves no partial file."""

from collections.abc import Callable

import pytest

from pltz.archive.errors import StoreError
from pltz.serving.eviction.journal.lock import draw
from pltz.serving.eviction.journal.reader import JournalReader
from pltz.serving.eviction.tokenizers import Tokenizers
from tests.archive.simulated_disk import SimDisk
from tests.serving.eviction.conftest import MemoryLocks


@pytest.fixture
def spec(tiny_tokenizer_json: Callable[..., bytes]) -> bytes:
    return tiny_tokenizer_json()


def left(disk: SimDisk) -> list[str]:
    return sorted(file.rpartition(".")[2] for file, _ in disk.names(""))


def test_every_crash_leaves_the_tokenizer_or_none_and_a_worker_clears_the_rest(disk: SimDisk, spec: bytes) -> None:
    name = Tokenizers(disk).keep(spec, MemoryLocks(disk))
    assert left(disk) == ["tokenizer"]
    fresh, seen = SimDisk(), set[tuple[str, ...]]()

    def crash() -> None:
        for state in fresh.crashes():
            again = SimDisk(state, seed=9)
            kinds = tuple(left(again))
            if kinds in seen and "tmp" not in kinds:
                continue
            seen.add(kinds)
            JournalReader(again, MemoryLocks(again)).tidy()
            assert set(left(again)) <= {"tokenizer"} and Tokenizers(again).keep(spec, MemoryLocks(again)) == name
            assert Tokenizers(again).get(name) == spec and left(again) == ["tokenizer"]

    fresh.watch = crash
    Tokenizers(fresh).keep(spec, MemoryLocks(fresh))
    fresh.watch = lambda: None
    assert any("tmp" in kinds for kinds in seen) and Tokenizers(SimDisk(fresh.durable)).get(name) == spec


@pytest.mark.parametrize("damage", [b"", b"{}"])
def test_a_damaged_one_is_written_again(disk: SimDisk, spec: bytes, damage: bytes) -> None:
    locks = MemoryLocks(disk)
    name = Tokenizers(disk).keep(spec, locks)
    disk.overwrite(f"{name.hex()}.tokenizer", damage)
    assert Tokenizers(disk).get(name) is None
    assert Tokenizers(disk).keep(spec, locks) == name and Tokenizers(disk).get(name) == spec
    assert left(disk) == ["tokenizer"]


def test_what_a_living_process_writes_is_left_alone(disk: SimDisk) -> None:
    locks = MemoryLocks(disk)
    owner, lock = draw(disk, locks)
    disk.write_new(f"{owner.hex()}.tmp", b"half a tok")
    disk.write_new("notes.tmp", b"of somebody else")
    JournalReader(disk, locks).tidy()
    assert left(disk) == ["lock", "tmp", "tmp"]
    lock.free()
    JournalReader(disk, locks).tidy()
    assert [file for file, _ in disk.names("")] == ["notes.tmp"]


def test_a_full_disk_leaves_nothing(disk: SimDisk, spec: bytes) -> None:
    for call in range(1, 6):
        disk.fail_at = {disk.calls + call: OSError(28, "No space left on device")}
        try:
            Tokenizers(disk).keep(spec, MemoryLocks(disk))
        except StoreError:
            assert set(left(disk)) <= {"tokenizer"}

"""Test the generations of manifests that a machine remembers outside the archive."""

import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.errors import NotFound, RolledBack
from pltz.archive.storage.places import open_store
from pltz.archive.storage.seen import SeenGenerations
from pltz.plt_codec.errors import PltzError
from tests.archive.kit import NewSession, Repairer, SegmentCodec, TowerArchive

ARCHIVE = bytes(range(16))


def session(name: str) -> NewSession:
    return NewSession(name, [np.arange(20), np.array([*name.encode()])], shared=1)


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let what is made next stand for another process: it knows what the machine keeps, and no more."""
    return lambda: monkeypatch.setattr("pltz.archive.storage.seen.PLACES", {})


def test_other_processes_know_what_was_durable(tmp_path: Path, another_process: Callable[[], None]) -> None:
    writer, beside = SeenGenerations(tmp_path / "a"), SeenGenerations(tmp_path / "a")
    another_process()
    reader = SeenGenerations(tmp_path / "a")
    assert not reader.highest()
    for generation, durable in ((5, True), (9, False), (7, True), (6, True)):
        writer.note(ARCHIVE, generation, durable=durable)
    assert writer.highest() == {ARCHIVE: 9} == beside.highest() and SeenGenerations(tmp_path / "b").highest() == {}
    assert reader.highest() == {ARCHIVE: 7} == SeenGenerations(tmp_path / "a").highest()
    assert SeenGenerations().highest() == {} and [p.name for p in (tmp_path / "a").iterdir()] == ["generation"]


@pytest.mark.parametrize("data", [b"", b"x y", b"\xff\xfe", b"00 5 7", f"{ARCHIVE.hex()} {1 << 63}".encode()])
def test_a_file_that_says_nothing_sensible_counts_for_nothing(
    tmp_path: Path, another_process: Callable[[], None], data: bytes
) -> None:
    (tmp_path / "generation").write_bytes(data)
    seen = SeenGenerations(tmp_path)
    assert seen.highest() == {}
    seen.note(ARCHIVE, 3, durable=True)
    another_process()
    assert SeenGenerations(tmp_path).highest() == {ARCHIVE: 3}


@pytest.mark.skipif(not os.geteuid(), reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    seen = SeenGenerations(tmp_path / "a")
    seen.note(ARCHIVE, 3, durable=True)
    assert seen.highest() == {ARCHIVE: 3}


@pytest.mark.parametrize("what", ["all", "manifest"])
def test_a_directory_brought_back_from_a_backup_is_known_to_other_processes(
    tmp_path: Path, codec: SegmentCodec, another_process: Callable[[], None], what: str
) -> None:
    """No process is left that saw more. The machine did."""
    place, backup = tmp_path / "cold", tmp_path / "backup"
    TowerArchive.create(open_store(place), [codec]).put([session("a")])
    shutil.copytree(place, backup)
    TowerArchive.open(open_store(place), [codec]).put([session("b")])
    folder = "" if what == "all" else "manifest"
    shutil.rmtree(place / folder)
    shutil.copytree(backup / folder, place / folder)
    for _ in range(2):
        another_process()
        with pytest.raises(RolledBack, match="was seen"):
            TowerArchive.open(open_store(place), [codec])
    copied = TowerArchive.open(open_store(backup), [codec])  # another place: nothing was seen there
    with pytest.raises(NotFound):
        copied.get("b")
    assert Repairer(open_store(place)).run().rolled_back
    fresh = TowerArchive.open(open_store(place), [codec])
    with pytest.raises(NotFound):
        fresh.get("c")
    assert fresh.verify(decode=True).sound


@pytest.mark.parametrize("work", ["get", "put"])
def test_a_swap_before_the_look_at_what_was_seen_is_no_roll_back(
    tmp_path: Path, codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Others put while this one has loaded the manifest and has not yet read what the machine saw."""
    place, left = tmp_path / "cold", list[str]()
    TowerArchive.create(open_store(place), [codec])
    writer, slow = (TowerArchive.open(open_store(place), [codec]) for _ in range(2))
    highest = slow.store.seen.highest

    def delayed() -> Mapping[bytes, int]:
        if left:
            writer.put([session(left.pop())])
        return highest()

    monkeypatch.setattr(slow.store.seen, "highest", delayed)
    writer.put([session("a")])
    left += "bcd"
    if work == "get":
        with pytest.raises(NotFound):
            slow.get("none")
    else:
        slow.put([session("e")])
    assert not left
    last = TowerArchive.open(open_store(place), [codec])
    assert [v.name for v in last.ls()] == [*"abcde"][: 4 + (work == "put")] and last.verify().sound


def test_who_puts_at_the_same_time_takes_none_of_the_others_for_a_backup(tmp_path: Path, codec: SegmentCodec) -> None:
    """Others swap, and tell it to the machine, between the look at the manifest and that at what was seen."""
    place = tmp_path / "cold"
    TowerArchive.create(open_store(place), [codec])

    def work(writer: int) -> list[bool]:
        own = TowerArchive.open(open_store(place), [codec])
        told = []
        for number in range(10):
            own.put([session(f"{chr(97 + writer)}{number}")])
            with pytest.raises(PltzError) as caught:
                own.get("none")
            told.append(isinstance(caught.value, RolledBack))
        return told

    with ThreadPoolExecutor(4) as pool:
        assert not any(told for row in pool.map(work, range(4)) for told in row)
    last = TowerArchive.open(open_store(place), [codec])
    assert len(list(last.ls())) == 40 and last.verify().sound

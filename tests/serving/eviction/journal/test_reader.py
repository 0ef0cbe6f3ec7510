"""Segments that are gone although no worker deleted them: the worker tells once, the status until they are seen to."""

import pytest

from pltz.serving.eviction.journal.reader import MOST_GONE, JournalReader
from pltz.serving.eviction.journal.segment import DELETED, Name
from pltz.serving.eviction.journal.writer import Journal
from tests.serving.eviction.conftest import Bench, entry


@pytest.fixture
def names(bench: Bench) -> list[Name]:
    """Write five segments of one entry each, of an owner that died."""
    journal = Journal(bench.disk, bench.locks, segment=1)
    names = [journal.append([entry(f"s{n}", 9, n).encode()])[0] for n in range(5)]
    journal.close()
    return names


def reader(bench: Bench) -> JournalReader:
    return JournalReader(bench.disk, bench.locks)


def journal_files(bench: Bench) -> list[str]:
    return sorted(f for f, _ in bench.disk.names("") if f.endswith((".journal", ".done", ".lost")))


@pytest.mark.parametrize("kinds", [("journal",), ("journal", "done")], ids=["its mark is left", "nothing is left"])
def test_a_segment_that_is_gone_is_told(bench: Bench, names: list[Name], kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        bench.disk.unlink(f"{names[2]}.{kind}")
    assert reader(bench).status().lost == [names[2].lost]
    done = bench.worker().once()
    assert (done.stored, done.lost, done.damaged) == (4, 1, 0)
    assert journal_files(bench) == [names[2].lost], "what is told stays until somebody removes it"
    assert bench.worker().once().lost == 0 and reader(bench).status().lost == [names[2].lost]
    bench.disk.unlink(names[2].lost)
    assert reader(bench).status().lost == [] and bench.worker().once().lost == 0


def test_segments_that_a_worker_deletes_are_no_loss(bench: Bench, names: list[Name]) -> None:
    """Delete the third, while the first two wait: its mark stays until they are gone."""
    backlog = reader(bench)
    [*_, third, fourth, fifth] = backlog.segments()
    for segment in (third, fourth):
        for frame, _ in backlog.read(segment):
            backlog.mark(segment, frame.end)
        assert backlog.finish(segment)
    backlog.tidy()
    assert backlog.note_lost() == 0 and backlog.status().lost == []
    assert names[2].done in journal_files(bench) and names[2].journal not in journal_files(bench)
    done = bench.worker().once()
    assert (done.stored, done.lost) == (3, 0) and journal_files(bench) == [] and fifth.name == names[4]


def test_a_worker_that_was_killed_while_it_deleted(bench: Bench, names: list[Name]) -> None:
    bench.disk.overwrite(names[1].done, names[1].marks(0, DELETED))  # before the first is archived
    done = bench.worker().once()
    assert (done.stored, done.lost) == (4, 0) and journal_files(bench) == []


def test_names_far_apart_take_no_time(bench: Bench, names: list[Name]) -> None:
    bench.disk.write_new(Name(names[0].owner, 0xFFFFFFFF).done, b"")
    assert len(reader(bench).status().lost) == MOST_GONE + 1

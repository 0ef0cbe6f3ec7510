"""Grace: what was forgotten can be undeleted until its mark is older than the grace, whatever happens to its packs."""

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError
from pltz.archive.format.record import FORGET
from tests.archive.kit import NewSession, SimDisk, TowerArchive, create, reopen

DAY = 86400
WEEK = 7 * DAY
TURNS = [np.arange(40) % (5 + n) for n in range(8)]


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.clock = 1_800_000_000
    return disk


def filled(disk: SimDisk) -> TowerArchive:
    """Put four sessions in packs of their own, and condemn these a week ago."""
    archive = create(disk)
    for n in range(4):
        archive.put([NewSession(f"s{n}", [*TURNS[:2], TURNS[2 + n]])])
    assert archive.collect(grace=WEEK).condemned == 4
    disk.clock += WEEK + 60
    return archive


def nights(disk: SimDisk, count: int) -> None:
    """Collect once each night, and put a session so that there is always something to merge."""
    for _ in range(count):
        reopen(disk).put([NewSession(f"night-{disk.clock}", [np.arange(9)])])
        reopen(disk).collect(grace=WEEK)
        disk.clock += DAY


def test_a_forget_before_a_collect_is_undone_for_the_whole_grace(disk: SimDisk) -> None:
    archive = filled(disk)
    wanted = archive.get("s1").tokens.tolist()
    [version] = archive.history("s1")
    archive.forget([version])
    disk.clock += 60
    assert reopen(disk).collect(grace=WEEK).deleted == 4
    disk.clock += WEEK - 61
    reopen(disk).collect(grace=WEEK)
    reopen(disk).collect(forgotten=False)  # leaves it, however long ago that was
    assert reopen(disk).undelete(reopen(disk).history("s1")) == 1 and reopen(disk).get("s1").tokens.tolist() == wanted


def test_what_was_undeleted_stays_whatever_is_collected(disk: SimDisk) -> None:
    """Let the later of its two marks count."""
    archive = filled(disk)
    wanted = archive.get("s1").tokens.tolist()
    archive.forget(archive.history("s1"))
    archive.undelete(archive.history("s1"))
    nights(disk, 10)
    assert reopen(disk).get("s1").tokens.tolist() == wanted


def test_a_version_is_freed_after_its_grace_and_that_of_its_pack(disk: SimDisk) -> None:
    """A mark that is copied keeps its age: copies that made it younger would keep the version for ever."""
    archive = filled(disk)
    archive.forget(archive.history("s1"))
    nights(disk, 7)
    assert reopen(disk).history("s1"), "the seventh night was a minute ago"
    nights(disk, 9)
    assert not reopen(disk).history("s1") and len(list(reopen(disk).ls())) == 3 + 16
    assert reopen(disk).verify(decode=True).sound


def test_what_nobody_collects_is_freed_for_its_share(disk: SimDisk) -> None:
    """Forgotten versions are no dead bytes at first, so that nothing is copied for them in vain, and are so later."""
    archive = create(disk)
    archive.put([NewSession(f"s{n}", [TURNS[n]]) for n in range(4)])
    archive.forget([v for v in archive.ls() if v.name != "s0"])
    assert archive.collect(grace=WEEK, small=0).condemned == 0
    disk.clock += WEEK
    assert archive.collect(grace=WEEK, small=0).condemned == 1


def test_without_grace_all_is_freed_whatever_the_clock_says(disk: SimDisk) -> None:
    archive = filled(disk)
    disk.clock += 365 * DAY
    archive.forget(archive.history("s1"))
    disk.clock -= 365 * DAY
    assert reopen(disk).collect(grace=WEEK).live_versions == 4
    for _ in range(3):
        reopen(disk).collect(grace=0)
    assert not reopen(disk).history("s1") and len(list(reopen(disk).ls())) == 3


@pytest.mark.parametrize("first", ["forget", "join"])
def test_a_version_that_a_run_leaves_out(disk: SimDisk, first: str) -> None:
    archive, name = create(disk), 60 * "long name "
    for turns in range(1, 7):
        archive.put([NewSession(name, TURNS[:turns])])
    wanted = [archive.get(name, version=n).tokens.tolist() for n in range(1, 7)]
    for step in ("forget", "join") if first == "forget" else ("join", "forget"):
        done = archive.join() if step == "join" else archive.forget(archive.history(name)[1:3])
        assert done == (1 if step == "join" else 2)
    for _ in range(6):
        reopen(disk).collect(grace=WEEK)
        disk.clock += DAY
    archive = reopen(disk)
    assert archive.undelete(archive.history(name)) == 2
    archive = reopen(disk)
    assert [archive.get(name, version=n).tokens.tolist() for n in range(1, 7)] == wanted


def test_a_part_that_was_freed_stops_no_collector(disk: SimDisk) -> None:
    """A collector without grace frees the turns of a forgotten version, and its name is left in another pack."""
    archive = create(disk)
    archive.put([NewSession("a", TURNS[:3])])
    archive.put([NewSession("b", TURNS[:3]), NewSession("c", [np.random.default_rng(1).integers(0, 9, 999)])])
    archive.forget([*archive.history("a"), *archive.history("b")])
    for _ in range(2):
        archive.collect(grace=0, small=0, dead_share=0.5)
    [version] = archive.history("b")
    done = archive.collect(grace=WEEK)
    assert (done.live_versions, done.live_segments) == (1, 1)
    with pytest.raises(ArchiveError, match="already gone"):
        archive.undelete([version])
    assert archive.verify(decode=True).sound


def test_a_mark_tells_its_time_and_a_later_one_wins(disk: SimDisk) -> None:
    archive = filled(disk)
    version = archive.version("s1")
    archive.forget([version])
    assert archive.catalog.lookup.mark(version.id) == (FORGET, disk.clock)
    disk.clock -= 1000  # a clock that is behind
    archive.undelete([version])
    assert archive.version("s1").id == version.id
    archive.forget([version])
    assert archive.catalog.lookup.mark(version.id) == (FORGET, disk.clock + 1002)
    disk.clock = 1 << 40
    archive.undelete([version])
    archive.forget([version])
    assert archive.catalog.lookup.mark(version.id)[1] < 1 << 32

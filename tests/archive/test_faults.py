"""No session is silently absent when an object vanishes, or a list is short, at any point of any operation.

Each case is (operation, object, point, kill). Before step ``point`` of the operation the object vanishes or is no
longer listed. Before step ``kill`` (or never) the process ends and the power is cut. Then every acknowledged session
is read back exactly, or `get`, `ls` and `verify` report damage. A collector deletes nothing that is needed. When the
object is back, or after repair, all sessions are there.

The fast tests take a seeded sample of the cases; the slow one takes one in 97, and all of them
where the environment sets PLTZ_ALL_FAULTS=1.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError, ManifestLost, NotFound
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import PltzError
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive, copy

PROMPT = np.arange(20)
SESSIONS: dict[str, list[int]] = {name: [*range(20), *[ord(name)] * 9] for name in "abcd"}
GONE = "d"  # the session that the operations forget or erase
SAMPLE = 8  # cases per operation and fault in the fast test
PARTS = 97  # parts of all cases: an odd number takes those with a kill and those without in turn
TAKEN = range(PARTS) if os.environ.get("PLTZ_ALL_FAULTS") else (0,)  # all of them take half an hour


class Killed(BaseException):
    """The end of the process by a kill."""


@dataclass(frozen=True)
class Case:
    """One case (operation, object, point, kill) as the module describes it. ``kill``: None is never."""

    path: str
    point: int
    kill: int | None


def session(name: str) -> NewSession:
    tokens = np.array(SESSIONS[name])
    return NewSession(name, [tokens[:20], tokens[20:]], shared=1)


def built(codec: SegmentCodec, *, sealed: bool) -> SimDisk:
    """Make five packs and forget a session. A collector has condemned and deleted two packs and condemned others."""
    disk = SimDisk()
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW if sealed else None)
    for name in "ab":
        archive.put([session(name)])
    archive.collect()
    archive.collect()
    archive.put([session("c")])
    archive.write_index()
    archive.put([session(GONE)])
    if not sealed:
        archive.forget([archive.version(GONE)])
    archive.collect()
    return SimDisk(disk.seen, seed=7)


def reopen(disk: SimDisk, codec: SegmentCodec, sealed: bool) -> TowerArchive:
    return TowerArchive.open(DirectoryStore(disk), [codec], key=RAW if sealed else None)


def put(archive: TowerArchive, disk: SimDisk) -> None:
    archive.put([NewSession("new", [PROMPT, np.array([1])], shared=1)])


def collect(archive: TowerArchive, disk: SimDisk) -> None:
    archive.collect(dead_share=0.01)


def erase(archive: TowerArchive, disk: SimDisk) -> None:
    archive.erase("default", GONE)


def forget(archive: TowerArchive, disk: SimDisk) -> None:
    gone = archive.version(GONE, version=1)
    archive.undelete([gone])
    archive.forget([gone])


def repair(archive: TowerArchive, disk: SimDisk) -> None:
    Repairer(DirectoryStore(disk)).run()


def copy_all(archive: TowerArchive, disk: SimDisk) -> None:
    other = TowerArchive.create(DirectoryStore(SimDisk(seed=3)), archive.codecs)
    for _ in copy(archive, archive.ls(history=True), other):
        pass
    archive.want_whole("copied")
    found = {v.name for v in other.ls()}
    assert {"a", "b", "c"} <= found, "a copy that says nothing is whole"


OPERATIONS: dict[str, Callable[[TowerArchive, SimDisk], None]] = {
    "put": put,
    "collect": collect,
    "forget": forget,
    "repair": repair,
    "copy": copy_all,
    "erase": erase,
}


class Faulty(SimDisk):
    """A disk with a fault before step ``point``, and where the process ends before step ``kill``.

    A step is a change, or a read or list where the operation changes nothing.
    """

    def arm(self, happen: Callable[[], None], point: int, kill: int | None, *, reads: bool) -> None:
        self.happen, self.point, self.kill, self.reads, self.steps = happen, point, kill, reads, 0

    def _step(self, read: bool) -> None:
        if read != self.reads:
            return
        if self.steps == self.point:
            self.happen()
        if self.steps == self.kill:
            raise Killed
        self.steps += 1

    def _count(self) -> None:
        self._step(False)
        super()._count()

    def names(self, path: str) -> list[tuple[str, int]]:
        self._step(True)
        return super().names(path)

    def view(self, path: str) -> memoryview:
        self._step(True)
        return super().view(path)

    def read(self, path: str, offset: int, size: int) -> bytes:
        self._step(True)
        return super().read(path, offset, size)


def armed(disk: SimDisk) -> Faulty:
    """Return a disk of the same files without a fault yet."""
    faulty = Faulty(disk.seen, seed=7)
    faulty.arm(lambda: None, -1, None, reads=False)
    return faulty


def steps_of(disk: SimDisk, codec: SegmentCodec, name: str) -> int:
    """Return how many steps an operation takes without a fault."""
    faulty = armed(disk)
    archive = reopen(faulty, codec, name == "erase")
    faulty.arm(lambda: None, -1, None, reads=name == "copy")
    OPERATIONS[name](archive, faulty)
    return faulty.steps


def cases(codec: SegmentCodec, name: str) -> Iterator[tuple[SimDisk, Case]]:
    """Yield every object at every step, each without a kill and with one at a later step."""
    disk = built(codec, sealed=name == "erase")
    hurt = damaged(disk, codec) if name == "repair" else set()
    count = steps_of(disk, codec, name)
    assert count > 10
    dice = random.Random(name)
    for path in sorted(set(disk.seen.names) - hurt):
        if path == "archive.json" or path.startswith("keys/"):
            continue  # without these nothing opens; see test_golden.py
        for point in range(count + 1):
            yield disk, Case(path, point, None)
            if point < count and name != "copy":
                yield disk, Case(path, point, dice.randrange(point, count))


def damaged(disk: SimDisk, codec: SegmentCodec) -> set[str]:
    """Damage a pack so that repair has work. Return the files that repair needs, which must not vanish as well."""
    pack = reopen(disk, codec, False).version("a").location.pack.hex()
    disk.seen.data[disk.seen.names[f"packs/{pack}"]] = b"rot"
    return {f"packs/{pack}", f"parity/{pack}"}


def run(disk: SimDisk, codec: SegmentCodec, name: str, case: Case, sealed: bool, *, vanish: bool) -> None:
    """Run one case and check its result."""
    faulty = armed(disk)
    saved = disk.seen.files()[case.path]

    def happen() -> None:
        if vanish:
            faulty.vanish(case.path)
        else:
            faulty.hidden.add(case.path)

    archive = reopen(faulty, codec, sealed)
    faulty.arm(happen, case.point, case.kill, reads=name == "copy")
    with suppress(Killed, PltzError):
        OPERATIONS[name](archive, faulty)
    if case.point >= faulty.steps:
        happen()
    left = SimDisk(faulty.durable if case.kill is not None else faulty.seen, seed=11)
    left.hidden = set(faulty.hidden)
    wanted = set("abc")
    nothing_silent(left, codec, sealed, wanted)
    for _ in range(2):
        with suppress(ArchiveError):
            reopen(left, codec, sealed).collect(dead_share=0.01)
        nothing_silent(left, codec, sealed, wanted)
    left.hidden = set()
    if vanish and random.Random(case.point).random() < 0.5 and case.path not in left.seen.names:
        left.write_new(case.path, saved)  # it is back; half of the cases leave it to repair
        if name == "repair" or not case.path.startswith("packs/"):
            Repairer(DirectoryStore(left)).run()
    else:
        report = Repairer(DirectoryStore(left)).run()
        assert not (report.lost or report.unnamed or report.missing or report.uncounted), (case, report)
    whole = reopen(left, codec, sealed)
    for session_name in wanted:
        assert whole.get(session_name).tokens.tolist() == SESSIONS[session_name], (case, session_name)
    whole.want_whole("read")
    for _ in range(2):
        reopen(left, codec, sealed).collect(dead_share=0.01)
    last = reopen(left, codec, sealed)
    assert wanted <= {v.name for v in last.ls()} and last.verify(decode=True).sound, case


def nothing_silent(disk: SimDisk, codec: SegmentCodec, sealed: bool, wanted: set[str]) -> None:
    """Check that each session is read back exactly, or refused by an error that does not call it absent.

    Lists and verify must report the damage, too.
    """
    try:
        archive = reopen(disk, codec, sealed)
    except ManifestLost:
        return
    unread = set()
    for name in wanted:
        try:
            assert archive.get(name).tokens.tolist() == SESSIONS[name]
        except NotFound as exc:
            raise AssertionError(f"{name} is silently absent") from exc
        except PltzError as exc:
            assert exc.exit_code in (3, 7)
            unread.add(name)
    listed = {v.name for v in archive.ls()}
    if not wanted <= listed:
        with pytest.raises(ArchiveError):
            archive.want_whole("listed")
    if unread or not wanted <= listed:
        assert not reopen(disk, codec, sealed).verify().sound


@pytest.mark.parametrize("fault", ["vanishes", "unlisted"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_sample_of_all_faults_and_kills(codec: SegmentCodec, name: str, fault: str) -> None:
    dice, every = random.Random(f"{name} {fault}"), list(cases(codec, name))
    packs = [c for c in every if c[1].path.startswith("packs/")]  # half of the sample: these matter most
    for disk, case in dice.sample(packs, SAMPLE // 2) + dice.sample(every, SAMPLE // 2):
        run(disk, codec, name, case, name == "erase", vanish=fault == "vanishes")


@pytest.mark.slow
@pytest.mark.parametrize("part", TAKEN)
@pytest.mark.parametrize("fault", ["vanishes", "unlisted"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_all_faults_and_kills(codec: SegmentCodec, name: str, fault: str, part: int) -> None:
    for disk, case in itertools.islice(cases(codec, name), part, None, PARTS):
        run(disk, codec, name, case, name == "erase", vanish=fault == "vanishes")


def test_the_faults_are_seen_by_the_disk() -> None:
    disk = SimDisk()
    disk.make_directory("packs")
    for name in "ab":
        disk.write_new(f"packs/{name}", b"x")
    disk.hidden.add("packs/a")
    assert disk.names("packs") == [("b", 1)] and disk.read("packs/a", 0, 1) == b"x"
    disk.vanish("packs/b")
    assert disk.names("packs") == [] and disk.pending
    assert all("packs/b" not in state.names for state in disk.crashes())

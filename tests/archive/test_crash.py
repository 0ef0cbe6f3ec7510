"""Every crash of every workload of up to three operations keeps acknowledged sessions and leaves no partial ones.

A workload grows by one operation at a time, so only the crashes of its last one are new. One that comes to the disk of
a shorter or an earlier one does not grow. After each change of the disk all states that a power cut may leave are
enumerated (`SimDisk.crashes`). Files under tmp/ are never read, so states that differ only there count as one. Each
different state is opened, verified with decoding, and compared with the model.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from pltz.archive.format.record import RUN
from pltz.archive.maintenance.repair import Repairer
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import PltzError
from tests.archive.simulated_disk import DiskState, SimDisk
from tests.archive.towers import TowerArchive

PROMPT = np.arange(20)
Facts = frozenset[tuple[str, bytes, tuple[int, ...], bool]]  # name, number, tokens, forgotten
Files = frozenset[tuple[str, bytes]]  # those outside tmp/, with their bytes


@dataclass
class World:
    """A disk, its expected contents, and a count of cases."""

    codec: SegmentCodec
    disk: SimDisk
    facts: Facts = frozenset()
    erased: Facts = frozenset()  # forgotten long enough ago that they may be gone
    cases: int = 0
    opened: int = 0
    known: dict[Files, Facts] = field(default_factory=dict)  # live facts of sound states

    def branch(self) -> World:
        return World(self.codec, self.disk.clone(), self.facts, self.erased, 0, 0, self.known)

    def open(self) -> TowerArchive:
        return TowerArchive.open(DirectoryStore(self.disk), [self.codec])


def put(*sessions: tuple[str, list[list[int]]]) -> Callable[[TowerArchive], None]:
    def run(archive: TowerArchive) -> None:
        archive.put(
            [
                NewSession(n, [PROMPT, *map(np.array, turns)], shared=1, tags={"n": n})
                for n, turns in sessions
            ]
        )

    return run


def forget(archive: TowerArchive) -> None:
    archive.forget(list(archive.ls(history=True))[:1])


def restore(archive: TowerArchive) -> None:
    archive.undelete([v for v in archive.ls(history=True, forgotten=True) if v.forgotten])


def collect(archive: TowerArchive) -> None:
    archive.collect(dead_share=0.01)


def collect_twice(archive: TowerArchive) -> None:
    collect(archive)
    collect(archive)


def collect_to_the_end(archive: TowerArchive) -> None:
    """Condemn, delete, and condemn again what is small."""
    for _ in range(4):
        archive.collect(dead_share=0.01)


OPERATIONS: dict[str, Callable[[TowerArchive], None]] = {
    "put a": put(("a", [[1, 2, 3]])),
    "append to a": put(("a", [[1, 2, 3], [4, 5]])),
    "put b and c": put(("b", [[7] * 9]), ("c", [[7] * 9, [8]])),
    "forget": forget,
    "restore": restore,
    "collect": collect,
    "collect twice": collect_twice,
    "collect to the end": collect_to_the_end,
    "index": TowerArchive.write_index,
    "rebuild": TowerArchive.rebuild,
}


def facts_of(archive: TowerArchive) -> Facts:
    return frozenset(
        (v.name, v.id, tuple(archive.tower(v).tokens.tolist()), v.forgotten)
        for v in archive.ls(history=True, forgotten=True)
    )


def live(facts: Facts) -> Facts:
    return frozenset(f for f in facts if not f[3])


def check(world: World, state: DiskState, allowed: Sequence[Facts]) -> None:
    """Open the state after a crash, and check that it is sound and holds one of the allowed sets of facts."""
    found = sound_facts(world, state)
    assert found in [live(facts) for facts in allowed], (sorted(state.files()), found)


def files_of(state: DiskState) -> Files:
    return frozenset((p, d) for p, d in state.files().items() if not p.startswith("tmp/"))


def sound_facts(world: World, state: DiskState) -> Facts:
    """Open a state, check that it is sound, and return the facts in it that are not forgotten."""
    archive = TowerArchive.open(DirectoryStore(SimDisk(state, seed=1)), [world.codec])
    found = live(facts_of(archive))
    report = archive.verify(decode=True)
    assert report.sound, report
    return found


def step(world: World, name: str) -> None:
    """Do an operation, crash it at every point, and continue from its end."""
    before = world.facts
    todo: dict[Files, DiskState] = {}

    def watch() -> None:
        for state in world.disk.crashes("tmp"):
            world.cases += 1
            todo.setdefault(files_of(state), state)

    archive = world.open()
    world.disk.flush()
    world.disk.watch = watch
    OPERATIONS[name](archive)
    world.disk.watch = lambda: None
    after = facts_of(TowerArchive.open(DirectoryStore(world.disk.clone()), [world.codec]))
    if not name.startswith(("put", "append", "grow", "fork", "forget", "restore")):
        assert live(after) == live(before)
    # Acknowledged facts are durable: the worst crash now leaves exactly the new facts.
    durable = files_of(world.disk.durable)
    todo.setdefault(durable, world.disk.durable)
    for files, state in todo.items():
        if files not in world.known:
            world.known[files] = sound_facts(world, state)
            world.opened += 1
        assert world.known[files] in [live(before), live(after)], (sorted(state.files()), world.known[files])
    assert world.known[durable] == live(after)
    world.facts = after
    world.disk.clock += 1000


def test_every_crash_of_up_to_three_operations(codec: SegmentCodec) -> None:
    root = World(codec, SimDisk())
    TowerArchive.create(DirectoryStore(root.disk), [codec])
    level, cases, opened, workloads = [root], 0, 0, 0
    grown = {(files_of(root.disk.seen), files_of(root.disk.durable), root.facts)}
    for _ in range(3):
        following = []
        for world, name in itertools.product(level, OPERATIONS):
            branch = world.branch()
            step(branch, name)
            cases, opened, workloads = cases + branch.cases, opened + branch.opened, workloads + 1
            come_to = files_of(branch.disk.seen), files_of(branch.disk.durable), branch.facts
            if come_to not in grown:
                grown.add(come_to)
                following.append(branch)
        level = following
    print(f"{cases} crash cases, {opened} different, {workloads} workloads")
    assert opened > 1400


def join_all(archive: TowerArchive) -> None:
    archive.join()


JOINS = OPERATIONS | {
    "append to a": put(("a", [[1, 2, 3], [4, 5], [6] * 9])),
    "grow a": put(("a", [[1, 2, 3], [4, 5], [6] * 9, [7] * 5])),
    "fork a": put(("a", [[1, 2, 3], [8]])),
    "join": join_all,
    "join and collect": collect_twice,
}


def join(archive: TowerArchive) -> None:
    """Put the next turn of a session, and join its last ones."""
    segments = [tokens for _, tokens in archive.get("a").segments]
    archive.put_and_join([NewSession("a", [*segments, np.array([len(segments)] * 5)], shared=1, tags={"n": "a"})])


@pytest.mark.parametrize("seed", range(6))
def test_crashes_of_workloads_that_join_turns(
    codec: SegmentCodec, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Join the last turns after a put, at other moments than a collector, which may follow or have been."""
    monkeypatch.setattr("pltz.archive.maintenance.join.LEAST", 2)
    monkeypatch.setitem(globals(), "OPERATIONS", JOINS | {"grow a and join": join, "put, grow and join": join})
    dice = random.Random(seed)
    world = World(codec, SimDisk(seed=seed))
    TowerArchive.create(DirectoryStore(world.disk), [codec])
    for name in ("put a", "grow a and join"):
        step(world, name)
    assert world.open().places(world.open().version("a").leaf)[0].record.mode & RUN
    for _ in range(6):
        step(world, dice.choice(list(OPERATIONS)) if world.open().history("a") else "put a")


@pytest.mark.parametrize("seed", range(20))
def test_crashes_of_long_workloads(codec: SegmentCodec, seed: int) -> None:
    dice = random.Random(seed)
    world = World(codec, SimDisk(seed=seed))
    TowerArchive.create(DirectoryStore(world.disk), [codec])
    for _ in range(8):
        step(world, dice.choice(list(OPERATIONS)))


def test_every_crash_of_a_put_leaves_its_pack_told_or_unacknowledged(codec: SegmentCodec) -> None:
    """The manifest of before comes back after a crash: what was acknowledged is never taken for what was cut off."""
    disk = SimDisk(seed=3)
    archive = TowerArchive.create(DirectoryStore(disk), [codec])
    OPERATIONS["put a"](archive)
    kept = {p: d for p, d in disk.seen.files().items() if p.startswith("manifest/")}
    states, told = list[DiskState](), set[bool]()
    disk.flush()
    disk.watch = lambda: states.extend(disk.crashes("tmp"))
    OPERATIONS["put b and c"](archive)
    disk.watch = lambda: None
    for acknowledged, state in [*((False, s) for s in states), *((True, s) for s in disk.crashes("tmp"))]:
        crashed = SimDisk(state, seed=1)
        for path in [p for p in crashed.seen.names if p.startswith("manifest/")]:
            crashed.vanish(path)
        for path, data in kept.items():
            crashed.write_new(path, data)
        report = TowerArchive.open(DirectoryStore(crashed), [codec]).verify(decode=True)
        assert report.unnamed or not report.sound or not acknowledged
        told.add(report.sound)
        Repairer(DirectoryStore(crashed)).run()
        after = TowerArchive.open(DirectoryStore(crashed), [codec])
        names = {v.name for v in after.ls()}
        assert names in ({"a"}, {"a", "b", "c"}) and (len(names) == 3 or not acknowledged)
        assert after.verify(decode=True).sound
    assert told == {True, False}


class NoFileSync(SimDisk):
    def sync_file(self, path: str) -> None:
        self.watch()


class NoDirectorySync(SimDisk):
    def sync_directory(self, path: str) -> None:
        self.watch()


@pytest.mark.parametrize("broken", [NoFileSync, NoDirectorySync])
def test_the_simulator_finds_a_missing_sync(codec: SegmentCodec, broken: type[SimDisk]) -> None:
    whole = SimDisk()
    TowerArchive.create(DirectoryStore(whole), [codec])
    world = World(codec, broken(whole.seen))
    with pytest.raises((AssertionError, PltzError)):
        for name in ("put a", "append to a"):
            step_on(world, name)


def step_on(world: World, name: str) -> None:
    """Run `step` on a disk that cannot be cloned into its own kind."""
    archive, seen = world.open(), [DiskState()]
    world.disk.flush()
    world.disk.watch = lambda: seen.extend(world.disk.crashes())
    OPERATIONS[name](archive)
    world.disk.watch = lambda: None
    after = facts_of(world.open())
    for state in seen[1:]:
        check(world, state, [world.facts, after])
    check(world, world.disk.durable, [after])
    world.facts = after

"""Each operation, with each event before each of its calls to the disk, against the model of the walks.

A schedule is (operation, event, call). An event is a kill, after which the power is cut, other processes that collect,
put, forget or erase, a file that vanishes, or one that listings leave out. After a kill every state is opened that a
power cut may leave (`SimDisk.crashes`). Then the promises hold, also after two collectors, and after a repair.

Every run takes each call with a kill, and a sample of the others. PLTZ_ALL_FAULTS=1 takes all, and half an hour.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest

from pltz.archive.author import Author
from pltz.archive.catalog.lookup import Version
from pltz.archive.errors import KeyMismatch
from pltz.archive.maintenance.erase import Eraser
from pltz.archive.storage.store import Store
from pltz.plt_codec.errors import PltzError
from tests.archive.kit import RAW, DiskState, Repairer
from tests.archive.test_guarantees import (
    Event,
    GuardedMachine,
    InterruptedDisk,
    Key,
    KnownVersion,
    SealedMachine,
    numbered,
    rows_of,
)
from tests.archive.towers import TowerArchive

ALL = bool(os.environ.get("PLTZ_ALL_FAULTS"))
GROWN, SHORT, GONE, TURNS, ALONE = ("x", "grown"), ("x", "short"), ("x", "gone"), ("x", "turns"), ("y", "alone")
AT_MOST = 16, 3  # calls of an operation that something else comes before, of a sealed archive and of an open one
Files = frozenset[tuple[str, bytes]]


@pytest.fixture(autouse=True, scope="module")
def bounds_end() -> Iterator[None]:
    """End what machines patched that other tests go on from."""
    yield
    mock.patch.stopall()


def files_of(state: DiskState) -> Files:
    """Return the files of a state but those in tmp/, which nothing reads."""
    return frozenset(f for f in state.files().items() if not f[0].startswith("tmp/"))


class Scheduled(GuardedMachine):
    """A machine of which twins go on from the same archive, and more that may happen beside an operation."""

    victim = ""  # path of the file that vanishes
    later = 0  # calls after that until a kill
    on = InterruptedDisk

    def twin(self, state: DiskState | None = None) -> Scheduled:
        """Return a machine that knows the same, on a machine of its own with the same disk, or with one in a state."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        names = "known", "turns", "doubts", "orphans", "hurt", "held"
        vars(other).update(deepcopy({name: getattr(self, name) for name in names}))
        other.cache, other.crashed = TemporaryDirectory(), list[DiskState]()
        other.disk = self.on(state or self.disk.seen, seed=self.disk.seed + self.disk.drawn + 1)
        other.disk.clock, other.also_old = self.disk.clock + 1, int(state is None)
        other.handles = [other.open() for _ in self.handles]
        return other

    def may_refuse(self, event: Event) -> bool:
        return event is not None and event[0] == "holder"

    def power_fails(self) -> None:
        hidden, self.crashed = self.disk.hidden, [*self.disk.crashes("tmp")]
        super().power_fails()
        self.disk.hidden = hidden

    def _forgetter(self) -> None:
        """Let another process forget two versions, and collect until their marks are gone."""
        other = self.open()
        for key in GROWN, TURNS, SHORT:
            for row in rows_of(other, key)[:2]:
                other.forget([row])
                known = next(version for version in self.known[key] if version.id == row.id)
                known.forgotten, known.at, known.may_go = True, self.disk.clock, True
        for _ in range(3):
            self._collector()

    def _holder(self) -> None:
        """Let another process hold two sessions, of which one has forgotten versions."""
        for key in SHORT, GONE:
            self.open().catalog.holds.place(Author("a"), tenant=key[0], name=key[1])
            self.held.add(key)

    def _eraser(self) -> None:
        """Let another process erase all of a tenant."""
        self.open().erase("x")
        for of in self.known, self.turns, self.doubts, self.orphans:
            for key in [key for key in of if key[0] == "x"]:
                del of[key]

    def _renewer(self) -> None:
        """Let another process change the keys of a tenant."""
        other = self.open()
        Eraser(other.catalog, other.parts.writer).renew("x")

    def _vanish(self) -> None:
        data = self.disk.seen.files().get(self.victim)
        if data is None:
            return  # the operation took it away before
        self.hurt, self.mendable = {self.victim: data}, True
        self.disk.vanish(self.victim)
        self.disk.wait(self.later, self._kill)

    def _hide(self) -> None:
        if self.victim in self.disk.seen.names:
            self.hurt, self.mendable = {self.victim: self.disk.seen.files()[self.victim]}, False
            self.disk.hidden.add(self.victim)

    def put_and_join(self, event: Event) -> None:
        """Put a session turn by turn, and join its turns by the last put, of the object that put the others."""
        self.handles[1] = self.handles[0]
        with mock.patch("pltz.archive.maintenance.join.LEAST", 3):
            for count in range(1, 5):
                self.put_session(count // 4, TURNS, [[n, 5, n] for n in range(count)], event if count == 4 else None)

    def forget_first(self, key: Key, event: Event) -> None:
        for known, row in self.first(key, forgotten=False):
            self.forget_this(0, known, row, event)

    def undelete_first(self, key: Key, event: Event) -> None:
        for known, row in self.first(key, forgotten=True):
            self.undelete_this(0, known, row, event)

    def first(self, key: Key, *, forgotten: bool) -> list[tuple[KnownVersion, Version]]:
        """Return the first version of a session that is forgotten, or is not, and its row; none where there is none."""
        known = {version.id: version for version in self.known[key] if version.forgotten is forgotten}
        return [(known[row.id], row) for row in rows_of(self.handles[0], key) if row.id in known][:1]


class SealedScheduled(Scheduled, SealedMachine):
    """The same over a sealed archive. A crash leaves one of the keys to open it, or the other."""

    def opened(self, store: Store, key: Any = None) -> TowerArchive:
        for secret in (RAW, numbered(0)) if key is None else ():
            with suppress(KeyMismatch):
                return super().opened(store, secret)
        return super().opened(store, key)


def prepared(kind: type[Scheduled]) -> Scheduled:
    """Make an archive with joined turns, forgotten versions, parts, an index, and packs that are condemned or not."""
    machine = kind()
    machine.start()
    for count in range(1, 6):
        machine.put_session(0, GROWN, [[n, 9, n] for n in range(count)], None)
    machine.join_and_free(0)
    machine.put_session(0, SHORT, [[1], [2, 3]], None)
    machine.put_session(0, GONE, [[4], [5, 6]], None)
    machine.put_parts(0, "x", {"p": [1], "p|a": [2]}, None)
    machine.put_session(0, ALONE, [[7]], None)
    machine.write_index(0, None)
    for key in GONE, GROWN:
        machine.forget_first(key, None)
    machine.collect(0, 0.01, 0, None)  # condemns all of it
    machine.put_session(0, SHORT, [[1], [2, 3], [8]], None)
    return machine


@cache
def base(kind: str) -> Scheduled:
    return prepared(KINDS[kind])


def verify(machine: Scheduled, event: Event) -> None:
    report = machine.act(event, lambda: machine.handles[0].verify(decode=True))
    assert report is None or report.sound or machine.hurt, report


def release(machine: Scheduled, event: Event) -> None:
    machine.hold_this(0, SHORT, None)
    machine.release(0, event)


OPERATIONS: dict[str, Callable[[Scheduled, Event], object]] = {
    "put": lambda m, event: m.put_session(0, ("x", "new"), [[1], [2, 3]], event),  # the turns of another
    "put what was forgotten": lambda m, event: m.put_session(0, GONE, [[4], [5, 6]], event),
    "grow": lambda m, event: m.put_session(1, GROWN, [*m.turns[GROWN], [6, 9, 6]], event),
    "put and join": lambda m, event: m.put_and_join(event),
    "put parts": lambda m, event: m.put_parts(0, "x", {"p": [1], "p|b/c": [2]}, event),
    "forget": lambda m, event: m.forget_first(SHORT, event),
    "undelete": lambda m, event: m.undelete_first(GONE, event),
    "collect": lambda m, event: m.collect(0, 0.01, 0, event),
    "collect after another": lambda m, event: (m.collect(1, 0.01, 0, None), m.collect(0, 0.01, 0, event)),
    "join": lambda m, event: m.join(0, event),
    "index": lambda m, event: m.write_index(0, event),
    "expire": lambda m, event: m.expire(0, 1, event),
    "hold": lambda m, event: m.hold_this(0, SHORT, event),
    "release": lambda m, event: release(m, event),
    "copy": lambda m, event: m.copy_all(event),
    "verify": verify,
    "repair": lambda m, event: m.repair(event),
    "erase": lambda m, event: m.erase_this(0, SHORT, event),  # type: ignore[attr-defined]
    "rekey": lambda m, event: m.rekey(0, "change", event),  # type: ignore[attr-defined]
    "add a key": lambda m, event: m.rekey(0, "add", event),  # type: ignore[attr-defined]
    "renew": lambda m, event: m.renew(0, "x", event),  # type: ignore[attr-defined]
}
KINDS = {"open": Scheduled, "sealed": SealedScheduled}
SEALED = "erase", "rekey", "add a key", "renew"  # each crash of the last is in test_rekey.py
CHANGES = [name for name in OPERATIONS if name not in ("copy", "verify", "repair", *SEALED)]
EACH = [(kind, name) for kind in KINDS for name in OPERATIONS if kind == "sealed" or name not in SEALED]


def calls_of(kind: str, name: str) -> int:
    """Return how many calls an operation makes."""
    machine, counted = base(kind).twin(), list[int]()
    wait = machine.disk.wait

    def noted(calls: int, happen: Callable[[], None]) -> None:
        counted.append(machine.disk.calls_waited)
        wait(calls, happen)

    machine.disk.wait = noted  # type: ignore[method-assign]
    OPERATIONS[name](machine, ("kill", 1 << 20))
    return counted[-1] + (1 << 20)


def crashed(machine: Scheduled, name: str) -> Scheduled:
    """Cut the power before each call of an operation, and after its end. Return a machine that did it."""
    opened, call = set[Files](), 0
    while True:
        done, call = machine.twin(), call + 1
        OPERATIONS[name](done, ("kill", call))
        for state in done.crashed if done.killed else done.disk.crashes("tmp"):
            if not done.killed or files_of(state) not in opened:
                opened.add(files_of(state))
                done.twin(state).promises_hold()
        if not done.killed:
            return done


@pytest.mark.parametrize(("kind", "name"), [case for case in EACH if case[1] in (*CHANGES, *SEALED[:3])])
def test_each_crash_leaves_what_was_acknowledged(kind: str, name: str) -> None:
    crashed(base(kind), name)


@pytest.mark.parametrize("seed", range(20 if ALL else 2))
@pytest.mark.parametrize("kind", KINDS)
def test_each_crash_of_a_long_workload(kind: str, seed: int) -> None:
    machine, dice = base(kind), random.Random(f"{kind} {seed}")
    for _ in range(3):
        machine = crashed(machine, dice.choice(CHANGES))


class NoFileSync(InterruptedDisk):
    def sync_file(self, path: str) -> None:
        self.watch()


class NoDirectorySync(InterruptedDisk):
    def sync_directory(self, path: str) -> None:
        self.watch()


@pytest.mark.parametrize("broken", [NoFileSync, NoDirectorySync])
def test_a_missing_sync_is_found(broken: type[InterruptedDisk]) -> None:
    machine = base("open").twin()
    machine.on = broken
    with pytest.raises((AssertionError, PltzError)):
        crashed(machine, "put")


def test_each_crash_of_a_put_leaves_its_pack_told_or_unacknowledged() -> None:
    """The manifest of before comes back after a crash: what was acknowledged is never taken for what was cut off."""
    kept, states, told = base("open").present, list[tuple[bool, DiskState]](), set[bool]()
    for call in itertools.count(1):
        machine = base("open").twin()
        OPERATIONS["put"](machine, ("kill", call))
        left = machine.crashed if machine.killed else machine.disk.crashes("tmp")
        states += [(not machine.killed, state) for state in left]
        if not machine.killed:
            break
    for acknowledged, state in states:
        crashed = base("open").twin(state)
        for path in crashed.present:
            crashed.disk.vanish(path)
        for path, data in kept.items():
            crashed.overwrite(path, data)
        crashed.forget_all_seen()
        report = crashed.open().verify(decode=True)
        assert report.unnamed or not report.sound or not acknowledged
        told.add(report.sound)
        Repairer(crashed.store()).run()
        after = crashed.open()
        assert ("new" in {v.name for v in after.ls()} or not acknowledged) and after.verify(decode=True).sound
    assert told == {True, False}


BESIDES = {  # what others do, and beside what
    "collector": [*OPERATIONS],
    "writer": ["collect", "join", "index", "erase", "rekey", "renew", "verify"],
    "forgetter": ["put what was forgotten", "grow", "put and join", "undelete", "join", "collect", "renew"],
    "eraser": ["collect", "join", "expire", "copy", "verify"],
    "renewer": ["put", "grow", "put and join", "undelete", "collect", "join", "copy", "verify"],
    "holder": ["put what was forgotten", "forget", "collect", "collect after another", "expire", "erase"],
}


@pytest.mark.parametrize(
    ("kind", "name", "beside"), [(*case, of) for of, names in BESIDES.items() for case in EACH if case[1] in names]
)
def test_what_others_do_meanwhile(kind: str, name: str, beside: str) -> None:
    if beside in ("eraser", "renewer") and kind == "open":
        pytest.skip("only a sealed archive has keys")
    calls = range(1, calls_of(kind, name) + 1)
    for call in calls[:: 1 if ALL else max(1, len(calls) // AT_MOST[kind == "open"])]:
        machine = base(kind).twin()
        OPERATIONS[name](machine, (beside, call))
        machine.promises_hold()
        if machine.held:  # nothing of it goes any more
            left = {v.id for key in machine.held for v in rows_of(machine.open(), key)}
            for _ in range(3):
                machine.collect(0, 0.01, 0, None)
            assert left == {v.id for key in machine.held for v in rows_of(machine.open(), key)}


UNHURT = "verify", "repair", "index", "rekey", "add a key"


@pytest.mark.parametrize("fault", ["vanish", "hide"])
@pytest.mark.parametrize(("kind", "name"), [case for case in EACH if case[1] not in UNHURT])
def test_a_file_that_is_away_hides_nothing_in_silence(kind: str, name: str, fault: str) -> None:
    dice, paths = random.Random(f"{kind} {name} {fault}"), sorted(base(kind).disk.seen.names)
    paths = [path for path in paths if path != "archive.json" and not path.startswith(("keys/", "manifest/before"))]
    packs = [path for path in paths if path.startswith("packs/")]
    calls = range(1, calls_of(kind, name) + 1)
    cases = [(path, call) for path in paths for call in calls] if ALL else []
    for path, call in cases or [(dice.choice(dice.choice([paths, packs])), dice.choice(calls)) for _ in range(5)]:
        machine = base(kind).twin()
        machine.victim = path
        machine.later = 0 if path.startswith("manifest/") else dice.choice([0, 0, 1, 5, 20])
        OPERATIONS[name](machine, (fault, call))
        for _ in range(2):
            machine.promises_hold()
            machine.collect(1, 0.01, 0, None)
        machine.promises_hold()
        if fault == "hide":
            machine.disk.hidden, machine.hurt = set(), {}
            machine.handles = [machine.open() for _ in machine.handles]
        elif dice.random() < 0.5 and machine.hurt:
            machine.put_back()
        machine.repair(None)
        machine.promises_hold()
        assert not machine.hurt

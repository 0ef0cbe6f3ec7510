"""The simulated disk yields each state that a crash may leave, once."""

import itertools
import random

from tests.archive.kit import DiskState, SimDisk
from tests.archive.simulated_disk import _outcomes


def by_product(disk: SimDisk, *unread: str) -> list[DiskState]:
    """Return the states of all outcomes of all pending changes, many of them alike."""
    states = []
    for chosen in itertools.product(*(_outcomes(change, unread) for change in disk.pending)):
        state = disk.durable.copy()
        for change, outcome in zip(disk.pending, chosen, strict=True):
            if outcome != "lost":
                disk._apply(state, change, outcome)
        states.append(state)
    return states


def changed(disk: SimDisk, dice: random.Random) -> None:
    """Make a change or a sync at random."""
    there = sorted(path for path in disk.seen.names if path.startswith(("tmp/", "a/")))
    free = sorted({f"{folder}/{name}" for folder in ("tmp", "a") for name in "xyz"} - {*there})
    path = dice.choice(there) if there else ""
    kind = dice.choice(["write", "append", "link", "unlink", "unlink", "cut", "sync", "folder"])
    if kind == "write" and free:
        disk.write_new(dice.choice(free), dice.randbytes(dice.choice([1, 4])))
    elif kind == "folder":
        disk.make_directory(f"a/{dice.choice('vw')}")
    elif kind == "sync" and dice.random() < 0.3:
        disk.sync_directory(dice.choice(["a", "tmp"]))
    elif kind == "link" and path and free:
        disk.link(path, dice.choice(free))
    elif path and kind in ("append", "unlink", "cut", "sync"):
        {
            "append": lambda: disk.append(path, b"more"), "unlink": lambda: disk.unlink(path),
            "cut": lambda: disk.truncate(path, 2), "sync": lambda: disk.sync_file(path),
        }[kind]()


def test_crashes_are_those_of_all_outcomes_each_once() -> None:
    found, alike = 0, 0
    for seed in range(60):
        dice, disk = random.Random(seed), SimDisk()
        for folder in ("a", "tmp"):
            disk.make_directory(folder)
        disk.sync_directory("")
        for _ in range(dice.randrange(3, 10)):
            changed(disk, dice)
        if len(disk.pending) > 8:
            continue
        for unread in ((), ("tmp",)):
            wanted, states = by_product(disk, *unread), [*disk.crashes(*unread)]
            assert all(state in wanted for state in states) and all(state in states for state in wanted), seed
            assert all(a != b for a, b in itertools.combinations(states, 2)), seed
            found, alike = found + len(states), alike + len(wanted) - len(states)
    assert found > 500 and alike > 500

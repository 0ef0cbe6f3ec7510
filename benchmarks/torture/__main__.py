"""``python -m pltz.benchmarks.torture``: kill everything that works on one archive at random moments, and compare
with a record of what was acknowledged.

    python -m pltz.benchmarks.torture --kills 1000 --seed 7
    python -m pltz.benchmarks.torture --seconds 60 --sealed --keep /tmp/torture --json

Writers, collectors, erasers, repairers, hook workers and the nightly job run side by side, two to four at
once, as processes of their own. Most are killed by SIGKILL: after a random time, or before a random disk
call. The parent records requests and acknowledgements in memory and in DIR/record.jsonl, outside of the
archives. After a number of kills all children stop, and the archives are compared with the record
(`record.compare`). Then a file is damaged within the limits of parity and second copies, repairers are
killed while they work on it, and all is compared again.

The dice are seeded: a seed draws the same operations and fates as long as the operations finish in the same
order. The moment of a kill by time depends on the machine. benchmarks/torture/TORTURE.md lists the checks and the
findings."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click

from pltz.archive.humanize import counted

SLOTS = 2, 4  # children at once
KILLED = 0.75  # share of the children that are to be killed
AT_CALL = 0.5  # share of these that are killed before a disk call
BEYOND = 1.15  # latest kill, as a factor of the time or the number of calls that an operation took so far
FIRST_SECONDS, FIRST_CALLS = 0.2, 12  # estimates for an operation that has not run yet
SKEWED = 0.2  # share of the children whose clock is wrong
SKEWS = (-400 * 86400, -3600, 60, 86400 * 2, 86400 * 400)  # seconds by which it is
PATIENCE = 120.0  # seconds after which a child counts as hung
DAMAGES = 0.5  # share of the checks after which something is damaged
REPAIRERS = 3  # killed over one damage, before the one that is not killed
SHOWN = 20  # lines of differences printed
NIGHTLY = """\
archive = "main"
state = "state"
threads = 1

[[source]]
kind = "jsonl"
path = "night"
name_key = "id"
tenant = "night"
tags = { from = "night" }

[[retention]]
keep_last = 2
tenant = "night"

[collect]
grace = "0s"

[verify]
runs = 5
"""
SETTINGS = "archive.json"
FAULTS = ("early-put", "early-erase", "drop-pack")


@dataclass
class Totals:
    """The counts so far. ``kills``, ``ended``: by kind of operation."""

    kills: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    acknowledged: int = 0
    compared: int = 0


class Wrong(Exception):
    """The archive differs from the record. The message has one line per difference."""


class Torture:
    """One run over one archive.

    Args:
        folder: a folder of its own: archives, journal, sources and record.
        sealed: the main archive is sealed and the copy is not, else the other way round.
        every: kills between two checks.
        fault: a bug to inject, which the run has to find.
    """

    def __init__(self, folder: Path, seed: int, *, sealed: bool, every: int, fault: str | None = None) -> None:
        from pltz.benchmarks.torture.operations import KEY, KEY_FILE, Draw, World
        from pltz.benchmarks.torture.record import AcknowledgedRecord

        self.folder, self.every, self.fault = folder, every, fault
        self.world = World.make(folder, sealed, fault)
        self.record = AcknowledgedRecord(folder / "record.jsonl")
        self.draw = Draw(Random(seed), self.record, self.world)
        self.dice = Random(seed + 1)  # for fates and damage; the draw of operations has dice of its own
        self.totals = Totals()
        self.tokens: dict[str, str] = {}  # token of each archive at the last look
        self.running: list[tuple[Any, Any]] = []
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        (folder / "night").mkdir()
        (folder / KEY_FILE).touch(0o600)
        (folder / KEY_FILE).write_bytes(KEY.material)
        key = f'key_file = "{KEY_FILE}"\n' if sealed else ""
        (folder / "night.toml").write_text(key + NIGHTLY)
        (folder / "journal").mkdir(mode=0o700)
        self.record.write(seed=seed, sealed=sealed, fault=fault)
        self._whole("init", lambda voice: _init(self.world))

    def run(self, kills: int, seconds: float) -> None:
        """Kill so many, or for so long. Raises Wrong."""
        end = time.monotonic() + seconds
        while sum(self.totals.kills.values()) < kills and time.monotonic() < end:
            target = min(kills, sum(self.totals.kills.values()) + self.every)
            slots = self.dice.randint(*SLOTS)
            while sum(self.totals.kills.values()) < target and time.monotonic() < end:
                while len(self.running) < slots and self._start():
                    pass
                self._wait()
            self._rest()
            if self.fault == "drop-pack":
                _drop_pack(self.world.place("main"))
            self.check()
            if self.dice.random() < DAMAGES:
                self._damage()
        self._last()

    def close(self) -> None:
        """Kill the children that still run."""
        for child, _ in self.running:
            child.kill()
        while self.running:
            self._wait(note=False)

    # ---- children

    def _start(self) -> bool:
        """Start an operation, if the dice find one that has anything to do."""
        from pltz.benchmarks.torture.operations import FAULTS, FAULTY, OPERATIONS

        weights = dict(OPERATIONS)
        if self.fault and (faulty := FAULTS[self.fault]):
            weights[faulty] = FAULTY
        [chosen] = self.draw.dice.choices(list(weights), list(weights.values()))
        operation = chosen()
        if not operation.plan(self.draw):
            return not self.running  # else wait until a lease is released
        self._launch(operation, self._fate(operation.kind))
        return True

    def _fate(self, kind: str) -> Any:
        from pltz.benchmarks.torture.child import Fate

        if self.dice.random() >= KILLED:
            return Fate()
        if self.dice.random() < AT_CALL:
            most = max(1, round(BEYOND * self.calls.get(kind, FIRST_CALLS)))
            return Fate(call=self.dice.randint(1, most), torn=self.dice.random() < 0.5)
        return Fate(delay=self.dice.uniform(0, BEYOND * self.seconds.get(kind, FIRST_SECONDS)))

    def _launch(self, operation: Any, fate: Any) -> Any:
        from pltz.benchmarks.torture.child import Child, skew_clock

        self.record.stamp += 1
        skew = self.dice.choice(SKEWS) if self.dice.random() < SKEWED and not operation.steady else 0

        def work(voice: Any) -> None:
            if skew:
                skew_clock(skew)
            if operation.steady:  # somebody says that this clock is right, after all wrong ones
                self.world.open_to_maintain("main").parts.catalog.believed_time()
            operation.work(self.world, voice)

        operation.stamp = self.record.stamp
        self.draw.leased |= operation.leases
        self._stamp(operation)
        self.totals.asked[operation.kind] += 1
        self.record.write(
            number=operation.stamp, kind=operation.kind, asked=operation.asked(), fate=vars(fate), skew=skew
        )
        child = Child(operation.kind, work, fate, self.folder / "children.log")
        self.running.append((child, operation))
        return child

    def _stamp(self, operation: Any) -> None:
        """Stamp the sessions that an operation may change with its number."""
        self.record.stamp += 1
        for key in operation.leases & self.record.main.keys():
            self.record.main[key].stamp = self.record.stamp

    def _wait(self, *, note: bool = True) -> None:
        """Wait until a child reports something or has to be killed, and note its reports."""
        now = time.monotonic()
        for child, operation in self.running:
            if (due := child.due(now)) is not None and due <= 0:
                child.kill()
            if now - child.started > PATIENCE:
                child.kill()
                raise Wrong(f"{operation.kind} hangs: {PATIENCE:.0f} s and no end")
        dues = [due for child, _ in self.running if (due := child.due(now)) is not None and due > 0]
        ready, _, _ = select.select([child.pipe for child, _ in self.running], [], [], min([*dues, 1.0]))
        for child, operation in list(self.running):
            if child.pipe not in ready:
                continue
            for line in child.lines():
                if note:
                    self._heard(operation, line)
            if child.ending is not None:
                self.running.remove((child, operation))
                if note:
                    self._ended(child, operation)

    def _heard(self, operation: Any, line: dict[str, Any]) -> None:
        self.totals.acknowledged += 1
        self.record.write(number=operation.stamp, **line)
        if wrong := operation.heard(self.record, line["ack"]):
            raise Wrong(wrong)

    def _ended(self, child: Any, operation: Any) -> None:
        kind = operation.kind
        error = f"{child.error['error']}: {child.error['text']}" if child.error else ""
        self.record.write(number=operation.stamp, ended=child.ending, error=error)
        self.draw.leased -= operation.leases
        operation.ended(self.record)
        self._stamp(operation)
        if child.ending == "killed":
            self.totals.kills[kind] += 1
        elif child.ending == "done":
            self.totals.done[kind] += 1
            self.seconds[kind] = (self.seconds.get(kind, child.seconds) + child.seconds) / 2
            self.calls[kind] = round((self.calls.get(kind, child.calls) + child.calls) / 2)
        elif child.ending == "refused":
            self.totals.refused[f"{kind}: {child.error['error']}"] += 1
            if not re.match(operation.allowed, error):
                raise Wrong(f"{kind} failed: {error}")
        else:
            raise Wrong(f"{kind} {child.ending}")
        if child.ending != "done" and (commits := getattr(operation, "commits", [])):
            self.draw.again += [commit for commit in commits if self.draw.dice.random() < 0.5]

    def _rest(self) -> None:
        """Wait until nothing runs any more."""
        while self.running:
            self._wait()

    def _whole(self, kind: str, work: Any) -> list[dict[str, Any]]:
        """Run work alone in a child that is not killed, and return its lines. Raises Wrong."""
        from pltz.benchmarks.torture.child import Child, Fate

        child = Child(kind, work, Fate(), self.folder / "children.log")
        said: list[dict[str, Any]] = []
        end = time.monotonic() + 5 * PATIENCE
        while child.ending is None:
            select.select([child.pipe], [], [], 1.0)
            said += child.lines()
            if time.monotonic() > end:
                child.kill()
        if child.ending != "done":
            raise Wrong(f"{kind} alone: {child.ending}: {child.error}")
        return said

    def _operate(self, operation: Any) -> None:
        """Run an operation alone to its end. Raises Wrong."""
        from pltz.benchmarks.torture.child import Fate

        if operation.plan(self.draw):
            operation.allowed, operation.steady = "$.", True  # matches no error
            self._launch(operation, Fate())
            self._rest()

    # ---- checks

    def check(self) -> None:
        """Archive the sessions that wait in the journal and in files, and compare the archives with the record.
        Raises Wrong."""
        from pltz.benchmarks.torture.operations import Drain, Nightly

        self._operate(Drain())
        if left := [
            p.name for p in (self.folder / "journal").iterdir() if p.suffix in (".journal", ".refused", ".lost")
        ]:
            raise Wrong(f"the journal is drained, and has {left}")
        night = Nightly()
        night.fresh = False
        self._operate(night)
        for place in ("main", "copy"):
            self._compare(place)
        self.totals.checks += 1

    def _look(self, place: str) -> Any:
        from pltz.benchmarks.torture.operations import heard, look
        from pltz.benchmarks.torture.record import Seen

        seen, keys, token = Seen(), list(self.record.at(place)), self.tokens.get(place)
        self.dice.shuffle(keys)
        for line in self._whole("check", lambda voice: look(self.world, place, keys, token, voice)):
            heard(seen, line)
        self.tokens[place] = seen.token
        return seen

    def _compare(self, place: str, *, repaired: bool = False) -> None:
        """Compare an archive with the record. After a repair no redundant copy may be missing. Raises Wrong."""
        from pltz.benchmarks.torture.record import compare

        seen = self._look(place)
        wrong = compare(self.record, place, seen)
        if repaired:
            wrong += [f"repair left {path} missing" for path in seen.missing_copies]
        self.totals.compared += len(seen.versions)
        self.record.write(check=place, versions=len(seen.versions), report=seen.report, wrong=wrong)
        if wrong:
            raise Wrong("\n".join(wrong[:SHOWN]))

    def _damage(self) -> None:
        """Damage a file as far as it can be repaired, kill repairers over it, repair, and compare. Raises
        Wrong."""
        for place in ("main", "copy"):
            self._repair(place, _no_fate())  # a kill may have left files without parity or second copy
            what = _hurt(self.world.place(place), self.dice)
            self.totals.damaged[what.split()[0]] += 1
            self.record.write(damaged=what, place=place)
            for number in range(REPAIRERS + 1):
                self._repair(place, self._fate("repair") if number < REPAIRERS else _no_fate())
            self._compare(place, repaired=True)

    def _repair(self, place: str, fate: Any) -> None:
        from pltz.benchmarks.torture.operations import Repair

        repair = Repair()
        repair.plan(self.draw)
        repair.place = place
        self._launch(repair, fate)
        self._rest()

    def _last(self) -> None:
        """Finish the run: collect twice, rebuild the indexes, repair, and compare. Raises Wrong."""
        from pltz.benchmarks.torture.operations import CollectNow, Rebuild, Repair

        self.check()
        for place in ("main", "copy"):
            for kind in (CollectNow, CollectNow, Rebuild, Repair):
                operation = kind()
                operation.plan(self.draw)
                operation.place, operation.allowed = place, "$."
                self._launch(operation, _no_fate())
                self._rest()
            self._compare(place, repaired=True)
        self.totals.checks += 1


def _no_fate() -> Any:
    from pltz.benchmarks.torture.child import Fate

    return Fate()


def _init(world: Any) -> None:
    from pltz.archive import opener

    for place in ("main", "copy"):
        opener.create(world.place(place), key=world.key(place))


def _drop_pack(place: Path) -> None:
    """Inject the fault: remove the largest pack and every file that refers to it."""
    pack = max((place / "packs").iterdir(), key=lambda p: p.stat().st_size)
    pack.unlink()
    (place / "parity" / pack.name).unlink(missing_ok=True)
    for index in (place / "index").iterdir():
        index.unlink()


def _size(path: Path) -> int:
    """Return the bytes of a file, 0 without one."""
    return path.stat().st_size if path.exists() else 0


def _hurt(place: Path, dice: Random) -> str:
    """Damage one file so that parity or a second copy can restore it, and return what was done."""
    folders = [f for f in ("packs", "parity", "index", "keys", "lost") if any((place / f).iterdir())]
    folders += [SETTINGS] if (place / "parity" / SETTINGS).exists() else []
    folder = dice.choice(folders)
    names = [place / folder] if folder == SETTINGS else sorted((place / folder).iterdir())
    if folder == "packs":  # a condemned pack may have lost its parity
        names = [path for path in names if _size(place / "parity" / path.name)]
    if folder == "keys":
        names = [path for path in names if len(list(path.parent.glob(path.name[:-1] + "*"))) > 1]
    if not names:
        return "nothing"
    path = dice.choice(names)
    data = path.read_bytes()
    if dice.random() < 0.3 and (folder != "packs" or len(data) <= 2048):  # the parity of a small pack holds all of it
        path.unlink()
        return f"{folder} deleted {path.name}"
    at = dice.randrange(len(data))
    burst = bytes(b ^ 0x5A for b in data[at : at + dice.randint(1, 60)])
    path.write_bytes(data[:at] + burst + data[at + len(burst) :])
    return f"{folder} changed {path.name} at {at}"


def torment(
    seed: int, kills: int, seconds: float, sealed: bool, every: int, keep: str | None, fault: str | None
) -> dict[str, Any]:
    """Run once and return the figures, with the differences if any. The folder stays where there are some."""
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=keep))
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # what its processes saw of the archives
    began, wrong = time.monotonic(), ""
    torture = Torture(folder, seed, sealed=sealed, every=every, fault=fault)
    try:
        torture.run(kills, seconds)
    except Wrong as exc:
        wrong = str(exc)
        torture.record.write(wrong=wrong)
    finally:
        torture.close()
    totals = torture.totals
    # A folder with differences stays: it is the evidence.
    if not wrong and keep is None:
        shutil.rmtree(folder)
    return {
        "seed": seed,
        "sealed": sealed,
        "fault": fault,
        "kills": sum(totals.kills.values()),
        "killed": dict(totals.kills.most_common()),
        "asked": dict(totals.asked.most_common()),
        "ended": dict(totals.done.most_common()),
        "refused": dict(totals.refused.most_common()),
        "damaged": dict(totals.damaged.most_common()),
        "checks": totals.checks,
        "versions_compared": totals.compared,
        "lines_acknowledged": totals.acknowledged,
        "seconds": round(time.monotonic() - began, 1),
        "sound": not wrong,
        "wrong": wrong,
        "folder": str(folder) if wrong or keep is not None else None,
    }


@click.command(short_help="Kill everything at random moments, and compare with what was acknowledged.")
@click.option("--seed", type=int, metavar="N", help="Of the dice.  [default: a random one, which is printed]")
@click.option(
    "--kills",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    metavar="N",
    help="So many kills, in each mode.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    metavar="N",
    help="At most so long, in each mode.",
)
@click.option(
    "--sealed/--open",
    "sealed",
    default=None,
    help="Only with a main archive that is sealed, or is not.  [default: both]",
)
@click.option(
    "--every", type=click.IntRange(min=1), default=25, show_default=True, metavar="N", help="Kills between two checks."
)
@click.option(
    "--keep",
    metavar="DIR",
    help="Work in a new folder below DIR, and leave it.  [default: a temporary one, left on failure]",
)
@click.option("--fault", type=click.Choice(FAULTS), help="Put a bug in: the run has to fail.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as a line of JSON only.")
@click.pass_context
def torture(
    ctx: click.Context,
    seed: int | None,
    kills: int,
    seconds: float,
    sealed: bool | None,
    every: int,
    keep: str | None,
    fault: str | None,
    as_json: bool,
) -> None:
    """Kill writers, collectors, erasers, repairers, hook workers and the nightly job, and compare with what
    was acknowledged.

    Works in a folder of its own and touches no archive of yours. Exits with 3 where anything is not as it
    was acknowledged: the folder with the archives and the record stays then."""
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    results = [
        torment(seed, kills, seconds, mode, every, keep, fault)
        for mode in ([True, False] if sealed is None else [sealed])
    ]
    for result in results:
        click.echo(json.dumps(result) if as_json else as_text(result))
    if not all(result["sound"] for result in results):
        ctx.exit(3)


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    mode = "sealed" if result["sealed"] else "open"
    facts = (
        f"seed {result['seed']}, main archive {mode}: {counted(result['kills'], 'kill')}",
        f"{result['seconds']} s",
        counted(result["checks"], "check"),
        f"{counted(result['versions_compared'], 'version')} compared",
    )
    lines = [", ".join(facts), *(f"  {many:>5} {kind}" for kind, many in result["killed"].items())]
    lines += [f"refused, as it may: {many} {what}" for what, many in result["refused"].items()]
    if result["sound"]:
        return "\n".join([*lines, "sound: everything that was acknowledged is there"])
    return "\n".join([*lines, f"WRONG: {result['wrong']}", f"the archives and the record are in {result['folder']}"])


if __name__ == "__main__":
    torture(prog_name="python -m pltz.benchmarks.torture")

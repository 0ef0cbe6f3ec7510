"""The torture run: a short one is sound, an injected bug is found, and the record knows the required and the
allowed contents."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from pltz.benchmarks.torture.child import Child, Fate, Voice
from pltz.benchmarks.torture.operations import Read
from pltz.benchmarks.torture.record import AcknowledgedRecord, KnownSession, KnownVersion, Seen, compare
from tests.failing import raising

KEY = ("acme", "t<1>")


def tortured(folder: Path, *options: str) -> dict[str, Any]:
    """Run the script in an interpreter of its own, since it forks."""
    command = [sys.executable, "-m", "pltz.benchmarks.torture", "--json", "--keep", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if result["sound"] else 3), done.stderr
    return result


@pytest.mark.slow
@pytest.mark.parametrize("mode", [["--sealed"], ["--open"]])
def test_a_short_run_is_sound(tmp_path: Path, mode: list[str]) -> None:
    result = tortured(tmp_path, *mode, "--seed", "15", "--kills", "15", "--seconds", "4", "--every", "8")
    assert result["sound"], result["wrong"]
    assert result["kills"] > 0 and result["checks"] >= 2 and result["versions_compared"] > 0
    log = [json.loads(line) for line in (Path(result["folder"]) / "record.jsonl").read_text().splitlines()]
    assert sum(line.get("ended") == "killed" for line in log) >= result["kills"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["early-put", "early-erase", "drop-pack"])
def test_a_bug_that_is_put_in_is_found(tmp_path: Path, fault: str) -> None:
    result = tortured(tmp_path, "--sealed", "--seed", "1", "--kills", "60", "--every", "10", "--fault", fault)
    assert not result["sound"] and result["wrong"] and (Path(result["folder"]) / "main/archive.json").exists()


# ---- a child


def work(voice: Voice) -> None:
    from pltz.archive.storage.disk import OsDisk

    disk = OsDisk("/proc/nothing")
    voice.begin()
    for number in range(3):
        voice.ack(number=number)
        try:
            disk.unlink(f"{number}")
        except OSError:
            continue


def ended(child: Child) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    while child.ending is None:
        said += child.lines()
    return said


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_child_is_killed_before_its_call_and_was_heard_until_then(tmp_path: Path, call: int) -> None:
    child = Child("test", work, Fate(call=call), tmp_path / "log")
    assert ended(child) == [{"ack": {"number": n}} for n in range(call)] and child.ending == "killed"


def test_an_error_of_a_child_is_told(tmp_path: Path) -> None:
    child = Child("test", raising(ValueError("no")), Fate(), tmp_path / "log")
    assert ended(child) == [] and child.ending == "refused"
    assert child.error is not None and child.error["error"] == "ValueError"


# ---- the record


@pytest.fixture
def record(tmp_path: Path) -> AcknowledgedRecord:
    """Make a record with one session of two versions, the first forgotten."""
    made = AcknowledgedRecord(tmp_path / "record.jsonl")
    made.main[KEY] = KnownSession([KnownVersion("a", "01", True), KnownVersion("b", "02")], marks={"<1>"})
    return made


def row(version: str, digest: str, *, forgotten: bool = False, error: str = "") -> Any:
    return (*KEY, version, forgotten, digest, error)


def wrong(record: AcknowledgedRecord, *rows: Any, **seen: Any) -> list[str]:
    return compare(record, "main", Seen(list(rows), **seen))


def test_what_was_acknowledged_must_be_there_and_what_was_forgotten_may(record: AcknowledgedRecord) -> None:
    assert wrong(record, row("01", "a", forgotten=True), row("02", "b")) == []
    assert wrong(record, row("02", "b"), gets={KEY: {"b"}}) == []
    assert "was acknowledged, and is not there" in wrong(record)[0]


@pytest.mark.parametrize(("rows", "why"), [
    ([row("02", "c")], "reads as c"), ([row("02", "", error="LostError: gone")], "does not read"),
    ([row("02", "b", forgotten=True)], "nobody asked for that"), ([row("01", "a"), row("02", "b")], "and is back"),
    ([row("02", "b"), row("03", "c")], "nobody asked for it"),
    ([row("02", "b"), row("01", "a", forgotten=True)], "another order"),
    ([row("02", "b"), ("acme", "t<2>", "04", False, "d", "")], "never put"),
])
def test_what_nobody_asked_for_is_wrong(record: AcknowledgedRecord, rows: list[Any], why: str) -> None:
    assert any(why in line for line in wrong(record, *rows))


def test_what_was_asked_and_not_acknowledged_may_be_there_and_stays_once_it_was_seen(
    record: AcknowledgedRecord,
) -> None:
    record.main[KEY].pending |= {"c", "d"}
    assert record.main[KEY].possible() == {"b", "c", "d"}
    assert wrong(record, row("02", "b"), row("03", "c"), gets={KEY: {"c"}}) == []
    assert "was acknowledged" in wrong(record, row("02", "b"))[0]


def test_a_version_that_was_not_acknowledged_is_whole_or_not_there(record: AcknowledgedRecord) -> None:
    half = row("03", "", error="LostError: gone")
    assert "nobody asked" in wrong(record, row("02", "b"), half)[0]
    record.main[KEY].pending.add("c")
    assert "nobody asked" in wrong(record, row("02", "b"), half)[0]
    assert "lost" in wrong(record, row("02", "b"), lost={"03"})[0]


def test_an_erase_in_doubt_took_all_or_nothing(record: AcknowledgedRecord) -> None:
    record.main[KEY].erasing = True
    assert wrong(record, row("01", "a", forgotten=True), row("02", "b")) == []
    record.main[KEY].erasing = True
    assert wrong(record) == [] and KEY not in record.main and "erased, and opens" in wrong(record, opened={"<1>"})[0]
    assert "was erased or never put" in wrong(record, row("02", "b"))[0]


def test_a_get_before_an_acknowledgement_may_be_heard_after_it(tmp_path: Path) -> None:
    record = AcknowledgedRecord(tmp_path / "log")
    record.main[KEY] = KnownSession(pending={"new"})
    read = Read()
    assert read.plan(Namespace(record=record, some=lambda keys, _: keys))  # type: ignore[arg-type]
    record.main[KEY].acknowledge("new", "version")
    assert read.heard(record, {"key": list(KEY), "digest": None}) is None
    assert read.heard(record, {"key": list(KEY), "digest": "new"}) is None
    assert read.heard(record, {"key": list(KEY), "digest": "other"}) is not None
    assert read.plan(Namespace(record=record, some=lambda keys, _: keys))  # type: ignore[arg-type]
    assert read.heard(record, {"key": list(KEY), "digest": None}) is not None
    del record.main[KEY]  # erased
    assert read.heard(record, {"key": list(KEY), "digest": "new"}) is None
    assert read.heard(record, {"key": list(KEY), "digest": None}) is None
    assert read.heard(record, {"key": list(KEY), "digest": "other"}) is not None

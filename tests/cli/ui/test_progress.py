"""The time that coding an input takes: said before it begins, and again where that was wrong."""

from dataclasses import dataclass

import pytest

from pltz.cli.ui.progress import CodingTime, ExpectedTime, Progress, duration


@dataclass
class Input:
    total: int | None
    bytes_read: int


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that the clock shows, in a list."""
    clock = [1000.0]
    monkeypatch.setattr("pltz.cli.ui.progress.time.monotonic", lambda: clock[0])
    return clock


def coding_time(source: Input) -> CodingTime:
    return CodingTime(ExpectedTime(Progress("read", unit="sessions", shown=False), "advice"), source)


def test_a_time_that_was_wrong_is_said_again(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    source = Input(1000, 500)
    told = coding_time(source)
    told.expect(20)
    assert capsys.readouterr().err == f"coding takes about {duration(40)} on this machine; advice\n"
    clock[0] += 10  # as expected: half of what was read, a quarter of all
    told.coded(100, 200)
    assert capsys.readouterr().err == ""
    source.bytes_read = 1000
    clock[0] += 70  # three quarters of all after 80 s
    told.coded(200, 400)
    assert capsys.readouterr().err == f"coding takes about {duration(80 / 3)} from now, by what was coded since\n"
    clock[0] += 80 / 3
    told.coded(100, 400)
    assert capsys.readouterr().err == ""


def test_a_time_that_no_sample_told_is_said_by_what_was_coded(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    told = coding_time(Input(None, 70))
    clock[0] += 4  # short
    told.coded(10, 100)
    assert capsys.readouterr().err == ""
    clock[0] += 26
    told.coded(40, 100)
    assert capsys.readouterr().err == f"coding the rest takes about {duration(30)} on this machine; advice\n"


def test_of_a_low_rate_the_time_of_each_is_shown(clock: list[float]) -> None:
    bar = Progress("restore", unit="sessions", total=5, shown=False)
    clock[0] += 60
    bar.add(2)
    assert bar.line() == "restore   40 %  2 / 5 sessions  30 s each  90 s left"

"""The progress line."""


import pytest

from pltz.cli.ui.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that the clock shows, in a list."""
    clock = [1000.0]
    monkeypatch.setattr("pltz.cli.ui.progress.time.monotonic", lambda: clock[0])
    return clock


def test_of_a_low_rate_the_time_of_each_is_shown(clock: list[float]) -> None:
    bar = Progress("restore", unit="sessions", total=5, shown=False)
    clock[0] += 60
    bar.add(2)
    assert bar.line() == "restore   40 %  2 / 5 sessions  30 s each  90 s left"

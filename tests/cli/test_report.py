"""The small parts of a report: tables and the progress line."""

import time

import pytest

from pltz.cli.ui.progress import Progress


def test_progress_is_silent_unless_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("encode", unit="tokens", shown=False) as bar:
        bar.add(3)
    assert bar.count == 3 and capsys.readouterr() == ("", "")


def test_progress_draws_while_none_is_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pltz.cli.ui.progress.FIRST_S", 0.01)
    with Progress("encode", unit="tokens", total=50, shown=True) as bar:
        for _ in range(500):
            if "encode    0 %  0 / 50 tokens" in (drawn := capsys.readouterr().err):
                break
            time.sleep(0.01)
        bar.add(25)
        assert "left" in bar.line() and "50 %" in bar.line()
    assert "0 / 50 tokens" in drawn


def test_time_left_is_told_once_tenth_is_done_and_shrinks_between_large_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("pltz.cli.ui.progress.time.monotonic", lambda: clock[0])
    bar = Progress("store", unit="bytes", total=10_000, shown=False)
    clock[0] += 10
    bar.add(500)
    clock[0] += 190
    assert "left" not in bar.line()  # a twentieth: the piece under way may be of another sort
    bar.add(1500)
    assert "  13 min left" in bar.line()  # 200 s for 2,000
    clock[0] += 300
    assert "  8 min left" in bar.line()
    bar.add(4000, skipped=True)
    assert "  2 min left" in bar.line()  # what took no time tells nothing of the rest, but that it is less
    clock[0] += 3000
    assert "left" not in bar.line()

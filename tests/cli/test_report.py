"""The small parts of a report: tables and the progress line."""

import pytest

from pltz.cli.ui import table
from pltz.cli.ui.progress import Progress, wanted


def test_pairs_align() -> None:
    assert table.pairs([("a", "1"), ("long", "2")]) == "  a     1\n  long  2"


def test_progress_is_silent_unless_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("encode", unit="tokens", shown=False) as bar:
        bar.add(3)
    assert bar.count == 3 and capsys.readouterr() == ("", "")


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("encode", unit="tokens", total=6, shown=True) as bar:
        bar.add(3)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("encode   50 %  3 / 6 tokens  ")


def test_progress_is_for_terminals_unless_told() -> None:
    assert wanted(True) and not wanted(False) and not wanted(None)

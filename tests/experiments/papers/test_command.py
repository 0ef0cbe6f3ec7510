"""Verdicts follow from figures, bounds of theorems hold, and the command measures every subject."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from pltz.experiments.papers import community, records, work
from pltz.experiments.papers.command import as_text
from pltz.experiments.papers.row import FAILS, HOLDS, PAPERS, PART, VERDICTS, verdict
from tests.cli.commands import ok


def test_verdicts_and_text() -> None:
    assert [verdict(True), verdict(False, True), verdict(False)] == [HOLDS, PART, FAILS]
    text = as_text(records.RECORDED, dict.fromkeys(VERDICTS, 0))
    assert "[recorded 2026-11-22]" in text and "experiments thaw --shape llama-8b" in text


@pytest.mark.slow
def test_the_command_measures_every_subject(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "COMMUNITIES", 1)
    monkeypatch.setattr(work, "BOTS", 2)
    monkeypatch.setattr(community, "MEASURED", 1)
    small = ("--sessions", "8", "--rows", "2", "--context", "256", "--new", "8", "--bundle", "nano")
    done = ok(run("papers", *small, "--json"))
    result = json.loads(done.stdout)
    assert {row["paper"] for row in result["rows"]} == set(PAPERS)
    live = [row for row in result["rows"] if row["recorded"] is None and row["verdict"] != "not measured"]
    assert len(live) >= 28 and all(row["measured"] for row in live)
    assert sum(result["verdicts"].values()) == len(result["rows"])

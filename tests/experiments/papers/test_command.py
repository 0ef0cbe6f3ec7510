"""Verdicts follow from figures, bounds of theorems hold, and the command measures every subject."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from click.testing import Result

from pltz.experiments.papers import attention_error, community, records, work
from pltz.experiments.papers.command import as_text
from pltz.experiments.papers.row import FAILS, HOLDS, PAPERS, PART, VERDICTS, verdict
from pltz.models.target.target import Target


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
    done = run("papers", *small, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert {row["paper"] for row in result["rows"]} == set(PAPERS)
    live = [row for row in result["rows"] if row["recorded"] is None and row["verdict"] != "not measured"]
    assert len(live) >= 28 and all(row["measured"] for row in live)
    assert sum(result["verdicts"].values()) == len(result["rows"])


def test_the_bound_of_theorem_19_holds_for_fine_steps(target: Target) -> None:
    found = attention_error.drift(target, np.arange(300, 500))
    assert found["bits"]["8"]["most"] <= 1 and found["bits"]["8"]["above"] == 0
    assert found["bits"]["2"]["rms"] > found["bits"]["4"]["rms"] > found["bits"]["8"]["rms"]
    assert 0.5 < found["per_bit"] < 1.5
    moved = attention_error.materialised(target, [np.arange(300, 340), np.arange(340, 400)])
    assert moved["turn"] <= moved["bound"] and moved["prefill"] < 1e-3
    assert attention_error.fusion_bound(target, np.arange(300, 500), 1.0) == 0

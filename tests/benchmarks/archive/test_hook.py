"""The cost of the eviction hook at a toy size: the figures are there and fit."""

import json
from pathlib import Path

import pytest

from pltz.benchmarks.archive import hook as bench_hook
from tests.cli.commands import Run

FORMS = "list", "numpy", "torch", "bytes"


def test_bench_hook_on_a_small_run(run: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_hook, "ROWS", [(64, form) for form in FORMS])
    monkeypatch.setattr(bench_hook, "BUSY", 1 << 10)
    monkeypatch.setattr(bench_hook, "_CACHE", [])
    done = run("hook", "--calls", "20", "--where", tmp_path)
    assert done.exit_code == 0, done.output
    result = json.loads(done.output.strip().splitlines()[-1])
    assert [(row["worker"], row["form"]) for row in result["rows"]] == [
        (worker, form) for worker in ("none", "process") for form in FORMS
    ]
    for row in result["rows"]:
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] and row["refused"] == 0
        assert row["step_p50_ms"] >= 1e3 * bench_hook.STEP and row["durable_mean_ms"] > 0
    assert not list(tmp_path.glob("pltz-bench-*"))

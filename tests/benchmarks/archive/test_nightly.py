"""``python -m pltz.benchmarks nightly`` at a toy size: the figures are there and add up."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from pltz.benchmarks.archive import nightly as bench_nightly


@pytest.mark.slow
def test_the_bench_measures_nights(run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_nightly, "QUICK", (10,))
    monkeypatch.setattr(bench_nightly, "SHIPPED", (1, 1))
    done = run("nightly", "--where", tmp_path)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    nights = [(row["night"], row["sessions"], row["met"]) for row in result["nights"]]
    assert nights == [("new", 10, 10), ("known", 10, 10)]
    for row in (*result["nights"], *result["with_the_bundle_that_ships"]):
        assert (row["peak_memory_mb"] > 10 and row["per_s"] > 0 and (row["ratio"] is None) == (row["night"] == "known"))
    assert result["put_without_the_job"]["per_s"] > 0
    assert "bundle mini: new" in done.stdout

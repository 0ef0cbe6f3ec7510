"""Measurements of archives at toy sizes: what they did is checked, and the figures are there and fit."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pltz.benchmarks.archive import hook, measure_erases, measure_peers, measure_writers, nightly
from tests.cli.commands import Run, ok, told


def test_an_archive_of_erases_stays_small_and_is_checked(tmp_path: Path) -> None:
    rows = list(measure_erases.measure(tmp_path / "archive", 40, 20))
    assert [row.erases for row in rows] == [20, 40] and all(row.key_file < 20_000 for row in rows)


def test_keys_alone_stay_small_where_any_session_is_erased() -> None:
    rows = list(measure_erases.measure_keys(100, 50))
    assert [row.erases for row in rows] == [50, 100] and all(row.key_file < 170_000 for row in rows)
    assert rows[-1].moved > 0


# ---- The nights of `measure_peers`, on two small logs


def test_every_log_comes_back_after_each_night(tmp_path: Path) -> None:
    lines = [json.dumps({"type": "user", "message": {"role": "user", "content": f"Say {n}."}}) for n in range(20)]
    logs = [{"kind": "claude-code", "text": "\n".join(lines[: 10 + n]) + "\n"} for n in range(2)]
    data = tmp_path / "logs.jsonl"
    data.write_text("".join(json.dumps(log) + "\n" for log in logs), "utf8")
    done = CliRunner().invoke(measure_peers.main, [str(data), "--peer", "zstd"], catch_exceptions=False)
    found = json.loads(done.output.splitlines()[-1])["zstd"]
    assert found["unchanged"]["bytes"] == 0 < found["copy"]["bytes"] < found["first"]["bytes"]


# ---- measure_writers: two writers of one bucket, all that they acknowledged read back, and neither waits for an upload


def test_each_acknowledged_session_is_read_back() -> None:
    done = CliRunner().invoke(measure_writers.main, ["--writers", "2", "--puts", "3", "--latency", "0", "--stall", "4"])
    assert done.exit_code == 0, done.output
    [run] = json.loads(done.stdout)["runs"]
    assert (run["acknowledged"], run["readable"], run["refused"], run["lists"]) == (6, 6, 0, 0)
    assert run["requests"]["write packs"] == 6 and run["requests_per_put"] >= 4
    assert run["seconds"] > 4 > run["slowest_put"]  # a busy machine takes a second for a put


# ---- ``python -m pltz.benchmarks nightly`` at a toy size: the figures are there and add up


@pytest.mark.slow
def test_the_bench_measures_nights(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "QUICK", (10,))
    monkeypatch.setattr(nightly, "SHIPPED", (1, 1))
    done = ok(run("nightly", "--where", tmp_path))
    result = json.loads(done.stdout.splitlines()[-1])
    nights = [(row["night"], row["sessions"], row["met"]) for row in result["nights"]]
    assert nights == [("new", 10, 10), ("known", 10, 10)]
    for row in (*result["nights"], *result["with_the_bundle_that_ships"]):
        assert (row["peak_memory_mb"] > 10 and row["per_s"] > 0 and (row["ratio"] is None) == (row["night"] == "known"))
    assert result["put_without_the_job"]["per_s"] > 0 and "bundle mini: new" in done.stdout


# ---- The cost of the eviction hook at a toy size: the figures are there and fit


FORMS = "list", "numpy", "torch", "bytes"


def test_hook_on_a_small_run(run: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "ROWS", [(64, form) for form in FORMS])
    monkeypatch.setattr(hook, "BUSY", 1 << 10)
    monkeypatch.setattr(hook, "_CACHE", [])
    result = told(run("hook", "--calls", "20", "--where", tmp_path))
    assert [(row["worker"], row["form"]) for row in result["rows"]] == [
        (worker, form) for worker in ("none", "process") for form in FORMS
    ]
    for row in result["rows"]:
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] and row["refused"] == 0
        assert row["step_p50_ms"] >= 1e3 * hook.STEP and row["durable_mean_ms"] > 0
    assert not list(tmp_path.glob("pltz-bench-*"))

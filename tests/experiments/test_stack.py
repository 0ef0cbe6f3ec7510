"""The stack and its deployment: bytes add up by level, every tier is reached, and the picture shows both."""


import pytest
from click.testing import CliRunner

from pltz.benchmarks import plots
from pltz.experiments.stack import as_text, stack
from tests.cli.commands import told


def test_the_text_and_the_picture_name_levels_and_tiers() -> None:
    row = {"level": "bot", "segments": 2, "tokens": 4, "kv_alone": 80, "kv": 40, "coded": 1}
    tiers = [{"tier": "host memory", "ms": 1.5, "most": 2.0}]
    result = {"target": "toy", "kv_per_token": 10, "levels": [row], "tiers": tiers, "files": 9, "put_s": 1.0}
    assert "host memory" in as_text(result) and "2.00" in as_text(result), "bits per token"
    pytest.importorskip("matplotlib")
    drawn = plots.draw("stack", [result])
    assert b"2 bots" in drawn and b"host memory" in drawn


@pytest.mark.slow
def test_a_small_deployment_goes_through_every_tier() -> None:
    given = ["--communities", "1", "--bots", "2", "--sessions", "2", "--thaws", "1", "--platform", "64", "--json"]
    result = told(CliRunner().invoke(stack, given, catch_exceptions=False))
    assert [row["segments"] for row in result["levels"]] == [1, 1, 2, 2]
    assert all(row["coded"] > 0 and row["kv"] <= row["kv_alone"] for row in result["levels"] if row["level"] != "bot")
    times = {row["tier"]: row["ms"] for row in result["tiers"]}
    assert {"cold, nothing hot", "disk, in the page cache", "the target's memory"} <= set(times)
    assert all(ms >= 0 for ms in times.values()) and times["cold, nothing hot"] > 0

"""The stack and its deployment: bytes add up by level, every tier is reached, and the picture shows both."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from pltz.benchmarks import plots
from pltz.datasets.loaders import sample_sessions
from pltz.experiments.deployment import Deployment
from pltz.experiments.stack import as_text, levels, stack
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError


def test_levels_count_each_segment_once_and_for_each_session() -> None:
    ids = [np.arange(n) for n in range(6)]
    here = Deployment(ids[5], [ids[4]], [ids[1], ids[2]], [ids[3], ids[3], ids[3], ids[3]])
    rows = {row["level"]: row for row in levels(here, dict.fromkeys(here.levels(), 7), 10)}
    assert (rows["platform"]["kv"], rows["platform"]["kv_alone"]) == (50, 200)
    assert (rows["community"]["kv"], rows["community"]["kv_alone"]) == (40, 160)
    assert (rows["bot"]["tokens"], rows["bot"]["kv"], rows["bot"]["kv_alone"]) == (3, 30, 60)
    assert (rows["session"]["kv"], rows["session"]["kv_alone"], rows["session"]["coded"]) == (120, 120, 7)


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
    done = CliRunner().invoke(stack, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert [row["segments"] for row in result["levels"]] == [1, 1, 2, 2]
    assert all(row["coded"] > 0 and row["kv"] <= row["kv_alone"] for row in result["levels"] if row["level"] != "bot")
    times = {row["tier"]: row["ms"] for row in result["tiers"]}
    assert {"cold, nothing hot", "disk, in the page cache", "the target's memory"} <= set(times)
    assert all(ms >= 0 for ms in times.values()) and times["cold, nothing hot"] > 0


def test_a_deployment_has_the_levels_it_says(target: Target) -> None:
    made = Deployment.made(target, sample_sessions()[:3], communities=2, bots=4, count=5, platform=50, most=40)
    assert [len(one) for one in made.levels().values()] == [1, 2, 4, 5] and len(made.platform) == 50
    tower = made.tower(4)
    assert np.array_equal(tower[3], made.chats[1]), "sessions are taken again from the first"
    assert tower[1] is made.communities[made.community_of_bot(made.bot_of(4))] and len(tower[3]) <= 40
    assert len({one.tobytes() for one in made.bots}) == 4
    with pytest.raises(UsageError, match="communities"):
        Deployment.made(target, sample_sessions()[:1], communities=51, bots=1, count=1)

"""bench papers: verdicts follow from figures, fusion and budgets do what they say, and records match their sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

from pltz.cli.bench import attention_error, paper_measure, paper_records
from pltz.cli.bench.deployment import Deployment
from pltz.cli.bench.joint_blocks import fuse
from pltz.cli.bench.kv_peers import budgets, low_rank, low_rank_by_layer
from pltz.cli.bench.paper_row import FAILS, HOLDS, PAPERS, PART, VERDICTS, verdict
from pltz.cli.bench.papers import as_text
from pltz.datasets.loaders import sample_sessions
from pltz.kv.port.rotary import Rotary
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
ROTARY = Rotary(torch.tensor([1.0, 0.1], dtype=torch.float64))


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load("mini-llama", dtype="float32")


def kv(seed: int, tokens: int = 32) -> torch.Tensor:
    return torch.randn(2, 2, 2, tokens, 8, generator=torch.Generator().manual_seed(seed))


def test_equal_sessions_fuse_to_one_and_stay_as_they_were() -> None:
    found = fuse([kv(0), kv(0), kv(0)], ROTARY, 0.99)
    assert found.ratio == 3 and found.alike == 1
    assert all(torch.allclose(one, kv(0), atol=1e-5) for one in found.kvs)
    longer = fuse([kv(0), 2 * kv(0)], ROTARY, 0.99)
    assert longer.ratio == 2 and torch.allclose(longer.kvs[1], 2 * kv(0), atol=1e-5), "each block keeps its norm"


def test_other_sessions_do_not_fuse_until_the_threshold_is_low() -> None:
    apart = fuse([kv(0), kv(1)], ROTARY, 0.9)
    assert (apart.ratio, apart.alike, apart.found) == (1, 0, 0)
    assert all(torch.allclose(one, kv(n), atol=1e-5) for n, one in enumerate(apart.kvs))
    forced = fuse([kv(0), kv(1)], ROTARY, -1)
    assert forced.ratio == 2, "the first block of the left takes both of the right"


def test_budgets_by_layer_keep_the_largest_variance() -> None:
    given = kv(2, 64)
    given[1] *= 10
    kept = budgets(given, 4)
    assert sum(kept) == 2 * 2 * 16 // 4 and sum(kept[2:]) > sum(kept[:2])
    even, chosen = (float((change(4)(given)[0] - given).square().sum()) for change in (low_rank, low_rank_by_layer))
    assert chosen < even
    exact, bits = low_rank_by_layer(1)(given)
    assert torch.allclose(exact, given, atol=1e-3) and bits == 16 * given.numel()


def test_the_bound_of_theorem_19_holds_for_fine_steps(target: Target) -> None:
    found = attention_error.drift(target, np.arange(300, 500))
    assert found["bits"]["8"]["most"] <= 1 and found["bits"]["8"]["above"] == 0
    assert found["bits"]["2"]["rms"] > found["bits"]["4"]["rms"] > found["bits"]["8"]["rms"]
    assert 0.5 < found["per_bit"] < 1.5
    moved = attention_error.materialised(target, [np.arange(300, 340), np.arange(340, 400)])
    assert moved["turn"] <= moved["bound"] and moved["prefill"] < 1e-3
    assert attention_error.fusion_bound(target, np.arange(300, 500), 1.0) == 0


def test_a_deployment_has_the_levels_it_says(target: Target) -> None:
    made = Deployment.made(target, sample_sessions()[:3], communities=2, bots=4, count=5, platform=50, most=40)
    assert [len(one) for one in made.levels().values()] == [1, 2, 4, 5] and len(made.platform) == 50
    tower = made.tower(4)
    assert np.array_equal(tower[3], made.chats[1]), "sessions are taken again from the first"
    assert tower[1] is made.communities[made.community_of_bot(made.bot_of(4))] and len(tower[3]) <= 40
    assert len({one.tobytes() for one in made.bots}) == 4
    with pytest.raises(UsageError, match="communities"):
        Deployment.made(target, sample_sessions()[:1], communities=51, bots=1, count=1)


def test_verdicts_and_text() -> None:
    assert [verdict(True), verdict(False, True), verdict(False)] == [HOLDS, PART, FAILS]
    text = as_text(paper_records.RECORDED, dict.fromkeys(VERDICTS, 0))
    assert "[recorded 2026-11-22]" in text and "bench thaw --shape llama-8b" in text


def kept(name: str) -> Any:
    """Return the first JSON document of a file of results."""
    text = (ROOT / "benchmarks/results" / name).read_text()
    return json.JSONDecoder().raw_decode(text[text.index("{") :])[0]


def test_recorded_figures_are_those_of_the_kept_results() -> None:
    said = " ".join(row.measured for row in paper_records.RECORDED)
    for row in paper_records.RECORDED:
        assert row.paper in PAPERS and row.verdict in VERDICTS
        assert row.recorded is None or (ROOT / row.recorded.source).is_file()
    thaw = kept("thaw.json")
    ways = {row["way"]: row for row in thaw["rows"]}
    decode = [thaw[name]["decode"] for name in ("stages_ms", "fast_stages_ms")]
    assert f"decode {decode[0]:.1f} ms, {decode[1]:.1f} in" in said
    assert f"{ways['thaw']['stored_bytes']:,} bytes" in said and f"{ways['thaw, fast layout']['ms']:.1f} ms" in said
    slots = [f"{100 * row['kept'] / row['plain']:.1f}" for row in kept("slots.json")["rows"]]
    assert "{}, {} and {} %".format(*slots) in said
    device = {row["way"]: row["ms"] for row in kept("kv_device.json")["rows"]}
    assert f"{device['raw, device']:.1f} ms on the device; {device['raw, host']:.1f} ms raw" in said
    sources = {row["source"]: row for row in kept("neighbours_communities.json")["sources"]}
    for source, row in sources.items():
        assert f"{row['best'] / row['sessions']:.0f}" in said, source
    compose = {(row["form"], row["repair"]): row["kl"] for row in kept("compose.json")["settings"]}
    assert f"{compose['raw', '0%']:.4f} without" in said and f"{compose['raw', '15%']:.4f} with 15 %" in said


@pytest.mark.slow
def test_the_command_measures_every_subject(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COMMUNITIES": 1, "BOTS": 2, "MEASURED": 1}.items():
        monkeypatch.setattr(paper_measure, name, value)
    done = run("bench", "papers", "--sessions", "8", "--rows", "2", "--context", "256", "--new", "8", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert {row["paper"] for row in result["rows"]} == set(PAPERS)
    live = [row for row in result["rows"] if row["recorded"] is None and row["verdict"] != "not measured"]
    assert len(live) >= 28 and all(row["measured"] for row in live)
    assert sum(result["verdicts"].values()) == len(result["rows"])

"""bench joint: every strategy is measured beside q4, and a lower threshold takes fewer bytes and loses more."""

import json
from collections.abc import Callable

import pytest
import torch
from click.testing import Result

from pltz.datasets.loaders import sample_sessions
from pltz.experiments.joint.fused_cache import fused_cache
from pltz.experiments.joint.measure import BFF, STRATEGIES, pool_for
from pltz.experiments.kv_rows import KVRows
from pltz.models.target.cache import cache_argument
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError


@pytest.fixture(scope="module")
def rows() -> KVRows:
    return KVRows(Target.load("mini-llama", dtype="float32"), sample_sessions()[:12], 3, 72, 8)


def test_a_cache_of_unfused_pages_continues_as_the_exact_one(rows: KVRows) -> None:
    pool = pool_for(rows, BFF, 3)
    sessions = [pool.add("a", kv) for kv in rows.kvs]
    with torch.inference_mode():
        ids = torch.from_numpy(rows.drawn[:, 72:76].astype("int64"))
        got = rows.target.model(input_ids=ids, **cache_argument(rows.target.model, fused_cache(pool, sessions))).logits
        whole = torch.from_numpy(rows.drawn[:, :76].astype("int64"))
        exact = rows.target.model(input_ids=whole).logits[:, 72:]
    assert torch.allclose(got, exact, atol=0.05), "pages have 16 bits"
    with pytest.raises(UsageError, match="as many tokens"):
        fused_cache(pool, [sessions[0], pool_for(rows, BFF, 1).add("a", rows.kvs[0][:, :, :, :40])])


def test_the_command_measures_every_strategy(run: Callable[..., Result]) -> None:
    done = run(
        "joint", "--rows", "4", "--context", "128", "--new", "8", "--room", "3", "--chunks", "4",
        "--cosine", "0.99", "--cosine", "0.5", "--share", "0.01", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    found = {(row["strategy"], row["threshold"]): row for row in result["fused"]}
    assert {strategy for strategy, _ in found} == set(STRATEGIES) and len(found) == 9
    for strategy in STRATEGIES:
        high, low = (found[strategy, cosine] for cosine in ("0.99", "0.5"))
        assert low["ratio"] >= high["ratio"] >= 1 and low["bits"] <= high["bits"] <= 16.1
        assert low["kl"] >= high["kl"] and sum(low["pairs"]) >= sum(high["pairs"])
    assert found[BFF, "0.5"]["ratio"] > 1.5 and found[BFF, "0.5"]["kl"] > 0.01 and found[BFF, "0.99"]["kl"] < 0.001
    assert {row["form"] for row in result["forms"]} == {"q8", "q4"}
    unfused, *_, low = [row for row in result["served"] if "kl" in row]
    assert unfused["sessions"] == 3 and low["sessions"] == 4
    assert all(row["tokens_per_s"] > 0 for row in result["served"])

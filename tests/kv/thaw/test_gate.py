"""The gate is the KL of a form on its target: on one with key biases as in Qwen2, forms that others use are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import pltz
from pltz.benchmarks.kv.kv_targets import toys
from pltz.datasets.loaders import load, sample_path
from pltz.experiments.kv_peers import peers
from pltz.kv.calibrate import fitting
from pltz.kv.calibrate.measure import compare, sessions_to_rows, watched
from pltz.kv.port.bound import RECALL
from pltz.kv.port.codec import loss, recall_loss
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import NONE

CONTEXT, NEW, BOUND = 128, 32, 0.05
POINTS = (-24, -12, 0)
SPACE, SEGMENT = bytes(16), bytes(range(32))


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("toys")
    toys(folder)
    return Target.load(folder / "key-bias")


@pytest.fixture(scope="module")
def rows(biased: Target) -> Any:
    return sessions_to_rows(biased, load(sample_path()), 15, CONTEXT + NEW)


@pytest.fixture(scope="module")
def forms(biased: Target, rows: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return forms of ours and of others, each with a receipt of eight held-out rows."""
    work = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "SCORED_POINTS", POINTS)
        made = fitting.calibrate(biased, rows[:4], rows[4:12], fitting.Plan(CONTEXT, NEW, 2, work))
    path = made.save(work)
    found: dict[str, Any] = {n: c for n, c in pltz.kv_forms(biased, path, max_kl=BOUND).items() if n != "predictive"}
    embedding: Any = biased.model.get_input_embeddings().weight.detach()
    for point in POINTS:
        found[f"predictive {point}"] = PredictiveCodec(made, Rotary.of(biased), embedding, point)
    with pytest.raises(UsageError, match="no measured point is within the bound"):
        pltz.kv_forms(biased, path, max_kl=1e-7)
    wanted = ("turboquant-4", "int4", "q4_0-rotated", "fp8")
    others: list[tuple[str, Any]] = [(p.name, p) for p in peers() if p.name in wanted]
    for (name, peer), outcome in zip(others, compare(biased, rows[4:12], CONTEXT, others, control=False), strict=True):
        peer.receipt = outcome.receipt(name, 0, CONTEXT)
        found[name] = peer
    return found


def test_a_store_serves_the_forms_that_keep_to_the_bound_and_no_others(
    biased: Target, rows: Any, forms: dict[str, Any]
) -> None:
    ids = rows[12, :CONTEXT]
    kv, mass = watched(biased, ids)
    outcomes = compare(biased, rows[12:], CONTEXT, list(forms.items()), control=False)
    served: list[str] = []
    refused: list[str] = []
    for (name, codec), outcome in zip(forms.items(), outcomes, strict=True):
        store = HotStore.open(0, 1 << 28, forms={"host": codec})
        assert store.insert(SPACE, SEGMENT, NONE, replace(KVBlock.raw(kv, ids, ids, 0), mass=mass))
        store.close()
        with store.hold(SPACE, [SEGMENT], max_kl=BOUND) as lease:
            assert bool(len(lease)) == (loss(codec) <= BOUND and recall_loss(codec) <= RECALL * BOUND), name
            (served if len(lease) else refused).append(name)
        assert not len(store.hold(SPACE, [SEGMENT])), "exact is the default"
        if name in served:
            assert outcome.row()["kl"] < 2 * BOUND, f"{name} is served, and loses more than its receipt says"
    assert {"q8", "q4", "predictive -24"} <= set(served)
    assert {"turboquant-4", "int4", "q4_0-rotated"} <= set(refused)

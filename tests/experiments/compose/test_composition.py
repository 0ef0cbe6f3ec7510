"""Composition: what is exact, what repair restores and what is refused, for each rotary scaling that can be turned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pltz.experiments.compose.composition import COMPOSED, Composer, Composition
from pltz.experiments.compose.documents import Documents
from pltz.experiments.compose.segment import Segment
from pltz.kv.calibrate.measure import prefilled
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import RAW, serves
from pltz.kv.store.kv_block import KVBlock
from pltz.models.target.cache import cache_argument, cache_of
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ContentError, ModelError, UsageError
from tests.models.conftest import VOCAB

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
}  # fmt: skip


@pytest.fixture(scope="module")
def target_of(tmp_path_factory: pytest.TempPathFactory, save_model: Callable[..., Path]) -> Callable[..., Target]:
    """Return ``target_of(layers, **rope)``, which makes a small random llama."""

    def make(layers: int = 4, **scaling: Any) -> Target:
        config = transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None, eos_token_id=2,
            rope_parameters={"rope_theta": 10000.0, **(scaling or SCALINGS["default"])},
        )  # fmt: skip
        return Target.load(save_model(tmp_path_factory.mktemp("llama"), config))

    return make


@pytest.fixture(scope="module")
def target(target_of: Callable[..., Target]) -> Target:
    return target_of()


def ids_of(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(3, VOCAB, count).astype(np.int32)


def parts(seed: int = 0) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    return [ids_of(n, seed + k) for k, n in enumerate((30, 50, 41))]


def away(kv: torch.Tensor, other: torch.Tensor) -> float:
    return float((kv - other).abs().max() / other.abs().max())


def test_a_tower_in_its_place_is_the_prefill_bit_for_bit(target: Target) -> None:
    runs = parts()
    found = Composer(target).compose(Segment.tower(target, runs))
    assert found.exact and found.moved == () and found.repaired == 0
    assert torch.equal(found.kv, prefilled(target, np.concatenate(runs)))


@pytest.mark.parametrize("name", SCALINGS)
def test_a_tower_that_moves_as_a_whole_is_exact_but_for_rounding(name: str, target_of: Callable[..., Target]) -> None:
    """Against the model itself, at positions from 300 on."""
    target = target_of(**SCALINGS[name])
    runs = parts()
    found = Composer(target).compose(Segment.tower(target, runs), start=300)
    ids = torch.from_numpy(np.concatenate(runs).astype(np.int64))[None]
    with torch.inference_mode():
        cache: Any = cache_of([], target.model.config)
        where = 300 + torch.arange(ids.shape[1])[None]
        target.model(input_ids=ids, position_ids=where, **cache_argument(target.model, cache))
    exact = torch.stack([torch.stack([one.keys[0], one.values[0]]) for one in cache.layers])
    assert found.exact and away(found.kv, exact) < 1e-4  # turns in float32 where yarn scales keys
    assert away(Composer(target).compose(Segment.tower(target, runs)).kv[:, 0], exact[:, 0]) > 0.01  # not turned


@pytest.mark.parametrize("name", SCALINGS)
def test_a_repair_of_everything_is_the_prefill(name: str, target_of: Callable[..., Target]) -> None:
    target = target_of(**SCALINGS[name])
    runs = parts()
    segments = [Segment.alone(target, run) for run in runs]
    found = Composer(target).compose(segments, repair=1.0)
    assert not found.exact and found.repaired == 91 and found.moved == (range(30, 80), range(80, 121))
    assert away(found.kv, prefilled(target, np.concatenate(runs))) < 2e-5


def test_more_repair_leaves_less_difference(target: Target) -> None:
    runs = parts()
    exact = prefilled(target, np.concatenate(runs))
    segments = [Segment.alone(target, run) for run in runs]
    apart = []
    for share in (0.0, 0.15, 0.5, 1.0):
        found = Composer(target).compose(segments, repair=share)
        assert found.repaired == round(91 * share)
        assert torch.equal(found.kv[:, :, :, :30], segments[0].block.kv)  # the first is where it was
        apart.append(float((found.kv - exact).square().mean()))
    assert apart == sorted(apart, reverse=True) and apart[0] > 2 * apart[2] > 1e6 * apart[3]


def test_composed_kv_is_never_under_an_exact_name(target: Target) -> None:
    for segments in (Segment.tower(target, parts()), [Segment.alone(target, run) for run in parts()]):
        block = Composer(target).compose(segments).block()
        assert block.codec is COMPOSED and block.codec.name != RAW.name and not block.codec.exact
        assert not serves(block.codec, Bound.of(0.0)) and not serves(block.codec, Bound.of(1.0))
        assert block.recode(RAW) is block  # no exact form is made of it


def test_a_cache_of_documents_is_continued(target: Target) -> None:
    documents = Documents(target)
    prompt, *texts = parts()
    for n, ids in enumerate(texts):
        documents.add(str(n), ids)
    found: Composition = documents.behind(prompt, ["1", "0"], repair=1.0)
    asked = [*found.ids.tolist(), 5, 6, 7]
    _, logits = target.prefill(asked, cache=found.cache(target))
    assert torch.allclose(logits, target.prefill(asked)[1], rtol=1e-3, atol=1e-3)
    documents.remove("1")
    with pytest.raises(UsageError, match="add it first"):
        documents.behind(prompt, ["1"])
    assert documents.behind([], ["0"]).exact  # alone at the beginning, as it was computed


def test_what_cannot_be_composed_is_refused(target: Target, target_of: Callable[..., Target]) -> None:
    composer = Composer(target)
    one = Segment.alone(target, ids_of(20))
    for bad in ({"repair": 1.5}, {"repair": -0.1}, {"start": -1}):
        with pytest.raises(UsageError):
            composer.compose([one], **bad)
    with pytest.raises(UsageError):
        composer.compose([])
    with pytest.raises(ContentError, match="positions"):
        composer.compose([one], start=500)
    with pytest.raises(UsageError, match="position_ids"):
        composer.compose([one], start=5).cache(target)
    other = KVBlock.raw(one.block.kv[:, :, :1], one.block.ids, one.block.ids, 0)
    with pytest.raises(UsageError, match="one target"):
        composer.compose([one, Segment(other, one.before)])
    dynamic = target_of(rope_type="dynamic", factor=2.0)
    with pytest.raises(ModelError, match="dynamic"):
        Composer(dynamic)

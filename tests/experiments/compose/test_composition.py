"""Composition: what is exact, what repair restores and what is refused, for each rotary scaling that can be turned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pltz.experiments.compose.composition import Composer, Composition
from pltz.experiments.compose.documents import Documents
from pltz.experiments.compose.segment import Segment
from pltz.kv.calibrate.measure import prefilled
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError
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
def test_a_repair_of_everything_is_the_prefill(name: str, target_of: Callable[..., Target]) -> None:
    target, runs = target_of(**SCALINGS[name]), parts()
    segments = [Segment.alone(target, run) for run in runs]
    found = Composer(target).compose(segments, repair=1.0)
    assert not found.exact and found.repaired == 91 and found.moved == (range(30, 80), range(80, 121))
    assert away(found.kv, prefilled(target, np.concatenate(runs))) < 2e-5


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

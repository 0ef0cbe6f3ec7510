"""Many prefills in one pass give each session the KV and logits of a prefill of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings, strategies as st

from pltz.kv.thaw.thawed import KV_NOISE, kv_difference
from pltz.models.target.target import Target
from tests.examples import examples
from tests.models.conftest import VOCAB


@pytest.fixture(scope="module")
def target(llama: Path) -> Target:
    return Target.load(llama)


def check(target: Target, lengths: list[tuple[int, int]]) -> None:
    """Rows of (past, new) tokens."""
    rng = np.random.default_rng(len(lengths))
    rows = [rng.integers(0, VOCAB, past + new) for past, new in lengths]
    pasts = [target.prefill(row[:past])[0] if past else None for row, (past, _) in zip(rows, lengths, strict=True)]
    before = [None if c is None else c.get_seq_length() for c in pasts]
    found = target.prefill_many(list(zip(rows, pasts, strict=True)))
    assert [None if c is None else c.get_seq_length() for c in pasts] == before
    for row, (cache, logits) in zip(rows, found, strict=True):
        alone, expected = target.prefill(row)
        assert kv_difference(alone, cache) <= KV_NOISE["float32"]
        assert torch.allclose(logits, expected, atol=1e-3, rtol=1e-3)
        assert target.generate(cache, row, 6, logits=logits) == target.generate(alone, row, 6, logits=expected)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=6))
def test_rows_of_any_lengths(target: Target, lengths: list[tuple[int, int]]) -> None:
    check(target, lengths)


def test_a_target_with_windows_runs_them_one_by_one(
    tmp_path: Path, save_model: Callable[..., Path], llama_config: dict[str, Any]
) -> None:
    config = transformers.MistralConfig(**llama_config | {"sliding_window": 8, "model_type": "mistral"})
    check(Target.load(save_model(tmp_path, config)), [(0, 20), (12, 5)])

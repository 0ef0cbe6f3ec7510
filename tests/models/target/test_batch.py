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
from pltz.models.target.tokenizer_files import write_tokenizer
from pltz.plt_codec.errors import ContentError
from tests.examples import examples

VOCAB = 1024


def load(folder: Path, config: Any, tokenizer_json: bytes) -> Target:
    torch.manual_seed(3)
    auto: Any = transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    source = folder / "source.json"
    source.write_bytes(tokenizer_json)
    write_tokenizer(source, folder, 128)
    return Target.load(folder)


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3, "eos_token_id": None,
    "bos_token_id": None,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer_json: Callable[..., bytes]) -> Target:
    return load(tmp_path_factory.mktemp("llama"), transformers.LlamaConfig(**SIZES), tiny_tokenizer_json())


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


@pytest.mark.parametrize("lengths", [[(0, 9)] * 3, [(5, 9)] * 3, [(7, 0), (3, 4)], [(0, 121), (120, 1)]])
def test_equal_rows_rows_with_nothing_new_and_rows_at_the_last_position(
    target: Target, lengths: list[tuple[int, int]]
) -> None:
    check(target, lengths)


def test_a_target_with_windows_runs_them_one_by_one(tmp_path: Path, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    target = load(tmp_path, transformers.MistralConfig(**SIZES, sliding_window=8), tiny_tokenizer_json())
    check(target, [(0, 20), (12, 5)])


def test_ids_are_checked(target: Target) -> None:
    with pytest.raises(ContentError):
        target.prefill_many([([1, 2], None), ([VOCAB], None)])

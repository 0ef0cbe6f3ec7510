"""Cutting a cache into blocks and joining it again gives the same cache."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pltz.kv.store.kv_block import can_cut, cut, join
from pltz.kv.thaw.thawed import kv_difference
from pltz.models.target.cache import cache_argument, pairs_of, share
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError

IDS = np.arange(40, 60, dtype=np.int32)
CPU = torch.device("cpu")


@pytest.mark.parametrize("cuts", [[0, 20], [0, 7, 20], [0, 1, 1, 12, 20, 20]])
def test_a_cache_cut_and_joined_is_the_same(kin: Target, cuts: list[int]) -> None:
    cache, _ = kin.prefill(IDS)
    parts = [cut(cache, a, IDS[a:b], IDS[a:b]) for a, b in itertools.pairwise(cuts)]
    again = join(parts, kin.model.config, CPU)
    assert kv_difference(cache, again) == 0.0
    assert kin.generate(again, IDS, 10) == kin.generate(cache, IDS, 10)


def test_one_block_is_joined_without_a_copy_and_does_not_change(kin: Target) -> None:
    cache, _ = kin.prefill(IDS)
    one = cut(cache, 0, IDS, IDS)
    before = one.kv.clone()
    joined = [join([one], kin.model.config, CPU) for _ in range(2)]
    assert all(pairs_of(c)[1][0].data_ptr() == one.kv[1, 0].data_ptr() for c in joined)
    assert kin.generate(joined[0], IDS, 10) == kin.generate(joined[1], IDS, 10)
    assert torch.equal(one.kv, before), "sessions that go on do not write into it"


def test_a_shared_cache_grows_by_itself(kin: Target) -> None:
    cache, _ = kin.prefill(IDS)
    other = share(cache)
    kin.generate(other, IDS, 5)
    assert (cache.get_seq_length(), other.get_seq_length()) == (20, 24)


def test_a_block_has_memory_of_its_own(kin: Target) -> None:
    cache, logits = kin.prefill(IDS)
    one = cut(cache, 5, IDS[5:], IDS, logits)
    assert one.kv.untyped_storage().nbytes() == one.kv.nbytes
    assert one.logits is not None and one.logits.untyped_storage().nbytes() == one.logits.nbytes
    assert one.size == one.kv.nbytes + one.logits.nbytes + 4 * (15 + 20)


def test_a_cache_that_forgets_is_not_cut(kin: Target) -> None:
    config: Any = transformers.MistralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=4,
    )  # fmt: skip
    cache = transformers.DynamicCache(config=config)
    model = transformers.MistralForCausalLM(config)
    model(input_ids=torch.arange(9)[None], **cache_argument(model, cache), use_cache=True)
    assert not can_cut(cache)
    with pytest.raises(UsageError, match="alike"):
        cut(cache, 0, IDS[:2], IDS[:2])
    assert not can_cut(transformers.DynamicCache()) and not can_cut(transformers.DynamicCache(config=kin.model.config))
    whole, _ = kin.prefill(IDS)
    with pytest.raises(UsageError, match="21 tokens"):
        cut(whole, 1, IDS, IDS)

"""Families of models thaw: each from its configuration in transformers, made tiny, with random weights.

docs/transformers.md has this table. A family that the installed transformers lacks is skipped by name.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from pltz.kv.pool.page_format import PageFormat
from pltz.kv.store.snapshots import Snapshots
from pltz.kv.store.store import KVStore
from pltz.kv.thaw.thawed import KV_NOISE, kv_difference, thaw
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ModelError
from tests.models.conftest import POSITIONS, VOCAB, SaveModel

TINY = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": POSITIONS, "bos_token_id": None,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}
LATENT = EXPERTS | {
    "num_key_value_heads": 4, "head_dim": 8, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
INDEXED = LATENT | {"index_topk": 512, "index_head_dim": 16, "index_n_heads": 4, "first_k_dense_replace": 1}
MIXED = {"layer_types": ["linear_attention", "full_attention"] * 2, "linear_head_dim": 16, "linear_num_heads": 4}
BLOCKS, WHOLE = "blocks", "whole"  # how KV is kept hot
SMALL, NONE = "small", ""  # forms beside raw
# model_type: what differs from TINY, how it is kept hot, and whether small forms take it
FAMILIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "qwen3_5_text": (
        {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
         "linear_value_head_dim": 16}, WHOLE, NONE,
    ),
    "gemma3_text": ({"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2}, WHOLE, NONE),
    "gemma4_text": (
        {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 16, "sliding_window": 16}, WHOLE, NONE
    ),
    "gpt_oss": ({"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}, WHOLE, NONE),
    "kimi_linear": (LATENT | MIXED | {"num_local_experts": 8}, WHOLE, NONE),
    "glm4_moe": (EXPERTS | {"first_k_dense_replace": 1}, BLOCKS, SMALL),
    "glm_moe_dsa": (INDEXED, WHOLE, NONE),
    "deepseek_v3": (LATENT | {"first_k_dense_replace": 1}, WHOLE, NONE),  # values of another width than keys
    "deepseek_v32": (INDEXED, WHOLE, NONE),
    "deepseek_v4": (
        EXPERTS | {"num_key_value_heads": 1, "q_lora_rank": 32, "o_lora_rank": 32, "sliding_window": 16,
                   "index_topk": 64, "index_head_dim": 16, "index_n_heads": 4}, WHOLE, NONE,
    ),
    "llama": ({}, BLOCKS, SMALL),
    "mistral": ({"sliding_window": 16}, WHOLE, NONE),
    "ministral3": ({}, BLOCKS, SMALL),
    "phi3": ({}, BLOCKS, SMALL),
    "granite": ({}, BLOCKS, SMALL),
    "granitemoehybrid": (
        {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16,
         "mamba_n_groups": 1, "shared_intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2},
        WHOLE, NONE,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, save_model: SaveModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a target of each family, how it is kept hot, and whether small forms take it."""
    name = request.param
    if name not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    changed, hot, small = FAMILIES[name]
    config = transformers.AutoConfig.for_model(name, **TINY | changed)
    return Target.load(save_model(tmp_path_factory.mktemp(name), config), dtype="float32"), hot, small


def whole_caches_come_back(target: Target, ids: Any, folder: Path) -> None:
    """A session goes on from the end of a turn as if it had never left, from memory and from a file."""
    cache, last = target.prefill(ids[:60])
    for store in (Snapshots(target, 1 << 26), Snapshots(target, 0, 1 << 26, folder=folder)):
        store.keep("a", ids[:60], cache, last)
        assert store.read("b", ids, target.device).tokens == store.read("a", ids[:59], target.device).tokens == 0
        assert torch.equal(store.read("a", ids[:60], target.device).logits, last)  # type: ignore[arg-type]
        found = store.read("a", ids, target.device)
        assert found.tokens == 60 and found.logits is None
        grown, logits = target.prefill(ids, cache=found.cache)
        same, alike = target.prefill(ids, cache=copy.deepcopy(cache))
        assert torch.equal(logits, alike) and kv_difference(grown, same) == 0
        store.keep("a", ids, grown, logits)
        assert store.read("a", ids, target.device).tokens == 90 and store.stats().hit_tokens == 210
        store.discard("a", ids)
        assert store.read("a", ids, target.device).tokens == 0
    assert not list(folder.glob("*/*.safetensors"))


@pytest.mark.slow
def test_a_session_of_each_family_goes_on_from_a_thaw(family: Any, tmp_path: Path) -> None:
    """Cold, it is one prefill, with the cache that transformers makes; what is kept hot, and how, is told by name."""
    target, hot, small = family
    ids = np.random.default_rng(1).integers(3, VOCAB, 90)
    thawed = thaw(ids, target)
    assert thawed.cache.get_seq_length() == 90
    alone = target.model.generate(torch.from_numpy(ids)[None], max_new_tokens=12, do_sample=False, pad_token_id=0)
    new = target.generate(thawed.cache, thawed.token_ids, 12, logits=thawed.logits)
    assert len(new) > 1 and new == alone[0, 90:].tolist()
    _, logits = target.prefill(ids, cache=target.prefill(ids[:60])[0])  # in two turns
    assert float((logits - thawed.logits).abs().max()) <= KV_NOISE["float32"] * float(logits.abs().max())
    if hot == BLOCKS:
        KVStore.open(target, tokens=256).close()
    else:
        with pytest.raises(ModelError, match="window, a latent or a state"):
            KVStore.open(target, tokens=256)
        whole_caches_come_back(target, ids, tmp_path)
    if small:
        assert PageFormat.of(target, "q8").kind == "q8"
    else:
        with pytest.raises(ModelError):
            PageFormat.of(target, "q8")

"""Bytes of a KV cache, from the config of the model alone."""

import tracemalloc
from typing import Any

import pytest

from pltz.models.target.kv_size import KNOWN_SHAPES, kv_bytes_of
from pltz.plt_codec.errors import ModelError


@pytest.mark.parametrize(("name", "size"), [("Llama-3.1-8B", 131_072), ("Llama-3.1-70B", 327_680)])
def test_bytes_of_well_known_models(name: str, size: int) -> None:
    assert kv_bytes_of(KNOWN_SHAPES[name]) == size
    assert kv_bytes_of(KNOWN_SHAPES[name], 1000, element_bytes=4) == 2000 * size


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "dtype": "float32"}, 100 * 12 * 2 * 768 * 4),
        (KNOWN_SHAPES["Qwen3-8B"] | {"sliding_window": 9}, 36 * 2 * 8 * 128 * 2 * 8),
        (KNOWN_SHAPES["Qwen3-8B"] | {"sliding_window": 9, "use_sliding_window": False}, 36 * 2 * 8 * 128 * 2 * 100),
        ({"text_config": KNOWN_SHAPES["Qwen3-8B"]}, 36 * 2 * 8 * 128 * 2 * 100),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 100 * 61 * 576 * 2),
        (
            KNOWN_SHAPES["Qwen3-8B"] | {"layer_types": ["linear_attention", "full_attention"] * 18},
            18 * 2 * 8 * 128 * 2 * 100,
        ),
    ],
    ids=["gpt2", "window", "window off", "nested", "latent", "hybrid"],
)
def test_bytes_of_100_tokens(config: dict[str, Any], size: int) -> None:
    assert kv_bytes_of(config, 100) == size


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**400}, {"num_hidden_layers": -5}, {"num_hidden_layers": True},
        {"num_hidden_layers": 1 << 62}, {"num_attention_heads": float("inf")}, {"num_attention_heads": 0},
        {"head_dim": 10**400}, {"head_dim": "64"}, {"layer_types": "full_attention"}, {"layer_types": [[]]},
        {"layer_types": {"full_attention": 4}}, {"sliding_window": -7}, {"attention_chunk_size": -1},
        {"num_kv_shared_layers": -3}, {"num_kv_shared_layers": 4}, {"kv_lora_rank": [1]}, {"text_config": [1]},
    ],
)  # fmt: skip
def test_refuses_numbers_that_cannot_be(change: dict[str, Any]) -> None:
    sound = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64}
    assert kv_bytes_of(sound, 10) == 10_240
    with pytest.raises(ModelError, match="layers and heads"):
        kv_bytes_of((sound if "text_config" not in change else {}) | change, 10)


def test_any_number_of_layers_takes_no_memory_or_time() -> None:
    tracemalloc.start()
    assert kv_bytes_of({"num_hidden_layers": 1 << 26, "num_attention_heads": 4, "hidden_size": 64}, 10) == 10 << 34
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("config", [{}, {"num_hidden_layers": 3}, {"num_hidden_layers": "x", "head_dim": 3}])
def test_refuses_a_config_without_heads(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="layers and heads"):
        kv_bytes_of(config)

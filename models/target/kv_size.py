"""KV size: the bytes of keys and values per token in a model, from its config alone.

>>> kv_bytes_of(KNOWN_SHAPES["Llama-3.1-8B"])  # bytes per token in bf16: 2 x 32 layers x 8 heads x 128 x 2 bytes
131072
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pltz.plt_codec.errors import ModelError

# The part of well-known models' configurations that decides the size of their KV (dtype bf16).
KNOWN_SHAPES: dict[str, dict[str, int]] = {
    "Qwen3-8B": {"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128},
    "Llama-3.1-8B": {"num_hidden_layers": 32, "num_key_value_heads": 8, "head_dim": 128},
    "Llama-3.1-70B": {"num_hidden_layers": 80, "num_key_value_heads": 8, "head_dim": 128},
}
MOST = (1 << 31) - 1  # layers, heads or sizes of a config
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


def kv_bytes_of(config: Any, tokens: int = 1, *, element_bytes: int | None = None) -> int:
    """Return the bytes of KV that ``tokens`` tokens of one session take in a DynamicCache.

    ``config`` is a mapping with the keys of config.json, or a transformers config object. Layers that keep a
    window count up to the window less one (the current token brings itself). Latent attention counts its
    latents. Layers with a state of constant size (linear attention) and layers that share another's KV count
    nothing. ``element_bytes``: bytes per element; by default those of the config's dtype, or 2 (bf16) if it
    names none.

    Raises:
        ModelError: the config does not say how many layers and heads there are, or says what cannot be.
    """
    get = _getter(config)
    if element_bytes is None:
        dtype = str(get("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
        element_bytes = DTYPE_BYTES.get(dtype, 2)
    try:
        width = _kv_width(get)
        positions = sum(layers * min(tokens, window) for layers, window in _layers(get))
    except ValueError as exc:
        raise ModelError(
            f"the config does not say how many layers and heads the model has ({exc}): its KV has no size"
        ) from exc
    return positions * width * element_bytes


def _getter(config: Any) -> Any:
    """Return get(*names), which returns the first of some keys that the config has, or None.

    If the config has several parts, it looks in the text part.
    """
    if isinstance(config, Mapping):
        text = config.get("text_config")
        config = text if isinstance(text, Mapping) else config
        return lambda *names: next((config[n] for n in names if config.get(n) is not None), None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return lambda *names: next((v for n in names if (v := getattr(config, n, None)) is not None), None)


def _kv_width(get: Any) -> int:
    """Return the elements of K and V that one token takes in one layer."""
    latent = _count(get, "kv_lora_rank")
    if latent:  # multi-head latent attention: the compressed KV and one rotary key
        return latent + _count(get, "qk_rope_head_dim")
    heads = _count(get, "num_attention_heads", "n_head")
    kv_heads = _count(get, "num_key_value_heads", "num_kv_heads") or heads
    head_dim = _count(get, "head_dim") or _count(get, "hidden_size", "n_embd") // max(heads, 1)
    if min(kv_heads, head_dim) < 1:
        raise ValueError("no heads")
    return 2 * kv_heads * head_dim


def _layers(get: Any) -> list[tuple[int, int]]:
    """Return numbers of layers that have a KV of their own, and the most tokens that each of them keeps."""
    unbounded = 1 << 62
    layers = _count(get, "num_hidden_layers", "n_layer")
    own = layers - _count(get, "num_kv_shared_layers")
    window = _count(get, "sliding_window") if get("use_sliding_window") is not False else 0
    chunk = _count(get, "attention_chunk_size")
    if own < 1:
        raise ValueError("no layers")
    kept = {"full_attention": unbounded, "sliding_attention": window - 1 if window else unbounded}
    kept["chunked_attention"] = chunk - 1 if chunk else unbounded
    types = get("layer_types")
    if not types:  # not a list of so many equal ones: a config may ask for any number
        return [(own, kept["sliding_attention"])]
    if not isinstance(types, list | tuple) or not all(isinstance(kind, str) for kind in types):
        raise ValueError("layer_types are no list of names")
    return [(1, kept[kind]) for kind in types[:own] if kind in kept]


def _count(get: Any, *names: str) -> int:
    """Return a number of the config, 0 where it has none. Raises ValueError for what cannot be one."""
    value = get(*names)
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"{names[0]} is no number from 0 to {MOST}")
    return value


def cache_bytes(cache: Any) -> int:
    """Return the bytes of the K and V tensors of a filled cache, counted on the tensors themselves."""
    tensors = [
        t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))
    ]
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)

"""Caches over existing tensors: operations on a transformers `DynamicCache` beside letting a model fill it.

A `DynamicCache` grows by concatenation and never writes into tensors it was given, so caches may share them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from functools import cache as once
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache


def cache_of(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], config: Any) -> DynamicCache:
    """Return a cache that begins with these K and V, (B, heads, T, D) per layer, not copied; an empty one for none.

    ``config``: the model's.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    for layer, (keys, values) in zip(cache.layers, pairs, strict=False):
        kept: Any = layer  # as its first `update` leaves it, without the copy that this makes
        kept.dtype, kept.device = keys.dtype, keys.device
        kept.keys, kept.values = keys, values
        kept.is_initialized = True
    return cache


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Return the cache as the keyword argument by which a model's forward pass and `generate` take it.

    transformers 5.24 renames ``past_key_values`` to ``cache``. ``model``: the module that is called.
    """
    return {_argument_name(type(model).forward): cache}


@once
def _argument_name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def share(cache: DynamicCache) -> DynamicCache:
    """Return another cache that grows by itself, over the same tensors where it is plain, else over copies."""
    if not is_plain(cache):
        return copy.deepcopy(cache)
    other = copy.copy(cache)
    other.layers = [copy.copy(layer) for layer in cache.layers]
    return other


def pairs_of(cache: DynamicCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return K and V, (B, heads, T, D), of each layer of a plain cache that is not empty."""
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


def is_plain(cache: DynamicCache) -> bool:
    """Return whether every layer keeps K and V of all tokens, and nothing else: no window, no state."""
    from transformers.cache_utils import DynamicLayer

    return all(type(layer) is DynamicLayer for layer in cache.layers)


def cache_bytes(cache: DynamicCache) -> int:
    """Return the bytes of the K and V tensors of a cache, of layers that have them."""
    tensors = [t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)

"""Attention over pages, as an attention of transformers: `use_pages(model)`.

A pass of one token per session reads pages as they lie: attend.c on a CPU, attend_pages.cu on a GPU. A pass of more
unpacks the pages of one layer into a scratch, and torch attends. A cache of another kind is attended by torch.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from pltz.kv.pool import cpu_attention, gpu_attention
from pltz.kv.pool.batch_cache import NewTokens
from pltz.kv.pool.layer_view import LayerView
from pltz.plt_codec import ModelError

NAME = "pltz_pages"


def use_pages(model: Any) -> None:
    """Let a model of transformers attend over pages where its cache is a `BatchKVCache`, else as sdpa does.

    Raises ModelError where the model does not let its attention be chosen.
    """
    AttentionInterface.register(NAME, pages_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    try:
        model.set_attn_implementation(NAME)
    except (ValueError, AttributeError, ImportError) as exc:
        raise ModelError(f"this model takes no other attention, so it cannot attend over pages: {exc}") from exc


def pages_attention(
    module: Any,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention of queries (B, query heads, S, D), as (B, S, query heads, D). See `use_pages`."""
    if not isinstance(key, NewTokens):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    cache, layer, count = key.cache, key.layer, query.shape[2]
    if layer == 0:
        cache.mark(attention_mask, count)
    view = cache.view(layer)
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    if count == 1 and (found := _packed(view, query[:, :, 0], scaling)) is not None:
        return found.to(query.dtype)[:, None], None
    keys, values, real = view.unpacked()
    mask = None
    if attention_mask is not None or keys.shape[2] > count:
        mask = _mask(real, count)
    return sdpa_attention_forward(module, query, keys, values, mask, scaling=scaling)


def _packed(view: LayerView, query: torch.Tensor, scaling: float) -> torch.Tensor | None:
    """Return the attention (B, query heads, D) of one token per session, None where nothing reads pages here."""
    if cpu_attention.serves(view):
        return cpu_attention.attend(view, query, scaling)
    return gpu_attention.attend(view, query, scaling) if gpu_attention.serves(view, query.shape[1]) else None


def _mask(real: torch.Tensor, count: int) -> torch.Tensor:
    """Return who sees what, (B, 1, count, keys): the tokens before, and new ones up to oneself.

    A column that is no token sees itself, so that no number in it becomes NaN.
    """
    mask = real[:, None, None].repeat(1, 1, count, 1)
    new = torch.ones(count, count, dtype=torch.bool, device=real.device)
    mask[..., -count:] &= new.tril()
    mask[..., -count:] |= torch.eye(count, dtype=torch.bool, device=real.device)
    return mask

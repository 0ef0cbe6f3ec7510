"""KV of a cache of transformers: cut out of it as one tensor, and joined to one again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pltz.models import cache_of, is_plain, pairs_of
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache


def can_cut(cache: DynamicCache) -> bool:
    """Return whether all layers keep K and V of all tokens in one shape.

    That excludes sliding windows, latents and states of linear attention.
    """
    if not is_plain(cache) or not cache.get_seq_length():
        return False
    shapes = {t.shape for pair in pairs_of(cache) for t in pair}
    return len(shapes) == 1 and shapes.pop()[0] == 1


def cut(cache: DynamicCache, start: int, stop: int) -> torch.Tensor:
    """Return the KV (layers, 2, heads, T, D) of positions ``start`` to ``stop`` of a cache, in memory of its own.

    Raises UsageError for a cache that cannot be cut (see `can_cut`) or that ends earlier.
    """
    import torch

    if not can_cut(cache) or int(cache.get_seq_length()) < stop:
        raise UsageError(f"expected a cache of {stop} tokens or more, of one session and all layers alike")
    with torch.inference_mode():
        parts = [t[0, :, start:stop] for pair in pairs_of(cache) for t in pair]
        kv: torch.Tensor = torch.stack(parts).unflatten(0, (-1, 2))
        return kv


def join(pieces: Sequence[torch.Tensor], config: Any) -> DynamicCache:
    """Return a cache of KV (layers, 2, heads, T, D) in pieces that follow each other. ``config``: of the model.

    Nothing is copied where there is one. A `DynamicCache` grows by concatenation, and never writes into what it has.
    """
    import torch

    whole = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), 3)
    return cache_of(((kv[0][None], kv[1][None]) for kv in whole), config)

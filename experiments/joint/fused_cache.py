"""Fused cache: a cache of transformers over sessions of a fused pool, one layer unpacked at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pltz.experiments.joint.fused_pool import BLOCK, FusedPool, FusedSession
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch


def fused_cache(pool: FusedPool, sessions: Sequence[FusedSession]) -> Any:
    """Return a cache of sessions of as many tokens each, as a batch. New tokens are kept beside the pages.

    Raises UsageError for no sessions, and for sessions of different lengths.
    """
    import torch
    from transformers.cache_utils import Cache, CacheLayerMixin

    if len({(one.tables.shape, one.tail.shape) for one in sessions}) != 1:
        raise UsageError("expected sessions of as many tokens each: decode those of other lengths in a batch apart")
    pages: int = BLOCK * sessions[0].tables.shape[1]

    class Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers has no hint there
        """One layer of the cache, as transformers calls it."""

        is_sliding = False
        supports_early_init = False

        def __init__(self, layer: int) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.layer = layer
            self.new = torch.stack([one.tail[layer] for one in sessions])  # (B, 2, heads, t, D)
            self.is_initialized = True

        def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
            """Do nothing: the sessions were there before."""

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            """Add keys and values (B, heads, S, D), and return those of all tokens."""
            self.new = torch.cat([self.new, torch.stack([key_states, value_states], 1)], 3)
            kv = torch.cat([pool.layer(sessions, self.layer).to(self.new.dtype), self.new], 3)
            return kv[:, 0], kv[:, 1]

        def get_seq_length(self) -> int:
            """Return the tokens of each session."""
            return pages + self.new.shape[3]

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            """Return the columns with those of the next pass, and 0."""
            return self.get_seq_length() + query_length, 0

        def get_max_length(self) -> int:
            """Return -1: there is no most."""
            return -1

    return Cache(layers=[Layer(n) for n in range(pool.layers)])

"""Repair: compute some tokens of a composed KV anew, all layers in one pass of the target.

A segment that was computed alone has not seen the tokens that stand before it now. Its first tokens suffer most: they
served as attention sinks. Others deviate by how much they lean on the missing context. One layer over all tokens shows
the exact KV of layer 1, and so which tokens deviate (CacheBlend, 2405.16444; first tokens: EPIC, 2410.15332).

`refreshed` runs the chosen tokens only. Each layer puts their new keys and values among the others, and attends over
all that stand before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from pltz.models.target.cache import cache_argument

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.models.target.target import Target

    Ids = NDArray[np.int32]

FIRST = 16  # tokens of each moved segment that are always computed anew
SHOWN = 1  # the layer whose KV tells which tokens deviate


def deviation(target: Target, kv: torch.Tensor, ids: Ids, start: int) -> NDArray[np.float32]:
    """Return how much each token's KV in layer 1 differs from the exact one, (T,), as a share of its mean square.

    ``kv``: (layers, 2, heads, T, D) composed at positions ``start`` onwards, of ``ids`` (T,). Costs about one layer.
    """
    layer = min(SHOWN, len(kv) - 1)
    probe = _Probe(len(kv), layer)
    try:
        _run(target, probe, ids, start + np.arange(len(ids)), None)
    except _Shown as shown:
        exact = torch.stack([shown.keys[0], shown.values[0]]).float()  # (2, heads, T, D)
    apart = (exact - kv[layer].float()).square().mean((1, 3))  # (2, T)
    found: NDArray[np.float32] = (apart / exact.square().mean((1, 2, 3))[:, None]).sum(0).cpu().numpy()
    return found


def refreshed(target: Target, kv: torch.Tensor, ids: Ids, start: int, chosen: NDArray[np.int64]) -> torch.Tensor:
    """Return a KV in which the ``chosen`` tokens, ascending indices (n,), are computed anew behind all before them.

    ``kv``: (layers, 2, heads, T, D) at positions ``start`` onwards, of ``ids`` (T,); it is not changed.
    """
    kv = kv.clone()
    if len(chosen):
        column = torch.arange(len(ids), device=kv.device)
        index = torch.from_numpy(chosen).to(kv.device)
        seen = column[None] <= index[:, None]
        mask = torch.zeros(seen.shape, dtype=kv.dtype, device=kv.device).masked_fill(~seen, torch.finfo(kv.dtype).min)
        _run(target, _Scatter(kv, index), ids[chosen], start + chosen, mask[None, None])
    return kv


def _run(target: Target, cache: Cache, ids: Ids, positions: NDArray[np.int64], mask: torch.Tensor | None) -> None:
    """Run the layers of a target over ids (n,) at positions (n,)."""
    model: Any = target.model
    with torch.inference_mode():
        model.base_model(
            input_ids=torch.from_numpy(ids.astype(np.int64))[None].to(target.device),
            position_ids=torch.from_numpy(positions)[None].to(target.device),
            attention_mask=mask,
            **cache_argument(model.base_model, cache),
            use_cache=True,
        )


class _Shown(Exception):
    """Ends a pass with the keys and values, (1, heads, T, D) each, of the layer that a probe looks at."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers has no hint there
    """One layer of a cache that keeps nothing between passes."""

    is_sliding = False
    supports_early_init = False
    is_initialized = True

    def __init__(self, length: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = length
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: there is nothing to allocate."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the columns that a pass attends to, and 0."""
        return self.length or query_length, 0

    def get_seq_length(self) -> int:
        """Return 0: positions are given."""
        return 0

    def get_max_length(self) -> int:
        """Return -1: there is no most."""
        return -1


class _ProbeLayer(_Layer):  # type: ignore[no-untyped-call]
    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a prefill attends to; of the layer looked at, raise it."""
        if self.last:
            raise _Shown(key_states, value_states)
        return key_states, value_states


class _ScatterLayer(_Layer):  # type: ignore[no-untyped-call]
    def __init__(self, kv: torch.Tensor, index: torch.Tensor) -> None:
        super().__init__(kv.shape[2])
        self.kv, self.index = kv, index

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put new keys and values, (1, heads, n, D), among the others, and return all."""
        self.kv[0][:, self.index], self.kv[1][:, self.index] = key_states[0], value_states[0]
        return self.kv[0][None], self.kv[1][None]


class _Probe(Cache):
    """A cache that ends a pass at one layer."""

    def __init__(self, layers: int, last: int) -> None:
        super().__init__(layers=[_ProbeLayer(n == last) for n in range(layers)])


class _Scatter(Cache):
    """A cache over a composed KV (layers, 2, heads, T, D), which a pass over some of its tokens renews."""

    def __init__(self, kv: torch.Tensor, index: torch.Tensor) -> None:
        super().__init__(layers=[_ScatterLayer(layer, index) for layer in kv])

"""Attention over pages on a CPU, by attend.c: one new token per session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.kv.engines.streams import shared_out
from pltz.kv.pool.layer_view import LayerView
from pltz.kv.pool.page_format import KINDS

try:
    from pltz.kv.pool import _attend
except ImportError:  # no C compiler at the installation
    _attend = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

WIDEST = 64  # bytes of a vector, at most
TYPES = ("torch.float32", "torch.bfloat16", "torch.float16")
FEW = 1 << 20  # multiplications below which a thread is not worth its start


def there() -> bool:
    """Return whether the compiled part is installed."""
    return _attend is not None


def serves(view: LayerView) -> bool:
    """Return whether `attend` can run: it is compiled, knows the type of the KV, and that is on a CPU."""
    return there() and view.keys.device.type == "cpu" and str(view.keys.dtype) in TYPES


def attend(view: LayerView, query: torch.Tensor, scaling: float, widest: int = WIDEST) -> torch.Tensor:
    """Return the attention (B, query heads, D) of queries (B, query heads, D), float32.

    ``scaling``: of scores. ``widest``: bytes of a vector, at most.
    """
    import torch

    slab, form = view.slab, view.slab.form
    batch, queries, dim = query.shape
    heads = form.heads
    q = (query.float() * scaling).contiguous()
    out = torch.empty_like(q)
    angles = form.angles(view.most, query.device)
    centre = q.new_empty(0) if form.centre is None else form.centre[view.layer].contiguous()
    half = 0 if form.rotary is None else len(form.rotary.inv_freq)
    room = view.keys.shape[2]
    kind = KINDS.index(form.kind)
    # The C side takes bytes alone: what is absent for this kind of block is an empty array.
    arrays = [
        q, out, slab.tensors["kv"][view.layer], slab.tensors["scale"][view.layer] if kind else q.new_empty(0),
        view.table, view.packed, view.keys, view.values, view.real, centre, angles.tile_cos, angles.tile_sin,
        angles.cos, angles.sin,
    ]  # fmt: skip
    flat: Any = [_bytes(array) for array in arrays]
    sizes = (batch, heads, queries // heads, dim, half)
    rows = (slab.blocks, slab.block, view.table.shape[1], form.sinks, room, view.columns)
    tiles = angles.tile_cos.shape[0]

    def some(first: int, last: int) -> None:
        number = TYPES.index(str(view.keys.dtype))
        _attend.attend(kind, number, sizes, rows, tiles, *flat, first, last, widest)

    # A task per session and key head, in threads where there is enough to do.
    tasks = batch * heads
    if batch * queries * dim * (view.most + view.columns) < FEW:
        some(0, tasks)
    else:
        shared_out(tasks, some)
    return out


def _bytes(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the memory of a contiguous tensor; numpy has no bfloat16."""
    import torch

    if not tensor.is_contiguous():
        raise ValueError("expected a contiguous tensor")
    return np.zeros(0, np.uint8) if not tensor.numel() else tensor.detach().view(-1).view(torch.uint8).numpy()

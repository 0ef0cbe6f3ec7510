"""Attention over pages against unpack-then-attend: equal within float noise, by every implementation."""

import pytest
import torch

from pltz.kv.pool import cpu_attention
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.layer_view import LayerView
from pltz.kv.pool.packed_session import PackedSession
from tests.kv.pool.pages import HEADS, form, random_kv

GROUP = 3
LENGTHS = (5, 150, 391)  # all exact, a part of a tile packed, several tiles


def view_of(kind: str, block: int, dim: int, half: int, dtype: torch.dtype, layer: int = 1) -> LayerView:
    """Return a batch of sessions of several lengths, with unused columns among the exact tokens."""
    pool = BlockPool(form(kind, dim, half, dtype), 2048, block=block)
    rows = [PackedSession.of(random_kv(tokens, dim, half, seed=tokens).to(dtype), pool, keep=20) for tokens in LENGTHS]
    most = max(row.exact.shape[3] for row in rows)
    exact = torch.full((2, len(rows), HEADS, most + 3, dim), float("nan"), dtype=dtype)
    real = torch.zeros(len(rows), most + 3, dtype=torch.uint8)
    table = torch.zeros(len(rows), max(len(row.blocks) for row in rows), dtype=torch.int32)
    for n, row in enumerate(rows):
        count = row.exact.shape[3]
        exact[:, n, :, most - count : most] = row.exact[layer]
        real[n, most - count : most] = 1
        table[n, : len(row.blocks)] = torch.tensor(row.blocks)
    packed = torch.tensor([row.packed for row in rows], dtype=torch.int32)
    return LayerView(pool.device, layer, table, packed, int(packed.max()), exact[0], exact[1], real, most)


def expected(view: LayerView, query: torch.Tensor, scaling: float, group: int = GROUP) -> torch.Tensor:
    """Return the attention by torch over unpacked KV."""
    keys, values, real = (part.double() if part.is_floating_point() else part for part in view.unpacked())
    keys, values = (part.nan_to_num().repeat_interleave(group, 1) for part in (keys, values))
    scores = (query.double()[:, :, None] @ keys.mT)[:, :, 0] * scaling
    return (scores.masked_fill(~real[:, None], float("-inf")).softmax(-1)[:, :, None] @ values)[:, :, 0]


SHAPES = [("q4", 16, 64, 32), ("q4", 256, 128, 64), ("q8", 16, 64, 16), ("q8", 256, 20, 8), ("raw", 16, 20, 8),
          ("q4", 16, 16, 8), ("q8", 16, 256, 128)]  # fmt: skip


@pytest.mark.skipif(not cpu_attention.there(), reason="no C compiler at the installation")
@pytest.mark.parametrize("widest", [64, 32, 16])
@pytest.mark.parametrize(("kind", "block", "dim", "half"), SHAPES)
def test_compiled_attention_is_that_over_unpacked_kv(kind: str, block: int, dim: int, half: int, widest: int) -> None:
    view = view_of(kind, block, dim, half, torch.float32)
    query = torch.randn(len(LENGTHS), HEADS * GROUP, dim, generator=torch.Generator().manual_seed(3))
    found, right = cpu_attention.attend(view, query, 0.3, widest), expected(view, query, 0.3)
    assert (found - right).abs().max() < 2e-5 * right.abs().max()


@pytest.mark.skipif(not cpu_attention.there(), reason="no C compiler at the installation")
def test_tables_beyond_the_pool_are_refused() -> None:
    view = view_of("q4", 16, 64, 32, torch.float32)
    query = torch.zeros(len(LENGTHS), HEADS * GROUP, 64)
    view.table[2, 1] = view.slab.blocks
    with pytest.raises(ValueError, match="tables"):
        cpu_attention.attend(view, query, 1.0)
    view.table[2, 1] = -1
    with pytest.raises(ValueError, match="tables"):
        cpu_attention.attend(view, query, 1.0)

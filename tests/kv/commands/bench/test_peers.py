"""kv_peers: budgets by layer keep the largest variance."""

from __future__ import annotations

import torch

from pltz.kv.commands.bench.peers import budgets, low_rank, low_rank_by_layer


def kv(seed: int, tokens: int = 32) -> torch.Tensor:
    return torch.randn(2, 2, 2, tokens, 8, generator=torch.Generator().manual_seed(seed))


def test_budgets_by_layer_keep_the_largest_variance() -> None:
    given = kv(2, 64)
    given[1] *= 10
    kept = budgets(given, 4)
    assert sum(kept) == 2 * 2 * 16 // 4 and sum(kept[2:]) > sum(kept[:2])
    even, chosen = (float((change(4)(given)[0] - given).square().sum()) for change in (low_rank, low_rank_by_layer))
    assert chosen < even
    exact, bits = low_rank_by_layer(1)(given)
    assert torch.allclose(exact, given, atol=1e-3) and bits == 16 * given.numel()

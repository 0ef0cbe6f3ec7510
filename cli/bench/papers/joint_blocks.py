"""Joint encoding of KV blocks: blocks of several sessions that point alike share one direction, each keeps its norm.

Batch Fast-Fusion of the paper "Joint Encoding of KV-Cache Blocks", algorithm 1: pairs of sessions, then pairs of
pairs. Keys are turned back to position 0 first, as its authors do there. It is measured, and kept in no store: see
`docs/papers.md` for why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from pltz.kv.port.rotary import Rotary

BLOCK = 16  # tokens


@dataclass(frozen=True, eq=False)
class Fused:
    """KV of sessions after fusion.

    ``kvs``: each (layers, 2, heads, T, D). ``ratio``: blocks over those that are left. ``alike``: share of blocks that
    have one of another session with a cosine over the threshold. ``found``, ``expected``: pairs of blocks over the
    threshold in the first merges, counted and by the Poisson rate of a Gaussian, corollary 5.2.
    """

    kvs: list[torch.Tensor]
    ratio: float
    alike: float
    found: int
    expected: float


@dataclass(frozen=True, eq=False)
class _Directions:
    """Directions of blocks, (n, r), and for each the numbers of the blocks that it stands for."""

    keys: torch.Tensor
    values: torch.Tensor
    members: list[list[int]]


def fuse(kvs: Sequence[torch.Tensor], rotary: Rotary, threshold: float) -> Fused:
    """Return sessions' KV (layers, 2, heads, T, D), T a multiple of `BLOCK`, with blocks fused over a cosine."""
    import torch

    layers, _, heads, tokens, dim = kvs[0].shape
    count = tokens // BLOCK
    flat = [torch.stack([rotary.turn(kv[:, 0], 0, back=True), kv[:, 1]], 1) for kv in kvs]
    blocks = torch.stack([_blocks(kv) for kv in flat])  # (sessions, layers, 2, count, r)
    norms = blocks.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    units = blocks / norms
    again = torch.empty_like(units)
    left, alike, found, expected = 0, 0, 0, 0.0
    for layer in range(layers):
        groups = [
            _Directions(one[layer, 0], one[layer, 1], [[n * count + i] for i in range(count)])
            for n, one in enumerate(units)
        ]
        for a, b in zip(groups[::2], groups[1::2], strict=False):
            cosines = a.keys @ b.keys.mT
            found += int((cosines > threshold).sum())
            mean, spread = float(cosines.mean()), max(float(cosines.std()), 1e-9)
            expected += cosines.numel() * 0.5 * math.erfc((threshold - mean) / spread / math.sqrt(2))
        every = units[:, layer, 0].reshape(-1, units.shape[-1])
        near = every @ every.mT > threshold
        owner = torch.arange(len(every)) // count
        alike += int((near & (owner[:, None] != owner[None])).any(1).sum())
        while len(groups) > 1:  # a level of the tree
            pairs = [_merged(a, b, threshold) for a, b in zip(groups[::2], groups[1::2], strict=False)]
            groups = pairs + groups[len(groups) // 2 * 2 :]
        left += len(groups[0].members)
        for number, members in enumerate(groups[0].members):
            for one in members:
                again[one // count, layer, 0, one % count] = groups[0].keys[number]
                again[one // count, layer, 1, one % count] = groups[0].values[number]
    again *= norms
    turned = []
    for one in again:
        kv = one.reshape(layers, 2, count, heads, BLOCK, dim).transpose(2, 3).reshape(layers, 2, heads, tokens, dim)
        turned.append(torch.stack([rotary.turn(kv[:, 0], 0), kv[:, 1]], 1))
    total = layers * count * len(kvs)
    return Fused(turned, total / left, alike / total, found, expected)


def _blocks(kv: torch.Tensor) -> torch.Tensor:
    """Return KV (layers, 2, heads, T, D) as blocks (layers, 2, T / BLOCK, heads * BLOCK * D)."""
    layers, two, heads, tokens, dim = kv.shape
    return kv.reshape(layers, two, heads, tokens // BLOCK, BLOCK, dim).transpose(2, 3).flatten(3)


def _merged(left: _Directions, right: _Directions, threshold: float) -> _Directions:
    """Return two groups as one: each direction of the left takes the right ones over the threshold that are free."""
    import torch

    near = left.keys @ right.keys.mT > threshold
    keys, values = left.keys.clone(), left.values.clone()
    members = [list(one) for one in left.members]
    free = torch.ones(len(right.members), dtype=torch.bool)
    for row in near.any(1).nonzero()[:, 0].tolist():
        taken = (near[row] & free).nonzero()[:, 0]
        if len(taken):
            free[taken] = False
            keys[row] += right.keys[taken].sum(0)
            values[row] += right.values[taken].sum(0)
            members[row] += [one for n in taken.tolist() for one in right.members[n]]
    rest = free.nonzero()[:, 0]
    keys, values = torch.cat([keys, right.keys[rest]]), torch.cat([values, right.values[rest]])
    members += [right.members[n] for n in rest.tolist()]
    normalize = torch.nn.functional.normalize
    return _Directions(normalize(keys, dim=-1), normalize(values, dim=-1), members)

"""Fast Fusion: blocks of several runs that point alike become one direction.

Source: "Joint Encoding of KV-Cache Blocks for Scalable LLM Serving", algorithm 1. Runs are the blocks of requests
(Batch Fast-Fusion) or of chunks of one request (Chunks Fast-Fusion). Halves of the runs are fused first, then both.
Keys decide; values follow them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Directions:
    """Unit directions of blocks, (n, r) for keys and for values, and the numbers of the blocks that each stands for."""

    keys: torch.Tensor
    values: torch.Tensor
    members: list[list[int]]


def fast_fusion(runs: Sequence[Directions], threshold: float) -> Directions:
    """Return the directions that are left of at least one run. ``threshold``: cosine of keys above which two fuse."""
    if len(runs) == 1:
        return runs[0]
    half = len(runs) // 2
    return _merged(fast_fusion(runs[:half], threshold), fast_fusion(runs[half:], threshold), threshold)


def _merged(left: Directions, right: Directions, threshold: float) -> Directions:
    """Return two sets as one: each direction of the left takes the right ones above the threshold that are free."""
    import torch

    near = left.keys @ right.keys.mT > threshold
    keys, values = left.keys.clone(), left.values.clone()
    members = [list(one) for one in left.members]
    free = torch.ones(len(right.members), dtype=torch.bool, device=keys.device)
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
    unit = torch.nn.functional.normalize
    return Directions(unit(keys, dim=-1), unit(values, dim=-1), members)

"""Similarity: cosines of blocks of two runs in each layer, and how many pairs a threshold is expected to fuse.

Source: "Joint Encoding of KV-Cache Blocks", section 5. Cosines of a layer are taken as Gaussian, or by their own
density with a Gaussian kernel (equation 1). Pairs above a high threshold are then rare and independent, so their number
is Poisson with the rate pairs * P(cosine > threshold).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOST = 4096  # cosines of a layer that the density is made of


@dataclass(frozen=True, eq=False)
class Similarity:
    """Cosines of pairs of blocks that belong to two runs, (pairs,) of each layer."""

    cosines: list[torch.Tensor]

    @classmethod
    def of(cls, runs: Sequence[torch.Tensor]) -> Similarity:
        """Return the similarity of unit directions of keys, (layers, blocks, r) of each run; at least two runs."""
        import torch

        pairs = list(combinations(range(len(runs)), 2))
        return cls(
            [
                torch.cat([(runs[a][layer] @ runs[b][layer].mT).flatten() for a, b in pairs]).double()
                for layer in range(len(runs[0]))
            ]
        )

    def above(self, thresholds: Sequence[float]) -> list[float]:
        """Return the share of pairs above the threshold of each layer, counted."""
        return [float((x > u).double().mean()) for x, u in zip(self.cosines, thresholds, strict=True)]

    def gaussian(self, thresholds: Sequence[float]) -> list[float]:
        """Return the share of pairs that is expected above the threshold of each layer, by a Gaussian."""
        return [1 - self._normal(layer).cdf(u) for layer, u in enumerate(thresholds)]

    def kernel(self, thresholds: Sequence[float]) -> list[float]:
        """Return the same by the density of equation 1, with Silverman's bandwidth."""
        import torch

        found = []
        for x, u in zip(self.cosines, thresholds, strict=True):
            some = x[:: max(len(x) // MOST, 1)]
            width = max(1.06 * float(x.std()) * len(x) ** -0.2, 1e-9)
            found.append(float(torch.erfc((u - some) / width / math.sqrt(2)).mean()) / 2)
        return found

    def thresholds(self, share: float) -> list[float]:
        """Return of each layer the threshold that a ``share`` of pairs, above 0 and below 1, is expected to pass."""
        return [self._normal(layer).inv_cdf(1 - share) for layer in range(len(self.cosines))]

    def _normal(self, layer: int) -> NormalDist:
        x = self.cosines[layer]
        return NormalDist(float(x.mean()), max(float(x.std()), 1e-9))


def ratio(shares: Sequence[float], left: int, right: int) -> float:
    """Return the compression of two runs of ``left`` and ``right`` blocks by corollary 5.2.

    ``shares``: of pairs above the threshold, by layer. A layer fuses at most all of its right blocks, which the
    corollary does not say: its count of pairs may be larger.
    """
    fused = sum(min(share * left * right, right) for share in shares)
    blocks = len(shares) * (left + right)
    return blocks / (blocks - fused)


def no_fusion(share: float, left: int, right: int) -> float:
    """Return the probability that a layer of two runs fuses nothing, by corollary 5.2."""
    return math.exp(-share * left * right)

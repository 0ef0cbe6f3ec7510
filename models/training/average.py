"""The average of bundles that were trained from one another, in the arithmetic of one of them.

    python -m pltz.models.training.average base=0.3 run/base=0.7 --out averaged   # bundle=share

Weights of few steps cannot be averaged as floats. Half of two neighbours is no step, and rounding a net anew
moves all of its rows a little, which costs more than the average gains. So each weight keeps to the steps.
Where the bundles agree it stays. Where they differ it becomes a neighbour of the mean, by chance, so that the
mean is right over many. All else, scales of rows and multipliers, is averaged as it is. The tokenizer, the
dictionary and the card are the last bundle's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.weights import Weights

AGREE = 1e-3  # steps: beyond this two bundles differ, below it is the mean's own error
MOST = 127


def average(nets: Sequence[Weights], shares: Sequence[float], seed: int = 0) -> Weights:
    """Return the integers of the mean net.

    Args:
        nets: of one shape.
        shares: of each, together 1.

    Raises:
        UsageError: the shapes differ, or the shares do not sum to 1.
    """
    first = nets[0]
    if any(net.shape != first.shape for net in nets):
        raise UsageError("bundles of different shapes have no average")
    if len(shares) != len(nets) or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise UsageError(f"expected shares that sum to 1, found {', '.join(f'{s:g}' for s in shares)}")
    random = np.random.default_rng(seed)
    out: dict[str, npt.NDArray[Any]] = {}
    for name in sorted(first.tensors):
        found = [net[name] for net in nets]
        if name.startswith("table."):  # of the contract, the same in all
            out[name] = first[name]
        elif name.endswith(".w"):
            scales = [net[name.removesuffix("w") + "m"] for net in nets]
            out[name] = _rows(found, scales, shares, random)
        else:
            mean = sum(s * t.astype(np.float64) for s, t in zip(shares, found, strict=True))
            out[name] = np.round(mean).astype(first[name].dtype)
    return Weights(first.shape, out)


def _rows(
    found: list[npt.NDArray[Any]],
    scales: list[npt.NDArray[Any]],
    shares: Sequence[float],
    random: np.random.Generator,
) -> npt.NDArray[np.int8]:
    """Return a matrix (n, m) in steps of the mean scale of each row (n,)."""
    weighted = [s * scale.astype(np.float32) for s, scale in zip(shares, scales, strict=True)]
    whole = np.maximum(np.sum(weighted, axis=0), 1e-9)[:, None]
    mean = np.sum([w[:, None] / whole * t for w, t in zip(weighted, found, strict=True)], axis=0)
    near = np.round(mean)
    below = np.floor(mean)
    chosen = below + (random.random(mean.shape, dtype=np.float32) < mean - below)
    kept: npt.NDArray[np.int8] = np.clip(
        np.where(np.abs(mean - near) < AGREE, near, chosen), -MOST, MOST
    ).astype(np.int8)
    return kept


def _part(text: str) -> tuple[Bundle, float]:
    name, _, share = text.rpartition("=")
    return Bundle.load(name), float(share)


def main() -> None:
    """Run the command line described at the top of this file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("parts", nargs="+", type=_part, metavar="BUNDLE=SHARE")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    bundles = [bundle for bundle, _ in a.parts]
    last = bundles[-1]
    weights = average([b.weights for b in bundles], [share for _, share in a.parts], a.seed)
    write_bundle(
        a.out, last.name, weights, last.tokenizer.json, last.zstd_dict, last.card, packed=weights.shape.gated
    )
    print(f"{a.out}: {Bundle.load(a.out).id.hex()}")


if __name__ == "__main__":
    main()

"""Average the weights of two bundles of one ancestry: a cheap remedy where the later one has seen its data too often.

    python -m pltz.models.training.merge --first DIR --second DIR --share 0.6 --out DIR

share is the second's part. Both are taken back to floats (export.restore), rows of the embedding are compared by direction, and the
average is rounded again. Works only where one was trained on from the other (models/LOG.md has the measurements).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pltz.models.bundle import Bundle, read_weights, write_bundle
from pltz.models.training.export import Floats, export, restore
from pltz.models.training.net import NetConfig
from pltz.plt_codec.weights import Weights


def merge(first: Weights, second: Weights, share: float) -> Weights:
    """Weights (1 - share) * first + share * second."""
    a, b = restore(first), restore(second)
    state: dict[str, Floats] = {k: (1 - share) * a[k] + share * b[k] for k in a}
    state["embed"] = (1 - share) * _directions(a["embed"]) + share * _directions(b["embed"])
    shape = first.shape.to_dict()
    return export(state, {**shape, "rope_base": NetConfig.rope_base})


def _directions(rows: Floats) -> Floats:
    out: Floats = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-12)
    return out


def main() -> None:
    """Command line: see the head of this file."""
    p = argparse.ArgumentParser()
    p.add_argument("--first", type=Path, required=True)
    p.add_argument("--second", type=Path, required=True, help="gives tokenizer and dictionary too")
    p.add_argument("--share", type=float, default=0.6)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    bundle = Bundle.load(a.second)
    weights = merge(read_weights(a.first), bundle.weights, a.share)
    write_bundle(a.out, bundle.name, weights, bundle.tokenizer.json, bundle.zstd_dict, {})


if __name__ == "__main__":
    main()

"""Fit the temperatures of the two head levels on validation sessions, and write the bundle anew.

    python -m pltz.models.training.calibrate --bundle DIR --data chat_validation.jsonl.zst --out DIR2

Training stops where the optimiser leaves the model a little too sure of itself on data it has not seen. One factor for the class
multipliers and one for the members' is found by measuring the model's ideal code length (integer engine, real frames) on a few
values of each; nothing else changes. Prints what each value costs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from pltz.models.bundle import Bundle, write_bundle
from pltz.models.tokenizer import Ids
from pltz.models.training.layouts import sessions
from pltz.models.transcript import to_tokens_many
from pltz.plt_codec.native import NativeCoder
from pltz.plt_codec.weights import Weights

STEPS = (0.90, 0.94, 0.97, 1.0, 1.03)


def scaled(weights: Weights, name: str, factor: float) -> Weights:
    """The same model with all logits of one head level multiplied: multipliers and biases."""
    tensors = dict(weights.tensors)
    for part in (".m", ".b"):
        tensors[name + part] = np.round(weights[name + part] * factor).astype(np.int32)
    return Weights(weights.shape, tensors)


def cost(weights: Weights, tokens: list[Ids]) -> float:
    """Ideal code length in bits."""
    return sum(e.ideal_bits for e in NativeCoder(weights).encode(tokens))


def main() -> None:
    """Command line: see the head of this file."""
    p = argparse.ArgumentParser()
    p.add_argument("--bundle", type=Path, required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--limit", type=int, default=30_000, help="content bytes a source")
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    bundle = Bundle.load(a.bundle)
    tokens = to_tokens_many(sessions(a.data, a.limit), bundle.tokenizer)
    weights, before = bundle.weights, 0.0
    report: dict[str, dict[str, float]] = {}
    for name in ("class", "member"):
        found = {factor: cost(scaled(weights, name, factor), tokens) for factor in STEPS}
        best = min(found, key=lambda f: found[f])
        before = before or found[1.0]
        report[name] = {str(f): round(bits / before, 5) for f, bits in found.items()}
        print(name, report[name], "chosen", best, flush=True)
        weights = scaled(weights, name, best)
    raw = json.loads(json.dumps(bundle.card))
    write_bundle(a.out, bundle.name, weights, bundle.tokenizer.json, bundle.zstd_dict, raw)
    print(json.dumps({"tokens": sum(map(len, tokens)), "bits_before": before, "costs": report}))


if __name__ == "__main__":
    main()

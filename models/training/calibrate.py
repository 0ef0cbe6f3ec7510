"""Fit a handful of temperatures on validation sessions, and write the bundle anew.

    python -m pltz.models.training.calibrate --bundle DIR --data chat_validation.jsonl.zst --out DIR2

Training leaves the model too sure of itself on data it has not seen. Four groups of multipliers get one
factor each, chosen by the model's ideal code length (integer engine, real frames). The groups are fitted one
after the other, and then all again in finer steps. They are both levels of the head, the inverse temperatures
of attention, and the last layer's contribution to the residual. Nothing else changes, so speed and size stay.
Prints the cost of each value.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pltz.models.bundle.bundle import Bundle, coder_of, write_bundle
from pltz.models.bundle.tokenizer import Ids
from pltz.models.session.session import Session
from pltz.models.session.transcript import to_tokens_many
from pltz.models.training.prepare import read_lines
from pltz.plt_codec.weights import Weights

ROUNDS = ((0.85, 0.9, 0.93, 0.96, 1.04), (0.975, 1.025))  # factors, coarse and then fine


def groups(layers: int) -> dict[str, list[str]]:
    """Return the tensors that share a factor, by group name."""
    return {
        "class": ["class.m", "class.b"],
        "member": ["member.m", "member.b"],
        "attention": [f"layer.{i}.heat" for i in range(layers)],
        "last": [f"layer.{layers - 1}.down.m"],
    }


def scaled(weights: Weights, names: list[str], factor: float) -> Weights:
    """Return the same model with these tensors multiplied and rounded."""
    changed = {name: np.round(weights[name] * factor).astype(np.int32) for name in names}
    return Weights(weights.shape, {**weights.tensors, **changed})


def cost(weights: Weights, tokens: list[Ids], device: str) -> float:
    """Return the ideal code length, in bits, of token sequences (T,)."""
    return sum(e.ideal_bits for e in coder_of(weights, device).encode(tokens))


def calibrate(
    weights: Weights, tokens: list[Ids], say: Callable[[str], None] = print, device: str = "cpu"
) -> tuple[Weights, dict[str, dict[str, float]]]:
    """Fit the factors on token sequences (T,).

    Return the weights with the best factor for each group, and bits per token by group, round and factor.
    """
    count, best = max(1, sum(map(len, tokens))), cost(weights, tokens, device)
    report: dict[str, dict[str, float]] = {"before": {"1.0": round(best / count, 4)}}
    for turn, factors in enumerate(ROUNDS):
        for group, names in groups(weights.shape.layers).items():
            title = group if not turn else f"{group}, again"
            found = {factor: cost(scaled(weights, names, factor), tokens, device) for factor in factors}
            report[title] = {str(f): round(bits / count, 4) for f, bits in found.items()}
            factor = min(found, key=lambda f: found[f])
            if found[factor] < best:
                best, weights = found[factor], scaled(weights, names, factor)
            say(f"{title} {report[title]} now {best / count:.4f} bits a token")
    report["after"] = {"1.0": round(best / count, 4)}
    return weights, report


def sessions(path: str, limit: int) -> list[Session]:
    """Return sessions of a records file, at most `limit` content bytes per source."""
    used: dict[str, int] = defaultdict(int)
    out = []
    for record in read_lines(path):
        source = record["id"].rsplit("-", 1)[0]
        size = sum(len(m["content"].encode()) for m in record["messages"])
        if used[source] + size <= limit:
            used[source] += size
            out.append(Session("chat", {"messages": record["messages"]}))
    return out


def main() -> None:
    """Run the command line described at the top of this file."""
    p = argparse.ArgumentParser()
    p.add_argument("--bundle", type=Path, required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--limit", type=int, default=100_000, help="content bytes a source")
    p.add_argument("--device", default="cpu", help="cpu or cuda")
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    bundle = Bundle.load(a.bundle)
    tokens = to_tokens_many(sessions(a.data, a.limit), bundle.tokenizer)
    weights, report = calibrate(bundle.weights, tokens, device=a.device)
    packed = bundle.weights.shape.gated
    write_bundle(
        a.out, bundle.name, weights, bundle.tokenizer.json, bundle.zstd_dict, bundle.card, packed=packed
    )
    print(json.dumps({"tokens": sum(map(len, tokens)), "bits_per_token": report}))


if __name__ == "__main__":
    main()

"""The average of two nets, part by part: what a run learnt, without all of what it forgot.

    python -m pltz.training.nets.average ONE OTHER SHARES.toml OUTPUT

ONE is a bundle, by name or folder. OTHER is the folder of a net that a run left (`student-HASH` in its work folder), or
a bundle too; it must have the shape of ONE. The result is a bundle with ONE's tokenizer and dictionary. SHARES has

    [shares]             of OTHER in each part, from 0 (ONE alone) to 1; every part must be there
        embedding        the table of tokens
        head             classes, biases and gains of both levels, the last norm
        attention_low    queries, keys, values, output and temperature of the first half of the layers
        attention_high   the same of the other layers; of an odd number the first half has one more
        hidden_low       the hidden layers of the first half, and their norm
        hidden_high      the same of the other layers
    [factors]            on the temperatures after it, by group (`pipeline.groups`); 1 where it is left out

Averaged are the floats whose rounding the integers are. In contract 1 the average is rounded anew; only the direction
of a row of the table counts there, so rows are brought to the same length first. `mini_average.toml` has `mini`'s
shares.

A net with a `step` has few values per row, and rounding it anew would move all of them, which costs more than an
average gains. So each of its weights keeps to the steps of its row, at the mean of both scales. Where both nets agree
it stays. Where they differ it becomes a neighbour of the mean, by chance, so that the mean is right over many.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pltz.models import Bundle, write_bundle
from pltz.plt_codec import UsageError, Weights
from pltz.training.nets import checkpoint
from pltz.training.nets.checkpoint import Floats, Int8Rows, Rounded
from pltz.training.nets.export import export
from pltz.training.nets.origin import Origin
from pltz.training.pipeline import groups, scaled

PARTS = ("embedding", "head", "attention_low", "attention_high", "hidden_low", "hidden_high")
AGREE = 1e-3  # steps: below it a distance is the error of the mean
HIDDEN = ("up.", "down.", "gate.", "norm_mid")


def part_of(name: str, layers: int) -> str:
    """Return the part that a tensor of a net of so many layers belongs to (names: `NetConfig.tensors`)."""
    if not name.startswith("blocks."):
        return "embedding" if name == "embed" else "head"
    _, layer, inner = name.split(".", 2)
    kind = "hidden" if inner.startswith(HIDDEN) else "attention"
    return f"{kind}_{'low' if int(layer) < (layers + 1) // 2 else 'high'}"


def averaged(one: Rounded, other: Rounded, shares: Mapping[str, float]) -> Rounded:
    """Return the net between two, with a share of `other` for each of `PARTS`.

    Raises:
        UsageError: the nets have different shapes, or a share is missing, unknown or not between 0 and 1.
    """
    if set(shares) != set(PARTS):
        raise UsageError(f"[shares]: expected {', '.join(PARTS)}, found {', '.join(shares) or 'none'}")
    for part, share in shares.items():
        if not 0 <= share <= 1:
            raise UsageError(f"[shares] {part}: expected a number from 0 to 1, found {share}")
    config = one.config
    if config.gated != other.config.gated or config.tensors() != other.config.tensors():
        raise UsageError("only nets of one shape can be averaged: name a net that was trained from this bundle")
    share_of = {name: shares[part_of(name, config.layers)] for name in config.tensors()}
    if config.step:
        return _on_steps(one, other, share_of)
    ours, theirs = _state(one), _state(other)
    mixed: dict[str, Floats] = {}
    for name in ours:
        mixed[name] = ((1 - share_of[name]) * ours[name] + share_of[name] * theirs[name]).astype(np.float32)
    return checkpoint.rounded(mixed, config)


def _on_steps(one: Rounded, other: Rounded, share_of: Mapping[str, float]) -> Rounded:
    """Return the net between two whose weights keep to the steps of their rows (see the head of this file)."""
    random = np.random.default_rng(1)
    matrices: dict[str, Int8Rows] = {}
    for name in sorted(one.matrices):
        ours, theirs, share = one.matrices[name], other.matrices[name], share_of[name]
        first = (1 - share) * ours.scale.astype(np.float32).astype(np.float64)
        second = share * theirs.scale.astype(np.float32).astype(np.float64)
        scale = np.maximum(first + second, 1e-12)
        mean = (first / scale).astype(np.float32)[:, None] * ours.weights
        mean += (second / scale).astype(np.float32)[:, None] * theirs.weights
        below = np.floor(mean)
        drawn = below + (random.random(mean.shape, dtype=np.float32) < mean - below)
        nearest = np.round(mean)
        chosen = np.where(np.abs(mean - nearest) < AGREE, nearest, drawn)
        matrices[name] = Int8Rows(np.clip(chosen, -127, 127).astype(np.int8), scale.astype(ours.scale.dtype))
    rest = {
        name: ((1 - share_of[name]) * value + share_of[name] * other.rest[name]).astype(np.float32)
        for name, value in one.rest.items()
    }
    return Rounded(one.config, matrices, rest)


def tempered(weights: Weights, factors: Mapping[str, float]) -> Weights:
    """Return weights with a factor on each named group of `pipeline.groups`.

    Raises:
        UsageError: there is no such group, or a factor is not above 0.
    """
    known = groups(weights.shape.layers)
    for group, factor in factors.items():
        if group not in known:
            raise UsageError(f"[factors] {group}: expected some of {', '.join(known)}")
        if not 0 < factor < 2:
            raise UsageError(f"[factors] {group}: expected a number above 0 and below 2, found {factor}")
        weights = scaled(weights, known[group], factor)
    return weights


def read(path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the shares and the factors of a file.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    try:
        tree = tomllib.loads(path.read_text("utf8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path}: expected a TOML file with [shares]: {exc}") from exc
    found = [tree.pop(table, {}) for table in ("shares", "factors")]
    numbers = all(isinstance(t, dict) and all(type(v) in (int, float) for v in t.values()) for t in found)
    if tree or not numbers:
        raise UsageError(f"{path}: expected numbers in [shares] and [factors], and nothing else")
    return found[0], found[1]


def _state(net: Rounded) -> dict[str, Floats]:
    """Return the float tensors of a net, the rows of a table of contract 1 at root mean square 1."""
    state = net.floats()
    if not net.config.gated:
        state["embed"] = checkpoint.unit(state["embed"]).astype(np.float32)
    return state


def main(arguments: Sequence[str]) -> None:
    """See the head of this file.

    Raises:
        UsageError: an argument is of no use, or the output exists.
    """
    if len(arguments) != 4:
        raise UsageError("usage: python -m pltz.training.nets.average ONE OTHER SHARES.toml OUTPUT")
    bundle, output = Bundle.load(arguments[0]), Path(arguments[3])
    if output.exists():
        raise UsageError(f"{output} exists: choose another output")
    shares, factors = read(Path(arguments[2]))
    net = averaged(Origin(arguments[0], "ONE").net, Origin(arguments[1], "OTHER").net, shares)
    weights = tempered(export(net), factors)
    write_bundle(output, output.name, weights, bundle.tokenizer.json, bundle.zstd_dict, {}, packed=weights.shape.gated)
    print(f"{output}: bundle {Bundle.load(output).id.hex()}")


if __name__ == "__main__":
    main(sys.argv[1:])

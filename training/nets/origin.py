"""The origin of a net that training goes on from or learns from: a bundle, or the net of an earlier run.

A bundle is given by name or folder, a run by the folder of its net. A bundle holds integers. The net whose
rounding they are is known up to the rounding error (export.restore). Before its first step it codes as the
bundle does, within 1 % (tests/training/nets/test_origin.py). It has the bundle's tokenizer and shape. So
streams must have the same tokenizer, and settings the same shape or a larger one. Both are checked before
anything is trained.

A net is made larger without changing its function. The trained net's knowledge is kept; the rest is room to
learn.

    a layer more     the layer before it once more, but it adds nothing: its `out` and `down` are 0
    a hidden unit    a row of `up` (and `gate`) like those of a net that has learnt nothing, a column of `down` of 0

Zeros stand only on the way out: they have a gradient from the first step, while a path with zeros on both
sides never has one. The old rows keep their int8 steps (net.weight_scale looks at the largest weight of a
row). So the grown net's integers, too, compute what the old ones did. The exception is a gated net with a
`step`, which looks at the mean square too: more hidden units round `down` anew.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pltz.models import Bundle
from pltz.plt_codec import UsageError
from pltz.training.digests import digest, digest_files
from pltz.training.nets import checkpoint
from pltz.training.nets.checkpoint import Floats, NetConfig, NetShape, Rounded
from pltz.training.nets.export import restore

GROWS = ("layers", "hidden")
FREE = ("step", "block", "memory", "residual_max")  # training may change the rounding and the memory of a position


class Origin:
    """One origin.

    Args:
        name: of a bundle that ships, or the folder of a bundle or of a net.
        place: the setting that named it, for messages.

    Raises:
        UsageError: there is no such bundle or folder.
    """

    def __init__(self, name: str, place: str) -> None:
        self.name, self.place = name, place
        here = name not in Bundle.names() and (Path(name) / checkpoint.NET).is_file()
        self.bundle = None if here else Bundle.load(name)

    @cached_property
    def net(self) -> Rounded:
        """Return the net.

        Raises:
            ModelError: it cannot be read, or has no floats.
        """
        return checkpoint.read(Path(self.name)) if self.bundle is None else restore(self.bundle.weights)

    @property
    def key(self) -> str:
        """Return hexadecimal digits that name its content."""
        if self.bundle is not None:
            return self.bundle.id.hex()
        return digest(digest_files([str(Path(self.name) / part) for part in (checkpoint.NET, checkpoint.CONFIG)]))

    def shape(self) -> dict[str, Any]:
        """Return the keys of its shape."""
        return {f.name: getattr(self.net.config, f.name) for f in dataclasses.fields(NetShape)}

    def write(self, folder: Path) -> None:
        """Write the net into a folder."""
        checkpoint.write(self.net, folder)

    def check_tokenizer(self, found: bytes) -> None:
        """Refuse a tokenizer other than the bundle's. Of a net only the number of ids is known.

        Raises:
            UsageError: the tokenizer is another one.
        """
        if self.bundle is not None and self.bundle.tokenizer.json != found:
            raise UsageError(
                f"{self.place}: bundle {self.name} has another tokenizer: "
                f'use [tokenizer] kind = "bundle", bundle = "{self.name}"'
            )

    def check_shape(self, wanted: NetConfig) -> None:
        """Refuse a configuration whose net cannot go on from this one. It may be larger.

        Raises:
            UsageError: the shape does not fit.
        """
        if other := misfits(self.net.config, wanted):
            raise UsageError(
                f"{self.place}: {self.name} has another shape: leave the keys of its shape out, or set "
                f"{', '.join(other)}"
            )


def grown(state: dict[str, Floats], old: NetConfig, new: NetConfig, seed: int = 0) -> dict[str, Floats]:
    """Return the tensors of a net of shape `new` that computes the same as `state`, of shape `old`.

    Args:
        state: by name as in `Net.state_dict`, float32 (shapes: `NetConfig.tensors`).

    Raises:
        UsageError: the shapes differ in more than layers and hidden units, or `new` is smaller.
    """
    if other := misfits(old, new):
        raise UsageError(f"a net cannot grow to another shape: set {', '.join(other)}")
    random = np.random.default_rng(seed)
    out = {k: v for k, v in state.items() if not k.startswith("blocks.")}
    for number, (source, is_new) in enumerate(_order(old.layers, new.layers)):
        layer = {k: state[f"blocks.{source}.{k}"] for k in _names(state, source)}
        layer = _wider(layer, new.hidden - old.hidden, random)
        if is_new:
            layer |= {k: np.zeros_like(layer[k]) for k in ("out.weight", "down.weight")}
        out |= {f"blocks.{number}.{k}": v for k, v in layer.items()}
    return out


def misfits(old: NetConfig, new: NetConfig) -> list[str]:
    """Return the settings that `new` would need to be grown from `old`, as in a configuration; none where it can."""
    found = []
    for name, theirs in dataclasses.asdict(old).items():
        ours = getattr(new, name)
        if name in GROWS:
            found += [f"{name} = {theirs} or more"] if ours < theirs else []
        elif name not in FREE and theirs != ours:
            found.append(f"{name} = {json.dumps(theirs)}")
    return found


def _order(old: int, new: int) -> list[tuple[int, bool]]:
    """Return, for each layer of the new net, the old layer it comes from and whether it is additional, spread
    evenly."""
    copies = [1 + (i + 1) * (new - old) // old - i * (new - old) // old for i in range(old)]
    return [(i, copy > 0) for i, count in enumerate(copies) for copy in range(count)]


def _names(state: dict[str, Floats], layer: int) -> list[str]:
    head = f"blocks.{layer}."
    return [k.removeprefix(head) for k in state if k.startswith(head)]


def _wider(layer: dict[str, Floats], more: int, random: np.random.Generator) -> dict[str, Floats]:
    """Return the layer with `more` hidden units that change nothing."""
    if not more:
        return layer
    out = dict(layer)
    for name in ("up.weight", "gate.weight"):
        if name in layer:
            w = layer[name]
            rows = random.standard_normal((more, w.shape[1])) * np.sqrt(np.mean(np.square(w, dtype=np.float64)))
            out[name] = np.concatenate([w, rows.astype(np.float32)])
    down = layer["down.weight"]
    out["down.weight"] = np.concatenate([down, np.zeros((len(down), more), np.float32)], axis=1)
    return out

"""A net rounded as its integers will be: int8 rows with a scale each, the rest in floats.

Training leaves it, it travels, and export takes it.

    net.safetensors   for each matrix NAME (int8) and NAME.scale (float32, one per row); every other tensor float32
    config.json       the NetConfig

The rounding is the one that training has in its loop (net.weight_scale), so the rounded net computes what the
trained one did. Training can go on from it. Two things are lost: how far each weight was from its next step,
and the optimisers' memory.

The shape of a net is here too: sizes that a configuration file sets, and those that the tokenizer adds. The
integers have a shape of their own, `plt_codec.weights.Shape`, for decoding; this one is for training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from pltz.plt_codec import CLASS, ModelError

Floats = npt.NDArray[np.floating[Any]]
NET = "net.safetensors"
CONFIG = "config.json"
SCALE = ".scale"
MAX_HEAD = 1 << 20  # bytes of config.json, and of the head of the other
LIMITS = {  # on values read from a file; the limits of the integers are narrower
    "d": 1 << 13,
    "layers": 256,
    "heads": 256,
    "kv_heads": 256,
    "head_dim": 512,
    "hidden": 1 << 15,
    "block": 1 << 16,
    "memory": 1 << 16,
    "vocab": 1 << 16,
}


@dataclass(frozen=True)
class NetShape:
    """The sizes of a net, how sessions are cut, and the memory of the block before.

    Multiply-adds per token outside attention: layers * (2 d^2 + 2 d kv + 2 d hidden) + 2 * 128 d; gated: 3 d
    hidden.
    """

    d: int = 384
    layers: int = 7
    heads: int = 6
    kv_heads: int = 3
    head_dim: int = 64
    hidden: int = 1664
    rope_base: float = 10000.0
    gated: bool = False  # numeric contract 2: norms with gains, SiLU gate, queries and keys not normalised
    step: float = 0.0  # gated: smallest step of a weight, in root mean squares of its row; larger ones compress better
    block: int = 4096
    memory: int = 1024


@dataclass(frozen=True)
class NetConfig(NetShape):
    """The configuration of a net as it is built."""

    vocab: int = 16384
    residual_max: float = 32768.0  # gated: the residual is clamped to it

    @classmethod
    def of(cls, shape: NetShape, vocab: int) -> NetConfig:
        """Return the net of a shape, or of settings that hold one, for `vocab` ids."""
        return cls(**{f.name: getattr(shape, f.name) for f in fields(NetShape)}, vocab=vocab)

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict for JSON."""
        return asdict(self)

    @staticmethod
    def read(tree: dict[str, Any]) -> NetConfig:
        """Return the configuration that a file holds.

        Raises:
            ModelError: no net can have it.
        """
        try:
            config = NetConfig(**tree)
        except TypeError as exc:
            raise ModelError(f"the shape of a net has other keys: {exc}") from exc
        for name, limit in LIMITS.items():
            value = getattr(config, name)
            if type(value) is not int or not 0 < value <= limit:
                raise ModelError(f"the shape of a net: {name} must be a whole number from 1 to {limit}, got {value!r}")
        for name, least in (("rope_base", 1.0), ("step", 0.0), ("residual_max", 1.0)):
            value = getattr(config, name)
            if type(value) not in (int, float) or not least <= value <= 1e12:
                raise ModelError(f"the shape of a net: {name} must be a number from {least:g}, got {value!r}")
        if type(config.gated) is not bool:
            raise ModelError("the shape of a net: gated must be true or false")
        if config.vocab % CLASS or config.heads % config.kv_heads or config.head_dim % 2:
            raise ModelError(
                f"the shape of a net: {config.vocab} ids, {config.heads} heads on {config.kv_heads} of "
                f"{config.head_dim} do not divide"
            )
        return config

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the net, by name in `Net.state_dict`."""
        d, hidden, width, classes = self.d, self.hidden, self.heads * self.head_dim, self.vocab // CLASS
        qkv = width + 2 * self.kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "log_temperature": (self.heads,),
            "qkv.weight": (qkv, d),
            "out.weight": (d, width),
            "up.weight": (hidden, d),
            "down.weight": (d, hidden),
        }
        out: dict[str, tuple[int, ...]] = {
            "embed": (self.vocab, d),
            "classes": (classes, d),
            "class_shift": (classes, d),
        }
        out |= {"class_bias": (classes,), "member_bias": (self.vocab,), "member_gain": ()}
        if self.gated:
            layer |= {"gate.weight": (hidden, d), "norm_in": (d,), "norm_mid": (d,)}
            out["norm_out"] = (d,)
        return out | {f"blocks.{i}.{k}": shape for i in range(self.layers) for k, shape in layer.items()}

    def size(self) -> int:
        """Return the bytes of the rounded net's tensors (checkpoint.py): an int8 per weight, a float32 per row and
        for all else."""
        return sum(math.prod(s) + 4 * s[0] if len(s) == 2 else 4 * math.prod(s) for s in self.tensors().values())


class Int8Rows(NamedTuple):
    """A matrix: int8 weights (n, m) and the scale of each row (n,)."""

    weights: npt.NDArray[np.int8]
    scale: Floats


class Rounded(NamedTuple):
    """A net: its configuration, its matrices, and the tensors that stay floats, by name in `Net.state_dict`."""

    config: NetConfig
    matrices: dict[str, Int8Rows]
    rest: dict[str, Floats]

    def floats(self) -> dict[str, Floats]:
        """Return the state to train on from, float32 (shapes: `NetConfig.tensors`)."""
        out: dict[str, Floats] = {
            k: r.weights.astype(np.float32) * r.scale[:, None].astype(np.float32) for k, r in self.matrices.items()
        }
        out |= self.rest
        if not self.config.gated:
            out["embed"] = out["embed"] * np.float32(0.5)  # only its direction counts; shorter, it turns faster
        return out


def rows(w: Floats, step: float = 0.0) -> Int8Rows:
    """Return int8 weights (n, m) and the scale of each row (n,) of a float matrix (n, m).

    The rounding is the one in training (net.weight_scale).
    """
    w32 = w.astype(np.float32)
    scale = np.maximum(np.abs(w32).max(1, keepdims=True), np.float32(1e-8)) / np.float32(127)
    if step:
        scale = np.maximum(scale, np.float32(step) * np.sqrt(np.square(w32).mean(1, keepdims=True)))
    return Int8Rows(np.clip(np.round(w32 / scale), -127, 127).astype(np.int8), scale[:, 0])


def rounded(state: Mapping[str, Floats], config: NetConfig) -> Rounded:
    """Return the rounded net of a float state (shapes: `NetConfig.tensors`)."""
    matrices: dict[str, Int8Rows] = {}
    for name, value in state.items():
        if value.ndim == 2:
            matrices[name] = rows(unit(value) if name == "embed" and not config.gated else value, _step(name, config))
    return Rounded(config, matrices, {k: v.astype(np.float32) for k, v in state.items() if v.ndim != 2})


def unit(table: Floats) -> Floats:
    """Scale rows to root mean square 1: in contract 1 only the direction of a table's row counts (net.Net.table)."""
    out: Floats = table / np.sqrt((table.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-12)
    return out


def _step(name: str, config: NetConfig) -> float:
    """Return the smallest step of a matrix in root mean squares of its row.

    As in net.py, blocks and table have one, the classes have none.
    """
    if not config.gated or name in ("classes", "class_shift"):
        return 0.0
    return config.step / 2 if name == "embed" else config.step


def write(net: Rounded, folder: Path) -> None:
    """Write both files."""
    tensors: dict[str, Any] = dict(net.rest)
    for name, matrix in net.matrices.items():
        tensors |= {name: matrix.weights, name + SCALE: matrix.scale.astype(np.float32)}
    tensors = {k: np.array(v, order="C") for k, v in tensors.items()}  # ascontiguousarray would make a scalar a vector
    safetensors.numpy.save_file(tensors, folder / NET)
    (folder / CONFIG).write_text(json.dumps(net.config.to_dict(), indent=1) + "\n")


def read(folder: Path) -> Rounded:
    """Read both files. The tensors must be those of the configuration, and nothing larger is read.

    Raises:
        ModelError: a file is missing or damaged, or the tensors are not those of config.json.
    """
    try:
        config = NetConfig.read(json.loads(_bounded(folder / CONFIG, MAX_HEAD).read_bytes()))
        tensors = safetensors.numpy.load_file(_bounded(folder / NET, config.size() + MAX_HEAD))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, safetensors.SafetensorError) as exc:
        raise ModelError(f"the net in {folder} cannot be read ({exc}): remove its folder and run again") from exc
    wanted = dict(_layout(config))
    found = {name: (t.dtype.type, t.shape) for name, t in tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ModelError(
                f"the net in {folder} is damaged: its tensor {name} is not what config.json says: remove "
                "its folder and run again"
            )
    matrices = {
        k: Int8Rows(tensors[k], tensors[k + SCALE].astype(np.float64))
        for k, s in config.tensors().items()
        if len(s) == 2
    }
    return Rounded(config, matrices, {k: tensors[k] for k, s in config.tensors().items() if len(s) != 2})


def _layout(config: NetConfig) -> Iterator[tuple[str, tuple[type, tuple[int, ...]]]]:
    """Yield name, type and shape of every tensor of the file."""
    for name, shape in config.tensors().items():
        matrix = len(shape) == 2
        yield name, (np.int8 if matrix else np.float32, shape)
        if matrix:
            yield name + SCALE, (np.float32, shape[:1])


def _bounded(path: Path, limit: int) -> Path:
    """Return the path of a file of at most `limit` bytes."""
    if (size := path.stat().st_size) > limit:
        raise ModelError(f"{path} has {size} bytes, its net has at most {limit}: remove its folder and run again")
    return path

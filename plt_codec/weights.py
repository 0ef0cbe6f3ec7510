"""The integers of a model, checked: shapes, types and every bound that NUMERICS.md relies on.

A `Weights` holds the shape and the tensors of one model by name. It is checked once, when it is made; the
engines then compute without further checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import ModelError

CONTRACTS = (1, 2)  # versions of NUMERICS.md that this build computes
CLASS = 128  # tokens per class
PRECISION = 24  # frequencies sum to 1 << PRECISION
RESIDUAL_MAX = (1 << 22) - 1
GATE_MAX = 511  # largest gate, contract 2
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; NUMERICS.md explains the letters.

    Raises:
        ModelError: a size is outside the contract.
    """

    vocab: int
    d: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    block: int
    memory: int
    norm_gain: int
    head_gain: int
    gated: bool = False  # contract 2

    def __post_init__(self) -> None:
        if not isinstance(self.gated, bool):
            raise ModelError(f"bundle shape: gated must be true or false, got {self.gated!r}")
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "gated":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
                raise ModelError(f"bundle shape: {f.name} must be a positive whole number, got {value!r}")
        limits = {
            "d": self.d <= (1024 if self.gated else 512),
            "layers": self.layers <= 64,
            "hidden": self.hidden <= 8192,
            "head_dim": self.head_dim <= 64 and self.head_dim % 2 == 0,
            "heads": self.heads % self.kv_heads == 0 and self.heads <= 64,
            "vocab": self.vocab % CLASS == 0 and 2 * CLASS <= self.vocab <= 1 << 16,
            "block": self.block <= 16384,
            "memory": self.memory <= self.block,
            "norm_gain": self.norm_gain < 1 << 18,
            "head_gain": self.head_gain < 1 << 18,
        }
        bad = [name for name, ok in limits.items() if not ok]
        if bad:
            raise ModelError(f"bundle shape outside the contract: {', '.join(f'{n}={getattr(self, n)}' for n in bad)}")

    @property
    def contract(self) -> int:
        """Return the version of the numeric contract that computes this shape."""
        return 2 if self.gated else 1

    @property
    def classes(self) -> int:
        """Return the number of classes of the two-level vocabulary."""
        return self.vocab // CLASS

    @property
    def qkv(self) -> int:
        """Return the rows of the joint query, key and value matrix."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def macs(self) -> int:
        """Return the multiply-adds per token outside attention, head included."""
        layer = self.d * (self.qkv + self.heads * self.head_dim + (3 if self.gated else 2) * self.hidden)
        return self.layers * layer + (self.classes + CLASS) * self.d

    def tensors(self) -> dict[str, tuple[type, tuple[int, ...]]]:
        """Return (dtype, shape) of every tensor, by name."""
        i8, i16, i32 = np.int8, np.int16, np.int32
        v, d, g, width = self.vocab, self.d, self.classes, self.heads * self.head_dim
        out: dict[str, tuple[type, tuple[int, ...]]] = {"embed.w": (i8, (v, d)), "embed.m": (i32, (v,))}
        for i in range(self.layers):
            for name, rows, columns in (
                ("qkv", self.qkv, d),
                ("out", d, width),
                ("up", self.hidden, d),
                ("down", d, self.hidden),
            ) + ((("gate", self.hidden, d),) if self.gated else ()):
                out[f"layer.{i}.{name}.w"] = (i8, (rows, columns))
                out[f"layer.{i}.{name}.m"] = (i32, (rows,))
            out[f"layer.{i}.heat"] = (i32, (self.heads,))
            if self.gated:
                out |= {f"layer.{i}.norm_in": (i32, (d,)), f"layer.{i}.norm_mid": (i32, (d,))}
        out |= {"class.w": (i8, (g, d)), "class.m": (i32, (g,)), "class.b": (i32, (g,))}
        out |= {"shift.w": (i8, (g, d)), "shift.m": (i32, (g,))}
        out |= {"member.m": (i32, (v,)), "member.b": (i32, (v,))}
        out |= {"table.exp": (i32, (64,)), "table.cos": (i16, (1024,)), "table.sin": (i16, (1024,))}
        out["table.phase"] = (i32, (self.head_dim // 2,))
        if self.gated:
            out |= {"norm_out": (i32, (d,)), "table.act": (i16, (2 * GATE_MAX + 1,))}
        return out

    def to_dict(self) -> dict[str, int]:
        """Return a plain dict for JSON. `gated` is in it only where set, so shapes of contract 1 stay as they were."""
        return {k: v for k, v in asdict(self).items() if k != "gated" or v}


@dataclass(frozen=True)
class Weights:
    """One model: its shape, and its tensors by name (shapes: `Shape.tensors`).

    Raises:
        ModelError: a tensor breaks the contract.
    """

    shape: Shape
    tensors: Mapping[str, Array]

    def __post_init__(self) -> None:
        want = self.shape.tensors()
        missing, extra = want.keys() - self.tensors.keys(), self.tensors.keys() - want.keys()
        if missing or extra:
            raise ModelError(f"bundle tensors: missing {sorted(missing)[:3]}, unknown {sorted(extra)[:3]}")
        for name, (dtype, shape) in want.items():
            t = self.tensors[name]
            if t.dtype != dtype or t.shape != shape:
                raise ModelError(f"tensor {name}: expected {np.dtype(dtype)} {shape}, got {t.dtype} {t.shape}")
            if dtype is np.int8 and t.min() == -128:
                raise ModelError(f"tensor {name}: weights must lie in -127..127, found -128")
            if (name.endswith((".m", ".heat")) or name == "table.phase") and t.min() < 0:
                raise ModelError(f"tensor {name}: multipliers must not be negative, found {t.min()}")
        for name in ("class.b", "member.b"):
            if np.abs(self.tensors[name].astype(np.int64)).max() >= 1 << 24:  # in int32 -2^31 has no absolute value
                raise ModelError(f"tensor {name}: head biases must stay below 2^24")
        self._check_tables()

    @property
    def contract(self) -> int:
        """Return the version of the numeric contract."""
        return self.shape.contract

    def _check_tables(self) -> None:
        exp = self.tensors["table.exp"]
        if exp[0] != 1 << 20 or (np.diff(exp) >= 0).any() or exp[-1] <= 1 << 19:
            raise ModelError("table.exp must fall from 2^20 to just above 2^19")
        for name in ("table.cos", "table.sin"):
            if np.abs(self.tensors[name].astype(np.int64)).max() > 1 << 14:
                raise ModelError(f"{name} must lie within 2^14")

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]


def tables(head_dim: int, rope_base: float) -> dict[str, Array]:
    """Return the constant tables, which are computed once when a bundle is made and shipped in it.

    ``table.exp`` has shape (64,), ``table.cos`` and ``table.sin`` (1024,), and ``table.phase`` (head_dim / 2,).
    """
    half = head_dim // 2
    angle = [2 * math.pi * i / 1024 for i in range(1024)]
    turns = [rope_base ** (-i / half) / (2 * math.pi) for i in range(half)]
    return {
        "table.exp": np.array([round(2**20 * 2 ** (-i / 64)) for i in range(64)], np.int32),
        "table.cos": np.array([round(2**14 * math.cos(a)) for a in angle], np.int16),
        "table.sin": np.array([round(2**14 * math.sin(a)) for a in angle], np.int16),
        "table.phase": np.array([max(1, round(t * 2**20)) for t in turns], np.int32),
    }


def gains(d: int, head_dim: int) -> dict[str, int]:
    """Return norm_gain and head_gain of the configuration (NUMERICS.md, "Shape and tensors")."""
    return {"norm_gain": round(20 * math.sqrt(d) * 256), "head_gain": round(24 * math.sqrt(head_dim) * 256)}


def gated_gains(d: int) -> dict[str, int]:
    """Return norm_gain and head_gain of contract 2, where gains are tensors and heads are not normalised."""
    return {"norm_gain": round(math.sqrt(d) * 1024), "head_gain": 1}


def act_table() -> Array:
    """Return table.act of contract 2, (1023,): SiLU of g / 32 in 2^-11, for g in -511..511."""
    gate = [g / 32 for g in range(-GATE_MAX, GATE_MAX + 1)]
    return np.array([round(2**11 * g / (1 + math.exp(-g))) for g in gate], np.int16)

"""The shape of a net: sizes that a configuration file sets, and those that the tokenizer adds. Needs no torch.

The integers have a shape of their own, `plt_codec.weights.Shape`, for decoding; this one is for training.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from pltz.plt_codec.errors import ModelError
from pltz.plt_codec.weights import CLASS

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

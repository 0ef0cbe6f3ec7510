"""A rounded net to the integers of the numeric contract, and back.

Each row of a matrix has its own scale. Scales, units and constants go into integer multipliers.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec import ModelError, Shape, Weights, act_table, gains, gated_gains, tables
from pltz.training.nets.checkpoint import Floats, Int8Rows, NetConfig, Rounded
from pltz.training.nets.net import A_SCALE, O_SCALE, QK_SCALE, U_SCALE, V_SCALE

OCTAVE = 64 / math.log(2)  # logit units per nat
RESIDUAL = 256.0  # residual units of 1.0: trained residuals grow to a few thousand, the contract holds 2^22 units
GATED_RESIDUAL = 128.0  # the same for contract 2, at most: nets there are clamped to 2^15
SIZES = ("vocab", "d", "layers", "heads", "kv_heads", "head_dim", "hidden", "block", "memory")
ROPE_BASES = (10000.0, 100000.0, 500000.0, 1000000.0)  # that `restore` knows
Units = dict[str, float | Floats]  # the unit of a matrix's multipliers, by part of its name


def integer(x: Floats, bits: int) -> npt.NDArray[np.int32]:
    """Return round(x * 2^bits) as int32, for x of any shape (...,).

    Raises:
        ModelError: a value does not fit.
    """
    y = np.round(np.asarray(x, np.float64) * 2.0**bits)
    if not np.abs(y).max() < 2**31:  # no number at all does not fit either
        raise ModelError(f"a multiplier of {np.abs(x).max():.3g} does not fit 31 bits at 2^-{bits}")
    return y.astype(np.int32)


def export(net: Rounded) -> Weights:
    """Return checked integer weights.

    Raises:
        ModelError: a multiplier does not fit.
    """
    c = net.config
    shape = Shape(**{k: getattr(c, k) for k in SIZES}, **_gains(c), gated=c.gated)
    out: dict[str, npt.NDArray[Any]] = dict(tables(c.head_dim, c.rope_base))
    residual = _residual(net)
    for name, (to, unit, bits) in _places(c, residual).items():
        matrix = net.matrices[name]
        out[to + ".w"], out[to + ".m"] = matrix.weights, integer(matrix.scale * unit, bits)
    out["member.m"] = integer(net.matrices["embed"].scale * _member_unit(c, float(net.rest["member_gain"])), 24)
    out["member.b"] = integer(net.rest["member_bias"] * OCTAVE, 0)
    out["class.b"] = integer(net.rest["class_bias"] * OCTAVE, 0)
    for i in range(c.layers):
        inverse_temperature = np.exp(net.rest[f"blocks.{i}.log_temperature"].astype(np.float64))
        out[f"layer.{i}.heat"] = integer(inverse_temperature * _inverse_temperature_unit(c), 16)
    if c.gated:
        out |= {"table.act": act_table(), "norm_out": integer(net.rest["norm_out"], 10)}
        for i in range(c.layers):
            for name in ("norm_in", "norm_mid"):
                out[f"layer.{i}.{name}"] = integer(net.rest[f"blocks.{i}.{name}"], 10)
    return Weights(shape, out)


def restore(weights: Weights) -> Rounded:
    """Return the net of integer weights, to train on from a bundle.

    `export(restore(w))` gives w again, up to rounding of multipliers. The net's `step` is estimated from the
    integers, so that training rounds to the steps that the weights have.

    Raises:
        ModelError: positions turn at rates that no known base gives.
    """
    s = weights.shape
    config = NetConfig(**{k: getattr(s, k) for k in SIZES}, gated=s.gated, rope_base=_rope_base(weights))
    residual = GATED_RESIDUAL if s.gated else RESIDUAL  # of a gated net any unit will do: norms follow
    matrices: dict[str, Int8Rows] = {}
    for name, (place, unit, bits) in _places(config, residual).items():
        matrices[name] = Int8Rows(weights[place + ".w"], weights[place + ".m"] / 2.0**bits / unit)
    ratio = np.median(weights["member.m"] / 2.0**24 / matrices["embed"].scale)
    rest: dict[str, Floats] = {
        "member_gain": np.array(math.log(ratio / _member_unit(config, 0.0))),
        "member_bias": weights["member.b"] / OCTAVE,
        "class_bias": weights["class.b"] / OCTAVE,
    }
    for i in range(s.layers):
        rest[f"blocks.{i}.log_temperature"] = np.log(
            weights[f"layer.{i}.heat"] / 2.0**16 / _inverse_temperature_unit(config)
        )
    if s.gated:
        rest["norm_out"] = weights["norm_out"] / 2.0**10
        for i in range(s.layers):
            for name in ("norm_in", "norm_mid"):
                rest[f"blocks.{i}.{name}"] = weights[f"layer.{i}.{name}"] / 2.0**10
    if s.gated:
        config = dataclasses.replace(config, step=_step(matrices))
    return Rounded(config, matrices, {k: np.asarray(v, np.float32) for k, v in rest.items()})


def _step(matrices: dict[str, Int8Rows]) -> float:
    """Return the smallest step of the blocks' weights, in root mean squares of their rows.

    It is estimated from rows that the step kept from reaching 127; 0 if there are none.
    """
    found: list[npt.NDArray[np.floating[Any]]] = []
    for name, matrix in matrices.items():
        if name.startswith("blocks."):
            w = matrix.weights[np.abs(matrix.weights.astype(np.int16)).max(1) < 127].astype(np.float64)
            found.append(1 / np.sqrt(np.square(w[w.any(1)]).mean(1)))
    ratios = np.concatenate(found)
    return round(float(np.median(ratios)), 4) if len(ratios) else 0.0


def _places(c: NetConfig, residual: float) -> dict[str, tuple[str, float | Floats, int]]:
    """Return, by matrix of a net, its tensors in the integers, the unit of its multipliers and their bits."""
    inside = 1.0 if c.gated else A_SCALE  # units of the products' inputs; a gated net's are in its weights
    values = np.arange((c.heads + 2 * c.kv_heads) * c.head_dim) < (c.heads + c.kv_heads) * c.head_dim
    out: dict[str, tuple[str, float | Floats, int]] = {
        "embed": ("embed", residual, 16),
        "classes": ("class", OCTAVE / inside, 24),
        "class_shift": ("shift", residual, 16),
    }
    units: Units = {
        "qkv": np.where(values, 1024.0, V_SCALE) / A_SCALE,
        "out": residual / O_SCALE,
        "up": U_SCALE / A_SCALE,
        "down": residual * 256 / U_SCALE**2,
    }
    if c.gated:
        units = {"qkv": np.where(values, 128.0, 1.0), "out": residual, "gate": 1.0, "up": 1.0, "down": residual}
    for i in range(c.layers):
        out |= {f"blocks.{i}.{n}.weight": (f"layer.{i}.{n}", unit, 24) for n, unit in units.items()}
    return out


def _gains(c: NetConfig) -> dict[str, int]:
    return gated_gains(c.d) if c.gated else gains(c.d, c.head_dim)


def _residual(net: Rounded) -> float:
    """Return the residual units of 1.0.

    For a gated net there are so many that no multiplier of a matrix that writes to it leaves 31 bits.
    """
    if not net.config.gated:
        return RESIDUAL
    reach = max(float(m.scale.max()) for k, m in net.matrices.items() if k.endswith((".out.weight", ".down.weight")))
    return min(2.0**22 / net.config.residual_max, 127.0 / reach)


def _member_unit(c: NetConfig, gain: float) -> float:
    """Return the logit units of a product of the table's integers of scale 1 with the head's input."""
    return math.exp(gain) / math.sqrt(c.d) * OCTAVE / (1.0 if c.gated else A_SCALE)


def _inverse_temperature_unit(c: NetConfig) -> float:
    return OCTAVE if c.gated else OCTAVE / QK_SCALE**2


def _rope_base(weights: Weights) -> float:
    for base in ROPE_BASES:
        if (tables(weights.shape.head_dim, base)["table.phase"] == weights["table.phase"]).all():
            return base
    raise ModelError(
        f"positions of this bundle turn at rates of no base among {', '.join(f'{b:g}' for b in ROPE_BASES)}"
    )

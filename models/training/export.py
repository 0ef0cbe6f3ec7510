"""Turn trained float weights into the integers of the numeric contract, and write the bundle folder.

    python -m pltz.models.training.export --run runs/mini --tokenizer data/tokenizer.json --dictionary dictionary --out models/bundles/mini

Each row of a matrix gets its own scale (largest weight -> 127); scales, units and constants go into integer multipliers.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.models.training.net import A_SCALE, O_SCALE, QK_SCALE, U_SCALE, V_SCALE
from pltz.plt_codec.errors import ModelError
from pltz.plt_codec.weights import Shape, Weights, act_table, gains, gated_gains, tables

Floats = npt.NDArray[np.float64]
OCTAVE = 64 / math.log(2)  # logit units a nat
RESIDUAL = (
    256.0  # residual units of 1.0: trained residuals grow to a few thousand, the contract holds 2^22 units
)
SIZES = ("vocab", "d", "layers", "heads", "kv_heads", "head_dim", "hidden", "block", "memory")
Rows = tuple[npt.NDArray[np.int8], Floats]


def rows(w: Floats, step: float = 0.0) -> Rows:
    """int8 weights and the scale of each row; the same rounding as in training (net.weight_scale)."""
    w32 = w.astype(np.float32)
    scale = np.maximum(np.abs(w32).max(1, keepdims=True), np.float32(1e-8)) / np.float32(127)
    if step:
        scale = np.maximum(scale, np.float32(step) * np.sqrt(np.square(w32).mean(1, keepdims=True)))
    return np.clip(np.round(w32 / scale), -127, 127).astype(np.int8), scale[:, 0].astype(np.float64)


def integer(x: Floats, bits: int) -> npt.NDArray[np.int32]:
    """round(x * 2^bits) as int32; refuses what does not fit."""
    y = np.round(x * 2.0**bits)
    if np.abs(y).max() >= 2**31:
        raise ModelError(f"a multiplier of {np.abs(x).max():.3g} does not fit 31 bits at 2^-{bits}")
    return y.astype(np.int32)


def export_gated(
    state: dict[str, Floats], config: dict[str, Any], rounded: dict[str, Rows] | None = None
) -> Weights:
    """The same for contract 2. `rounded`: matrices that are int8 and scales already, by name in `state`."""
    d, width, done = config["d"], config["head_dim"], rounded or {}
    shape = Shape(**{k: config[k] for k in SIZES} | gated_gains(d), gated=True)
    out: dict[str, npt.NDArray[Any]] = dict(tables(width, config["rope_base"])) | {"table.act": act_table()}
    writers = [f"blocks.{i}.{name}.weight" for i in range(config["layers"]) for name in ("out", "down")]
    reach = [done[k][1] if k in done else rows(state[k], config["step"])[1] for k in writers]
    residual = min(
        2.0**22 / config["residual_max"], 127.0 / max(float(r.max()) for r in reach)
    )  # multipliers stay below 2^31

    def matrix(name: str, to: str, unit: float | Floats, bits: int, step: float) -> Floats:
        out[to + ".w"], scale = done[name] if name in done else rows(state[name], step)
        out[to + ".m"] = integer(scale * unit, bits)
        return scale

    embed = matrix("embed", "embed", residual, 16, config["step"] / 2)
    scale = math.exp(float(state["member_gain"])) / math.sqrt(d)
    out["member.m"] = integer(embed * scale * OCTAVE, 24)
    out["member.b"] = integer(state["member_bias"] * OCTAVE, 0)
    matrix("classes", "class", OCTAVE, 24, 0.0)
    out["class.b"] = integer(state["class_bias"] * OCTAVE, 0)
    matrix("class_shift", "shift", residual, 16, 0.0)
    out["norm_out"] = integer(state["norm_out"], 10)
    values = (config["heads"] + config["kv_heads"]) * width
    unit_qkv = np.where(np.arange(shape.qkv) < values, 128.0, 1.0)
    units = {"qkv": unit_qkv, "out": residual, "gate": 1.0, "up": 1.0, "down": residual}
    for i in range(config["layers"]):
        block, here = f"blocks.{i}.", f"layer.{i}."
        for name in ("norm_in", "norm_mid"):
            out[here + name] = integer(state[block + name], 10)
        out[here + "heat"] = integer(np.exp(state[block + "log_temperature"]) * OCTAVE, 16)
        for name, unit in units.items():
            matrix(f"{block}{name}.weight", here + name, unit, 24, config["step"])
    return Weights(shape, out)


def export(state: dict[str, Floats], config: dict[str, Any]) -> Weights:
    """Float state of training/net.py (float64 arrays) -> checked integer weights."""
    if config.get("gated"):
        return export_gated(state, config)
    d, width = config["d"], config["head_dim"]
    shape = Shape(**{k: config[k] for k in SIZES} | gains(d, width))
    out: dict[str, npt.NDArray[Any]] = dict(tables(width, config["rope_base"]))
    unit = state["embed"] / np.sqrt((state["embed"] ** 2).mean(1, keepdims=True) + 1e-12)
    out["embed.w"], embed = rows(unit)
    out["embed.m"] = integer(embed * RESIDUAL, 16)
    scale = math.exp(float(state["member_gain"])) / math.sqrt(d)
    out["member.m"] = integer(embed * scale / A_SCALE * OCTAVE, 24)
    out["member.b"] = integer(state["member_bias"] * OCTAVE, 0)
    out["class.w"], s = rows(state["classes"])
    out["class.m"] = integer(s / A_SCALE * OCTAVE, 24)
    out["class.b"] = integer(state["class_bias"] * OCTAVE, 0)
    out["shift.w"], s = rows(state["class_shift"])
    out["shift.m"] = integer(s * RESIDUAL, 16)
    values = (config["heads"] + config["kv_heads"]) * width
    for i in range(config["layers"]):
        block, here = f"blocks.{i}.", f"layer.{i}."
        out[here + "qkv.w"], s = rows(state[block + "qkv.weight"])
        unit_out = np.where(np.arange(len(s)) < values, 1024.0, V_SCALE)
        out[here + "qkv.m"] = integer(s / A_SCALE * unit_out, 24)
        heat = np.exp(state[block + "log_temperature"]) / QK_SCALE**2 * OCTAVE
        out[here + "heat"] = integer(heat, 16)
        for name, scale_in, scale_out in (
            ("out", O_SCALE, RESIDUAL),
            ("up", A_SCALE, U_SCALE),
            ("down", U_SCALE**2 / 256, RESIDUAL),
        ):
            out[here + name + ".w"], s = rows(state[block + name + ".weight"])
            out[here + name + ".m"] = integer(s / scale_in * scale_out, 24)
    return Weights(shape, out)


def restore(weights: Weights) -> dict[str, Floats]:
    """Float state from integer weights, to train on from a bundle: `export(restore(w))` gives w again, up to rounding of multipliers."""
    s, t = weights.shape, {k: v.astype(np.float64) for k, v in weights.tensors.items()}
    out: dict[str, Floats] = {}
    unit = t["embed.w"] * t["embed.m"][:, None] / (RESIDUAL * 2.0**16)
    out["embed"] = unit / 2  # only the direction of a row matters
    scale = np.median(t["member.m"] / 2.0**24 * A_SCALE / OCTAVE / (t["embed.m"] / (RESIDUAL * 2.0**16)))
    out["member_gain"] = np.array(math.log(scale * math.sqrt(s.d)))
    out["member_bias"], out["class_bias"] = t["member.b"] / OCTAVE, t["class.b"] / OCTAVE
    out["classes"] = t["class.w"] * (t["class.m"] / 2.0**24 * A_SCALE / OCTAVE)[:, None]
    out["class_shift"] = t["shift.w"] * t["shift.m"][:, None] / (RESIDUAL * 2.0**16)
    values = (s.heads + s.kv_heads) * s.head_dim
    for i in range(s.layers):
        block, here = f"blocks.{i}.", f"layer.{i}."
        unit_out = np.where(np.arange(s.qkv) < values, 1024.0, V_SCALE)
        out[block + "log_temperature"] = np.log(t[here + "heat"] / 2.0**16 * QK_SCALE**2 / OCTAVE)
        for name, scale_in, scale_out in (
            ("qkv", A_SCALE, unit_out),
            ("out", O_SCALE, RESIDUAL),
            ("up", A_SCALE, U_SCALE),
            ("down", U_SCALE**2 / 256, RESIDUAL),
        ):
            row = t[here + name + ".m"] / 2.0**24 * scale_in / scale_out
            out[block + name + ".weight"] = t[here + name + ".w"] * row[:, None]
    return out


def main() -> None:
    """Command line: see the head of this file."""
    import torch

    from pltz.models.bundle import write_bundle

    p = argparse.ArgumentParser()
    p.add_argument("--run", type=Path, required=True, help="folder with net.pt and config.json")
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--dictionary", type=Path, required=True)
    p.add_argument("--card", type=Path, help="card.json to take along")
    p.add_argument("--name", default="mini")
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    state = {k: v.double().numpy() for k, v in torch.load(a.run / "net.pt", weights_only=True).items()}
    weights = export(state, json.loads((a.run / "config.json").read_text()))
    card = json.loads(a.card.read_text()) if a.card else {}
    write_bundle(a.out, a.name, weights, a.tokenizer.read_bytes(), a.dictionary.read_bytes(), card)
    print(f"{a.out}: {weights.shape.macs / 1e6:.2f} M multiply-adds a token outside attention")


if __name__ == "__main__":
    main()

"""A bundle's tensors as the kernels read them (layouts: common.cuh), and the macros that tell the kernels their shape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.weights import Array, Weights

TILE = 8  # rows of a tile of weights
CHUNK = 64  # inputs of a tile; rows of activations are padded to a multiple


PARTS = ("qkv", "out", "up", "down")


def _largest(w: Array, m: Array, most: int) -> int:
    """Bound of a row's scaled product with inputs up to `most`."""
    return int((np.abs(w.astype(np.int64)).sum(1) * most * m.astype(np.int64)).max()) >> 24


def up(n: int, to: int) -> int:
    """n rounded up to a multiple of `to`."""
    return -(-n // to) * to


def macros(weights: Weights) -> dict[str, int]:
    """Names and values that the sources are compiled with."""
    s = weights.shape
    names = [(f"layer.{i}.{part}", 254 if part == "down" else 127) for i in range(s.layers) for part in PARTS]
    wide = any(_largest(weights[n + ".w"], weights[n + ".m"], most) >= 1 << 30 for n, most in names)
    hot = any(int(weights[f"layer.{i}.heat"].max()) >= 1 << 16 for i in range(s.layers))
    return {
        "P_D": s.d, "P_LAYERS": s.layers, "P_HEADS": s.heads, "P_KV": s.kv_heads, "P_HEAD": s.head_dim,
        "P_HIDDEN": s.hidden, "P_VOCAB": s.vocab, "P_BLOCK": s.block, "P_MEMORY": s.memory,
        "P_NORM_GAIN": s.norm_gain, "P_HEAD_GAIN": s.head_gain, "P_HOT": int(hot), "P_WIDE": int(wide),
    }  # fmt: skip


def tiles(w: Array) -> npt.NDArray[np.int8]:
    """(n, k) int8 -> tiles [n / 8][k / 64][8][64] of it, padded with zeros to multiples of 64."""
    n, k = up(w.shape[0], CHUNK), up(w.shape[1], CHUNK)
    full = np.zeros((n, k), np.int8)
    full[: w.shape[0], : w.shape[1]] = w
    return np.ascontiguousarray(full.reshape(n // TILE, TILE, k // CHUNK, CHUNK).transpose(0, 2, 1, 3))


def padded(v: Array) -> npt.NDArray[np.int32]:
    """(n,) int32, zeros up to a multiple of 64."""
    return np.pad(v.astype(np.int32), (0, up(len(v), CHUNK) - len(v)))


def tensors(weights: Weights) -> dict[str, Array]:
    """Name -> array, as it goes to the device."""
    out: dict[str, Array] = {"embed.w": tiles(weights["embed.w"])}
    for name in ("embed.m", "shift.w", "shift.m", "member.m", "member.b"):
        out[name] = np.ascontiguousarray(weights[name])
    for name in ("table.exp", "table.cos", "table.sin", "table.phase"):
        out[name] = np.ascontiguousarray(weights[name])
    out |= {"class.w": tiles(weights["class.w"]), "class.m": padded(weights["class.m"])}
    out["class.b"] = padded(weights["class.b"])
    for i in range(weights.shape.layers):
        for part in PARTS:
            name = f"layer.{i}.{part}"
            out[name + ".w"], out[name + ".m"] = tiles(weights[name + ".w"]), padded(weights[name + ".m"])
        out[f"layer.{i}.heat"] = np.ascontiguousarray(weights[f"layer.{i}.heat"])
    return out

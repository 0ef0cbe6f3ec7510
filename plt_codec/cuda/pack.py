"""A bundle's tensors as the kernels read them (layouts: common.cuh), and the macros that tell the kernels their shape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.weights import Array, Shape, Weights

TILE = 8  # rows of a tile of weights
CHUNK = 64  # inputs of a tile; rows of activations are padded to a multiple
GRID = 7  # clusters of grid.cu: as many as an H100 or H200 runs side by side
MOST_SHARED = 227 << 10  # shared memory a block can have

PARTS = ("qkv", "out", "up", "down")


def _largest(w: Array, m: Array, most: int) -> int:
    """Bound of a row's scaled product with inputs up to `most`."""
    return int((np.abs(w.astype(np.int64)).sum(1) * most * m.astype(np.int64)).max()) >> 24


def up(n: int, to: int) -> int:
    """n rounded up to a multiple of `to`."""
    return -(-n // to) * to


def pitch(size: int) -> int:
    """Bytes between rows in shared memory, so that neighbours do not meet in its banks."""
    return size if size % 128 else size + 64


def grid_plan(s: Shape, clusters: int = GRID) -> dict[str, int]:
    """Macros of grid.cu: clusters (0: it does not serve this shape), heads of each, bytes of shared memory and of the wire."""
    group, dp, fp, ct = s.heads // s.kv_heads, up(s.d, 64), up(s.hidden, 64), up(s.classes, 64)
    each = next(
        n for n in range(1, s.heads + 1)
        if s.heads % n == 0 and (group % n == 0 or n % group == 0) and s.heads // n <= clusters
    )  # fmt: skip
    kv = max(1, each // group)
    items, tall, chunks = each + 2 * kv, s.head_dim // 8, dp // 64
    out = (each * s.head_dim + 62) // 64 + 1 if each * s.head_dim % 64 else each * s.head_dim // 64
    upper, down = -(-fp // 8 // (clusters * 16)), -(-dp // 8 // 16)
    sums = 4 * 4 * (max(s.classes, 128) // 4 + 1)

    def splits(tiles: int, chunks: int) -> int:
        return min(range(1, chunks + 1), key=lambda n: -(-tiles * n // 16) * -(-chunks // n))

    def pieces(tiles: int, chunks: int) -> int:
        return -(-tiles * splits(tiles, chunks) // 16) * -(-chunks // splits(tiles, chunks)) * 64

    def row(tiles: int, chunks: int) -> int:
        return -(-tiles * splits(tiles, chunks) // 16) * 2048

    def rows(tiles: int, chunks: int) -> int:
        return splits(tiles, chunks) * 64 * (tiles * 8 + 8)

    shared = dp + 16 * pitch(dp) + 16 * pitch(128 * upper) + out * 64 + (each + kv) * 1024 + each * 4096
    shared += each * (16 * 256 + 2 * 16 * 72 * 4) + max(
        each * 16384, rows(upper, chunks) + rows(down, 2 * upper)
    )
    shared += max(row(items * tall, chunks), row(dp // 8, out), row(ct // 8, chunks), row(16, chunks))
    shared += items * 64 + 128 * upper + 33 * sums
    shared = up(shared + 8192 + 256 + s.layers * each * 4, 32) + 128 + 256 + 96
    strips = (
        (items * tall, chunks),
        (dp // 8, out),
        (upper, chunks),
        (down, 2 * upper),
        (ct // 8, chunks),
        (16, chunks),
    )
    shared += 32 + sum(pieces(*strip) for strip in strips)
    shared = up(shared, 128) + s.layers * kv * 2048
    fits = s.head_dim % 8 == 0 and dp <= 512 and items <= 16 and shared <= MOST_SHARED
    wire = 4 * (4 * 16 * clusters * dp + 32)
    return {
        "P_GRID": clusters if fits else 0, "P_GRID_HEADS": each, "P_GRID_SHARED": shared, "P_GRID_WIRE": wire
    }  # fmt: skip


def macros(weights: Weights) -> dict[str, int]:
    """Names and values that the sources are compiled with."""
    s = weights.shape
    names = [(f"layer.{i}.{part}", 254 if part == "down" else 127) for i in range(s.layers) for part in PARTS]
    wide = any(_largest(weights[n + ".w"], weights[n + ".m"], most) >= 1 << 30 for n, most in names)
    longest = (
        s.head_gain / 256 * 1.7321 + s.head_dim**0.5 / 2
    )  # of a normed query or key: isqrt misses a root by sqrt(3) at most
    heat = max(int(weights[f"layer.{i}.heat"].max()) for i in range(s.layers))
    hot = heat >= 1 << 16 or 2 * longest**2 * heat >= 1 << 32
    return {
        "P_D": s.d, "P_LAYERS": s.layers, "P_HEADS": s.heads, "P_KV": s.kv_heads, "P_HEAD": s.head_dim,
        "P_HIDDEN": s.hidden, "P_VOCAB": s.vocab, "P_BLOCK": s.block, "P_MEMORY": s.memory,
        "P_NORM_GAIN": s.norm_gain, "P_HEAD_GAIN": s.head_gain, "P_HOT": int(hot), "P_WIDE": int(wide),
        **grid_plan(s),
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

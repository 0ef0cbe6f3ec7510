"""A bundle's tensors as the kernels read them (layouts: common.cuh), and the macros that tell their shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.weights import Array, Shape, Weights

TILE = 8  # rows of a tile of weights
CHUNK = 64  # inputs of a tile; rows of activations are padded to a multiple
GRID = 7  # clusters of grid.cu: as many as an H100 or H200 runs side by side
GRID_GROUPS = 16  # groups of 32 keys per CTA of grid.cu, at most: 512 keys per cluster each
GATED_LANES = 32  # lanes of gated.cu, at most
GATED_QUERIES = 96  # its queries per key head, at most: lanes times the query heads of a key head
GATED_DEPTH = 40  # layers, at most: pointers to all weights fit the 4 KB of a kernel's arguments
MOST_SHARED = 227 << 10  # bytes of shared memory that a CTA can have

PARTS = ("qkv", "out", "up", "down")


def _largest(w: Array, m: Array, most: int) -> int:
    """Return a bound of a row's scaled product with inputs up to `most`."""
    return int((np.abs(w.astype(np.int64)).sum(1) * most * m.astype(np.int64)).max()) >> 24


def up(n: int, to: int) -> int:
    """Round n up to a multiple of `to`."""
    return -(-n // to) * to


def pitch(size: int) -> int:
    """Return the bytes between rows of ``size`` bytes in shared memory, so that neighbours meet in no bank."""
    return size if size % 128 else size + 64


@functools.cache
def grid_plan(s: Shape, clusters: int = GRID) -> Mapping[str, int]:
    """Return the macros of grid.cu.

    They are the clusters (0: it does not serve this shape), heads per cluster, groups of 32 keys per CTA, most lanes,
    bytes of shared memory for 16 lanes and for 32, and bytes of the wire per lane.
    """
    # sizes in tiles; the heads are dealt evenly to at most so many clusters
    group, dp, fp, ct = s.heads // s.kv_heads, up(s.d, 64), up(s.hidden, 64), up(s.classes, 64)
    each = next(
        n for n in range(1, s.heads + 1)
        if s.heads % n == 0 and (group % n == 0 or n % group == 0) and s.heads // n <= clusters
    )  # fmt: skip
    kv = max(1, each // group)
    items, tall, chunks = each + 2 * kv, s.head_dim // 8, dp // 64
    out = (each * s.head_dim + 62) // 64 + 1 if each * s.head_dim % 64 else each * s.head_dim // 64
    groups = min(GRID_GROUPS, up(-(-(s.block + s.memory) // 512), 4))
    upper, down = -(-fp // 8 // (clusters * 16)), -(-dp // 8 // 16)
    sums = 4 * 4 * (max(s.classes, 128) // 4 + 1)

    # the products of a step: how often a strip is split, so that 16 warps end together
    def splits(tiles: int, chunks: int) -> int:
        return min(range(1, chunks + 1), key=lambda n: -(-tiles * n // 16) * -(-chunks // n))

    def pieces(tiles: int, chunks: int) -> int:
        return -(-tiles * splits(tiles, chunks) // 16) * -(-chunks // splits(tiles, chunks)) * 64

    def row(tiles: int, chunks: int) -> int:
        return -(-tiles * splits(tiles, chunks) // 16) * 2048

    def rows(tiles: int, chunks: int) -> int:
        return splits(tiles, chunks) * 64 * (tiles * 8 + 8)

    strips = (
        (items * tall, chunks), (dp // 8, out), (upper, chunks), (down, 2 * upper), (ct // 8, chunks), (16, chunks)
    )  # fmt: skip

    # what must stay in a CTA's memory decides whether the kernel serves this shape
    def shared(own: int) -> int:
        """Return the bytes of a CTA that stands for `own` lanes (Grid<own>::SHARED)."""
        total = own * (dp + 16 * pitch(dp) + 16 * pitch(128 * upper) + out * 64 + each * 1024 + kv * 1280)
        total += own * each * (512 + 16 * 256 + 2 * 16 * 72 * 4)
        total += own * max(each * groups * 1024, rows(upper, chunks) + rows(down, 2 * upper))
        total += own * max(row(*strips[0]), row(*strips[1]), row(*strips[4]), row(*strips[5]))
        total += own * (items * 64 + 128 * upper + 33 * sums)
        total = up(total + 8192 + 256 + s.layers * each * 4, 32) + own * 256 + 128 + 96
        return up(total + 32 + sum(pieces(*strip) for strip in strips), 128) + s.layers * kv * 2048

    def fits(own: int) -> bool:
        narrow = not s.gated and s.head_dim % 8 == 0 and dp <= 512
        return narrow and own * items <= 16 and shared(own) <= MOST_SHARED

    return {
        "P_GRID": clusters if fits(1) else 0, "P_GRID_HEADS": each, "P_GRID_GROUPS": groups,
        "P_GRID_LANES": 32 if fits(2) else 16, "P_GRID_SHARED": shared(1), "P_GRID_WIDE_SHARED": shared(2),
        "P_GRID_WIRE": 8 * (2 * clusters * dp + 1),
    }  # fmt: skip


def cluster_memory(s: Shape) -> int:
    """Return the bytes of shared memory of a CTA of cluster.cu (SHARED there)."""
    dp, fp, op, cp = up(s.d, 64), up(s.hidden, 64), up(s.heads * s.head_dim, 64), up(s.classes, 64)
    rows, out, upper = 16 * s.heads, -(-dp // 8 // 16), -(-fp // 8 // 32) * 2
    total = 16 * (dp * 4 + pitch(dp) + pitch(fp) + pitch(op)) + (s.heads + 2 * s.kv_heads) * 1024
    total += 2 * 18 * rows * 4 + rows * 288 + 4 * max(16 * s.heads * 64, 16 * cp) + 16 * 72 * 4
    total += up(max(16 * 64, s.heads * 64, 16 * upper * 8, 16 * out * 32), 16)
    total += 2 * 16 * (max(s.classes, 128) // 4 + 1) * 16 + 4 * 16 * 4 + 64 + 64 * 32 * 4
    total = up(total, 32) + 32 + 256 + 16 * 128 + 8 * cp + up(s.layers * s.heads, 4) * 4
    return total + s.layers * (64 + 8 * (2 * out + upper)) * 4


@functools.cache
def gated_plan(s: Shape) -> Mapping[str, int]:
    """Return the macros of gated.cu: most lanes (0: not this shape), bytes of shared memory and of the wire."""
    dp, sums = up(s.d, 64), (max(s.classes, 128) // 4 + 1) * 16
    shared = GATED_LANES * (pitch(dp) + 16 * 8 * 4) + GATED_LANES // 16 * dp + GATED_QUERIES * (16 * 8 + 64 * 4)
    shared += max(GATED_QUERIES * (64 + 72 * 4), GATED_LANES * sums) + 64 * 32 * 4
    shared += (32 << 10) + 2 * 10 * 2048 + 2 * 32
    shared += GATED_QUERIES * 8 + 64 * 4 + 32 * 4 + 2 * 1024 * 2 + 1024 * 4 + up(s.layers * s.heads, 4) * 4
    shared = up(shared + dp * 5 + 128 * 4, 64)
    wire = 2048 + GATED_LANES * (dp * 4 + up(s.qkv, 64) * 4 + up(s.heads * s.head_dim, 64) + up(s.hidden, 64))
    wire += GATED_LANES * (up(s.classes, 64) * 4 + sums)
    lanes = min(GATED_LANES, GATED_QUERIES // (s.heads // s.kv_heads))
    fits = s.gated and shared <= MOST_SHARED and s.layers <= GATED_DEPTH
    return {"P_GATED_LANES": lanes if fits else 0, "P_GATED_SHARED": shared, "P_GATED_WIRE": wire}


def macros(weights: Weights) -> dict[str, int]:
    """Return the names and values of the macros that the sources are compiled with."""
    s = weights.shape
    most = {part: 127 for part in PARTS} | ({"gate": 127} if s.gated else {"down": 254})
    products = [(f"layer.{i}.{part}.w", f"layer.{i}.{part}.m", n) for i in range(s.layers) for part, n in most.items()]
    products += [("class.w", "class.m", 127), ("embed.w", "member.m", 127)]
    wide = any(_largest(weights[w], weights[m], n) >= 1 << 30 for w, m, n in products)
    heats = np.concatenate([weights[f"layer.{i}.heat"] for i in range(s.layers)])
    return {
        "P_D": s.d, "P_LAYERS": s.layers, "P_HEADS": s.heads, "P_KV": s.kv_heads, "P_HEAD": s.head_dim,
        "P_HIDDEN": s.hidden, "P_VOCAB": s.vocab, "P_MEMORY": s.memory,
        "P_NORM_GAIN": s.norm_gain, "P_HEAD_GAIN": s.head_gain, "P_HOT": int(heats.max() >= 1 << 22),
        "P_COLD": int(heats.min() == 0), "P_WIDE": int(wide),
        "P_GATED": int(s.gated),
        **grid_plan(s), **gated_plan(s),
    }  # fmt: skip


def tiles(w: Array) -> npt.NDArray[np.int8]:
    """Cut a matrix (n, k) int8 into tiles [n / 8][k / 64][8][64], padded with zeros to multiples of 64."""
    n, k = up(w.shape[0], CHUNK), up(w.shape[1], CHUNK)
    full = np.zeros((n, k), np.int8)
    full[: w.shape[0], : w.shape[1]] = w
    return np.ascontiguousarray(full.reshape(n // TILE, TILE, k // CHUNK, CHUNK).transpose(0, 2, 1, 3))


def padded(v: Array) -> npt.NDArray[np.int32]:
    """Pad a vector (n,) with zeros to a multiple of 64, as int32."""
    return np.pad(v.astype(np.int32), (0, up(len(v), CHUNK) - len(v)))


def tensors(weights: Weights) -> dict[str, Array]:
    """Return the arrays for the device by name."""
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
    return out | (_gated(weights) if weights.shape.gated else {})


def _gated(weights: Weights) -> dict[str, Array]:
    """Return the tensors that contract 2 adds or lays out otherwise: tiles of gate and up alternate for to_up."""
    out: dict[str, Array] = {"norm_out": padded(weights["norm_out"])}
    out["table.act"] = weights["table.act"].astype(np.int32)
    for i in range(weights.shape.layers):
        t = f"layer.{i}."
        out[t + "up.w"] = np.stack([tiles(weights[t + part + ".w"]) for part in ("gate", "up")], 1)
        m = [padded(weights[t + part + ".m"]).reshape(-1, TILE) for part in ("gate", "up")]
        out[t + "up.m"] = np.stack(m, 1)
        out |= {t + name: padded(weights[t + name]) for name in ("norm_in", "norm_mid")}
    return out

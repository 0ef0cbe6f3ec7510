"""Random weights: an untrained model, the same for a seed on every machine, for tests and measurements."""

from __future__ import annotations

from typing import Any

import numpy as np

from pltz.plt_codec.weights import Shape, Weights, act_table, gains, gated_gains, tables

Array = np.ndarray[Any, Any]


def random_weights(
    seed: int,
    *,
    vocab: int = 512,
    d: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    hidden: int = 128,
    block: int = 256,
    memory: int = 64,
    extreme: bool = False,
    gated: bool = False,
) -> Weights:
    """Return an untrained model, the same for a seed on every machine.

    `extreme` puts weights and multipliers at their limits.

    Raises:
        ModelError: the sizes are outside the contract.
    """
    raw = np.random.PCG64(seed)  # raw words only: their stream is fixed for all versions of numpy
    shape = Shape(
        vocab=vocab, d=d, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, hidden=hidden,
        block=block, memory=memory, gated=gated, **(gated_gains(d) if gated else gains(d, head_dim)),
    )  # fmt: skip
    # tables follow from the shape; everything else is drawn, in the order of the tensors
    out: dict[str, Array] = dict(tables(head_dim, 10000.0))
    if gated:
        out["table.act"] = act_table()
    for name, (dtype, size) in shape.tensors().items():
        if name in out:
            continue
        count = int(np.prod(size))
        words = raw.random_raw(count)
        if dtype is np.int8 and extreme:
            w = np.where(words & 1, 127, -127)
        elif dtype is np.int8:  # the sum of four bytes: nearly normal, deviation 30
            w = (words.view(np.uint8).reshape(count, 8)[:, :4].sum(1).astype(np.int64) - 510) // 5
        elif name.endswith(".b"):
            w = (words % 400).astype(np.int64) - 200
        else:
            low, high = _multiplier_range(name, shape, extreme)
            w = low + (words % np.uint64(high - low)).astype(np.int64)
        out[name] = (
            np.clip(w, -127, 127).astype(dtype).reshape(size) if dtype is np.int8 else w.astype(dtype).reshape(size)
        )
    return Weights(shape, out)


def _multiplier_range(name: str, shape: Shape, extreme: bool) -> tuple[int, int]:
    if extreme:
        return (1 << 31) - 1000, (1 << 31) - 1
    typical = 1 << 24  # a product of a unit vector with random rows, brought back to a few units of the next stage
    scale = {
        "embed.m": (1 << 28) // 127 * 2,
        "qkv.m": typical * 1024 // (20 * 30 * 8),
        "out.m": typical * 4096 // (40 * 30 * 8),
        "up.m": typical * 64 // (20 * 30 * 8),
        "down.m": typical * 4096 // (16 * 30 * 8),
        "heat": 1600,
        "norm_in": 20 << 10,
        "norm_mid": 20 << 10,
        "norm_out": 20 << 10,
        "gate.m": typical * 32 // (20 * 30 * 8),
        "class.m": typical * 92 // (20 * 30 * 4),
        "shift.m": (1 << 28) // 127,
        "member.m": typical * 92 // (20 * 30 * 4),
    }
    value = next(v for k, v in scale.items() if name.endswith(k))
    return max(1, value // 2), value * 2

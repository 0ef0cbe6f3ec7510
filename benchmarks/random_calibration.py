"""Random calibrations of any shape, for figures of speed where no calibrated target is at hand.

The matrices are random, with a gain below one so that decoded KV stays bounded. The statistics of the integers, which
decide how many bits there are to decode, are given: the levels, tables and classes of a target that was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pltz.models.kv.calibration import Calibration, KVShape
from pltz.models.kv.streams import ESCAPE, HALF, SECTION, Tables, contexts

if TYPE_CHECKING:
    import torch

GAIN = 0.4  # of a prediction, so that KV stays bounded over the layers
SEED = 7


def random_calibration(
    target: bytes, shape: KVShape, rank: int, tables: Tables, device: torch.device | str = "cpu"
) -> Calibration:
    """Return a calibration with random matrices. ``rank``: of the predictors, 0 for full rank. ``tables``: its own."""
    import torch

    generator = torch.Generator(device).manual_seed(SEED)
    width = shape.width

    def int8(*size: int) -> NDArray[np.int8]:
        return torch.randint(-127, 128, size, generator=generator, dtype=torch.int8, device=device).cpu().numpy()

    tensors: dict[str, NDArray[Any]] = {"freq": tables.freq, "mean": tables.mean, "level": tables.level}
    tensors["constant"] = np.zeros((shape.layers, width), np.float32)
    basis = np.empty((shape.layers, width, width), np.int8)
    scale = np.empty((shape.layers, width), np.float32)
    for layer in range(shape.layers):
        turned = torch.linalg.qr(torch.randn(width, width, generator=generator, device=device))[0]
        largest = turned.abs().amax(1)
        basis[layer] = (turned / largest[:, None] * 127).round().to(torch.int8).cpu().numpy()
        scale[layer] = (largest / 127).cpu().numpy()
        inputs, outputs = shape.inputs(layer), rank or width
        tensors[f"predict.{layer}"] = int8(inputs, outputs)
        size = GAIN / (73 * max(inputs, 1) ** 0.5)  # 73: the deviation of an int8
        tensors[f"predict.{layer}.in"] = np.full(inputs, size, np.float32)
        tensors[f"predict.{layer}.out"] = np.ones(outputs, np.float32)
        if rank:
            tensors[f"spread.{layer}"] = int8(rank, width)
            tensors[f"spread.{layer}.scale"] = np.full(rank, 1 / (73 * rank**0.5), np.float32)
    tensors |= {"basis": basis, "basis.scale": scale}
    return Calibration(target, shape, tensors)


def drawn(tokens: int, classes: NDArray[np.uint8], tables: Tables, point: int) -> NDArray[np.int16]:
    """Return integers (T, layers, width), drawn token by token from the tables that the coder uses for them.

    They cost what the integers of the measured target cost with these levels and classes. ``classes``: (T,).
    """
    layers, width = tables.level.shape
    rng = np.random.default_rng(SEED)
    q = np.zeros((tokens, layers, width), np.int16)
    cumulative = np.cumsum(tables.freq.astype(np.float64), 1) / 4096
    for first in range(0, layers, SECTION):
        part = slice(first, min(first + SECTION, layers))
        some = Tables(tables.freq, tables.mean, np.ascontiguousarray(tables.level[part]))
        kinds, lows = contexts(q[:, part], classes, some, point)
        # the table of the expectation, since what was seen is not known before it is drawn
        usual = (tables.level[part][None] - (point + 12 - 4 * classes.astype(np.int64))[:, None, None] >> 1) + 24
        kinds = np.where(lows > 0, kinds, np.clip(usual, 0, 28)).astype(np.uint8)
        chance = rng.random(kinds.shape, dtype=np.float32)
        symbol = np.zeros(kinds.shape, np.int16)
        for table in range(len(cumulative)):
            mask = kinds == table
            symbol[mask] = np.searchsorted(cumulative[table], chance[mask], side="right")
        value = np.where(symbol >= ESCAPE, HALF + 1, symbol - HALF).astype(np.int64)
        low = lows.astype(np.int64)
        q[:, part] = (value << low) + (rng.integers(0, 1 << 10, value.shape) & ((1 << low) - 1))
    return q

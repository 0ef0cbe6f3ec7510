"""Random calibrations of any shape, for figures of speed where no calibrated target is at hand.

The matrices are random, with a gain below one so that decoded KV stays bounded. The statistics of the integers, which
decide how many bits there are to decode, are given: the levels, tables and classes of a target that was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pltz.kv.engines.streams import (
    BASE,
    CLASS_LEVELS,
    COARSEST,
    ESCAPE,
    HALF,
    MOST_LOW,
    PRECISION,
    SYMBOLS,
    TOP,
    Tables,
)
from pltz.kv.predictive.calibration import Calibration, KVShape

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


def spread_levels(tables: Tables, layers: int, width: int) -> Tables:
    """Return tables whose levels, those of a measured target, are spread over another number of components."""
    old_layers, old_width = tables.level.shape
    rows = np.arange(layers) * old_layers // layers
    columns = np.arange(width) * old_width // width
    return Tables(tables.freq, tables.mean, np.ascontiguousarray(tables.level[rows][:, columns]))


def drawn(classes: NDArray[np.uint8], tables: Tables, point: int, device: torch.device | str) -> NDArray[np.int16]:
    """Return integers (T, layers, width), drawn from the tables that the coder expects for them.

    They cost what the integers of the measured target cost at this point. ``classes``: (T,).
    """
    import torch

    layers, width = tables.level.shape
    generator = torch.Generator(device).manual_seed(SEED)
    slots = np.stack([np.repeat(np.arange(SYMBOLS), row) for row in tables.freq]).astype(np.int16)
    symbols = torch.from_numpy(slots).to(device).flatten()
    level = torch.from_numpy(tables.level.astype(np.int32)).to(device)
    first = torch.from_numpy(point + COARSEST - CLASS_LEVELS * classes.astype(np.int32)).to(device)
    found = np.empty((len(classes), layers, width), np.int16)
    for layer in range(layers):
        table = ((level[layer] - first[:, None]) >> 1) + BASE
        low = ((table - TOP + 3) >> 2).clamp(0, MOST_LOW)
        table = (table - 4 * low).clamp(0, TOP)
        slot = torch.randint(0, 1 << PRECISION, table.shape, generator=generator, device=device)
        symbol = symbols[table * (1 << PRECISION) + slot].int()
        value = torch.where(symbol == ESCAPE, torch.full_like(symbol, HALF + 1), symbol - HALF)
        rest = torch.randint(0, 1 << MOST_LOW, table.shape, generator=generator, device=device) & ((1 << low) - 1)
        found[:, layer] = ((value << low) + rest).to(torch.int16).cpu().numpy()
    return found

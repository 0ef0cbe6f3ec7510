"""The average of snapshots of one run, whose rate falls: it takes the noise of the last steps away.

    python -m pltz.training.run.snapshots OUTPUT s0394=0.25 s0455=0.4 s0510=0.35

Each argument is the folder of a rounded net (checkpoint.py) and its share; the shares sum to 1. Rows and their scales
are averaged as real numbers, and each row is rounded anew by its averaged scale. `average.py` averages two nets of
different runs, part by part. `nano` was made so (experiments/LOG.md, run L).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

from pltz.plt_codec import UsageError
from pltz.training.nets.checkpoint import Floats

NET, SCALE = "net.safetensors", ".scale"


def mean(folders: Mapping[Path, float], output: Path) -> None:
    """Write the average of rounded nets, a share for each folder, to a folder that is not there yet.

    Raises:
        UsageError: the shares do not sum to 1, or the nets have other shapes.
    """
    if not folders or abs(sum(folders.values()) - 1) > 1e-9 or min(folders.values()) <= 0:
        raise UsageError(f"expected shares above 0 that sum to 1, found {', '.join(map(str, folders.values()))}")
    nets = {folder: {k: np.asarray(v) for k, v in load_file(folder / NET).items()} for folder in folders}
    first = next(iter(nets.values()))
    if any({k: v.shape for k, v in net.items()} != {k: v.shape for k, v in first.items()} for net in nets.values()):
        raise UsageError("only nets of one shape can be averaged: name snapshots of one run")
    # Rows are averaged as real numbers, then rounded by their averaged scale.
    total = {name: np.asarray(sum(folders[f] * _real(nets[f], name) for f in folders), np.float32) for name in first}
    for name, value in first.items():
        if value.dtype == np.int8:
            rows = total[name] / _rows(total[name + SCALE], value.ndim)
            total[name] = np.clip(np.rint(rows), -127, 127).astype(np.int8)
    start = next(iter(folders))
    shutil.copytree(start, output)
    with safetensors.safe_open(start / NET, "np") as file:
        metadata = file.metadata()
    (output / NET).unlink()
    save_file(total, output / NET, metadata)


def _real(net: Mapping[str, Floats], name: str) -> Floats:
    """Return the real numbers of a tensor, float32: of int8 rows with their scale."""
    value = net[name].astype(np.float32)
    return value * _rows(net[name + SCALE], value.ndim) if net[name].dtype == np.int8 else value


def _rows(scale: Floats, ndim: int) -> Floats:
    return scale.reshape(-1, *([1] * (ndim - 1)))


def main(arguments: Sequence[str]) -> None:
    """See the head of this file.

    Raises:
        UsageError: an argument is missing or unclear.
    """
    if len(arguments) < 2 or not all("=" in one for one in arguments[1:]):
        raise UsageError("expected OUTPUT and one FOLDER=SHARE or more")
    parts = [one.rpartition("=") for one in arguments[1:]]
    mean({Path(folder): float(share) for folder, _, share in parts}, Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])

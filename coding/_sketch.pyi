"""Types of sketch.c."""

import numpy as np
import numpy.typing as npt

def nearest(
    runs: list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.uint32]]],
    recent: list[tuple[int, npt.NDArray[np.uint32]]],
    wanted: list[npt.NDArray[np.uint32]],
    scales: npt.NDArray[np.float64],
    least: int,
    count: int,
    /,
) -> list[list[tuple[int, float]]]: ...
def join(
    hashes: npt.NDArray[np.uint32],
    owners: npt.NDArray[np.uint32],
    more: npt.NDArray[np.uint32],
    their_owners: npt.NDArray[np.uint32],
    bits: int,
    /,
) -> tuple[bytes, bytes, bytes]: ...

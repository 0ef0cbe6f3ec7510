"""Types of sketch.c."""

import numpy as np
import numpy.typing as npt

def nearest(
    runs: list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]],
    recent: list[tuple[int, npt.NDArray[np.uint32]]],
    wanted: npt.NDArray[np.uint32],
    scales: npt.NDArray[np.float64],
    least: int,
    count: int,
    /,
) -> list[tuple[int, float]]: ...

"""The norm with gains of NUMERICS.md in plain numpy, for kernels that compute it alone."""

from math import isqrt

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def rs(a: Ints, n: int) -> Ints:
    """Divide integers, of any shape (...,), by 2^n, rounding half up."""
    return (a + (1 << (n - 1))) >> n


def gained(x: Ints, gain: int, gains: Ints) -> Ints:
    """Normalise a vector (n,) with gains (n,), within 127: NUMERICS.md, contract 2, "norm with gains"."""
    root = max(1, isqrt(int((x * x).sum())))
    unit = rs(x * ((gain << 32) // root), 32)
    return np.clip(rs(unit * gains, 20), -127, 127)

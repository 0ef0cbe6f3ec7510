"""Spans of tokens that all received the same attention, for forms that code by it."""

import numpy as np
from numpy.typing import NDArray

from pltz.kv.port.codec import Span


def flat(ids: NDArray[np.int32], start: int = 0) -> Span:
    """Return the span of ids, (T,), after ``start`` others."""
    return Span(ids, start, np.ones(len(ids), np.float32))

"""Steps: how finely each token is coded, by its place and by the attention that it received."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.engines.streams import CLASS_LEVELS, CLASSES, COARSEST
from pltz.kv.port.codec import Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

SINKS, SINK_FINER = 4, 4.3  # tokens at the beginning of a session; octaves
TAIL, TAIL_FINER = 128, 1.0  # tokens at the end of a segment; octaves
EXPONENT, FINEST, COARSE = 0.35, -2.0, 1.5  # of the mass; octaves
MIDDLE = 3  # the class of a step of exactly one


def steps_of(classes: NDArray[np.uint8], point: float) -> NDArray[np.float32]:
    """Return the step of each token, (T, 1). ``classes``: (T,)."""
    table = [2.0 ** ((point + COARSEST - CLASS_LEVELS * c) / 8) for c in range(CLASSES)]
    return np.array(table, np.float32)[classes][:, None]


def classes_of(span: Span, tokens: int) -> NDArray[np.uint8]:
    """Return the class of each token, (T,): finer where attention looks, for sinks, and for the tail.

    Raises UsageError for a span without a mass.
    """
    octaves, mass = np.zeros(tokens), span.observed().astype(np.float64)
    if tokens:
        octaves = np.clip(-EXPONENT * np.log2(np.maximum(mass / max(mass.mean(), 1e-30), 1e-6)), FINEST, COARSE)
    position = np.arange(tokens)
    octaves = octaves - SINK_FINER * (position + span.start < SINKS) - TAIL_FINER * (position >= tokens - TAIL)
    classes: NDArray[np.uint8] = np.clip(np.rint(MIDDLE - 2 * octaves), 0, CLASSES - 1).astype(np.uint8)
    return classes

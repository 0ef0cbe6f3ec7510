"""The structs that the host shares with the kernels, as numpy types (common.cuh has them in C)."""

from __future__ import annotations

import numpy as np

SESSION = np.dtype(  # struct Session: one sequence
    [
        ("token_at", "i8"), ("total", "i8"), ("word_at", "i8"), ("words", "i8"), ("lower", "u8"), ("range", "u8"),
        ("point", "u8"), ("place", "i8"), ("bits", "f8"), ("most", "i8"), ("start", "i8"), ("lanes", "i4"),
        ("steps", "i4"), ("size", "i4"), ("L", "i4"), ("C", "i4"), ("full", "i4"), ("step", "i4"), ("old", "i4"),
        ("error", "i4"), ("done", "i4"), ("first", "i4"), ("context", "i4"), ("apart", "i4"), ("unused", "i4"),
        ("spare", "i8", 6),
    ]
)  # fmt: skip
BATCH = np.dtype(  # struct State: a batch of sequences
    [
        ("rows", "i4"), ("next", "i4"), ("left", "i4"), ("error", "i4"), ("failed", "i4"), ("slots", "i4"),
        ("count", "i4"), ("rows_max", "i4"), ("decoding", "i4"), ("epoch", "i4"), ("in_place", "i4"),
        ("listed", "i4", 5), ("tokens", "i8"),
    ]
)  # fmt: skip

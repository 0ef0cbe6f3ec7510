"""Session: one sequence as the kernels see it (struct Session of common.cuh)."""

from __future__ import annotations

import numpy as np

SESSION = np.dtype(
    [
        ("token_at", "i8"), ("total", "i8"), ("word_at", "i8"), ("words", "i8"), ("lower", "u8"), ("range", "u8"),
        ("point", "u8"), ("place", "i8"), ("bits", "f8"), ("budget", "f8"), ("start", "i8"), ("lanes", "i4"),
        ("steps", "i4"), ("size", "i4"), ("L", "i4"), ("C", "i4"), ("full", "i4"), ("step", "i4"), ("old", "i4"),
        ("error", "i4"), ("done", "i4"), ("first", "i4"), ("context", "i4"), ("spare", "i8", 7),
    ]
)  # fmt: skip

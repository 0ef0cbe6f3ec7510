"""What goes into and comes out of a token coder, whichever engine is behind it (token_coder.py, coder.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.integer[Any]]  # (T,) bundle token ids
Progress = Callable[[int], None]  # told of tokens done
MAX_TOKENS = 1 << 31  # a frame


@dataclass(frozen=True)
class Encoded:
    """One frame: its bytes, the model's ideal code length in bits, its blocks, and the layout if it is not the default."""

    data: bytes
    ideal_bits: float
    blocks: int
    lanes: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class FrameItem:
    """What is needed to decode one frame. ``context``: the tokens before the sequence that it was encoded after, (m,)."""

    data: bytes
    tokens: int
    lanes: int | None = None
    steps: int | None = None
    context: Tokens | None = None

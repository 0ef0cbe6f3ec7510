"""The inputs and outputs of a token coder, whichever engine it uses (token_coder.py, coder.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.integer[Any]]  # (T,) bundle token ids
Progress = Callable[[int], None]  # called with the number of tokens just done
MAX_TOKENS = 1 << 31  # per frame


@dataclass(frozen=True)
class Encoded:
    """One frame.

    Its bytes, the model's ideal code length in bits, its blocks, and its layout if that is not the default.
    """

    data: bytes
    ideal_bits: float
    blocks: int
    lanes: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class FrameItem:
    """The inputs for decoding one frame of ``tokens`` tokens.

    ``context``: the tokens before the sequence that it was encoded after, (m,). ``lanes``, ``steps``: the
    layout if it is not the default.
    """

    data: bytes
    tokens: int
    lanes: int | None = None
    steps: int | None = None
    context: Tokens | None = None

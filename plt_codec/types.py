"""The inputs and outputs of a token coder, whichever engine it uses (token_coder.py, coder.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pltz.plt_codec.lanes import Layout, Tokens

Progress = Callable[[int], None]  # called with the number of tokens just done


@dataclass(frozen=True)
class Encoded:
    """One frame: its bytes, the model's ideal code length in bits, its blocks, and its layout."""

    data: bytes
    ideal_bits: float
    blocks: int
    layout: Layout | None = None


@dataclass(frozen=True)
class FrameItem:
    """The inputs for decoding one frame of ``tokens`` tokens.

    ``layout``: None: the default one of so many tokens. ``context``: the tokens before the sequence that it was
    encoded after, (m,).
    """

    data: bytes
    tokens: int
    layout: Layout | None = None
    context: Tokens | None = None

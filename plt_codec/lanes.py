"""Blocks, lanes and steps: how a sequence of tokens is laid out for coding (NUMERICS.md, "Layout").

A block of t tokens becomes a grid of L lanes and C = ceil(t / L) steps. Decoding takes C steps whatever L is.
Every lane sees the earlier steps of every lane, so lanes buy speed and cost a few per cent. Example: 5 tokens
in 2 lanes,

    lane 0: tokens 0 1 2      step 0 predicts 0 and 3, step 1 predicts 1 and 4, step 2 predicts 2
    lane 1: tokens 3 4        (lane 1 is one step short: its last input is there, it predicts nothing)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import UsageError

Ints = npt.NDArray[np.int64]
LayoutName = Literal["default", "fast"]
LAYOUTS: tuple[LayoutName, ...] = ("default", "fast")

LANE_MARK = 0  # id of <|lane|>, the input of a lane's first step
MAX_LANES = 64
MAX_BLOCK = 16384  # tokens
MAX_STEPS = 512  # default layout: steps of a block that is not full
FULL_LANES = 16  # default layout: lanes of a full block
FAST_ABOVE = 2048  # fast layout: tokens up to which the default rule holds
TURN_ABOVE = 48  # layout of turns: tokens up to which the default rule holds


class Extent(NamedTuple):
    """The number of blocks of a sequence, the lanes of the widest, and the total steps of all blocks."""

    blocks: int
    lanes: int
    steps: int


@dataclass(frozen=True)
class Layout:
    """A rule for cutting a sequence into blocks.

    ``Layout(None, None)`` is the default rule, which costs no bytes in a frame.

    Raises:
        UsageError: only one of lanes and steps is given, or one is out of range.
    """

    lanes: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if (self.lanes is None) != (self.steps is None):
            raise UsageError("a layout needs both lanes and steps, or neither")
        if self.lanes is None or self.steps is None:
            return
        if not 1 <= self.lanes <= MAX_LANES or self.steps < 1 or self.lanes * self.steps > MAX_BLOCK:
            raise UsageError(
                f"expected 1 to {MAX_LANES} lanes and at most {MAX_BLOCK} tokens per block, "
                f"got {self.lanes} lanes x {self.steps} steps"
            )

    def blocks(self, tokens: int, block: int, first: int = 0) -> Iterator[TokenBlock]:
        """Yield the blocks of a sequence of `tokens` tokens from position `first` on.

        `block` is the bundle's block size, which the default rule uses. `first`: tokens of the context.
        """
        size = self._size(block)
        for start in range(0, tokens, size):
            yield self._block(first + start, min(size, tokens - start), block)

    def extent(self, tokens: int, block: int) -> Extent:
        """Return the extent of `blocks` without making them: a file may claim millions of them in a few bytes."""
        size = self._size(block)
        full, rest = divmod(tokens, size)
        whole, last = self._block(0, size, block), self._block(0, max(rest, 1), block)
        lanes = max(whole.lanes if full else 0, last.lanes if rest else 0)
        return Extent(full + bool(rest), lanes, full * whole.steps + (last.steps if rest else 0))

    def _size(self, block: int) -> int:
        """Return the tokens of a full block."""
        return block if self.lanes is None or self.steps is None else self.lanes * self.steps

    def _block(self, start: int, tokens: int, block: int) -> TokenBlock:
        return TokenBlock(start, tokens, min(tokens, self.lanes or default_lanes(tokens, block)))


FAST = Layout(32, 128)


def layout_of(tokens: int, fast: bool) -> Layout:
    """Return the layout of a sequence for the choice of default or fast.

    The fast layout has at most 128 steps per block of 4096 tokens, for a few per cent more bytes. Up to
    FAST_ABOVE tokens it is the default.

    >>> layout_of(4000, True), layout_of(2048, True) == layout_of(4000, False) == Layout()
    (Layout(lanes=32, steps=128), True)
    """
    return FAST if fast and tokens > FAST_ABOVE else Layout()


def turn_layout(tokens: int) -> Layout:
    """Return the layout of one turn of a session that a GPU is to thaw soon, turn after turn.

    It has at most 48 steps in up to 4 lanes, 96 steps in up to 16, and 128 steps per block from there on. A
    step takes a GPU as long for one lane as for 16, and every lane costs 2 to 5 bytes more. A turn of 48
    tokens or fewer stands in one lane, by the default rule.

    >>> [turn_layout(tokens).lanes for tokens in (48, 49, 100, 500, 1000, 4000)]
    [None, 2, 3, 6, 11, 16]
    """
    lanes = max(min(4, -(-tokens // 48)), min(FULL_LANES, -(-tokens // 96)))
    return Layout(lanes, 128) if tokens > TURN_ABOVE else Layout()


def default_lanes(tokens: int, block: int) -> int:
    """Return the lanes of a block of `tokens` tokens under the default rule, for the bundle's block size `block`."""
    if tokens >= block:
        return FULL_LANES
    lanes = 1
    while tokens > lanes * MAX_STEPS:
        lanes *= 2
    return lanes


@dataclass(frozen=True)
class TokenBlock:
    """One block: its `start` in the sequence, its `tokens` and its `lanes`. All arrays are step-major (step, lane)."""

    start: int
    tokens: int
    lanes: int

    @property
    def steps(self) -> int:
        """Return the steps of the longer lanes."""
        return -(-self.tokens // self.lanes)

    @property
    def full(self) -> int:
        """Return the lanes that predict in the last step; the others are one step short."""
        return self.tokens - self.lanes * (self.steps - 1)

    def lane_starts(self) -> Ints:
        """Return the first token of each lane, within the block: (lanes,)."""
        k = np.arange(self.lanes, dtype=np.int64)
        return k * self.steps - np.maximum(0, k - self.full)

    def targets(self) -> Ints:
        """Return the token of the block that each position predicts: (steps, lanes).

        Beyond `active(step)` it is meaningless.
        """
        return self.lane_starts()[None, :] + np.arange(self.steps, dtype=np.int64)[:, None]

    def active(self, step: int) -> int:
        """Return how many lanes predict at this step: lanes 0 .. active - 1."""
        return self.lanes if step < self.steps - 1 else self.full

    def predicting(self) -> npt.NDArray[np.bool_]:
        """Return a mask (steps, lanes), True where the position predicts a token."""
        mask = np.ones((self.steps, self.lanes), bool)
        mask[-1, self.full :] = False
        return mask

    def inputs(self, tokens: npt.NDArray[np.integer], before: int) -> Ints:
        """Return the input ids (steps, lanes) for the block's own `tokens` (t,).

        `before` is the token before the block, or LANE_MARK.
        """
        out = np.full((self.steps, self.lanes), LANE_MARK, np.int64)
        out[1:] = np.asarray(tokens, np.int64)[self.targets()[1:] - 1]
        out[0, 0] = before
        return out

"""Blocks, lanes and steps: how a sequence of tokens is laid out for coding (NUMERICS.md, "Layout").

A block of t tokens becomes a grid of L lanes and C = ceil(t / L) steps. Decoding takes C steps whatever L is. Every
lane sees the earlier steps of every lane, so lanes buy speed and cost a few per cent. Example: 5 tokens in 2 lanes,

    lane 0: tokens 0 1 2      step 0 predicts 0 and 3, step 1 predicts 1 and 4, step 2 predicts 2
    lane 1: tokens 3 4        (lane 1 is one step short: its last input is there, it predicts nothing)

The context of a sequence is known tokens before it that are not coded themselves (NUMERICS.md, "Context"):

    context  c0 .. c(m-1)      one lane, m <= M steps, passed through the model for its keys and values alone
    sequence t0 .. t(T-1)      coded as ever, but its first block starts at position m and remembers the context

The context's tokens are copied in front of a sequence's own, so its positions are indices, in both engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.weights import Shape

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.integer[Any]]  # (T,) bundle token ids
Ids = Ints
NOTHING: Ids = np.zeros(0, np.int64)
MAX_TOKENS = 1 << 31  # per frame
LayoutName = Literal["default", "fast"]
LAYOUTS: tuple[LayoutName, ...] = ("default", "fast")

LANE_MARK = 0  # id of <|lane|>, the input of a lane's first step
MAX_LANES = 64
MAX_BLOCK = 16384  # tokens


class Extent(NamedTuple):
    """The number of blocks of a sequence, the lanes of the widest, and the total steps of all blocks."""

    blocks: int
    lanes: int
    steps: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The lanes and steps of a full block of a sequence; the last block has as many lanes, or one per token.

    Raises:
        UsageError: lanes or steps are out of range.
    """

    lanes: int
    steps: int

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= MAX_LANES or self.steps < 1 or self.lanes * self.steps > MAX_BLOCK:
            raise UsageError(
                f"expected 1 to {MAX_LANES} lanes and at most {MAX_BLOCK} tokens per block, "
                f"got {self.lanes} lanes x {self.steps} steps"
            )

    @property
    def full(self) -> int:
        """Return the tokens of a full block."""
        return self.lanes * self.steps

    def blocks(self, tokens: int, first: int = 0) -> Iterator[TokenBlock]:
        """Yield the blocks of a sequence of `tokens` tokens from position `first` on, the tokens of its context."""
        for start in range(0, tokens, self.full):
            size = min(self.full, tokens - start)
            yield TokenBlock(first + start, size, min(self.lanes, size))

    def extent(self, tokens: int) -> Extent:
        """Return the extent of `blocks` without making them: a file may claim millions of them in a few bytes."""
        full, rest = divmod(tokens, self.full)
        lanes = self.lanes if full else min(self.lanes, rest)
        return Extent(full + bool(rest), lanes, full * self.steps + (-(-rest // min(self.lanes, rest)) if rest else 0))


Layouts = Layout | Sequence[Layout] | None  # of sequences: one for all, each its own, or the default one of each


def layout_of(tokens: int, *, fast: bool = False) -> Layout:
    """Return the layout of a sequence: NUMERICS.md, "Layouts", 0 or 1 (``fast``).

    The fast one has few steps, for whoever waits for one session on a GPU, and takes a few per cent more bytes.

    >>> [layout_of(tokens).lanes for tokens in (0, 512, 513, 2000, 4096, 4097)], layout_of(4097).steps
    ([1, 1, 2, 4, 8, 8], 256)
    >>> [layout_of(tokens, fast=True).lanes for tokens in (48, 49, 100, 500, 1000, 2048, 2049)]
    [1, 2, 3, 6, 11, 16, 32]
    """
    if not fast:
        return Layout(max(1, -(-tokens // 512)), 512) if tokens <= 4096 else Layout(8, 256)
    if tokens > 2048:
        return Layout(32, 128)
    return Layout(max(1, min(4, -(-tokens // 48)), min(16, -(-tokens // 96))), 128)


def each_layout(layouts: Layouts, counts: Sequence[int]) -> Sequence[Layout]:
    """Return the layout of each sequence of so many tokens. Raises UsageError where they are not as many."""
    if layouts is None:
        return [layout_of(tokens) for tokens in counts]
    if isinstance(layouts, Layout):
        return [layouts] * len(counts)
    if len(layouts) != len(counts):
        raise UsageError(f"expected a layout for each of {len(counts)} sequences, got {len(layouts)}")
    return layouts


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


# ---- contexts


def checked(tokens: Tokens, vocab: int) -> Ids:
    """Return ids (T,) as a row of int64.

    Raises:
        ContentError: not one row of ids below `vocab`, or too many of them.
    """
    ids = np.ascontiguousarray(tokens, np.int64)
    if np.ndim(tokens) != 1 or len(ids) >= MAX_TOKENS:
        shape = np.shape(tokens)
        raise ContentError(f"expected one row of fewer than {MAX_TOKENS} token ids, got shape {shape}")
    if len(ids) and ids.view(np.uint64).max() >= vocab:  # one look; ids below 0 are the largest
        raise ContentError(f"expected token ids in 0..{vocab - 1}, got {ids.min()}..{ids.max()}")
    return ids


def remembered(context: Tokens | None, shape: Shape) -> Ids:
    """Return the part of a context that counts: its last M tokens, (m,) int64.

    Raises:
        ContentError: not one row of ids of the vocabulary.
    """
    if context is None:
        return NOTHING
    if np.ndim(context) != 1:
        raise ContentError(f"expected one row of token ids as context, got shape {np.shape(context)}")
    return checked(np.asarray(context)[-shape.memory :] if shape.memory else NOTHING, shape.vocab)


def room(context: Ids, tokens: int) -> Ids:
    """Return the context (m,) followed by zeros for `tokens` ids, (m + tokens,).

    The zeros are memory that nothing has touched yet, so a count that lies costs none.
    """
    ids = np.zeros(len(context) + tokens, np.int64)
    ids[: len(context)] = context
    return ids


def each(contexts: Sequence[Tokens | None] | None, count: int, shape: Shape) -> list[Ids]:
    """Return the part of each of `count` contexts that counts, (m,) int64 each.

    Raises:
        UsageError: there are not `count` contexts.
        ContentError: a context is not one row of ids of the vocabulary.
    """
    if contexts is None:
        return [NOTHING] * count
    if len(contexts) != count:
        raise UsageError(f"expected a context for each of {count} sequences, got {len(contexts)}")
    return [remembered(c, shape) for c in contexts]

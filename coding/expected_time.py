"""The expected time of coding many tokens: from what is coded in the first seconds, or from a sample coded before.

    pace = EarlyPace(told, proved=True)
    pace.add(tokens)                                              # of what will be coded
    coder.encode(sequences, progress=pace)                        # calls told, once, in the first seconds
    seconds = expected_seconds(coder, sequences, verify=True)     # None for few tokens, which are not worth a sample

Both hold for this machine, this bundle and the load at this moment. What is coded costs nothing to time, so files on a
CPU do that. A sample is for coders that tell no progress. It is the beginning of the longest sequences, and takes about
2 % of the expected time, or less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.types import FrameItem

if TYPE_CHECKING:
    from pltz.coding.parts import Coder, Tokens

Expect = Callable[[float], None]
"""Called with the expected seconds before a batch of many tokens is coded, or early while it is."""

LEAST_TOKENS = 1 << 17  # fewer are not worth a sample
SAMPLE = 1 << 13  # tokens
PIECE = 1 << 12  # tokens of a sequence in the sample


EARLY = 2.0  # seconds of encoding after which a pace tells how long the rest takes,
PIECES = 3  # and calls of its progress: the first one may take longer, or be of a shorter past
PROOF = 1.15  # time to decode a token, per time to encode it, on a CPU: 1.06 in 16 lanes, 1.24 in 8


class EarlyPace:
    """A progress of encoding that tells once, early, how many seconds encoding and proof take in all from then on.

    ``told``: called with them. ``proved``: whether what is encoded is decoded again.
    """

    def __init__(self, told: Expect, *, proved: bool) -> None:
        self._told, self._proof = told, PROOF if proved else 0.0
        self._began = 0.0
        self._done = self._calls = 0  # tokens encoded, and calls
        self._left = 0.0  # to encode and to prove, in tokens to encode

    def add(self, tokens: int, *, proved: int | None = None) -> None:
        """Add so many tokens that are encoded from now on, and of these so many that will be proved: all, if None."""
        if not self._done:
            self._began = time.perf_counter()
        self._left += tokens + self._proof * (tokens if proved is None else proved)

    def __call__(self, amount: int) -> None:
        """Count so many tokens that are encoded."""
        self._done += amount
        self._left -= amount
        self._calls += 1
        took = time.perf_counter() - self._began
        if self._calls >= PIECES and took >= EARLY and self._done:
            self._calls = -1 << 62  # once
            self._told(took / self._done * self._left)


def expected_seconds(
    coder: Coder,
    sequences: Sequence[Tokens],
    *,
    more: int = 0,
    verify: bool = True,
    layout: Callable[[int], Layout] = lambda _: Layout(),
) -> float | None:
    """Return the seconds to encode sequences, each (T,), and with ``verify`` to decode them again.

    ``more``: tokens that are encoded beside them. ``layout``: gives the layout of a sequence of so many tokens. Return
    None where there are fewer than LEAST_TOKENS in all.
    """
    tokens = sum(map(len, sequences))
    if tokens + more < LEAST_TOKENS:
        return None
    # the longest sequences, which set the layout, are coded once and timed
    sample: list[Tokens] = []
    left = SAMPLE
    for sequence in sorted(sequences, key=len, reverse=True):
        if left <= 0:
            break
        sample.append(sequence[: min(PIECE, left)])
        left -= len(sample[-1])
    counted = sum(map(len, sample))
    start = time.perf_counter()
    by = layout(max(map(len, sample)))
    encoded = coder.encode(sample, lanes=by.lanes, steps=by.steps)
    middle = time.perf_counter()
    seconds = (middle - start) / counted * (tokens + more)
    if verify:
        items = [FrameItem(e.data, len(s), e.lanes, e.steps) for e, s in zip(encoded, sample, strict=True)]
        coder.decode(items)
        seconds += (time.perf_counter() - middle) / counted * tokens
    return seconds

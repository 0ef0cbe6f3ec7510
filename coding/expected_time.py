"""The expected time of coding many tokens, from a short sample of them that is coded first.

    seconds = expected_seconds(coder, sequences, verify=True)     # None for few tokens, which are not worth a sample

The sample is the beginning of the longest sequences, coded with the coder that codes the rest. So the figure
holds for this machine, this bundle and the load at this moment. The sample takes about 2 % of the expected
time, or less.
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
"""Called with the expected seconds before a batch of many tokens is coded."""

LEAST_TOKENS = 1 << 17  # fewer are not worth a sample
SAMPLE = 1 << 13  # tokens
PIECE = 1 << 12  # tokens of a sequence in the sample


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

"""The shortest of several ways to code a segment, each coded: for sessions of files and for segments of archives.

    tokens after a context --as they are, and with copies out of it--> ways --codec--> the shortest that a reader takes
    the same after a neighbour --`shorter_after`--> those that save more than naming the neighbour takes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from pltz.coding.codecs.codec import BytesCodec, Plain, SegmentCodec, copies_fit
from pltz.coding.codecs.modes import COPIES
from pltz.coding.workers import Workers
from pltz.plt_codec import repeats
from pltz.plt_codec.repeats import Copy
from pltz.plt_codec.types import Tokens

BEYOND = 64  # ratio that bytes under zstd are not expected to reach where a turn of the model is that short
TOGETHER = 16  # segments whose copies a process looks for in one call
COPIED, PER_COPY = 0.37, 6.7  # copies spare this part of their tokens' bytes beyond the model, less so many each
DOUBT = 4  # bytes within which this, fitted to chats (experiments/LOG.md), tells nothing
NO_SIZE = 1 << 62  # stands for the size of a session that no frame or record holds


def ways_after(
    codec: SegmentCodec, plain: Plain, size: int, taken: Sequence[Sequence[Copy]] | None = None
) -> list[Plain]:
    """Return the ways to code a segment after the context ``plain.above``: as it is, with copies out of that, or both.

    Both are worth their time only where it is not clear beforehand which one is shorter (`COPIED`, `PER_COPY`).

    Args:
        size: bytes of its shortest bitstring so far.
        taken: the copies, as `repeats.candidates` gives them; None: they are found here.
    """
    if not codec.mode & COPIES:
        return [plain]
    found = repeats.candidates(plain.tokens, plain.above, size) if taken is None else taken
    if not found:
        return [plain]
    copies, tokens = found[0], len(plain.tokens)
    copied = replace(plain, copies=copies)
    gain = COPIED * size * (1 - copied.literals / tokens) - PER_COPY * len(copies)
    if gain <= -DOUBT:
        return [plain]
    sure = gain >= DOUBT and copies_fit(tokens, repeats.pack(copies))
    return [copied] if sure else [plain, copied]


def shortest(codec: SegmentCodec, ways: Sequence[tuple[int, Plain]]) -> dict[int, tuple[bytes, Plain]]:
    """Return the shortest bitstring of each segment, by its number, and its way; of equal ones the first.

    One with copies counts only where a reader takes it (`copies_fit`). Raises ContentError.
    """
    best: dict[int, tuple[bytes, Plain]] = {}
    coded = codec.encode([plain for _, plain in ways]) if ways else []
    for (number, plain), data in zip(ways, coded, strict=True):
        known = best.get(number)
        if known and len(data) >= len(known[0]):
            continue
        if not plain.copies or copies_fit(len(plain.tokens), data):
            best[number] = data, plain
    return best


class Trial(NamedTuple):
    """A segment to code after a context, such as a neighbour, that it need not have.

    Attributes:
        plain: the segment after the context, with the copies that it has without.
        size: bytes of its bitstring without the context.
        field: bytes that naming the context takes.
    """

    plain: Plain
    size: int
    field: int


def shorter_after(
    codec: SegmentCodec,
    trials: Sequence[Trial],
    workers: Workers | None = None,
) -> dict[int, tuple[bytes, Plain]]:
    """Code segments after contexts, and return the bitstring and way of each that saves more than naming its context.

    By its number in ``trials``. Raises ContentError.

    Args:
        codec: of the segments.
        trials: segments, each with its context.
        workers: processes with `HostWork`, which look for copies; None: none.
    """
    taken: list[Sequence[Sequence[Copy]] | None] = [None] * len(trials)
    if workers and codec.mode & COPIES:
        rows = [(one.plain.tokens, one.plain.above, one.size) for one in trials]
        parts = [rows[at : at + TOGETHER] for at in range(0, len(rows), TOGETHER)]
        results = [workers.submit("candidates", part, now=True) for part in parts]
        taken = list(chain.from_iterable(one.result() for one in results))
    ways: list[tuple[int, Plain]] = []
    for n, (one, found) in enumerate(zip(trials, taken, strict=True)):
        ways += [(n, way) for way in ways_after(codec, one.plain, one.size, found)]
    best = shortest(codec, ways)
    return {n: won for n, won in best.items() if len(won[0]) < trials[n].size - trials[n].field}


def may_be_shorter(codec: SegmentCodec, tokens: Sequence[Tokens], size: int, *, extends: bool = False) -> bool:
    """Return whether a codec may code tokens, (T,) each, in ``size`` bytes or less, those of a way that is coded.

    ``extends``: that way extends stored segments, and the tokens are bytes of the whole session. Then this way would
    have to take 1 / BEYOND of their number. Where it could, the first way costs at most that share of the session more.
    Coding 16 kB by zstd for each turn took 40 ms. Else a fast level of zstd tells what its slowest can come to.
    """
    if extends and BEYOND * size <= sum(map(len, tokens)):
        return False
    return not isinstance(codec, BytesCodec) or size >= NO_SIZE or codec.may_reach(tokens, size)

"""The shortest of several ways to code a segment, each coded: for sessions of files and for segments of archives.

    tokens after a context --as they are, and with copies out of it--> ways --codec--> the shortest that a reader takes
    the same after a neighbour --`shorter_after`--> those that save more than naming the neighbour takes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

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


def ways_after(codec: SegmentCodec, plain: Plain, size: int, found: Sequence[Sequence[Copy]]) -> list[Plain]:
    """Return the ways to code a segment after the context ``plain.above``: as it is, with copies out of that, or both.

    Both are worth their time only where it is not clear beforehand which one is shorter (`COPIED`, `PER_COPY`).

    Args:
        size: bytes of its shortest bitstring so far.
        found: the copies, as `repeats.candidates` gives them.
    """
    if not found or not codec.mode & COPIES:
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


def shorter_after(
    codec: SegmentCodec, trials: Sequence[tuple[Plain, int]], field: int, workers: Workers
) -> dict[int, tuple[bytes, Plain]]:
    """Code segments after contexts, and return the bitstring and way of each that saves more than naming its context.

    By its number in ``trials``. Raises ContentError.

    Args:
        codec: of the segments.
        trials: segments after their contexts, with the copies that they have without, and bytes without.
        field: bytes that naming a context takes.
        workers: with `HostWork`, which looks for copies.
    """
    rows = [(plain.tokens, plain.above, size) for plain, size in trials]
    parts = [rows[at : at + TOGETHER] for at in range(0, len(rows), TOGETHER)]
    results = [workers.submit("candidates", part, now=True) for part in parts]
    found = chain.from_iterable(one.result() for one in results)
    ways = [ways_after(codec, *trial, one) for trial, one in zip(trials, found, strict=True)]
    best = shortest(codec, [(n, way) for n, row in enumerate(ways) for way in row])
    return {n: won for n, won in best.items() if len(won[0]) < trials[n][1] - field}


def may_be_shorter(codec: SegmentCodec, tokens: Sequence[Tokens], size: int, *, extends: bool = False) -> bool:
    """Return whether a codec may code tokens, (T,) each, in ``size`` bytes or less, those of a way that is coded.

    ``extends``: that way extends stored segments, and the tokens are bytes of the whole session. Then this way would
    have to take 1 / BEYOND of their number. Where it could, the first way costs at most that share of the session more.
    Coding 16 kB by zstd for each turn took 40 ms. Else a fast level of zstd tells what its slowest can come to.
    """
    if extends and BEYOND * size <= sum(map(len, tokens)):
        return False
    return not isinstance(codec, BytesCodec) or size >= NO_SIZE or codec.may_reach(tokens, size)

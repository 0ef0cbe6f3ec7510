"""The work of coding one sequence on a GPU: its keys, lanes and steps, from its length, layout and context length."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pltz.plt_codec.engines.cuda.pack import up
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.weights import Shape

KEYS = 64  # room for keys is a multiple
GROUP = 32  # keys that batch.cu reads at once


class SequenceWork(NamedTuple):
    """The facts that the work of a sequence follows from: its tokens, its layout, tokens of its context that count."""

    tokens: int
    layout: Layout
    first: int = 0


@functools.lru_cache(maxsize=1 << 16)
def key_room(shape: Shape, work: SequenceWork, *, in_place: bool = False) -> int:
    """Return the most keys that a sequence ever holds, rounded up to a multiple of KEYS.

    It is the larger of two: its context and its first block; the keys that a full block leaves, and the larger of a
    full block and the last. ``in_place``: without whole groups of its context, which are read where that is remembered.
    """
    whole = work.layout.full
    first = next(work.layout.blocks(work.tokens))
    room = work.first % GROUP if in_place else work.first
    room += first.steps * first.lanes
    if work.tokens > whole:
        last = next(work.layout.blocks((work.tokens - 1) % whole + 1))
        starts = first.lane_starts()
        kept = int((first.steps - np.clip(first.tokens - shape.memory - starts, 0, first.steps)).sum())
        room = max(room, kept + max(first.steps * first.lanes, last.steps * last.lanes))
    return up(room, KEYS)


def stream_words(tokens: int) -> int:
    """Return the 32-bit words of a stream, at most: two symbols of 24 bits per token, and a carry of rounding."""
    return 2 * tokens + 4


def most_lanes(work: SequenceWork) -> int:
    """Return the lanes of the widest block of a sequence."""
    return work.layout.extent(work.tokens).lanes


def all_steps(work: SequenceWork) -> int:
    """Return the steps of all blocks of a sequence."""
    return work.layout.extent(work.tokens).steps


def encode_iterations(work: SequenceWork, rows: int) -> int:
    """Return the iterations in which a sequence is encoded that has so many rows of each: whole steps of its blocks."""
    full, rest = divmod(work.tokens, work.layout.full)

    def of(tokens: int) -> int:
        block = next(work.layout.blocks(tokens)) if tokens else None
        return -(-block.steps // max(1, rows // block.lanes)) if block else 0

    return full * of(work.layout.full) + of(rest)


class StepTimes(NamedTuple):
    """Milliseconds per step of the kernels that decode, measured on an H100 (RESULTS.md).

    ``one``: of the kernel that decodes one sequence by the whole GPU; ``cluster``: of cluster.cu, which decodes several
    side by side; ``many``: of batch.cu. They are those of `mini` and `base` on one GPU: elsewhere a wrong choice costs
    time and nothing else.
    """

    one: float
    cluster: float
    many: float


PLAIN, GATED = StepTimes(0.065, 0.18, 0.5), StepTimes(0.7, 0.7, 2.0)


def longest_apart(
    steps: Sequence[int], one: int, clusters: Sequence[int], side_by_side: int, times: StepTimes
) -> tuple[int, int]:
    """Return how many of the longest sequences are decoded one by one, and how many by clusters, before the others.

    A sequence far longer than the others keeps batch.cu at a step for it alone, which takes as long as one for all.

    Args:
        steps: of each sequence, the longest first.
        one: most sequences that are decoded one by one.
        clusters: numbers of sequences that may be decoded by clusters.
        side_by_side: sequences that clusters decode at a time.
        times: of the kernels.

    >>> longest_apart([30_000, 2000] + [500] * 900, 2, [7, 14, 21], 7, PLAIN)
    (2, 0)
    >>> longest_apart([500] * 900, 2, [7, 14, 21], 7, PLAIN)
    (0, 0)
    """
    best, found = times.many * steps[0], (0, 0)
    for first in range(min(one, len(steps)) + 1):
        for more in (0, *clusters):
            mine, rest = steps[first : first + more], steps[first + more :]
            took = times.one * sum(steps[:first]) + times.many * max(rest, default=0)
            took += times.cluster * max(max(mine, default=0), sum(mine) / side_by_side)
            if took < best:
                best, found = took, (first, len(mine))
    return found


def key_bytes(shape: Shape) -> int:
    """Return the bytes of one position's keys and values, of all layers."""
    return 128 * shape.kv_heads * shape.layers


def plan_slots(shape: Shape, rooms: Sequence[int], most: int, memory: int) -> list[int]:
    """Return the room of each slot, in keys, given those of sequences, the largest first.

    There are as many slots as `most` and `memory` bytes allow, at least one.
    """
    total = 0
    for n, room in enumerate(rooms[:most]):
        total += room
        if n and total * key_bytes(shape) > memory:
            return [*rooms[:n]]
    return [*rooms[:most]]

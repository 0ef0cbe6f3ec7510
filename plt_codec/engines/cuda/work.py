"""Work: what decoding or encoding a sequence takes on a GPU, from its tokens, its layout and the tokens of its context alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pltz.plt_codec.engines.cuda.pack import up
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.weights import Shape

KEYS = 64  # room for keys is a multiple: so many wide.cu reads at once


class Work(NamedTuple):
    """A sequence: its own tokens, its lanes and steps (0, 0: default layout), and the tokens of its context that count."""

    tokens: int
    lanes: int = 0
    steps: int = 0
    first: int = 0

    @property
    def layout(self) -> Layout:
        """Return how it is cut into blocks."""
        return Layout(self.lanes, self.steps) if self.lanes else Layout()

    def whole(self, shape: Shape) -> int:
        """Tokens of a full block."""
        return self.lanes * self.steps if self.lanes else shape.block


@functools.lru_cache(maxsize=1 << 16)
def key_room(shape: Shape, work: Work) -> int:
    """Keys that a sequence ever holds.

    The largest of: its context and its first block; what a full block leaves and the larger of a full block and the last.
    """
    whole = work.whole(shape)
    first = next(work.layout.blocks(work.tokens, shape.block))
    room = work.first + first.steps * first.lanes
    if work.tokens > whole:
        last = next(work.layout.blocks((work.tokens - 1) % whole + 1, shape.block))
        starts = first.lane_starts()
        kept = int((first.steps - np.clip(first.tokens - shape.memory - starts, 0, first.steps)).sum())
        room = max(room, kept + max(first.steps * first.lanes, last.steps * last.lanes))
    return up(room, KEYS)


def most_lanes(shape: Shape, work: Work) -> int:
    """Lanes of the widest block of a sequence."""
    whole = work.whole(shape)
    ends = {min(work.tokens, whole), (work.tokens - 1) % whole + 1}
    return max(next(work.layout.blocks(n, shape.block)).lanes for n in ends)


def all_steps(shape: Shape, work: Work) -> int:
    """Steps of all blocks of a sequence."""
    full, rest = divmod(work.tokens, work.whole(shape))

    def of(n: int) -> int:
        return next(work.layout.blocks(n, shape.block)).steps if n else 0

    return full * of(work.whole(shape)) + of(rest)


def key_bytes(shape: Shape) -> int:
    """Bytes of one position's keys and values, of all layers."""
    return 128 * shape.kv_heads * shape.layers


def plan_slots(shape: Shape, work: Sequence[Work], most: int, memory: int) -> list[int]:
    """Rooms (keys) of the slots for sequences sorted by room: as many as `most` and `memory` bytes allow, one at least."""
    out: list[int] = []
    for w in work[:most]:
        room = key_room(shape, w)
        if out and (sum(out) + room) * key_bytes(shape) > memory:
            break
        out.append(room)
    return out

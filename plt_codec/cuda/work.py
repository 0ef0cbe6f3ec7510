"""Work: what decoding or encoding a sequence takes on a GPU, from its tokens and layout alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from pltz.plt_codec.cuda.pack import up
from pltz.plt_codec.layout import Layout
from pltz.plt_codec.weights import Shape

KEYS = 64  # room for keys is a multiple: so many wide.cu reads at once
Work = tuple[int, int, int]  # a sequence's tokens, lanes, steps (0, 0: default layout)


@functools.lru_cache(maxsize=1 << 16)
def key_room(shape: Shape, tokens: int, lanes: int, steps: int) -> int:
    """Keys that a sequence ever holds: its first block's, or what a full one leaves and the larger of a full and the last."""
    layout = Layout(lanes, steps) if lanes else Layout()
    whole = lanes * steps if lanes else shape.block
    first = next(layout.blocks(tokens, shape.block))
    room = first.steps * first.lanes
    if tokens > whole:
        last = next(layout.blocks((tokens - 1) % whole + 1, shape.block))
        starts = first.lane_starts()
        kept = int((first.steps - np.clip(first.tokens - shape.memory - starts, 0, first.steps)).sum())
        room = kept + max(room, last.steps * last.lanes)
    return up(room, KEYS)


def most_lanes(shape: Shape, tokens: int, lanes: int, steps: int) -> int:
    """Lanes of the widest block of a sequence."""
    layout = Layout(lanes, steps) if lanes else Layout()
    whole = lanes * steps if lanes else shape.block
    ends = {min(tokens, whole), (tokens - 1) % whole + 1}
    return max(next(layout.blocks(n, shape.block)).lanes for n in ends)


def all_steps(shape: Shape, tokens: int, lanes: int, steps: int) -> int:
    """Steps of all blocks of a sequence."""
    layout = Layout(lanes, steps) if lanes else Layout()
    whole = lanes * steps if lanes else shape.block
    full, rest = divmod(tokens, whole)

    def of(n: int) -> int:
        return next(layout.blocks(n, shape.block)).steps if n else 0

    return full * of(whole) + of(rest)


def plan_slots(shape: Shape, work: Sequence[Work], most: int, memory: int) -> list[int]:
    """Rooms (keys) of the slots for sequences sorted by room: as many as `most` and `memory` bytes allow, one at least."""
    each = 128 * shape.kv_heads * shape.layers  # bytes a key
    out: list[int] = []
    for w in work[:most]:
        room = key_room(shape, *w)
        if out and (sum(out) + room) * each > memory:
            break
        out.append(room)
    return out

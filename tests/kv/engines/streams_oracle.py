"""The decoder of the predictive form in numpy: slow, and the oracle of `ans.c` and `kernels.cu`."""

import numpy as np
from numpy.typing import NDArray

from pltz.kv.engines.streams import (
    BLOCK,
    CLASS_BITS,
    ESCAPE,
    HALF,
    LANES,
    LOWEST,
    PRECISION,
    SECTION,
    SYMBOLS,
    WRONG_END,
    Streams,
    TableContexts,
    Tables,
    per_lane,
    stream_layers,
    verify,
)
from pltz.plt_codec.errors import CorruptError

I16 = NDArray[np.int16]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]


def decode(streams: Streams, tokens: int, tables: Tables, point: int) -> tuple[I16, U8]:
    """Return integers and classes. See `streams.decode`."""
    ends = np.concatenate([[0], streams.ends.ravel()]).astype(np.int64)
    q, classes = _decode(streams, ends, tokens, tables, point, per_lane(tables.level.size))
    verify(sums_of(q, classes), streams.sum)
    return q, classes


def sums_of(q: I16, classes: U8) -> U32:
    """Return the two sums of each token, (T, 2): of class and integers, and of all values that this sum had."""
    tokens = len(q)
    found = np.empty((tokens, 2), np.uint32)
    for n in range(tokens):
        running = int(classes[n]) + np.cumsum(q[n].ravel(), dtype=np.int64)
        last = int(running[-1]) if len(running) else int(classes[n])
        found[n] = last & 0xFFFFFFFF, int(running.sum()) & 0xFFFFFFFF
    return found


def _decode(
    streams: Streams, ends: NDArray[np.int64], tokens: int, tables: Tables, point: int, lane: int
) -> tuple[I16, U8]:
    """Decode with numpy, all groups side by side, a lane per element of (groups, 32)."""
    layers, width = tables.level.shape
    count = streams.ends.shape[1]
    q = np.zeros((tokens, layers, width), np.int16)
    classes = np.zeros(tokens, np.uint8)
    freq = tables.freq.astype(np.int64)
    first = np.cumsum(freq, 1) - freq
    slots = np.stack([np.repeat(np.arange(SYMBOLS), row) for row in freq])  # (TABLES, 4096)
    state: I64 = streams.states[0].astype(np.int64)
    begins = {layer: n for n, layer in enumerate(stream_layers(layers, width)) if n}
    at, stop = ends[:count].copy(), ends[1 : count + 1]
    words = np.concatenate([streams.words, np.zeros(1, np.uint16)]).astype(np.int64)
    bad = bool((streams.states < LOWEST).any())
    lanes = np.arange(count)[:, None] * lane * LANES + np.arange(LANES) < tokens

    def refill(mask: NDArray[np.bool_]) -> None:
        nonlocal bad
        need = mask & (state < LOWEST)
        rank: I64 = np.cumsum(need, 1) - need
        place = at[:, None] + rank
        bad |= bool((need & (place >= stop[:, None])).any())
        word = words[np.minimum(place, len(words) - 1)]
        state[need] = (state << 16 | word)[need] & 0xFFFFFFFF
        at[:] += need.sum(1)

    def raw(mask: NDArray[np.bool_], n: NDArray[np.int64]) -> NDArray[np.int64]:
        value: I64 = state & ((1 << n) - 1)
        state[mask] = (state >> n)[mask]
        refill(mask)
        return value

    for row in range(lane):
        token = (np.arange(count)[:, None] * lane + row) * LANES + np.arange(LANES)
        live = token < tokens
        if not live.any() or bad:
            break
        kinds = np.where(live, raw(live, np.full(live.shape, CLASS_BITS)), 0)
        classes[token[live]] = kinds[live]
        model = TableContexts(kinds, tables, point)
        for layer in range(layers):
            if layer and layer % SECTION == 0 and len(streams.ends) > 1:
                bad |= bool((at != stop).any())
                section = layer // SECTION * count
                at, stop = ends[section : section + count].copy(), ends[section + 1 : section + count + 1]
            model.begin_layer()
            if layer in begins:
                bad |= bool((state[lanes] != LOWEST).any())
                state[:] = streams.states[begins[layer]]
                model.forget_above()
            for j in range(width):
                if j % BLOCK == 0:
                    model.begin_block()
                kind, low, plain = (a[..., 0] for a in model.tables(tables.level[layer, j : j + 1].astype(np.int64)))
                slot = state & ((1 << PRECISION) - 1)
                symbol = slots[kind, slot]
                new = freq[kind, symbol] * (state >> PRECISION) + slot - first[kind, symbol]
                state[live] = new[live]
                refill(live)
                value = symbol - HALF
                lows, escapes = live & (low > 0), live & (symbol == ESCAPE)
                rest = np.where(lows, raw(lows, low), 0) if lows.any() else 0
                if escapes.any():
                    far = raw(escapes, np.full(live.shape, 16))
                    value = np.where(escapes, (far ^ 0x8000) - 0x8000, value)
                value = (value << low) + rest
                bad |= bool((live & (np.abs(value) > 0x8000)).any())
                q[token[live], layer, j] = np.clip(value, -0x8000, 0x7FFF)[live]
                model.count(low[..., None], plain[..., None], value[..., None])
    if bad or (at != stop).any() or (state[lanes] != LOWEST).any():
        raise CorruptError(WRONG_END)
    return q, classes

"""The entropy coder of the predictive form in numpy: slow, and the oracle of `ans.c` and `kernels.cu`."""

from __future__ import annotations

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
    contexts,
    groups,
    joined,
    per_lane,
    sections,
    stream_count,
    stream_layers,
    verify,
)
from pltz.plt_codec.errors import CorruptError

I16 = NDArray[np.int16]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]


def encode(q: I16, classes: U8, tables: Tables, point: int) -> Streams:
    """Return the streams of integers. See `streams.encode`."""
    words, states, counts = _encode(q, classes, tables, point, len(q), per_lane(tables.level.size))
    return joined(words, states, counts, sums_of(q, classes))


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


def _symbols(q: I64, kind: U8, low: U8, freq: I64) -> tuple[I64, I64]:
    high = q >> low
    inside = np.abs(high) <= HALF
    symbol = np.where(inside, high + HALF, ESCAPE)
    return np.where(inside & (freq[kind, symbol] > 0), symbol, ESCAPE), high


def _encode(
    q: I16, classes: U8, tables: Tables, point: int, tokens: int, lane: int
) -> tuple[list[NDArray[np.uint16]], U32, I64]:
    """Encode in Python, a group at a time: the slow oracle of ans.c. Returns each group's words, states, and counts."""
    layers, width = tables.level.shape
    kinds, lows = contexts(q, classes, tables, point)
    freq = tables.freq.astype(np.int64)
    first = np.cumsum(freq, 1) - freq
    flat = (tokens, layers * width)
    symbol, high = _symbols(q.reshape(flat).astype(np.int64), kinds.reshape(flat), lows.reshape(flat), freq)
    words = []
    states = np.zeros((stream_count(layers, width), groups(tokens, layers * width), LANES), np.uint32)
    begins = {layer * width: n for n, layer in enumerate(stream_layers(layers, width)) if n}
    counts = np.zeros((groups(tokens, layers * width), sections(layers, width)), np.int64)
    for group in range(groups(tokens, layers * width)):
        x = [LOWEST] * LANES
        out: list[int] = []
        marked = 0

        # A coder's state grows at one end and gives its words off at the other, so encoding runs backwards.
        def bits(i: int, value: int, n: int, x: list[int] = x, out: list[int] = out) -> None:
            if x[i] >= 1 << (32 - n):
                out.append(x[i] & 0xFFFF)
                x[i] >>= 16
            x[i] = x[i] << n | value

        for row in range(lane - 1, -1, -1):
            start = (group * lane + row) * LANES
            n = max(0, min(LANES, tokens - start))
            # Escapes, low bits, symbols: the decoder takes them in the opposite order.
            for step in range(layers * width - 1, -1, -1):
                for i in range(n - 1, -1, -1):
                    if symbol[start + i, step] == ESCAPE:
                        bits(i, int(high[start + i, step]) & 0xFFFF, 16)
                for i in range(n - 1, -1, -1):
                    if low := int(lows.reshape(flat)[start + i, step]):
                        bits(i, int(q.reshape(flat)[start + i, step]) & ((1 << low) - 1), low)
                for i in range(n - 1, -1, -1):
                    kind, s = kinds.reshape(flat)[start + i, step], symbol[start + i, step]
                    f = int(freq[kind, s])
                    if x[i] >= f << 20:
                        out.append(x[i] & 0xFFFF)
                        x[i] >>= 16
                    x[i] = (x[i] // f << PRECISION) + x[i] % f + int(first[kind, s])
                # A section ends here for the decoder; a stream begins here with states of its own.
                if step and step % (SECTION * width) == 0 and counts.shape[1] > 1:
                    counts[group, step // (SECTION * width)], marked = len(out) - marked, len(out)
                if step in begins:
                    states[begins[step], group], x[:] = x, [LOWEST] * LANES
            for i in range(n - 1, -1, -1):
                bits(i, int(classes[start + i]), CLASS_BITS)
        counts[group, 0] = len(out) - marked
        words.append(np.array(out[::-1], np.uint16))
        states[0, group] = x
    return words, states, counts


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

"""Streams: integers of the predictive form to bytes and back, by interleaved rANS. Spec: FORMAT.md, "Streams".

    q (T, layers, width) int16, classes (T,) uint8  --encode-->  Streams  --decode-->  the same

`ans.c` does the work, on as many threads as there are groups to share out, and `kernels.cu` on a GPU. Both read and
write the same bytes, and tests hold them to a coder in numpy (`tests/kv/engines/streams_oracle.py`).

Words lie by section of four layers, then by group, so that a decoder of layer after layer begins with the beginning of
a file. A checksum over two sums per token tells whether the integers are the encoder's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pltz.kv.port.arriving import shells, wait
from pltz.plt_codec import CorruptError, ModelError, UsageError

if TYPE_CHECKING:
    from pltz.kv.port.arriving import Parts

try:
    from pltz.kv.engines import _ans
except ImportError:  # no C compiler at the installation
    _ans = None  # type: ignore[assignment]

LANES = 32  # tokens side by side
PRECISION = 12  # bits: the frequencies of a table sum to 1 << PRECISION
SYMBOLS, HALF, ESCAPE = 32, 15, 31  # symbols of a table: -15 to 15, and the escape
BLOCK = 32  # components between two looks at what was seen
TABLES, BASE, TOP = 29, 24, 28  # number of tables; that of a mean size of one step; the last
CLASSES, CLASS_BITS, CLASS_LEVELS, COARSEST = 16, 4, 4, 12
MOST_LOW, MEAN_UNIT, PRIOR, MOST_SHIFT = 10, 16, 128, 10
SECTION = 4  # layers whose words lie together
SUM = 8  # bytes of the checksum
LANE_ELEMENTS = 8192  # elements per state at least, so that it costs 0.004 bits per element at most
LOWEST = 1 << 16
WRONG_END = "a stream does not end where it must: damaged, or of other tables"

T = TypeVar("T")
I16 = NDArray[np.int16]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tables:
    """Static tables of a calibration.

    ``freq``: (TABLES, SYMBOLS) uint16, each row sums to 4096. ``mean``: (TABLES,) uint16, mean of min(|q|, 15) in
    1/16. ``level``: (layers, width) int16, 8 log2 of a component's mean size.

    Raises CorruptError where shapes, types or sums are others.
    """

    freq: NDArray[np.uint16]
    mean: NDArray[np.uint16]
    level: I16

    def __post_init__(self) -> None:
        sound = self.freq.shape == (TABLES, SYMBOLS) and self.mean.shape == (TABLES,) and self.level.ndim == 2
        kinds = [str(t.dtype) for t in (self.freq, self.mean, self.level)] == ["uint16", "uint16", "int16"]
        if not sound or not kinds or not self.level.size:
            raise CorruptError("expected tables of 29 x 32 frequencies, 29 means, and levels of all components")
        if (self.freq.sum(1, dtype=np.int64) != 1 << PRECISION).any() or (self.freq[:, ESCAPE] == 0).any():
            raise CorruptError("expected frequencies that sum to 4096, the escape's above 0")
        if (self.mean > MEAN_UNIT * HALF).any():
            raise CorruptError("expected means of at most 15")


@dataclass(frozen=True, eq=False)
class Streams:
    """Coded integers.

    ``words``: (n,) uint16. ``states``: (streams, groups, 32) uint32. ``ends``: (sections, groups) int64, the number of
    words up to the end of each group's words in a section. ``sum``: (SUM,) uint8, see `checksum`.
    """

    words: NDArray[np.uint16]
    states: U32
    ends: I64
    sum: U8


class Section(NamedTuple):
    """Layers whose words lie together: ``first`` to ``last - 1``, words ``begin`` to ``end - 1``."""

    first: int
    last: int
    begin: int
    end: int


def per_lane(elements: int) -> int:
    """Return the tokens that a lane codes one after the other. ``elements``: per token."""
    return min(-(-LANE_ELEMENTS // elements), 1 << 12)


def groups(tokens: int, elements: int) -> int:
    """Return the number of groups of so many tokens."""
    return -(-tokens // (LANES * per_lane(elements)))


def sections(layers: int, width: int) -> int:
    """Return the number of sections: one where a lane takes all layers of a token before the next token."""
    return -(-layers // SECTION) if per_lane(layers * width) == 1 else 1


def sections_each(width: int) -> int:
    """Return the sections of a stream, so many that it has LANE_ELEMENTS per lane at least."""
    return -(-LANE_ELEMENTS // (SECTION * width))


def stream_count(layers: int, width: int) -> int:
    """Return the number of streams, each with states of its own. The last one takes the sections that are left."""
    return max(1, sections(layers, width) // sections_each(width))


def stream_layers(layers: int, width: int) -> list[int]:
    """Return the first layer of each stream."""
    return [n * sections_each(width) * SECTION for n in range(stream_count(layers, width))]


def sections_there(parts: Parts, layers: int, width: int) -> Iterator[Section]:
    """Yield the sections of streams, each once its words are there: at once, unless a file is being read.

    Raises CorruptError where what is read is damaged, and for ends that fall or go beyond the words.
    """
    ends = parts["kv.ends"].cpu().numpy().astype(np.int64)
    each = SECTION if len(ends) > 1 else layers
    begin, words = 0, len(shells(parts)["kv.words"])
    for number, row in enumerate(ends):
        end = int(row[-1]) if len(row) else 0
        if not begin <= end <= words:
            raise CorruptError("the words of the groups do not fill the stream")
        wait(parts, "kv.words", end)
        yield Section(number * each, min((number + 1) * each, layers), begin, end)
        begin = end


def checksum(sums: U32) -> U8:
    """Return the checksum, (SUM,), of the two sums of each token, (T, 2)."""
    import xxhash

    data = np.ascontiguousarray(sums, "<u4")
    return np.frombuffer(xxhash.xxh3_64_digest(data.tobytes()), np.uint8).copy()


def _need_compiled() -> None:
    """Raise ModelError where the coder in C is not installed."""
    if _ans is None:
        raise ModelError("the predictive form needs a part in C: install pltz where there is a C compiler")


def encode(q: I16, classes: U8, tables: Tables, point: int) -> Streams:
    """Return the streams of ``q``, (T, layers, width), and ``classes``, (T,). ``point``: 8 log2 of the step."""
    layers, width = tables.level.shape
    if q.shape[1:] != (layers, width) or classes.shape != q.shape[:1]:
        raise UsageError(f"expected integers of {layers} layers and {width} components, got {q.shape}")
    _need_compiled()
    sizes = (layers, width, point, len(q), per_lane(layers * width))
    q, classes = np.ascontiguousarray(q), np.ascontiguousarray(classes)
    level = np.ascontiguousarray(tables.level)
    count = groups(len(q), layers * width)
    counts = np.zeros((count, sections(layers, width)), np.int64)
    sums = np.zeros((len(q), 2), np.uint32)

    def some(first: int, last: int) -> tuple[list[bytes], bytes]:
        return _ans.encode(q, classes, tables.freq, tables.mean, level, *sizes, counts, sums, first, last)

    made = shared_out(count, some)
    words = [np.frombuffer(part, np.uint16) for parts, _ in made for part in parts]
    parts = [np.frombuffer(part, np.uint32).reshape(stream_count(layers, width), -1, LANES) for _, part in made]
    states = np.concatenate(parts, 1)
    return joined(words, states, counts, sums)


def joined(words: Sequence[NDArray[np.uint16]], states: U32, counts: I64, sums: U32) -> Streams:
    """Return streams with the words of all groups by section. ``counts``: (groups, sections) words of each."""
    cuts = [np.split(group, np.cumsum(count)[:-1]) for group, count in zip(words, counts, strict=True)]
    whole = [parts[section] for section in range(counts.shape[1]) for parts in cuts]
    ends = np.cumsum(counts.T.ravel()).reshape(counts.shape[::-1])
    return Streams(np.concatenate([np.zeros(0, np.uint16), *whole]), states, ends, checksum(sums))


def check(ends: I64, states: Sequence[int], words: int, tokens: int, layers: int, width: int) -> None:
    """Check the ends of streams, the shape of their states, and their number of words. Raises CorruptError."""
    count, parts = groups(tokens, layers * width), sections(layers, width)
    if tuple(states) != (stream_count(layers, width), count, LANES) or ends.shape != (parts, count):
        raise CorruptError(f"expected {count} groups of 32 states, found {tuple(states)}")
    flat = ends.ravel()
    if (np.diff(flat, prepend=0) < 0).any() or (int(flat[-1]) if len(flat) else 0) != words:
        raise CorruptError("the words of the groups do not fill the stream")


def decode(streams: Streams, tokens: int, tables: Tables, point: int, *, wide: bool = True) -> tuple[I16, U8]:
    """Return integers (T, layers, width) and classes (T,). ``wide``: use AVX-512 where the machine has it.

    Raises CorruptError where the streams do not end as they must, or the integers are not the encoder's.
    """
    layers, width = tables.level.shape
    lane = per_lane(layers * width)
    count = groups(tokens, layers * width)
    check(streams.ends, streams.states.shape, len(streams.words), tokens, layers, width)
    ends = np.concatenate([[0], streams.ends.ravel()]).astype(np.int64)
    _need_compiled()
    q = np.empty((tokens, layers, width), np.int16)
    classes = np.empty(tokens, np.uint8)
    sums = np.zeros((tokens, 2), np.uint32)
    words, states = np.ascontiguousarray(streams.words), np.ascontiguousarray(streams.states)
    level = np.ascontiguousarray(tables.level)

    def some(first: int, last: int) -> bool:
        return _ans.decode(
            words, states, ends, tables.freq, tables.mean, level, layers, width, point, tokens, lane, q, classes, sums,
            first, last, wide,
        )  # fmt: skip

    if not all(shared_out(count, some)):
        raise CorruptError(WRONG_END)
    verify(sums, streams.sum)
    return q, classes


def verify(sums: U32, expected: U8) -> None:
    """Check the sums of decoded tokens, (T, 2). Raises CorruptError."""
    if checksum(sums).tobytes() != expected.tobytes():
        raise CorruptError("the checksum is not that of the integers: damaged, or of other tables")


def shared_out(count: int, work: Callable[[int, int], T]) -> list[T]:
    """Return the results of ``work(first, last)`` for the groups, shared out to as many threads as there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, min(count, cores))
    cuts = [count * n // threads for n in range(threads + 1)]
    if threads == 1:
        return [work(0, count)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, cuts[:-1], cuts[1:]))


def contexts(q: I16, classes: U8, tables: Tables, point: int) -> tuple[U8, U8]:
    """Return the table and the number of low bits of each integer, (T, layers, width) each."""
    tokens, layers, width = q.shape
    model = TableContexts(classes.astype(np.int64), tables, point)
    kinds = np.empty((tokens, layers, width), np.uint8)
    lows = np.empty((tokens, layers, width), np.uint8)
    begins = stream_layers(layers, width)[1:]
    for layer in range(layers):
        model.begin_layer()
        if layer in begins:
            model.forget_above()
        for first in range(0, width, BLOCK):
            part = slice(first, min(first + BLOCK, width))
            model.begin_block()
            kind, low, plain = model.tables(tables.level[layer, part].astype(np.int64))
            kinds[:, layer, part], lows[:, layer, part] = kind, low
            model.count(low, plain, q[:, layer, part])
    return kinds, lows


class TableContexts:
    """Hold what lanes have seen, for any shape of lanes. Mirrors `Context` in ans.c."""

    def __init__(self, classes: NDArray[np.int64], tables: Tables, point: int) -> None:
        self.first = (point + COARSEST - CLASS_LEVELS * classes)[..., None]
        self.mean = tables.mean.astype(np.int64)
        self.seen = np.zeros(classes.shape, np.int64)
        self.expected = np.zeros(classes.shape, np.int64)
        self.above = (self.seen, self.expected)
        self.shift = self.first * 0

    def begin_layer(self) -> None:
        """Begin a layer: what the last one counted, halved, is what this one starts from."""
        self.above = (self.seen >> 1, self.expected >> 1)
        self.seen, self.expected = np.zeros_like(self.seen), np.zeros_like(self.expected)

    def forget_above(self) -> None:
        """Begin a stream, which knows nothing of the layers before its first."""
        self.above = (np.zeros_like(self.seen), np.zeros_like(self.expected))

    def begin_block(self) -> None:
        """Choose the shift of the tables for the next block, from the sizes seen against those expected."""
        seen, expected = self.seen + self.above[0] + PRIOR, self.expected + self.above[1] + PRIOR
        shift = _quarter_log(seen) - _quarter_log(expected)
        self.shift = np.clip(shift, -MOST_SHIFT, MOST_SHIFT)[..., None]

    def tables(self, level: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return table, low bits, and table of the expectation; (..., components) each."""
        usual = ((level - self.first) >> 1) + BASE
        kind = usual + self.shift
        low = np.clip((kind - TOP + 3) >> 2, 0, MOST_LOW)
        return np.clip(kind - 4 * low, 0, TOP), low, np.clip(usual, 0, TOP)

    def count(self, low: NDArray[np.int64], plain: NDArray[np.int64], q: NDArray[np.integer]) -> None:
        """Count the sizes of a block, (..., components). Components with low bits are left out."""
        counted = low == 0
        size = np.minimum(np.abs(q.astype(np.int64)), HALF) * MEAN_UNIT
        self.seen = self.seen + (size * counted).sum(-1)
        self.expected = self.expected + (self.mean[plain] * counted).sum(-1)


def _quarter_log(v: NDArray[np.int64]) -> NDArray[np.int64]:
    top = np.frexp(v.astype(np.float64))[1].astype(np.int64) - 1
    rest = np.where(top >= 2, v >> np.maximum(top - 2, 0), v << np.maximum(2 - top, 0))
    return 4 * top + (rest & 3)

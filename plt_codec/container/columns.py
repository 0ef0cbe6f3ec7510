"""The columns of a container's index: kind, context, count and frame length of N sessions in about two bytes each.

Spec: FORMAT.md, "Columns". A count costs what its digits hold. A length is close to the count times the rate of
the sessions before, so only its deviation is coded. A context is told by how many sessions back it is, of those
with tokens. The tables learn between chunks of sessions, and forget: sessions of one kind often stand together. A
chunk takes a few array operations, no table is stored, and a file of one session pays for none.

    >>> sizes, lengths = np.array([800, 1600], dtype=np.uint32), np.array([20, 300], dtype=np.uint32)
    >>> columns = encode(sizes, lengths, np.array([-1, 0]))
    >>> len(columns), [column.tolist() for column in decode(columns, 2)]
    (7, [[800, 1600], [20, 300], [-1, 0]])
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.range_coder import RangeDecoder, RangeEncoder, SharedModel, shared_model
from pltz.plt_codec.weights import PRECISION

KIND_BITS = 3
KINDS = 1 << KIND_BITS

NO_CONTEXT = -1
MOST_CONTEXTS = 3  # one behind the other
HAS_TOKENS = np.array([1, 1, 1, 0, 0, 0, 0, 1], dtype=bool)  # of each kind: coded by the model

COUNT_PRECISION = 1  # a count, as a step, is below 2^27
COUNTS = 54  # buckets of counts

LENGTH_BITS = 32
DEVIATION_PRECISION = 2
DEVIATIONS = 248  # symbols: 124 of a negative deviation, 124 of others

RATE_BITS = 12  # of a fraction
MAX_RATE = 1 << 14  # four bytes per token
FIRST_RATE = 448, 1024  # bytes, count
RATE_CLASS = np.array([0, 0, 0, 1, 1, 1, 2, 2])  # of each kind where there is no context
FOLLOWER = 3  # the class of all others
RATE_CLASSES = 4

CHUNK = 16  # sessions; from 1024 sessions on more, a `CHUNK_SHARE` of those before:
CHUNK_SHARE = 64
LARGEST_CHUNK = 4096
FORGET_BITS = 3  # after a chunk of `CHUNK` or more a table keeps 7 / 8 of what it learnt before, the rates a half
LEARNT, LEARNT_BESIDE = 512, 256
PIECE_BITS = 16  # low bits are coded so many at a time

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

_NO_STEPS: I64 = np.zeros(0, np.int64)


def encode(sizes: U32, lengths: U32, contexts: I64) -> bytes:
    """Return the coded columns of N sessions.

    Args:
        sizes: (N,) ``count << 3 | kind`` each, the count below 2^27.
        lengths: (N,) bytes of each frame.
        contexts: (N,) number of the session that each is coded after, or `NO_CONTEXT`. Both are coded by the model,
            and the context is earlier. At most `MOST_CONTEXTS` stand one behind the other.
    """
    encoder, model = RangeEncoder(), _Model()
    steps = _steps(sizes, contexts)
    for chunk in _chunks(len(sizes)):
        size, length = sizes[chunk].astype(np.int64), lengths[chunk].astype(np.int64)
        kinds, counts = size & KINDS - 1, size >> KIND_BITS
        encoder.encode_alike(kinds.astype(np.int32), model.kinds.model)
        step = steps[chunk][HAS_TOKENS[kinds]] if chunk.start else _NO_STEPS
        follows, step = (step > 0).astype(np.int64), step[step > 0]
        encoder.encode_alike(follows.astype(np.int32), model.follows.model)
        step_buckets = _encode_numbers(encoder, step, model.steps)
        buckets = _encode_numbers(encoder, counts, model.counts)
        classes = _classes(kinds, steps[chunk])
        predicted, scale = model.predict(classes, counts)
        symbols, values, low = _symbols(length - predicted, scale)
        encoder.encode_alike(symbols.astype(np.int32), model.deviations.model)
        _encode_low(encoder, values, low)
        if chunk.stop < len(sizes):
            model.learn(kinds, follows, step_buckets, classes, counts, length, buckets, symbols)
    return encoder.finish()


def decode(data: bytes, sessions: int) -> tuple[U32, U32, I64]:
    """Undo `encode`: return sizes, lengths and contexts, (N,) each.

    Work and memory are those of ``sessions``, which the caller has to bound.

    Raises:
        CorruptError: these bytes are not the columns of ``sessions`` sessions.
    """
    sizes, lengths, steps = np.empty(sessions, np.uint32), np.empty(sessions, np.uint32), np.zeros(sessions, np.int64)
    decoder, model = RangeDecoder(data), _Model()
    for chunk in _chunks(sessions):
        many = chunk.stop - chunk.start
        # kinds, then the contexts of sessions that may have one
        kinds = decoder.decode_alike(model.kinds.model, many).astype(np.int64)
        able = HAS_TOKENS[kinds].nonzero()[0] if chunk.start else _NO_STEPS
        follows = decoder.decode_alike(model.follows.model, len(able)).astype(np.int64)
        step_buckets, step = _decode_numbers(decoder, int(follows.sum()), model.steps)
        if not step.all():
            raise CorruptError("the index holds a context that is the session itself: the file is damaged")
        steps[chunk.start + able[follows > 0]] = step
        # counts, which predict the lengths together with the kind
        buckets, counts = _decode_numbers(decoder, many, model.counts)
        classes = _classes(kinds, steps[chunk])
        predicted, scale = model.predict(classes, counts)
        # lengths, as deviations from the prediction: the high bits coded, the low ones plain
        symbols = decoder.decode_alike(model.deviations.model, many).astype(np.int64)
        base, low = _values(_bucket_of(symbols), DEVIATION_PRECISION)
        bits = _decode_low(decoder, low + scale)
        size = base + (bits >> scale)
        rounded = np.where(symbols >= DEVIATIONS // 2, size, -1 - size)
        length = predicted + (rounded << scale) + (bits & (1 << scale) - 1)
        if (length >> LENGTH_BITS).any():  # also where it is negative
            raise CorruptError("the index holds an impossible length: the file is damaged")
        sizes[chunk], lengths[chunk] = counts << KIND_BITS | kinds, length
        # what was seen changes the models of the next chunk
        if chunk.stop < sessions:
            model.learn(kinds, follows, step_buckets, classes, counts, length, buckets, symbols)
    return sizes, lengths, _contexts(sizes, steps)


def _classes(kinds: I64, steps: I64) -> I64:
    """Return the class of each session (n,); each class has a rate."""
    return np.where(steps > 0, FOLLOWER, RATE_CLASS[kinds])


def _steps(sizes: U32, contexts: I64) -> I64:
    """Return for each session (N,) how far back its context is, among the sessions with tokens; 0 for none."""
    if (contexts == NO_CONTEXT).all():
        return np.zeros(len(sizes), np.int64)
    place = np.cumsum(HAS_TOKENS[sizes & KINDS - 1])
    return np.where(contexts == NO_CONTEXT, 0, place - place[contexts])


def _contexts(sizes: U32, steps: I64) -> I64:
    """Undo `_steps`. Raises CorruptError for a context before the first session, or too many in a row."""
    followers = steps.nonzero()[0]
    contexts = np.full(len(sizes), NO_CONTEXT)
    if len(followers):
        able = HAS_TOKENS[sizes & KINDS - 1]
        place = np.cumsum(able)[followers] - 1 - steps[followers]
        if (place < 0).any():
            raise CorruptError("the index holds a context before the first session: the file is damaged")
        behind = contexts[followers] = np.flatnonzero(able)[place]
        for _ in range(MOST_CONTEXTS):
            behind = contexts[behind]
            behind = behind[behind != NO_CONTEXT]
        if len(behind):
            raise CorruptError(f"the index holds more than {MOST_CONTEXTS} contexts in a row: the file is damaged")
    return contexts


def _model_of(counts: I64) -> SharedModel:
    """Return the model of symbols counted so often, (alphabet,): frequencies of at least 1, together 2^24."""
    found: I64 = 1 + counts * ((1 << PRECISION) - len(counts)) // counts.sum()
    found[counts.argmax()] += (1 << PRECISION) - found.sum()
    return shared_model(found)


class _Prior(NamedTuple):
    """The start of a table.

    ``counts``: (alphabet,) of each symbol before any was seen. ``beside``: added to both neighbours of a symbol.
    """

    counts: I64
    model: SharedModel
    beside: int


def _prior(counts: I64, beside: int = LEARNT_BESIDE) -> _Prior:
    return _Prior(counts, _model_of(counts), beside)


_KINDS = _prior(np.array([256, 128, 128, 64, 64, 64, 16, 128]), beside=0)
_FOLLOWS = _prior(np.array([1024, 128]), beside=0)
_STEPS = _prior(np.full(COUNTS, 64))
_COUNTS = _prior(16 + 12800 // (25 + (np.arange(COUNTS) - 14) ** 2))
_DEVIATIONS = _prior(2 + 9216 // (36 + (2 * np.arange(DEVIATIONS) - DEVIATIONS + 1) ** 2))


class _Table:
    """The frequencies of an alphabet, learnt from the symbols before."""

    def __init__(self, prior: _Prior) -> None:
        self._prior, self.model, self._beside = prior
        self._counts = self._prior

    def learn(self, symbols: I64, forget: bool) -> None:
        """Count symbols (n,), and before that ``forget`` a part of those before."""
        if forget:
            learnt = self._counts - self._prior
            self._counts = self._counts - (learnt >> FORGET_BITS)
        if len(symbols):
            seen = np.bincount(symbols, minlength=len(self._counts))
            counts = self._counts = self._counts + LEARNT * seen
            if self._beside:
                seen *= self._beside
                counts[1:] += seen[:-1]
                counts[:-1] += seen[1:]
        self.model = _model_of(self._counts)


class _Model:
    """The tables, and the bytes and counts of each class of sessions."""

    def __init__(self) -> None:
        self.kinds, self.follows, self.steps = _Table(_KINDS), _Table(_FOLLOWS), _Table(_STEPS)
        self.counts, self.deviations = _Table(_COUNTS), _Table(_DEVIATIONS)
        self._bytes, self._counts = ([start] * RATE_CLASSES for start in FIRST_RATE)
        self._rates = _FIRST_RATES

    def predict(self, classes: I64, counts: I64) -> tuple[I64, I64]:
        """Return the predicted lengths (n,), and the low bits in which a deviation is noise."""
        predicted = counts * self._rates[classes] >> RATE_BITS
        return predicted, np.maximum(_bit_length(predicted) - 3, 0)

    def learn(
        self, kinds: I64, follows: I64, steps: I64, classes: I64, counts: I64, lengths: I64, buckets: I64, symbols: I64
    ) -> None:
        """Count the sessions (n,) of a chunk. ``follows``, ``steps``: only of those that can follow, that do."""
        forget = len(kinds) >= CHUNK
        self.kinds.learn(kinds, forget)
        self.follows.learn(follows, forget)
        self.steps.learn(steps, forget)
        self.counts.learn(buckets, forget)
        self.deviations.learn(symbols, forget)
        for number in np.unique(classes).tolist():
            self._bytes[number] = _sum(self._bytes[number], lengths[classes == number], forget)
            self._counts[number] = _sum(self._counts[number], counts[classes == number], forget)
        pairs = zip(self._bytes, self._counts, strict=True)
        self._rates = np.array([min((size << RATE_BITS) // max(count, 1), MAX_RATE) for size, count in pairs])


def _sum(before: int, numbers: I64, forget: bool) -> int:
    """Return the sum of numbers (n,), and of those before or of a half of them."""
    return (before >> forget) + int(numbers.sum())


_FIRST_RATES = np.full(RATE_CLASSES, (FIRST_RATE[0] << RATE_BITS) // FIRST_RATE[1])


def _chunks(sessions: int) -> Iterator[slice]:
    """Yield runs of sessions: one by one, then half of those before, `CHUNK`, a `CHUNK_SHARE` of those before."""
    start = 0
    while start < sessions:
        stop = min(sessions, start + max(1, min(start // 2, CHUNK), min(start // CHUNK_SHARE, LARGEST_CHUNK)))
        yield slice(start, stop)
        start = stop


def _bit_length(values: I64) -> I64:
    """Return the bit length of values (n,), each below 2^52."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def _bucket(values: I64, precision: int) -> tuple[I64, I64]:
    """Return the buckets of values (n,), and how many low bits each leaves."""
    low = np.maximum(_bit_length(values) - precision - 1, 0)
    return (low << precision) + (values >> low), low


def _values(buckets: I64, precision: int) -> tuple[I64, I64]:
    """Return the least value of each bucket (n,), and how many low bits it leaves."""
    low = np.maximum((buckets >> precision) - 1, 0)
    return buckets - (low << precision) << low, low


def _symbols(deviations: I64, scale: I64) -> tuple[I64, I64, I64]:
    """Return the symbol of each deviation (n,), its low bits, and how many there are."""
    rounded = deviations >> scale
    negative = rounded < 0
    sizes = np.where(negative, -1 - rounded, rounded)
    buckets, low = _bucket(sizes, DEVIATION_PRECISION)
    half = DEVIATIONS // 2
    values = (sizes & (1 << low) - 1) << scale | deviations & (1 << scale) - 1
    return np.where(negative, half - 1 - buckets, half + buckets), values, low + scale


def _bucket_of(symbols: I64) -> I64:
    half = DEVIATIONS // 2
    return np.where(symbols < half, half - 1 - symbols, symbols - half)


def _encode_numbers(encoder: RangeEncoder, numbers: I64, table: _Table) -> I64:
    """Encode numbers (n,), each below 2^27, and return their buckets."""
    buckets, low = _bucket(numbers, COUNT_PRECISION)
    encoder.encode_alike(buckets.astype(np.int32), table.model)
    _encode_low(encoder, numbers & (1 << low) - 1, low)
    return buckets


def _decode_numbers(decoder: RangeDecoder, count: int, table: _Table) -> tuple[I64, I64]:
    """Undo `_encode_numbers`: return the buckets and the numbers."""
    if not count:
        return _NO_STEPS, _NO_STEPS
    buckets = decoder.decode_alike(table.model, count).astype(np.int64)
    base, low = _values(buckets, COUNT_PRECISION)
    return buckets, base + _decode_low(decoder, low)


def _encode_low(encoder: RangeEncoder, values: I64, widths: I64) -> None:
    """Encode the low bits of values (n,), the least significant piece first."""
    while len(chosen := widths.nonzero()[0]):
        values, widths = values[chosen], widths[chosen]
        now = np.minimum(widths, PIECE_BITS)
        encoder.encode_bits((values & (1 << now) - 1).astype(np.int32), now.astype(np.int32))
        values, widths = values >> now, widths - now


def _decode_low(decoder: RangeDecoder, widths: I64) -> I64:
    """Undo `_encode_low`: return the value of each width (n,)."""
    values = np.zeros(len(widths), np.int64)
    shift = 0
    while len(chosen := widths.nonzero()[0]):
        now = np.minimum(widths, PIECE_BITS)
        values[chosen] |= decoder.decode_bits(now[chosen].astype(np.int32)).astype(np.int64) << shift
        widths = widths - now
        shift += PIECE_BITS
    return values

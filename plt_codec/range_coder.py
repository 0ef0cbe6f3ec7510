"""The entropy coder: constriction's range coder, cut to whole bytes.

It is the queue coder with 32-bit words, a 64-bit state and 24-bit frequencies. constriction is the reference
that compiled coders must match. A range coder decodes in the order of encoding, unlike ANS, so a sequence can
be coded block after block without a second pass. The recurrence is

    scale = range >> 24;  lower += scale * cumulative;  range = scale * frequency
    while range < 2^32: emit the top word of lower (with carry), shift both by 32

Integer frequencies go in exactly: constriction turns float weights into frequencies by `1 + floor(weight *
(2^24 - n) / sum)`, and the weights `frequency - 1` sum to 2^24 - n.

The stream ends as early as the last state allows, such that zeros after it decode to the same symbols. That
is about one byte over the ideal length, where whole words cost four on average. A reader appends zeros. Words
once emitted stay, also where they are zero. So symbols that take more words than the stream has cannot come from it,
and a reader can tell (`most_words`): in whole numbers, the same on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.weights import PRECISION

Frequencies = npt.NDArray[np.int64]  # (symbols to code, alphabet), each row sums to 1 << PRECISION

STATE, WORD = 8, 4  # bytes of coder state, and of a word


def most_words(size: int) -> int:
    """Return the words that a decoder may read of a stream of so many bytes: those of the state, and those emitted.

    A stream of n words emitted has at least 4 n - 1 bytes.

    >>> most_words(0), most_words(2), most_words(3), most_words(6), most_words(7)
    (2, 2, 3, 3, 4)
    """
    return (STATE + size + 1) // WORD


class RangeEncoder:
    """An encoder that collects symbols, then returns their bytes.

    >>> e = RangeEncoder()
    >>> e.encode(np.array([1], np.int32), np.array([[1 << 23, 1 << 23]]))
    >>> e.finish().hex()
    '80'
    """

    def __init__(self) -> None:
        stream = _stream()
        self._inner: Any = stream.queue.RangeEncoder()
        self._family: Any = stream.model.Categorical(perfect=False)

    def encode(self, symbols: npt.NDArray[np.int32], frequencies: Frequencies) -> None:
        """Encode symbols (n,) with their frequencies (n, alphabet)."""
        if len(symbols):
            self._inner.encode(symbols, self._family, _weights(frequencies))

    def finish(self) -> bytes:
        """Return the shortest bytes that, with zeros appended, decode to the encoded symbols."""
        words, (lower, width) = self._inner.pos()
        total = 4 * words + STATE
        point = int.from_bytes(self._inner.get_compressed().astype(">u4").tobytes().ljust(total, b"\0"), "big")
        lower += (point - lower) >> 64 << 64  # the words already emitted, carry included
        if not lower <= point < lower + width:
            raise AssertionError("range coder state and words disagree: constriction changed its format")
        return shortest(lower, width, total)


def shortest(lower: int, width: int, total: int) -> bytes:
    """Return the shortest bytes that, with zeros appended up to ``total``, are ``width`` or less above ``lower``."""
    size = max(0, total - STATE - 1)
    while (value := -(-lower >> (shift := 8 * (total - size)))) << shift >= lower + width:
        size += 1
    return value.to_bytes(size, "big")


class RangeDecoder:
    """A decoder that returns the symbols of a `RangeEncoder` when asked with the same frequencies."""

    def __init__(self, data: bytes):
        padded = data + bytes(-len(data) % 4 + STATE)
        stream = _stream()
        self._inner: Any = stream.queue.RangeDecoder(np.frombuffer(padded, ">u4").astype(np.uint32))
        self._family: Any = stream.model.Categorical(perfect=False)
        self._width, self._left = (1 << 64) - 1, most_words(len(data)) - STATE // WORD

    @property
    def spent(self) -> bool:
        """Return whether the symbols took more words than the encoder of such a stream emitted."""
        return self._left < 0

    def decode(self, frequencies: Frequencies) -> npt.NDArray[np.int32]:
        """Decode one symbol per row of the frequencies (n, alphabet) and return them, (n,) int32.

        Raises:
            CorruptError: no symbol fits the stream.
        """
        try:
            symbols: npt.NDArray[np.int32] = self._inner.decode(self._family, _weights(frequencies))
        except (AssertionError, ValueError) as exc:
            raise CorruptError("the bitstring does not decode: it is damaged, or another bundle wrote it") from exc
        for frequency in np.take_along_axis(frequencies, symbols[:, None].astype(np.int64), 1)[:, 0].tolist():
            self._width = (self._width >> PRECISION) * frequency
            if self._width < 1 << 32:
                self._width <<= 32
                self._left -= 1
        return symbols


def _stream() -> Any:
    """Return constriction's stream coders. Only the reference engine needs them, which the extra pltz[thaw] brings."""
    import constriction

    return constriction.stream


def _weights(frequencies: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return (frequencies - 1).astype(np.float64)


def ideal_bits(symbols: npt.NDArray[np.int32], frequencies: Frequencies) -> float:
    """Return the sum of -log2 of the coded probabilities, in bits, of symbols (n,) with frequencies (n, alphabet)."""
    chosen = np.take_along_axis(frequencies, symbols[:, None].astype(np.int64), 1)
    return float((PRECISION - np.log2(chosen)).sum())

"""Keeps the range coder of constriction, cut to whole bytes as frames are: a peer's, and the judge of our own.

It is the queue coder with 32-bit words, a 64-bit state and 24-bit frequencies. Integer frequencies go in exactly:
constriction turns float weights into frequencies by `1 + floor(weight * (2^24 - n) / sum)`, and the weights
`frequency - 1` sum to 2^24 - n.
"""

from __future__ import annotations

from typing import Any

import constriction
import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.range_coder import STATE, WORD, most_words, shortest
from pltz.plt_codec.weights import PRECISION

Frequencies = npt.NDArray[np.int64]  # (symbols to code, alphabet), each row sums to 1 << PRECISION


class RangeEncoder:
    """An encoder that collects symbols, then returns their bytes.

    >>> e = RangeEncoder()
    >>> e.encode(np.array([1], np.int32), np.array([[1 << 23, 1 << 23]]))
    >>> e.finish().hex()
    '80'
    """

    def __init__(self) -> None:
        self._inner: Any = constriction.stream.queue.RangeEncoder()
        self._family: Any = constriction.stream.model.Categorical(perfect=False)

    def encode(self, symbols: npt.NDArray[np.int32], frequencies: Frequencies) -> None:
        """Encode symbols (n,) with their frequencies (n, alphabet)."""
        if len(symbols):
            self._inner.encode(symbols, self._family, _weights(frequencies))

    def finish(self) -> bytes:
        """Return the shortest bytes that, with zeros appended, decode to the encoded symbols."""
        words, (lower, width) = self._inner.pos()
        total = WORD * words + STATE
        point = int.from_bytes(self._inner.get_compressed().astype(">u4").tobytes().ljust(total, b"\0"), "big")
        lower += (point - lower) >> 64 << 64  # the words already emitted, carry included
        if not lower <= point < lower + width:
            raise AssertionError("range coder state and words disagree: constriction changed its format")
        return shortest(lower, width, total)


class RangeDecoder:
    """A decoder that returns the symbols of a `RangeEncoder` when asked with the same frequencies."""

    def __init__(self, data: bytes):
        padded = data + bytes(-len(data) % WORD + STATE)
        self._inner: Any = constriction.stream.queue.RangeDecoder(np.frombuffer(padded, ">u4").astype(np.uint32))
        self._family: Any = constriction.stream.model.Categorical(perfect=False)
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


def _weights(frequencies: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return (frequencies - 1).astype(np.float64)

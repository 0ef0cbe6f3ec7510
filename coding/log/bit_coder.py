"""Adaptive binary arithmetic coding: each decision costs what its model did not expect. Spec: FORMAT.md, "Decisions".

A model is a dict from the number of a context to 16 bits of probability and 5 bits of experience. It starts empty.
A context that was never met is undecided. The first decisions move its probability fast, later ones slowly.

    >>> writer, model = BitWriter(), {}
    >>> for bit in (1, 1, 0, 1): _ = writer.bit(model, 7, bit)
    >>> _ = writer.number(model, 1000)
    >>> reader, model = BitReader(writer.finish()), {}
    >>> [reader.bit(model, 7) for _ in range(4)], reader.number(model)
    ([1, 1, 0, 1], 1000)
"""

from __future__ import annotations

from typing import Final

from pltz.plt_codec.errors import CorruptError

Model = dict[int, int]

START: Final = 32768 << 5  # an undecided context: probability of a one in 65536ths, and no experience
LIMIT: Final = 12  # decisions after which a context always moves by the same share
RATES: Final = [655360 // (10 * n + 17) for n in range(LIMIT + 1)]  # in 65536ths, by experience
LEAST: Final = 24  # 65536ths that a probability keeps from 0 and from 1
MOST: Final = 65536 - LEAST
TOP: Final = 1 << 24
MASK: Final = (1 << 32) - 1
NUMBER_BITS: Final = 62  # numbers are below 2^62
MODELLED: Final = 3  # bits under the leading one that have contexts of their own
RAW_BITS: Final = 16  # undecided bits coded in one step
FLUSHED: Final = 4  # bytes at the end of a code, of which zeros are left out


def moved(state: int, bit: int) -> int:
    """Return a context's state after it met a bit."""
    p, n = state >> 5, state & 31
    if bit:
        p += (MOST - p) * RATES[n] >> 16
    else:
        p -= (p - LEAST) * RATES[n] >> 16
    return p << 5 | (n + 1 if n < LIMIT else LIMIT)


class Numbers:
    """The coding of numbers by decisions, the same for a writer and a reader."""

    def bit(self, model: Model, context: int, bit: int = 0) -> int:
        """Code one decision and return it. A reader ignores the argument."""
        raise NotImplementedError

    def raw(self, value: int, bits: int) -> int:
        """Code undecided bits and return their value. A reader ignores the argument."""
        raise NotImplementedError

    def number(self, model: Model, value: int = 0, base: int = 0) -> int:
        """Code a number from 0 to 2^62 - 1 under the contexts from ``base`` to ``base`` + 1023, and return it.

        Its bit length comes first: up to 6 by a tree of three bits, longer ones by six bits more. Then come the bits
        below the leading one.
        """
        length, node = value.bit_length(), 1
        short = min(7, length)
        node = 2 + self.bit(model, base + 1, short >> 2)
        node = node * 2 + self.bit(model, base + node, short >> 1 & 1)
        short = node * 2 + self.bit(model, base + node, short & 1) - 8
        if short == 7:
            node = 1
            for shift in (5, 4, 3, 2, 1, 0):
                node = node * 2 + self.bit(model, base + 576 + node, length - 7 >> shift & 1)
            length = node - 64 + 7
            if length > NUMBER_BITS:
                raise CorruptError("the columns of a log hold a number over 62 bits: the file is damaged")
        else:
            length = short
        if length < 2:
            return length
        left = length - 1
        node = 1
        while left and node < 1 << MODELLED:
            left -= 1
            node = node * 2 + self.bit(model, base + 64 + (length << MODELLED) + node, value >> left & 1)
        while left > RAW_BITS:
            left -= RAW_BITS
            node = node << RAW_BITS | self.raw(value >> left & 0xFFFF, RAW_BITS)
        if left:
            node = node << left | self.raw(value & (1 << left) - 1, left)
        return node

    def signed(self, model: Model, value: int = 0, base: int = 0) -> int:
        """Code a number of either sign under the contexts from ``base`` to ``base`` + 1023, and return it."""
        size = self.number(model, abs(value), base)
        return -size if size and self.bit(model, base + 640 + size.bit_length(), value < 0) else size


class BitWriter(Numbers):
    """An arithmetic coder's writing half (carries are propagated as in LZMA's range coder)."""

    def __init__(self) -> None:
        self._low, self._range = 0, MASK
        self._out = bytearray()

    def bit(self, model: Model, context: int, bit: int = 0) -> int:
        """Write one decision."""
        state = model.get(context, START)
        bound = (self._range >> 16) * (state >> 5)
        if bit:
            self._range = bound
        else:
            self._low += bound
            self._range -= bound
        model[context] = moved(state, bit)
        while self._range < TOP:
            self._shift()
        return bit

    def raw(self, value: int, bits: int) -> int:
        """Write undecided bits, at most 16."""
        self._range >>= bits
        self._low += value * self._range
        while self._range < TOP:
            self._shift()
        return value

    def _shift(self) -> None:
        if self._low > MASK:
            self._carry()
        self._out.append(self._low >> 24)
        self._low = self._low << 8 & MASK
        self._range = self._range << 8 & MASK

    def _carry(self) -> None:
        self._low &= MASK
        at = len(self._out) - 1
        while self._out[at] == 255:
            self._out[at] = 0
            at -= 1
        self._out[at] += 1

    def finish(self) -> bytes:
        """Return all bytes, without zeros among the last four, for which a reader takes bytes beyond the end."""
        high = self._low + self._range - 1
        for bits in (24, 16, 8, 0):  # the value in the range with the most zeros at its end
            value = high >> bits << bits
            if value >= self._low:
                break
        self._low = value
        end = len(self._out)
        for _ in range(FLUSHED):
            self._shift()
        return bytes(self._out[:end] + self._out[end:].rstrip(b"\0"))


class BitReader(Numbers):
    """An arithmetic coder's reading half.

    Raises:
        CorruptError: more is read than was written.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._end = data, len(data)
        self._at = 4
        self._code = int.from_bytes(data[:4].ljust(4, b"\0"), "big")
        self._range = MASK

    def bit(self, model: Model, context: int, bit: int = 0) -> int:
        """Read one decision."""
        state = model.get(context, START)
        bound = (self._range >> 16) * (state >> 5)
        if self._code < bound:
            self._range = bound
            bit = 1
        else:
            self._code -= bound
            self._range -= bound
            bit = 0
        model[context] = moved(state, bit)
        while self._range < TOP:
            self._shift()
        return bit

    def raw(self, value: int, bits: int) -> int:
        """Read undecided bits."""
        self._range >>= bits
        value = min(self._code // self._range, (1 << bits) - 1)
        self._code -= value * self._range
        while self._range < TOP:
            self._shift()
        return value

    def _shift(self) -> None:
        if self._at < self._end:
            byte = self._data[self._at]
        elif self._at < self._end + FLUSHED:
            byte = 0
        else:
            raise CorruptError("the columns of a log end too early: the file is damaged")
        self._at += 1
        self._code = (self._code << 8 | byte) & MASK
        self._range = self._range << 8 & MASK

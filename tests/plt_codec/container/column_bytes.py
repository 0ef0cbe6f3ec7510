"""Write the columns of a block bit by bit, as FORMAT.md says, in shapes that are given."""

from collections.abc import Mapping, Sequence

from pltz.plt_codec.varint import read_varint, write_varint


def bits_of(number: int, width: int) -> list[int]:
    return [number >> place & 1 for place in range(width)]


def bytes_of(bits: Sequence[int]) -> bytes:
    return sum(bit << place for place, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")


def column(numbers: Sequence[int], shape: int) -> bytes:
    """Return numbers, of which one is zero or more, in a shape."""
    if shape < 64:
        return bytes_of([bit for number in numbers for bit in bits_of(number, shape)])
    order = shape - 64
    classes, low = [], []
    for number in numbers:
        raised = number + 2**order
        bits = raised.bit_length() - 1
        classes += [0] * (bits - order) + [1]
        low += bits_of(raised, bits)
    return bytes_of(classes + low)


def deviation(size: int, count: int, rate: int) -> int:
    n = size - (count * rate >> 12)
    return 2 * n if n >= 0 else -2 * n - 1


def columns(found: Mapping[int, Sequence[int]], count: int, data: bytes) -> tuple[int, bytes]:
    """Return which columns are there and their bytes, with the rate and the shapes that ``data`` begins with."""
    there = {number: list(values) for number, values in sorted(found.items()) if any(values)}
    shapes, codes, at = b"", b"", 0
    if 5 in there and count > 1:
        rate, shapes, at = int.from_bytes(data[:2], "little"), data[:2], 2
        if rate:
            counts = there.get(4, [0] * count)
            there[5] = [deviation(size, n, rate) for size, n in zip(there[5], counts, strict=True)]
    for values in there.values():
        low = min(values)
        shapes += write_varint(low)
        _, at = read_varint(data, at)
        if count > 1:
            shapes += data[at : at + 1]
            codes += column([value - low for value in values], data[at])
            at += 1
    return sum(1 << number for number in there), shapes + codes

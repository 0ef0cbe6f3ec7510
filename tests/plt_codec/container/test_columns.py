"""Columns: numbers come back from the bytes that FORMAT.md says, and other bytes are refused or read."""

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec.container.block import write_columns
from pltz.plt_codec.container.columns import read_column, write_column
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import write_varint

numbers = st.integers(0, 64).flatmap(lambda width: st.lists(st.integers(0, (1 << width) - 1), min_size=1, max_size=130))


def column(values: Sequence[int]) -> bytes:
    """Return a column, bit by bit."""
    least = min(*values, 2**32 - 1)
    width = max((value - least).bit_length() for value in values)
    bits = [value - least >> place & 1 for value in values for place in range(width)]
    return write_varint(least) + bytes([width]) + bytes(
        sum(bit << place for place, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8)
    )


@given(numbers, st.binary(max_size=3), st.binary(max_size=3))
def test_columns_are_as_specified_and_back(values: list[int], before: bytes, behind: bytes) -> None:
    data = write_column(values)
    assert data == column(values)
    assert read_column(before + data + behind, len(before), len(values)) == (values, len(before) + len(data))
    for end in range(len(data)):
        with pytest.raises(CorruptError):
            read_column(data[:end], 0, len(values))


@given(st.binary(max_size=40), st.integers(1, 130))
def test_other_bytes_are_refused_or_give_these_bytes_again(data: bytes, count: int) -> None:
    try:
        values, end = read_column(data, 0, count)
    except CorruptError:
        return
    assert len(values) == count and end <= len(data)


@pytest.mark.parametrize(("data", "most", "why"), [
    ("80 00 00", 64, "varint"), ("ff ff ff ff 1f 00", 64, "varint"), ("00", 64, "cut off"), ("00 03 7f", 64, "filled"),
    ("00 41" + " ff" * 30, 64, "wide"), ("00 21" + " ff" * 30, 32, "wide"),
])
def test_columns_that_break_a_rule(data: str, most: int, why: str) -> None:
    with pytest.raises(CorruptError, match=why):
        read_column(bytes.fromhex(data), 0, 2, most)


def test_a_block_leaves_out_zeros_and_the_width_of_a_single_number() -> None:
    assert write_columns({5: [0, 0], 4: [7, 9], 1: [3, 3]}, 2) == (1 << 1 | 1 << 4, column([3, 3]) + column([7, 9]))
    assert write_columns({4: [300], 5: [0]}, 1) == (1 << 4, write_varint(300))

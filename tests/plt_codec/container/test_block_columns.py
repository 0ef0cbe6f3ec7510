"""Columns of a block: both readers give what was written, in few bits, as the second reader does."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.plt_codec.container import block
from pltz.plt_codec.container.block import (
    COLUMNS,
    COUNT,
    SIZE,
    encode_block,
    read_columns,
    read_columns_here,
    write_columns,
)
from tests.second_reader import fields

READERS = {"here": read_columns_here} | ({"compiled": read_columns} if block.compiled else {})
BOTH = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@st.composite
def columns(draw: st.DrawFn) -> tuple[int, dict[int, list[int]]]:
    """Draw a number of records and the values of some columns, up to 2^32 above the least, most of them small."""
    count = draw(st.integers(1, 128))
    found = {}
    for number in draw(st.sets(st.integers(0, COLUMNS - 1))):
        low, width = draw(st.sampled_from([0, 0, 1, 1000, 2**32 - 1])), draw(st.integers(0, 32))
        small = st.integers(0, 2 ** (width // 4))
        found[number] = [low, *(low + draw(st.one_of(small, st.integers(0, 2**width))) for _ in range(count - 1))]
    if SIZE in found:  # sizes are limited
        found[SIZE] = [size % 2**28 for size in found[SIZE]]
    return count, found


def wanted(found: dict[int, list[int]]) -> list[tuple[int, int, int, int, list[int] | None]]:
    there = sorted((n, v) for n, v in found.items() if any(v))
    return [(n, min(v), max(v), sum(v), v if min(v) < max(v) else None) for n, v in there]


@settings(deadline=None)
@given(columns(), st.integers(0, 9), st.integers(0, 9))
def test_columns_are_as_specified_and_back(drawn: tuple[int, dict[int, list[int]]], before: int, after: int) -> None:
    count, found = drawn
    there, data = write_columns(found, count)
    sizes = [size % 5000 for size in found.get(SIZE, [0] * count)]
    stored = b"".join(encode_block(found, [], [bytes(size) for size in sizes], b"salt", 0))
    wanted_of_all = {number: found.get(number, [0] * count) for number in range(COLUMNS)} | {SIZE: sizes}
    assert fields.block(stored, 0, b"salt", range(COLUMNS)).columns == wanted_of_all
    whole = bytes(before) + data + b"\xff" * after
    for reader in READERS.values():
        assert reader(whole, before, len(whole), count, there) == (before + len(data), wanted(found))
        for end in {before, before + len(data) // 2, before + len(data) - 1} if data else ():
            with pytest.raises(ValueError, match="ends before its columns do"):
                reader(whole, before, end, count, there)


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 128), st.integers(0, 2**COLUMNS - 1))
def test_both_readers_agree_on_any_bytes(data: bytes, count: int, there: int) -> None:
    results: list[object] = []
    for reader in READERS.values():
        try:
            results.append(reader(data, 0, len(data), count, there))
        except ValueError:
            results.append(None)
    assert all(result == results[0] for result in results)


def test_sizes_near_a_rate_take_few_bits() -> None:
    dice = np.random.default_rng(4)
    counts = dice.integers(100, 2000, 128)
    sizes = counts // 4 + dice.integers(-3, 4, 128)
    _, both = write_columns({COUNT: counts.tolist(), SIZE: sizes.tolist()}, 128)
    _, alone = write_columns({SIZE: sizes.tolist()}, 128)
    _, count = write_columns({COUNT: counts.tolist()}, 128)
    assert len(both) - len(count) < 75 and len(alone) > 145  # 4 and 9 bits each
    # a mark's counter predicts nothing, and no size is predicted beyond its limit
    for counter in (2**27, 2**32 - 1):
        there, data = write_columns({COUNT: [counter, 800], SIZE: [0, 200]}, 2)
        assert data[:2] == b"\0\0" and read_columns(data, 0, len(data), 2, there)[1][1][-1] == [0, 200]


@BOTH
@pytest.mark.parametrize(
    ("data", "count", "there", "why"),
    [
        ("80 00 00", 2, 1, "ends before"),  # a varint longer than it must be
        ("ff ff ff ff 1f 00", 2, 1, "ends before"),  # a varint over 32 bits
        ("00 22 ff ff ff ff ff ff ff ff ff ff", 2, 1, "more than 33 bits"),
        ("00 3f ff ff ff ff ff ff ff ff ff ff", 2, 1, "more than 33 bits"),  # between the two kinds of shapes
        ("00 62 ff ff ff ff ff ff ff ff ff ff", 2, 1, "more than 33 bits"),  # order 34
        ("00 40 00 00 00 00 f0 ff ff ff ff ff", 2, 1, "more than 33 bits"),  # a class of 36
        ("00 60 03", 2, 1, "ends before"),  # two classes of 0 in order 32, without the bits
        ("00 40 01", 2, 1, "ends before"),  # one class for two numbers
        ("00", 2, 1, "ends before"),  # no shape
        ("00", 2, 1 << SIZE, "ends before"),  # no rate
        ("01 00 01 02 03", 2, 1 << SIZE, "less than no bytes"),  # 1, and -2
    ],
)
def test_columns_that_break_a_rule(reader: block.Reader, data: str, count: int, there: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        reader(bytes.fromhex(data), 0, len(bytes.fromhex(data)), count, there)


@pytest.mark.skipif(block.compiled is None, reason="built where there is a C compiler")
@pytest.mark.parametrize(
    ("begin", "end", "count", "there"),
    [(-1, 4, 1, 1), (3, 2, 1, 1), (0, 11, 1, 1), (0, 10, 0, 1), (0, 10, 129, 1), (0, 10, 1, 1 << COLUMNS)],
)
def test_columns_that_no_block_has(begin: int, end: int, count: int, there: int) -> None:
    with pytest.raises(ValueError, match="no block has"):
        read_columns(bytes(10), begin, end, count, there)

"""The batch operations in C give the same as hashlib and numpy, one row after the other."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pltz.archive.format import block
from pltz.plt_codec.varint import write_varint

many: Any = pytest.importorskip("pltz.archive.format._batch", reason="built where there is a C compiler")
DICE = np.random.default_rng(3)
PERSON = b"sixteen bytes ..".ljust(16, b"\0")
WIDTHS = sorted({4, many.lanes})
lanes = pytest.mark.skipif(not many.lanes, reason="needs AVX2")


def check(heads: list[bytes], rows: list[bytes], key: bytes, size: int, width: int) -> None:
    begun = key.ljust(128, b"\0") if key else b""
    found = many.digests(PERSON, size, len(key), tuple(begun + head for head in heads), rows, width)
    wanted = [
        hashlib.blake2b(head + row, digest_size=size, key=key, person=PERSON).digest()
        for head, row in zip(heads, rows, strict=True)
    ]
    assert found == b"".join(wanted)


@lanes
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("key", [b"", b"k", b"k" * 64])
def test_every_length_of_head_and_row(width: int, key: bytes) -> None:
    """Test around block limits: a head ends within a block, at its end, or later, and a message may be empty."""
    for head in (0, 1, 16, 48, 127, 128, 129, 256, 300):
        rows = [DICE.bytes(n) for n in [*range(300), 511, 512, 513, 1024]]
        check([DICE.bytes(head) for _ in rows], rows, key, 32, width)


@lanes
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 7, 8, 9, 40])
def test_as_many_messages_as_lanes_fewer_and_more(width: int, count: int) -> None:
    rows = [DICE.bytes(int(n)) for n in DICE.integers(0, 5000, count)]
    check([DICE.bytes(20) for _ in rows], rows, b"", 64, width)
    check([b""] * count, [rows[0] if rows else b""] * count, b"", 1, width)


@lanes
def test_rows_of_arrays() -> None:
    rows = [DICE.integers(0, 1 << 31, n, np.uint32) for n in (0, 1, 530, 4000)]
    found = many.digests(PERSON, 16, 0, (b"head",) * 4, rows)
    for n, row in enumerate(rows):
        wanted = hashlib.blake2b(b"head" + row.tobytes(), digest_size=16, person=PERSON).digest()
        assert found[16 * n : 16 * n + 16] == wanted


@lanes
@pytest.mark.parametrize(
    "arguments",
    [
        (b"short", 32, 0, (), []),
        (PERSON, 0, 0, (), []),
        (PERSON, 65, 0, (), []),
        (PERSON, 32, 65, (), []),
        (PERSON, 32, -1, (), []),
        (PERSON, 32, 0, (b"",), []),
        (PERSON, 32, 0, (), [], 3),
        (PERSON, 32, 0, (), [], 0),
    ],
)
def test_what_is_asked_for_is_checked(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected|abreast"):
        many.digests(*arguments)


@lanes
@pytest.mark.parametrize("row", [np.zeros((4, 4))[:, 1], "text", 7])
def test_a_row_that_is_no_row_of_bytes(row: Any) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        many.digests(PERSON, 32, 0, (b"", b""), [b"fine", row])
    with pytest.raises(TypeError):
        many.digests(PERSON, 32, 0, (b"", 7), [b"fine", b"fine"])


def test_the_same_rows_and_their_largest_number() -> None:
    rows = [DICE.integers(0, 1 << 31, n, np.uint32) for n in (0, 1, 3, 530, 4000)]
    assert many.same(rows, [row.copy() for row in rows]) == max(int(row.max(initial=0)) for row in rows)
    assert many.same([], []) == 0 == many.same([rows[0]], [rows[0]])
    assert many.same([np.array([5, 1 << 31], np.uint32)], [np.array([5, 1 << 31], np.uint32)]) == 1 << 31
    for n in range(1, len(rows)):
        for at in {0, len(rows[n]) // 2, len(rows[n]) - 1}:
            other = [row.copy() for row in rows]
            other[n][at] ^= 1 << 20
            assert many.same(other, rows) == -1 == many.same(rows, other)
    assert many.same(rows[:-1], rows) == -1
    assert many.same([rows[3][:-1]], [rows[3]]) == -1


def test_what_cannot_be_compared() -> None:
    row = np.zeros(4, np.uint32)
    for wrong in (np.zeros((4, 4), np.uint32)[:, 1], "text", 7):
        for rows, wanted in (([row, wrong], [row, row]), ([row, row], [row, wrong])):
            with pytest.raises((TypeError, ValueError, BufferError)):
                many.same(rows, wanted)
    with pytest.raises(TypeError):
        many.same((row,), [row])


@st.composite
def columns(draw: st.DrawFn) -> tuple[int, dict[int, list[int]]]:
    """Draw a number of rows, and the values of some columns, of at most 33 bits above the least."""
    count = draw(st.integers(1, 128))
    found = {}
    for number in draw(st.sets(st.integers(0, block.COLUMNS - 1))):
        low, width = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 33)) if count > 1 else 0
        found[number] = [low, *(low + draw(st.integers(0, 2**width - 1)) for _ in range(count - 1))]
    return count, found


def written(count: int, found: dict[int, list[int]]) -> bytes:
    """Return shapes and values of columns as FORMAT.md says."""
    shapes, values = b"", b""
    for _, numbers in sorted(found.items()):
        low, width = min(numbers), (max(numbers) - min(numbers)).bit_length()
        shapes += write_varint(low) + (bytes([width]) if count > 1 else b"")
        packed = sum(number - low << width * n for n, number in enumerate(numbers))
        values += packed.to_bytes(-(-width * count // 8), "little")
    return shapes + values


@settings(deadline=None)
@given(columns(), st.integers(0, 9), st.integers(0, 9))
def test_columns_come_back_from_both_readers(drawn: tuple[int, dict[int, list[int]]], before: int, after: int) -> None:
    count, found = drawn
    data = written(count, found)
    whole, there = bytes(before) + data + b"\xff" * after, sum(1 << number for number in found)
    wanted = [(n, min(v), max(v), sum(v), v if min(v) < max(v) else None) for n, v in sorted(found.items())]
    for reader in (many.columns, block._columns):
        assert reader(whole, before, len(whole), count, there) == (before + len(data), wanted)
        for end in {before, before + len(data) // 2, before + len(data) - 1} if data else ():
            with pytest.raises(ValueError, match="ends before its columns do"):
                reader(whole, before, end, count, there)


@pytest.mark.parametrize(
    ("data", "count", "why"),
    [
        ("80 00 00", 2, "ends before"),  # a varint longer than it must be
        ("ff ff ff ff 1f 00", 2, "ends before"),  # a varint over 32 bits
        ("00 22 ff ff ff ff ff ff ff ff ff ff", 2, "more than 33 bits"),
        ("00", 2, "ends before"),  # no width
    ],
)
def test_columns_that_break_a_rule(data: str, count: int, why: str) -> None:
    for reader in (many.columns, block._columns):
        with pytest.raises(ValueError, match=why):
            reader(bytes.fromhex(data), 0, len(bytes.fromhex(data)), count, 1)


@pytest.mark.parametrize(
    ("begin", "end", "count", "there"),
    [(-1, 4, 1, 1), (3, 2, 1, 1), (0, 11, 1, 1), (0, 10, 0, 1), (0, 10, 129, 1), (0, 10, 1, 1 << 16)],
)
def test_columns_that_no_block_has(begin: int, end: int, count: int, there: int) -> None:
    with pytest.raises(ValueError, match="no block has"):
        many.columns(bytes(10), begin, end, count, there)

"""The batch operations in C give the same as hashlib and numpy, one row after the other."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

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

"""Prefix CRCs: equal to those of zlib for any range, in the time of two blocks."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, strategies as st

from pltz.archive.format.prefix_crc import BLOCK, PrefixCrcs

DATA = bytes(n * n % 251 for n in range(9 * BLOCK + 100))


@given(st.integers(0, len(DATA)), st.integers(0, len(DATA)), st.integers(0, 2**32 - 1))
def test_a_sum_is_that_of_zlib(a: int, b: int, seed: int) -> None:
    begin, end = sorted([a, b])
    assert PrefixCrcs(DATA).of(begin, end, seed) == zlib.crc32(DATA[begin:end], seed)


def test_what_overlaps_is_summed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    summed, crc32 = [0], zlib.crc32

    def counted(data: bytes | memoryview, seed: int = 0) -> int:
        summed[0] += len(data)
        return crc32(data, seed)

    sums = PrefixCrcs(bytes(100 * BLOCK))
    sums.of(0, 90 * BLOCK)
    monkeypatch.setattr(zlib, "crc32", counted)
    for begin in range(1000):
        sums.of(begin, len(DATA) * 10 - begin)
    assert summed[0] <= 1000 * 2 * BLOCK + 100 * BLOCK

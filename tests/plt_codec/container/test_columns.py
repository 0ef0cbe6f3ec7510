"""Kinds, counts and lengths come back exactly, in few bytes, and any bytes are refused or read within bounds."""

import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pltz.plt_codec.container import columns
from pltz.plt_codec.errors import CorruptError

counts = st.integers(0, 300) | st.integers(0, (1 << 27) - 1)
lengths = st.integers(0, 300) | st.integers(0, (1 << 32) - 1)
rows = st.lists(st.tuples(st.integers(0, 7), counts, lengths), max_size=60)


def table(entries: list[tuple[int, int, int]]) -> npt.NDArray[np.uint32]:
    return np.array([(count << 3 | kind, size) for kind, count, size in entries], dtype=np.uint32).reshape(-1, 2).T


def realistic(sessions: int) -> npt.NDArray[np.uint32]:
    """(2, N): sizes of a few hundred tokens, frames of a few bits per token."""
    rng = np.random.default_rng(7)
    tokens = np.exp(rng.normal(5.8, 1.0, sessions)).astype(np.uint32) + 8
    return np.stack([tokens << 3, (tokens * np.exp(rng.normal(-1.0, 0.4, sessions))).astype(np.uint32) + 1])


@given(rows)
def test_columns_come_back(entries: list[tuple[int, int, int]]) -> None:
    given_columns = table(entries)
    decoded = columns.decode(columns.encode(*given_columns), len(entries))
    assert np.array_equal(np.stack(decoded), given_columns)


@given(rows, st.data())
def test_changed_bytes_are_refused_or_read_as_what_they_then_say(
    entries: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    coded = bytearray(columns.encode(*table(entries)))
    for _ in range(data.draw(st.integers(1, 3))):
        if coded:
            coded[data.draw(st.integers(0, len(coded) - 1))] = data.draw(st.integers(0, 255))
    try:
        sizes, found = columns.decode(bytes(coded), len(entries))
    except CorruptError:
        return
    again = columns.decode(columns.encode(sizes, found), len(entries))
    assert np.array_equal(np.stack(again), np.stack([sizes, found]))


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_any_bytes_at_all(coded: bytes, sessions: int) -> None:
    try:
        sizes, found = columns.decode(coded, sessions)
    except CorruptError:
        return
    assert len(sizes) == len(found) == sessions


@pytest.mark.parametrize(("sessions", "most"), [(1, 3), (10, 2.6), (200, 2.4), (2000, 2.3), (50_000, 2.3)])
def test_bytes_per_session(sessions: int, most: float) -> None:
    assert len(columns.encode(*realistic(sessions))) / sessions <= most


def test_one_kind_and_one_rate_cost_next_to_nothing() -> None:
    sizes = np.full(10_000, 800, np.uint32)
    assert len(columns.encode(sizes, sizes // 80)) / 10_000 < 1.6  # of it 1.5 are the low bits


def test_many_sessions_take_a_moment() -> None:
    given_columns = realistic(200_000)
    coded = columns.encode(*given_columns)
    start = time.perf_counter()
    decoded = columns.decode(coded, 200_000)
    assert time.perf_counter() - start < 0.5
    assert np.array_equal(np.stack(decoded), given_columns)

"""The index's columns come back exactly, in few bytes, and any other bytes are refused or mean the same."""

import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pltz.plt_codec.container import index as columns
from pltz.plt_codec.errors import CorruptError

values = st.integers(0, 300) | st.integers(0, (1 << 32) - 1)
rows = st.lists(st.tuples(values, values, values), max_size=40)


def table(entries: list[tuple[int, int, int]]) -> npt.NDArray[np.uint32]:
    return np.array(entries, dtype=np.uint32).reshape(-1, 3).T


def realistic(sessions: int) -> npt.NDArray[np.uint32]:
    """(3, N): sizes of a few hundred tokens, frames of a few bits a token, checks that are noise."""
    rng = np.random.default_rng(7)
    tokens = np.exp(rng.normal(5.8, 1.0, sessions)).astype(np.uint32) + 8
    lengths = (tokens * np.exp(rng.normal(-1.0, 0.4, sessions))).astype(np.uint32) + 1
    return np.stack([tokens << 3, lengths, rng.integers(0, 1 << 32, sessions, dtype=np.uint32)])


@given(rows)
def test_columns_come_back(entries: list[tuple[int, int, int]]) -> None:
    given_columns = table(entries)
    decoded = columns.decode(columns.encode(*given_columns), len(entries))
    assert np.array_equal(np.stack(decoded), given_columns)


@given(rows, st.data())
def test_a_changed_index_is_refused_or_read_as_what_it_then_says(
    entries: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    index = bytearray(columns.encode(*table(entries)))
    for _ in range(data.draw(st.integers(1, 3))):
        if index:
            index[data.draw(st.integers(0, len(index) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = columns.decode(bytes(index), len(entries))
    except CorruptError:
        return
    assert [len(column) for column in decoded] == [len(entries)] * 3


@given(st.binary(max_size=60), st.integers(0, 1 << 32))
def test_any_bytes_at_all(index: bytes, sessions: int) -> None:
    try:
        decoded = columns.decode(index, sessions)
    except CorruptError:
        return
    assert len(decoded[0]) == sessions


@pytest.mark.parametrize(("sessions", "most"), [(1, 11), (10, 8.4), (200, 8.0), (2000, 7.0), (50_000, 6.7)])
def test_bytes_a_session(sessions: int, most: float) -> None:
    index = columns.encode(*realistic(sessions))
    assert len(index) / sessions <= most


def test_many_sessions_take_a_moment() -> None:
    given_columns = realistic(200_000)
    index = columns.encode(*given_columns)
    start = time.perf_counter()
    decoded = columns.decode(index, 200_000)
    assert time.perf_counter() - start < 0.3
    assert np.array_equal(np.stack(decoded), given_columns)

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
rows = st.lists(st.tuples(st.integers(0, 7), counts, lengths, st.none() | st.integers(0, 1 << 30)), max_size=60)
Columns = tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.int64]]


def table(entries: list[tuple[int, int, int, int | None]]) -> Columns:
    """Sizes, lengths and contexts: where an entry has a fourth number, it chooses one of the possible contexts."""
    contexts: list[int] = []
    depths: list[int] = []
    for kind, _, _, choice in entries:
        tokens = [i for i in range(len(depths)) if entries[i][0] in (0, 1, 2, 7)]
        able = [i for i in tokens if depths[i] < columns.MOST_CONTEXTS]
        follows = choice is not None and able and kind in (0, 1, 2, 7)
        contexts.append(able[choice % len(able)] if follows and choice is not None else -1)
        depths.append(depths[contexts[-1]] + 1 if follows else 0)
    sizes = [count << 3 | kind for kind, count, _, _ in entries]
    return np.array(sizes, np.uint32), np.array([e[2] for e in entries], np.uint32), np.array(contexts, np.int64)


def same(one: Columns, other: Columns) -> bool:
    return all(np.array_equal(one[i], other[i]) for i in range(3))


def realistic(sessions: int) -> Columns:
    """Sizes of a few hundred tokens, frames of a few bits per token, no contexts."""
    rng = np.random.default_rng(7)
    tokens = np.exp(rng.normal(5.8, 1.0, sessions)).astype(np.uint32) + 8
    lengths = (tokens * np.exp(rng.normal(-1.0, 0.4, sessions))).astype(np.uint32) + 1
    return tokens << np.uint32(3), lengths, np.full(sessions, -1)


@given(rows)
def test_columns_come_back(entries: list[tuple[int, int, int, int | None]]) -> None:
    given_columns = table(entries)
    assert same(columns.decode(columns.encode(*given_columns), len(entries)), given_columns)


@given(rows, st.data())
def test_changed_bytes_are_refused_or_read_as_what_they_then_say(
    entries: list[tuple[int, int, int, int | None]], data: st.DataObject
) -> None:
    coded = bytearray(columns.encode(*table(entries)))
    for _ in range(data.draw(st.integers(1, 3))):
        if coded:
            coded[data.draw(st.integers(0, len(coded) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = columns.decode(bytes(coded), len(entries))
    except CorruptError:
        return
    assert same(columns.decode(columns.encode(*found), len(entries)), found)


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_any_bytes_at_all(coded: bytes, sessions: int) -> None:
    try:
        sizes, lengths, contexts = columns.decode(coded, sessions)
    except CorruptError:
        return
    assert len(sizes) == len(lengths) == len(contexts) == sessions
    followers = np.flatnonzero(contexts >= 0)
    assert (contexts[followers] < followers).all()
    behind = np.append(contexts, -1)
    assert (behind[behind[behind[contexts]]] == -1).all()


@pytest.mark.parametrize(("sessions", "most"), [(1, 3), (10, 2.6), (200, 2.4), (2000, 2.3), (50_000, 2.3)])
def test_bytes_per_session(sessions: int, most: float) -> None:
    assert len(columns.encode(*realistic(sessions))) / sessions <= most


def test_one_kind_and_one_rate_cost_next_to_nothing() -> None:
    sizes = np.full(10_000, 800, np.uint32)
    assert len(columns.encode(sizes, sizes // 80, np.full(10_000, -1))) / 10_000 < 1.6  # of it 1.5 are the low bits


def test_many_sessions_take_a_moment() -> None:
    given_columns = realistic(200_000)
    coded = columns.encode(*given_columns)
    start = time.process_time()
    decoded = columns.decode(coded, 200_000)
    assert time.process_time() - start < 0.5
    assert same(decoded, given_columns)


def test_a_context_costs_about_as_many_bits_as_there_are_choices() -> None:
    sizes, lengths, none = realistic(4000)
    contexts = none.copy()
    contexts[1::2] = np.random.default_rng(2).integers(0, np.arange(2000) + 1) * 2
    extra = len(columns.encode(sizes, lengths, contexts)) - len(columns.encode(sizes, lengths, none))
    assert extra < 2000 * 12 / 8 + 4000 / 8  # 9.6 bits choose among 1 to 2000; a bit each says who has one

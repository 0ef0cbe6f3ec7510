"""An index comes back exactly, and any other bytes are refused or mean what they then say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pltz.plt_codec.container.index import Index
from pltz.plt_codec.container.lines import Grid
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import write_varint

u32 = st.integers(0, (1 << 32) - 1)


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    sessions = draw(st.integers(1, 30))
    seed = draw(u32)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 1 << 30, sessions, dtype=np.uint32) >> rng.integers(0, 28, sessions, dtype=np.uint32)
    lengths = rng.integers(0, 1 << 32, sessions, dtype=np.uint32) >> rng.integers(0, 32, sessions, dtype=np.uint32)
    checks = rng.integers(0, 256, sessions, dtype=np.uint8)
    lines = rng.integers(0, 1 << 32, Grid(sessions).checks, dtype=np.uint32)
    return Index(sizes, lengths, np.full(sessions, -1), checks, draw(u32), lines)


def same(one: Index, other: Index) -> bool:
    return one.contents == other.contents and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("sizes", "lengths", "contexts", "checks", "lines")
    )


@given(indexes())
def test_an_index_comes_back(index: Index) -> None:
    assert same(Index.decode(index.encode()), index)


@given(indexes(), st.data())
def test_a_changed_index_is_refused_or_read_as_what_it_then_says(index: Index, data: st.DataObject) -> None:
    coded = bytearray(index.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        coded[data.draw(st.integers(0, len(coded) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = Index.decode(bytes(coded))
    except CorruptError:
        return
    assert same(Index.decode(found.encode()), found)


@given(st.binary(max_size=80))
def test_any_bytes_at_all(data: bytes) -> None:
    try:
        found = Index.decode(data)
    except CorruptError:
        return
    assert 0 < len(found.sizes) == len(found.lengths) == len(found.checks) <= len(data)


@pytest.mark.parametrize("sessions", [0, 5, 1 << 20, (1 << 32) - 1])
def test_a_number_of_sessions_that_does_not_fit(sessions: int) -> None:
    with pytest.raises(CorruptError):
        Index.decode(write_varint(sessions) + bytes(20))

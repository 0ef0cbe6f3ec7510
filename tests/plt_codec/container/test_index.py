"""An index comes back exactly, and any other bytes are refused or mean what they then say."""

import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec.container.file import BlockPlace, Index
from pltz.plt_codec.container.frame import FrameCoding, Kind, Method
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import write_varint

u32 = st.integers(0, (1 << 32) - 1)
fast, chats = st.booleans(), st.sampled_from([Kind.CHAT, Kind.TEXT])
codings = st.one_of(
    st.builds(FrameCoding, chats, st.just(Method.MODEL), fast),
    st.builds(FrameCoding, st.just(Kind.IDS), st.just(Method.MODEL), fast, st.booleans()),
    st.builds(FrameCoding, chats, st.sampled_from([Method.LOG, Method.BYTES])),
    st.builds(FrameCoding, st.just(Kind.CHAT), st.just(Method.MODEL), fast, writing=u32),
    st.builds(FrameCoding, st.just(Kind.CHAT), st.sampled_from([Method.LOG, Method.BYTES]), writing=u32),
    st.just(FrameCoding(Kind.IDS, Method.BYTES)),
)
places = st.builds(BlockPlace, st.integers(1, 128), st.integers(139, 1 << 18), st.integers(0, 1 << 28))
indexes = st.builds(Index, st.lists(codings, min_size=1, max_size=9), st.lists(places, min_size=1, max_size=30), u32)


@given(indexes)
def test_an_index_comes_back(index: Index) -> None:
    assert Index.decode(index.encode()) == index


@given(indexes, st.data())
def test_a_changed_index_is_refused_or_read_as_what_it_then_says(index: Index, data: st.DataObject) -> None:
    coded = bytearray(index.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        coded[data.draw(st.integers(0, len(coded) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = Index.decode(bytes(coded))
    except CorruptError:
        return
    assert None in found.codings or found.encode() == bytes(coded)


@pytest.mark.parametrize("number", [0, 5, 1 << 20, (1 << 32) - 1])
def test_a_number_of_codings_that_does_not_fit(number: int) -> None:
    with pytest.raises(CorruptError):
        Index.decode(bytes(4) + write_varint(number) + bytes(4))

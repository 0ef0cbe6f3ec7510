"""An index comes back exactly, and any other bytes are refused or mean what they then say."""

import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec.container.frame import FrameCoding, Kind
from pltz.plt_codec.container.index import BlockPlace, Index
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import write_varint

u32 = st.integers(0, (1 << 32) - 1)
LAYOUTS: list[tuple[int | None, int | None]] = [(None, None), (1, 1), (4, 128), (64, 256), (1, 16384)]
layouts = st.sampled_from(LAYOUTS)
codings = st.one_of(
    st.builds(
        lambda kind, layout: FrameCoding(kind, layout[0], layout[1]), st.sampled_from([Kind.CHAT, Kind.TEXT]), layouts
    ),
    st.builds(lambda layout, patched: FrameCoding(Kind.IDS, layout[0], layout[1], patched), layouts, st.booleans()),
    st.builds(
        lambda kind, log: FrameCoding(kind, log=log),
        st.sampled_from([Kind.CHAT_FALLBACK, Kind.TEXT_FALLBACK]),
        st.booleans(),
    ),
    st.builds(lambda layout, writing: FrameCoding(Kind.CHAT, layout[0], layout[1], writing=writing), layouts, u32),
    st.builds(lambda log, writing: FrameCoding(Kind.CHAT_FALLBACK, log=log, writing=writing), st.booleans(), u32),
    st.just(FrameCoding(Kind.IDS_FALLBACK)),
)
places = st.builds(BlockPlace, st.integers(1, 128), st.integers(139, 1 << 18), st.integers(0, 1 << 28))
indexes = st.builds(
    Index, st.lists(codings, min_size=1, max_size=9), st.lists(places, min_size=1, max_size=30), u32
)


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


@given(st.binary(max_size=80))
def test_any_bytes_at_all(data: bytes) -> None:
    try:
        found = Index.decode(data)
    except CorruptError:
        return
    assert all(0 < place.sessions < place.head for place in found.blocks)
    assert 0 < len(found.codings) + len(found.blocks) <= len(data)


@pytest.mark.parametrize("number", [0, 5, 1 << 20, (1 << 32) - 1])
def test_a_number_of_codings_that_does_not_fit(number: int) -> None:
    with pytest.raises(CorruptError):
        Index.decode(bytes(4) + write_varint(number) + bytes(4))

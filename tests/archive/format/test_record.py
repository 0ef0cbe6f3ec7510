"""Record: what is written comes back, and tags are strings by strings."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pltz.archive.format import record
from pltz.archive.format.context import Context
from pltz.archive.format.ids import segment_of
from pltz.archive.format.pack import Builder, Damage, Pack
from pltz.archive.format.record import Mark, Record
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.identity import NONE

names = st.text(st.characters(codec="utf-8"), max_size=20)
identities = st.binary(min_size=10, max_size=10).filter(any).map(segment_of)


@given(
    parent=st.one_of(st.just(NONE), identities),
    name=identities,
    bitstring=st.binary(max_size=300),
    session=st.one_of(st.none(), names),
    number=st.integers(1, 2**32 - 1),
    moment=st.integers(7, 7 + 2**52 - 1),
    time=st.integers(0, 2**40 - 1),
    tags=st.dictionaries(names, names, max_size=3),
)
def test_records_come_back(
    parent: bytes,
    name: bytes,
    bitstring: bytes,
    session: str | None,
    number: int,
    moment: int,
    time: int,
    tags: dict[str, str],
) -> None:
    builder = Builder(7, b"salt" * 4)
    context = builder.context(Context(0, b"d" * 16, "tenant", b"t" * 16, b"b" * 16, 1))
    r = Record(context, parent, name, len(bitstring), bitstring, session)
    if session is not None:
        r = Record(context, parent, name, 3, bitstring, session, moment, time, record.pack_tags(tags))
    mark = Record(context, mark=Mark(name, number, 1))
    pack = Pack.of(builder.add(r).add(mark).finish())
    assert [item[1] for item in pack.scan() if not isinstance(item, Damage)] == [r, mark]
    assert record.unpack_tags(r.tags) == (
        tags if session is not None else {}
    )


def test_tags_that_are_no_strings_or_too_many_are_refused() -> None:
    with pytest.raises(ContentError, match="strings by strings"):
        record.pack_tags({"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ContentError, match="over the limit"):
        record.pack_tags({"a": "x" * record.MAX_TAGS})
    for wrong in (b"{", b"[]", b'{"a":1}', b"[" * 100_000):
        with pytest.raises(CorruptError, match="tags"):
            record.unpack_tags(wrong)

"""Record: what is written comes back, and tags are strings by strings."""

import pytest
from hypothesis import given, strategies as st

from pltz.archive.format import record
from pltz.archive.format.ids import NO_SEGMENT, segment_of
from pltz.archive.format.pack import Builder, Damage, Pack
from pltz.archive.format.record import Context, Mark, Record
from pltz.plt_codec.errors import ContentError, CorruptError

names = st.text(st.characters(codec="utf-8"), max_size=20)
identities = st.binary(min_size=10, max_size=10).filter(any).map(segment_of)


@given(
    parent=st.one_of(st.just(NO_SEGMENT), identities), name=identities, bitstring=st.binary(max_size=300),
    session=st.one_of(st.none(), names), number=st.integers(1, 2**32 - 1), moment=st.integers(7, 7 + 2**52 - 1),
    time=st.integers(0, 2**40 - 1), part=st.sampled_from(["", "a", "subagents/b.jsonl"]),
    numbers=st.tuples(*[st.integers(0, 2**63 - 1)] * 5), tags=st.dictionaries(names, names, max_size=3),
)
def test_records_come_back(
    parent: bytes, name: bytes, bitstring: bytes, session: str | None, number: int, moment: int, time: int, part: str,
    numbers: tuple[int, int, int, int, int], tags: dict[str, str],
) -> None:
    builder = Builder(7, b"salt" * 2)
    context = builder.context(Context(0, b"d" * 16, "tenant", b"t" * 16, b"b" * 16))
    r = Record(context, parent, name, len(bitstring), bitstring, session)
    *others, first, last = numbers
    turns, size, modified = others
    facts = record.ContentFacts((session or "")[:80], turns, size, modified, first, max(first, last))
    about = part, facts, tags
    if session is not None:
        packed = record.pack_about(*about)
        r = Record(context, parent, name, 3, bitstring, session, moment, time, packed, part=number)
    mark = Record(context, mark=Mark(name + bytes(6), number, 1))
    pack = Pack.of(builder.add(r).add(mark).finish())
    assert [item[1] for item in pack.scan() if not isinstance(item, Damage)] == [r, mark]
    assert record.unpack_about(r.about) == (about if session is not None else ("", record.NOTHING, {}))


@pytest.mark.parametrize("wrong", ["/a", "a/", "a//b", "..", "a/../b", ".", "a/.", "a\0b", "\udc80", "a" * 1025])
def test_paths_of_parts_stay_below_their_session(wrong: str) -> None:
    with pytest.raises(ContentError, match=r"part|Unicode"):
        record.pack_about(wrong)


def test_what_is_known_of_a_part_is_refused_where_it_cannot_be() -> None:
    for content in (record.ContentFacts("t" * 81), record.ContentFacts(turns=-1), record.ContentFacts(mtime=1 << 63)):
        with pytest.raises(ContentError, match="80 characters"):
            record.pack_about("a", content)
    long, tags = b"\x02\x51" + b"t" * 81, (b"\x00a", b"\x80", b"\x80[]", b"\x04\x01\x02{}")
    for data in (b"\x01", b"\x01\x05a", b"\x01\x02..", b"\x01\x01\xff", long, *tags):
        with pytest.raises(CorruptError):
            record.unpack_about(data)


def test_tags_that_are_no_strings_or_too_many_are_refused() -> None:
    with pytest.raises(ContentError, match="strings by strings"):
        record.pack_tags({"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ContentError, match="over the limit"):
        record.pack_tags({"a": "x" * record.MAX_TAGS})
    for wrong in (b"{", b"[]", b'{"a":1}', b"[" * 100_000):
        with pytest.raises(CorruptError, match="tags"):
            record.unpack_tags(wrong)

"""Record: what is written comes back, and any bytes under a right checksum are a record or refused."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pltz.archive.format import record
from pltz.archive.format.context import Context
from pltz.archive.format.ids import NONE
from pltz.archive.format.pack import Builder, Damage, Pack
from pltz.archive.format.record import Mark, Record, RecordPlace
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, VersionError

names = st.text(st.characters(codec="utf-8"), max_size=20)
identities = st.binary(min_size=16, max_size=16)


@given(
    parent=st.one_of(st.just(NONE), identities),
    name=identities,
    bitstring=st.binary(max_size=300),
    session=st.one_of(st.none(), names),
    number=st.integers(1, 2**32 - 1),
    time=st.integers(7, 7 + 2**32 - 1),
    tags=st.dictionaries(names, names, max_size=3),
    epoch=st.integers(0, 2**64 - 1),
)
def test_records_come_back(
    parent: bytes,
    name: bytes,
    bitstring: bytes,
    session: str | None,
    number: int,
    time: int,
    tags: dict[str, str],
    epoch: int,
) -> None:
    builder = Builder(epoch, 7, b"salt" * 4)
    context = builder.context(Context(0, b"d" * 16, "tenant", b"t" * 16, b"b" * 16, 1))
    r = Record(context, parent, name, len(bitstring), bitstring, session)
    if session is not None:
        r = Record(context, parent, name, 3, bitstring, session, number, time, record.pack_tags(tags))
    mark = Record(context, mark=Mark(name, number, 1))
    pack = Pack.of(builder.add(r).add(mark).finish())
    assert [item[1] for item in pack.scan() if not isinstance(item, Damage)] == [r, mark]
    assert pack.head.epoch == epoch and record.unpack_tags(r.tags) == (
        tags if session is not None else {}
    )


@settings(max_examples=300)
@given(st.binary(max_size=100), st.integers(0, 255))
def test_a_record_of_any_bytes_with_a_right_check(body: bytes, flags: int) -> None:
    place = RecordPlace(b"s" * 16, 500, 0, 1, [b"p" * 16])
    raw = bytes([place.mark, flags, len(body)]) + body
    check = zlib.crc32(raw, zlib.crc32(b"s" * 16 + (500).to_bytes(8, "little")))
    try:
        parsed = record.decode(raw + check.to_bytes(4, "little"), 0, place)
    except FormatError:
        return
    assert parsed.size == len(raw) + 4 and parsed.record.tokens <= 65536 * (len(body) + 1)


def test_a_newer_verb_is_refused_by_name() -> None:
    place = RecordPlace(b"s" * 16, 500, 0, 1, [])
    body = b"\0" + b"v" * 16 + b"\1\7"
    raw = bytes([place.mark, 0x80, len(body)]) + body
    check = zlib.crc32(raw, zlib.crc32(b"s" * 16 + (500).to_bytes(8, "little")))
    with pytest.raises(VersionError, match="newer"):
        record.decode(raw + check.to_bytes(4, "little"), 0, place)


def test_a_hostile_size_claims_no_memory() -> None:
    place = RecordPlace(b"s" * 16, 500, 0, 1, [])
    with pytest.raises(CorruptError, match="claims"):
        record.decode(b"s\1\xff\xff\xff\xff\x0f" + bytes(50), 0, place)


def test_tags_that_are_no_strings_or_too_many_are_refused() -> None:
    with pytest.raises(ContentError, match="strings by strings"):
        record.pack_tags({"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ContentError, match="over the limit"):
        record.pack_tags({"a": "x" * record.MAX_TAGS})
    for wrong in (b"{", b"[]", b'{"a":1}', b"[" * 100_000):
        with pytest.raises(CorruptError, match="tags"):
            record.unpack_tags(wrong)

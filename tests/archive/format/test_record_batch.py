"""Columns: many records at once read the same as one by one. The oracle is FORMAT.md's table, field by field."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pltz.archive.format import record, record_batch
from pltz.archive.format.context import Context
from pltz.archive.format.ids import NONE
from pltz.archive.format.pack import Builder, Damage, Pack
from pltz.archive.format.record import Mark, Record, RecordPlace
from pltz.archive.format.record_batch import lay_out
from pltz.archive.format.segment_offsets import SegmentOffsets
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, UsageError
from pltz.plt_codec.varint import write_varint

SALT, BEGIN, TIME = b"s" * 16, 500, 1000
TABLE = [b"p" * 16, b"q" * 16]
CLEAR, SEALED = 0, 1  # numbers of contexts


def place(offset: int = BEGIN) -> RecordPlace:
    return RecordPlace(SALT, offset, TIME, 2, TABLE, frozenset([SEALED]))


def oracle(records: list[Record]) -> bytes:
    """Encode one record after the other, as the table in FORMAT.md says."""
    out, where = b"", dict[bytes, int]()
    for r in records:
        offset = BEGIN + len(out)
        if r.mark:
            flags, body = 0x80, r.mark.version + write_varint(r.mark.counter) + bytes([r.mark.verb])
        else:
            how, parent = 0, b""
            if r.parent in TABLE:
                how, parent = 1, write_varint(TABLE.index(r.parent))
            elif r.parent in where:
                how, parent = 2, write_varint(offset - where[r.parent])
            elif r.parent != NONE:
                how, parent = 3, r.parent
            flags, body = how << 2, parent
            if r.id is not None:
                flags |= 1
                if r.neighbour != NONE:
                    flags, body = flags | 0x80, body + r.neighbour
                body += r.id + write_varint(r.tokens)
                where.setdefault(r.id, offset)
            if r.name is not None:
                flags |= 2
                tag = r.veil or r.name.encode()
                body += write_varint(len(tag)) + tag
                if r.version != 1:
                    flags, body = flags | 0x20, body + write_varint(r.version)
                if r.time != TIME:
                    flags, body = flags | 0x10, body + write_varint(r.time - TIME)
                if r.tags:
                    flags, body = flags | 0x40, body + write_varint(len(r.tags)) + r.tags
            body += r.bitstring
        body = write_varint(r.context) + body
        raw = SALT[:1] + bytes([flags]) + write_varint(len(body)) + body
        out += raw + zlib.crc32(SALT + offset.to_bytes(8, "little") + raw).to_bytes(4, "little")
    return out


ids = st.integers(0, 9).map(lambda n: bytes([65 + n]) * 16)
parents = st.one_of(st.just(NONE), st.sampled_from(TABLE), ids)
sizes = st.sampled_from([0, 1, 60, 90, 100, 104, 105, 106, 107, 108, 109, 110, 127, 128, 300, 16300, 16400])


@st.composite
def rows(draw: st.DrawFn) -> Record:
    if draw(st.integers(0, 9)) == 0:
        counter = draw(st.integers(0, 2**32 - 1))
        return Record(0, mark=Mark(draw(ids), counter, draw(st.integers(0, 1))))
    context, parent = draw(st.integers(0, 1)), draw(parents)
    r = Record(context, parent)
    if segment := draw(st.booleans()):
        r = r._replace(id=draw(ids), tokens=draw(st.integers(0, 65536)), bitstring=b"b" * draw(sizes))
        r = r._replace(neighbour=draw(st.one_of(st.just(NONE), ids)))
    if segment and draw(st.booleans()):
        return r
    number, time = (
        draw(st.sampled_from([1, 2, 128, 2**32 - 1])),
        TIME + draw(st.sampled_from([0, 1, 2**32 - 1])),
    )
    if context == SEALED:
        return r._replace(name="", veil=draw(st.binary(min_size=25, max_size=200)), version=number, time=time)
    tags = draw(st.sampled_from([b"", b"{}", b"l" * 200]))
    name = draw(st.text(st.characters(codec="utf-8"), max_size=100))
    return r._replace(name=name, version=number, time=time, tags=tags)


def laid_out(records: list[Record]) -> tuple[bytes, list[int]]:
    layout = lay_out(records, {p: n for n, p in enumerate(TABLE)}, place())
    out = bytearray(layout.size)
    layout.write(memoryview(out))
    return bytes(out), [0, *layout.ends[:-1].tolist()]


@settings(max_examples=300)
@given(st.lists(rows(), min_size=1, max_size=30))
def test_many_at_once_are_laid_out_and_read_as_one_by_one(records: list[Record]) -> None:
    data, begins = laid_out(records)
    assert data == oracle(records)
    assert record_batch.read(data, np.array(begins), place(), SegmentOffsets()) == records
    for begin, wanted in zip(begins, records, strict=True):
        raw = record.decode(data, begin, place(BEGIN + begin))
        assert raw.how == record.PARENT_BACK or raw.record == wanted


@settings(max_examples=300)
@given(st.lists(rows(), min_size=1, max_size=6), st.data())
def test_damage_with_right_checksums_is_refused_as_one_by_one(
    records: list[Record], data: st.DataObject
) -> None:
    """Change bytes inside a record and correct its checksum: both readers must give the same result."""
    whole, begins = laid_out(records)
    hurt, n = bytearray(whole), data.draw(st.integers(0, len(begins) - 1))
    begin, end = begins[n], [*begins[1:], len(whole)][n]
    for _ in range(data.draw(st.integers(1, 3))):
        hurt[data.draw(st.integers(begin + 1, min(end - 5, begin + 60)))] = data.draw(st.integers(0, 255))
    check = zlib.crc32(SALT + (BEGIN + begin).to_bytes(8, "little") + hurt[begin : end - 4])
    hurt[end - 4 : end] = check.to_bytes(4, "little")
    one_by_one = []
    try:
        for at in begins:
            raw = record.decode(bytes(hurt), at, place(BEGIN + at))
            assert raw.how != record.PARENT_BACK or raw.reference - BEGIN in begins
            one_by_one.append(raw.record)
        expected: list[Record] | None = one_by_one
    except (FormatError, AssertionError):
        expected = None
    try:
        found = record_batch.read(bytes(hurt), np.array(begins), place(), SegmentOffsets())
    except FormatError:
        return  # it may refuse more, and is then read one by one
    assert expected is not None
    assert [r._replace(parent=NONE) for r in found] == [r._replace(parent=NONE) for r in expected]


@given(st.binary(min_size=1, max_size=100), st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True))
def test_any_bytes_are_refused(data: bytes, begins: list[int]) -> None:
    inside = sorted({min(at, len(data) - 1) for at in begins})
    with pytest.raises(CorruptError):
        record_batch.read(data, np.array(inside), place(), SegmentOffsets())


@dataclass(frozen=True)
class Wrong:
    record: Record
    error: type[Exception]
    says: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong(Record(0, NONE, b"i" * 16, 65536 * 3 + 1, b"12"), ContentError, "tokens in 2 bytes"),
        Wrong(Record(0, NONE, b"i" * 16, 1, b"1", "n" * 1025), ContentError, "name of a session has 1025"),
        Wrong(Record(1, NONE, None, 0, b"", "", veil=b"v" * 20000), ContentError, "sealed name"),
        Wrong(Record(0, NONE, None, 0, b"", "n", tags=b"l" * 16385), ContentError, "tags"),
        Wrong(Record(0, NONE, None, 0, b"", "n", time=TIME - 1), UsageError, "lies before"),
        Wrong(Record(0, NONE, None, 0, b"", "n", time=TIME, version=1 << 32), ContentError, "counted up to"),
        Wrong(Record(0, mark=Mark(b"v" * 16, 1 << 32, 0)), ContentError, "counted up to"),
        Wrong(Record(0, NONE, None, 0, b"bits", "n", time=TIME), UsageError, "no bitstring"),
        Wrong(Record(0), UsageError, "no bitstring"),
    ],
    ids=lambda w: w.says,
)
def test_fields_over_a_limit_are_refused(wrong: Wrong) -> None:
    good = Record(0, NONE, b"i" * 16, 1, b"1", "n", time=TIME)
    with pytest.raises(wrong.error, match=wrong.says):
        laid_out([good, wrong.record._replace(time=wrong.record.time or TIME), good])


def test_a_scan_reads_runs_and_goes_one_by_one_only_where_it_must() -> None:
    builder = Builder(0, TIME, SALT)
    builder.context(Context(0, b"d" * 16, "acme", b"t" * 16, b"b" * 16, 1))
    parent = NONE
    for n in range(5000):
        name = n.to_bytes(16, "big")
        builder.add(Record(0, parent, name, 1, b"x" * (n % 50), f"s{n}", 1, TIME))
        parent = name if n % 3 else NONE
    data = builder.finish()
    runs = list(Pack.of(data).runs())
    assert len(runs) == 5 and sum(len(r[0]) for r in runs if not isinstance(r, Damage)) == 5000
    whole = list(Pack.of(data).scan())
    assert [item[1] for item in whole if not isinstance(item, Damage)] == builder.records
    hurt = bytearray(data)
    at = whole[2500]
    assert not isinstance(at, Damage)
    hurt[at[0] + 3] ^= 1
    found = list(Pack.of(bytes(hurt)).scan())
    assert [item for item in found if not isinstance(item, Damage)] == [
        item
        for n, item in enumerate(whole)
        if n != 2500 and not (n == 2501 and builder.records[n].parent == builder.records[2500].id)
    ]  # fmt: skip

"""Block: records come back from columns, as the second reader reads them, and what breaks a rule is refused."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.format import block
from pltz.archive.format.block import Block, PackFields, encode, split
from pltz.archive.format.ids import NO_SEGMENT, segment_of
from pltz.archive.format.record import Mark, Record
from pltz.plt_codec.container.block import pieces_of
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, UsageError, VersionError
from tests.examples import examples
from tests.second_reader import archive, fields

SALT, BEGIN, TIME = b"s" * 16, 500, 1000
MOMENT = (TIME << 20) + 77
TABLE = [segment_of(b"p" * 16), segment_of(b"q" * 16)]
CLEAR, SEALED = 0, 1  # numbers of contexts
FIELDS = PackFields(SALT, MOMENT, 2, TABLE, frozenset([SEALED]))
NUMBERS = {p: n for n, p in enumerate(TABLE)}


def seed(offset: int = BEGIN) -> int:
    return zlib.crc32(SALT + offset.to_bytes(8, "little"))


def as_the_second_reader(data: bytes, count: int) -> list[tuple[Any, ...]]:
    """Return what the second reader finds of each record of a block, less what it makes of names."""
    context = archive.Context(0, 0, 0, False, False, b"", bytes(16), bytes(16), bytes(16), bytes(8))
    found = fields.block(bytes(BEGIN) + data, BEGIN, SALT, archive.COLUMNS)
    with mock.patch.object(archive, "named", lambda record, _: record):
        rows = list(archive._records(found, [context] * 2, TABLE, MOMENT, None))
    assert found.end == BEGIN + len(data) and len(rows) == count
    return [
        (r.kind, r.key, r.tokens, r.mode) if r.kind == archive.MARK
        else (r.kind, r.segment, r.parent, r.tokens, r.data, r.mode, r.name, r.about)
        + ((r.moment, r.time, r.part) if r.kind & archive.SESSION else ())
        for r in rows
    ]


def wanted(r: Record) -> tuple[Any, ...]:
    if r.mark:
        return (archive.MARK, r.mark.version, r.mark.counter, r.mark.verb)
    kind = archive.SEGMENT * (r.id is not None) + archive.SESSION * (r.name is not None)
    title = r.veil or (r.name or "").encode()
    found = kind, r.id or archive.ROOT, r.parent, r.tokens, r.bitstring, r.mode, title, r.about
    return found + ((r.moment, r.time, r.part) if r.name is not None else ())


ids = st.integers(0, 9).map(lambda n: segment_of(bytes([65 + n]) * 16))
parents = st.one_of(st.just(NO_SEGMENT), st.sampled_from(TABLE), ids)
sizes = st.sampled_from([0, 1, 60, 127, 128, 300, 5000, 9000])


@st.composite
def records(draw: st.DrawFn) -> Record:
    if draw(st.integers(0, 9)) == 0:
        counter = draw(st.integers(0, 2**32 - 1))
        version = draw(st.binary(min_size=16, max_size=16))
        return Record(draw(st.integers(0, 1)), mark=Mark(version, counter, draw(st.integers(0, 1))))
    context, parent = draw(st.integers(0, 1)), draw(parents)
    r = Record(context, parent)
    if segment := draw(st.booleans()):
        size, tokens = draw(sizes), draw(st.integers(0, 65536))
        r = r._replace(id=draw(ids), tokens=tokens, bitstring=b"b" * size, mode=draw(st.sampled_from([0, 0, 1, 3])))
    if segment and draw(st.booleans()):
        return r
    moment = MOMENT + draw(st.sampled_from([0, 1, 128, (1 << 20) - 78, 1 << 20, (1 << 51) + 3]))
    time = draw(st.sampled_from([moment >> 20, (moment >> 20) + 1, TIME, 0, 2**32, 2**40 - 1]))
    r = r._replace(moment=moment, time=time, part=draw(st.sampled_from([0, 0, 1, 2**32 - 1])))
    if context == SEALED:
        return r._replace(name="", veil=draw(st.binary(min_size=25, max_size=200)))
    name = draw(st.text(st.characters(codec="utf-8"), max_size=100))
    return r._replace(name=name, about=draw(st.sampled_from([b"", b"{}", b"l" * 200])))


def encoded(rows: Sequence[Record]) -> bytes:
    return b"".join(encode(rows, NUMBERS, BEGIN, FIELDS))


@settings(max_examples=examples(150), deadline=None)
@given(st.one_of(st.lists(records(), min_size=1, max_size=20), st.lists(records(), min_size=1, max_size=1)))
def test_records_are_stored_as_specified_and_come_back(rows: list[Record]) -> None:
    data = encoded(rows)
    assert as_the_second_reader(data, len(rows)) == [wanted(row) for row in rows]
    found = Block.of(data, BEGIN, FIELDS)
    body = data[found.size :]
    assert found.end == BEGIN + len(data) and found.count == len(rows) and found.records(body) == rows
    assert found.heads() == [r._replace(bitstring=b"") for r in rows]
    for row, given_row in enumerate(rows):
        piece = found.piece(row)
        part = body[piece.begin : piece.end] if piece else b""
        assert not piece or found.sound(piece, part)
        assert found.record(row, piece, part) == given_row and found.record(row) == given_row._replace(bitstring=b"")
        if given_row.id:
            assert row in found.rows_of(given_row.id)
        if given_row.name is not None:
            assert row in found.rows_named(given_row.veil[:8] or given_row.name.encode())
    assert found.rows_of(segment_of(b"z" * 16)) == []
    assert [bytes(i) for i in found.segment_ids()] == [r.id for r in rows if r.id]
    assert found.versions() == [r.mark.version for r in rows if r.mark]
    named = {*found.parents()} - {NO_SEGMENT}
    assert named - {r.id for r in rows} <= set(found.elsewhere()) <= named


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(records(), min_size=1, max_size=6), st.data())
def test_a_damaged_head_with_a_right_check_gives_records_or_is_refused(rows: list[Record], data: st.DataObject) -> None:
    whole = encoded(rows)
    size, hurt = Block.of(whole, BEGIN, FIELDS).size, bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        hurt[data.draw(st.integers(2, min(size - 5, 60)))] = data.draw(st.integers(0, 255))
    hurt[size - 4 : size] = zlib.crc32(hurt[: size - 4], seed()).to_bytes(4, "little")
    try:
        found = Block.of(bytes(hurt), BEGIN, FIELDS)
        read = found.records(bytes(hurt[found.size : found.size + found.body]))
    except FormatError:
        return
    assert len(read) == found.count
    for r in read:
        assert r.mark or 0 <= r.tokens <= 65536 * (len(r.bitstring) + 1)
        assert r.context < 2 and len(r.about) <= 17778 and len((r.name or "").encode()) <= 1024


def resealed(data: bytes, change: dict[int, int]) -> bytes:
    """Return a block of one piece with bytes of its head changed and its check made right."""
    size, out = Block.of(data, BEGIN, FIELDS).size, bytearray(data)
    for at, value in change.items():
        out[at] = value
    out[size - 4 : size] = zlib.crc32(out[: size - 4], seed()).to_bytes(4, "little")
    return bytes(out)


def test_newer_columns_kinds_and_verbs_are_refused_by_name() -> None:
    data = encoded([Record(0, mark=Mark(b"v" * 16, 1, 1))])
    # mark 2, sizes 2, records 1, columns 2, then kind, counter and verb
    assert data[:10] == SALT[:2] + bytes([len(data) - 8, 0, 1, 0x11, 0x04, 4, 1, 1])
    for change in ({6: 0x44}, {7: 5}, {9: 2}):
        with pytest.raises(VersionError, match="newer pltz"):
            Block.of(resealed(data, change), BEGIN, FIELDS)
    with pytest.raises(CorruptError, match="has 0 records"):
        Block.of(resealed(data, {4: 0}), BEGIN, FIELDS)
    with pytest.raises(CorruptError, match="has 129 records"):
        Block.of(resealed(data, {4: 129}), BEGIN, FIELDS)


def test_a_field_that_a_kind_of_record_has_not_is_refused() -> None:
    named = encoded([Record(0, name="n", moment=MOMENT, time=TIME)])
    # mark 2, sizes 2, records 1, columns 2, then kind and length of the name
    assert named[5:10] == bytes([0x41, 0x00, 2, 1, 0x6E])
    crafted = named[:2] + bytes([named[2] + 1]) + named[3:6] + b"\x04" + named[7:9] + b"\1" + named[9:-4]
    with pytest.raises(CorruptError, match="has a field that its kind of record has not"):
        Block.of(crafted + zlib.crc32(crafted, seed()).to_bytes(4, "little"), BEGIN, FIELDS)
    unknown = named[:2] + bytes([named[2] + 1]) + named[3:6] + b"\x40" + named[7:9] + b"\1" + named[9:-4]
    with pytest.raises(VersionError, match="newer pltz"):
        Block.of(unknown + zlib.crc32(unknown, seed()).to_bytes(4, "little"), BEGIN, FIELDS)


def test_hostile_sizes_claim_no_memory() -> None:
    for sizes in (b"\xff\xff\xff\xff\x0f\0", b"\1\xff\xff\xff\xff\x0f", b"\x80\x80\x20\0"):
        with pytest.raises(CorruptError, match=r"at most|more than fit"):
            Block.of(SALT[:2] + sizes + bytes(50), BEGIN, FIELDS)


@pytest.mark.parametrize(
    "wrong", [(block.BACK, 0), (block.BACK, 1), (block.BACK, 3), (block.TABLE, 2), (block.ABSENT, 1), (4, 0)]
)
def test_references_to_no_earlier_segment_are_refused(wrong: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    middle = Record(0, name="no segment", moment=MOMENT, time=TIME)
    rows = [Record(0, NO_SEGMENT, TABLE[0]), middle, Record(0, NO_SEGMENT, TABLE[1])]
    monkeypatch.setattr(block, "_references", lambda *_: [(block.ABSENT, 0), (block.ABSENT, 0), wrong])
    with pytest.raises(CorruptError, match=r"reference|segment"):
        Block.of(encoded(rows), BEGIN, FIELDS)


@dataclass(frozen=True)
class Wrong:
    record: Record
    error: type[Exception]
    match: str


@pytest.mark.parametrize("wrong", [
    Wrong(Record(0, NO_SEGMENT, TABLE[0], 65536 * 3 + 1, b"12"), ContentError, "tokens in 2 bytes"),
    Wrong(Record(0, NO_SEGMENT, TABLE[0], 1, b"1", "n" * 1025, MOMENT, TIME), ContentError, "a session has 1025"),
    Wrong(Record(1, NO_SEGMENT, None, 0, b"", "", MOMENT, TIME, veil=b"v" * 20000), ContentError, "sealed name"),
    Wrong(Record(0, NO_SEGMENT, None, 0, b"", "n", MOMENT, TIME, about=b"l" * 17779), ContentError, "tags"),
    Wrong(Record(0, name="n", moment=MOMENT - 1, time=TIME), UsageError, "before its pack's moment"),
    Wrong(Record(0, name="n", moment=MOMENT + (1 << 52), time=1 << 32), UsageError, "or a century after"),
    Wrong(Record(0, name="n", moment=MOMENT, time=1 << 40), UsageError, "below 2\\^40"),
    Wrong(Record(0, name="n", moment=MOMENT, time=-1), UsageError, "since 1970"),
    Wrong(Record(0, mark=Mark(b"v" * 16, 1 << 32, 0)), ContentError, "counted up to"),
    Wrong(Record(0, NO_SEGMENT, None, 0, b"bits", "n", MOMENT, TIME), UsageError, "no bitstring"),
    Wrong(Record(0), UsageError, "no bitstring"),
    Wrong(Record(0, NO_SEGMENT, b"i" * 16, 1, b"1"), UsageError, "10 bytes"),
    Wrong(Record(0, b"p" * 16, name="n", moment=MOMENT, time=TIME), UsageError, "10 bytes"),
])
def test_what_the_format_cannot_hold_is_refused(wrong: Wrong) -> None:
    good = Record(0, NO_SEGMENT, segment_of(b"i" * 16), 1, b"1", "n", MOMENT, TIME)
    with pytest.raises(wrong.error, match=wrong.match):
        encode([good, wrong.record, good], NUMBERS, BEGIN, FIELDS)


def test_blocks_end_by_records_text_and_bytes() -> None:
    plain = [Record(0, bitstring=b"b")] * 300
    assert [(s.start, s.stop) for s in split(plain)] == [(0, 128), (128, 256), (256, 300)]
    text = [Record(0, name="n", about=b"t" * 16384)] * 9
    assert [(s.start, s.stop) for s in split(text)] == [(0, 4), (4, 8), (8, 9)]
    long = [Record(0, bitstring=bytes(700_000))] * 3
    assert [(s.start, s.stop) for s in split(long)] == [(0, 2), (2, 3)]
    assert [(p.first, p.last, p.end - p.begin) for p in pieces_of([4095, 1, 0, 4096, 5, 0])] == [
        (0, 2, 4096), (2, 4, 4096), (4, 6, 5),
    ]
    assert list(pieces_of([0, 0])) == []

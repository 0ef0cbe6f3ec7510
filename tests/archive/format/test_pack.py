"""Pack: nothing that a pack holds can change unnoticed, and what is sound is read past damage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pltz.archive.format.context import Context
from pltz.archive.format.ids import NONE, digest
from pltz.archive.format.pack import Builder, Damage, Pack
from pltz.archive.format.record import Mark, Record
from pltz.plt_codec.errors import CorruptError, FormatError


def pack_of(sessions: int, salt: bytes = b"s" * 16, *, marked: bool = False) -> bytes:
    """Return a pack of a tower of segments, each with a session, and a mark where it is to be ``marked``."""
    builder = Builder(0, 100, salt)
    context = builder.context(Context(0, b"d" * 16, "acme", b"t" * 16, b"b" * 16, 1))
    parent = NONE
    for n in range(sessions):
        name = digest(b"test", bytes([n]))
        builder.add(Record(context, parent, name, 5, b"payload %d" % n, f"s{n}", 1, 100))
        parent = name
    if marked:
        builder.add(Record(context, mark=Mark(parent, 1, 1)))
    return builder.finish()


def test_every_flipped_bit_is_detected() -> None:
    data = bytearray(pack_of(3, marked=True))
    name = Pack.of(bytes(data)).verify()
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        try:
            assert Pack.of(bytes(data)).verify() != name, bit
        except FormatError:
            pass
        data[bit // 8] ^= 1 << bit % 8


def test_every_cut_length_is_refused() -> None:
    data = pack_of(3, marked=True)
    for cut in range(len(data)):
        try:
            Pack.of(data[:cut]).verify()
        except FormatError:
            continue
        raise AssertionError(f"a pack cut to {cut} bytes is accepted")


def test_a_pack_reads_past_damage() -> None:
    data = pack_of(10)
    whole = [item for item in Pack.of(data).scan() if not isinstance(item, Damage)]
    assert len(whole) == 10
    hurt = bytearray(data)
    hurt[whole[3][0] + 4] ^= 0xFF
    found = list(Pack.of(bytes(hurt)).scan())
    damage = [item for item in found if isinstance(item, Damage)]
    assert [item.offset for item in damage] == [
        whole[3][0],
        whole[4][0],
    ]  # the record, and the child that names it
    assert [item[1].name for item in found if not isinstance(item, Damage)] == [
        f"s{n}" for n in (0, 1, 2, 5, 6, 7, 8, 9)
    ]


@pytest.mark.parametrize("half", ["front", "back"])
def test_either_header_is_enough(half: str) -> None:
    data = bytearray(pack_of(3))
    at = 10 if half == "front" else len(data) - 40
    data[at] ^= 1
    pack = Pack.of(bytes(data))
    assert sum(1 for item in pack.scan() if not isinstance(item, Damage)) == 3
    assert pack.damaged_copies
    with pytest.raises(CorruptError, match="header"):
        pack.verify()


def test_a_bitstring_that_looks_like_a_record_is_none() -> None:
    inner = pack_of(1, b"x" * 16)
    begin, end = Pack.of(inner).begin, Pack.of(inner).end
    builder = Builder(0, 100, b"s" * 16)
    context = builder.context(Context(0, b"d" * 16, "acme", b"t" * 16, b"b" * 16, 1))
    builder.add(Record(context, NONE, b"i" * 16, 5, inner[begin:end] * 50, "victim", 1, 100))
    data = bytearray(builder.finish())
    data[Pack.of(bytes(data)).begin + 3] ^= 1
    assert all(isinstance(item, Damage) for item in Pack.of(bytes(data)).scan())


@settings(max_examples=200)
@given(st.data())
def test_a_pack_with_bytes_changed_gives_its_own_records_or_none(data: st.DataObject) -> None:
    original = pack_of(4)
    truth = {item[1] for item in Pack.of(original).scan() if not isinstance(item, Damage)}
    hurt = bytearray(original)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(hurt) - 1))
        hurt[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    try:
        found = {item[1] for item in Pack.of(bytes(hurt)).scan() if not isinstance(item, Damage)}
    except FormatError:
        return
    assert found <= truth

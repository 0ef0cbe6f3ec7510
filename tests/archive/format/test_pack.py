"""Pack: nothing that a pack holds can change unnoticed, and what is sound is read past damage."""

import zlib

import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.format.block import Block
from pltz.archive.format.ids import NO_SEGMENT, segment_of
from pltz.archive.format.pack import FOOTER, HEADER, Builder, Damage, Pack
from pltz.archive.format.parity import COPIED
from pltz.archive.format.record import Context, Mark, Record
from pltz.plt_codec.errors import CorruptError, FormatError
from pltz.plt_codec.identity import digest
from tests.examples import examples


def pack_of(sessions: int, salt: bytes = b"s" * 8, *, marked: bool = False) -> bytes:
    """Return a pack of a tower of segments, each with a session, and a mark where it is to be ``marked``."""
    builder = Builder(100 << 20, salt)
    context = builder.context(Context(0, b"d" * 16, "acme", b"t" * 16, b"b" * 16))
    parent = NO_SEGMENT
    for n in range(sessions):
        name = segment_of(digest(b"test", n.to_bytes(2, "big")))
        builder.add(Record(context, parent, name, 5, b"payload %d" % n, f"s{n}", 100 << 20, 100))
        parent = name
    if marked:
        builder.add(Record(context, mark=Mark(bytes(16), 1, 1)))
    return builder.finish()


def blocks_of(data: bytes) -> list[Block]:
    return [item[0] for item in Pack.of(data).blocks() if not isinstance(item, Damage)]


def names_in(data: bytes) -> set[str | None]:
    return {item[1].name for item in Pack.of(data).scan() if not isinstance(item, Damage)}


def test_a_damaged_head_costs_the_records_of_its_block() -> None:
    data = pack_of(300)
    blocks = blocks_of(data)
    assert [block.count for block in blocks] == [128, 128, 44]
    for at in (blocks[1].offset, blocks[1].offset + 2, blocks[1].offset + blocks[1].size - 1):
        hurt = bytearray(data)
        hurt[at] ^= 0xFF
        found = [item for item in Pack.of(bytes(hurt)).scan() if isinstance(item, Damage)]
        assert [(item.offset, item.size) for item in found] == [(blocks[1].offset, blocks[1].end - blocks[1].offset)]
        assert names_in(bytes(hurt)) == {f"s{n}" for n in range(300) if not 128 <= n < 256}


def test_a_damaged_piece_of_a_body_costs_its_records() -> None:
    builder = Builder(100 << 20, b"s" * 8)
    context = builder.context(Context(0, b"d" * 16, "acme", b"t" * 16, b"b" * 16))
    ids = [segment_of(digest(b"test", bytes([n]))) for n in range(20)]
    for n, name in enumerate(ids):
        builder.add(Record(context, NO_SEGMENT, name, 5, bytes([n]) * 1000, f"s{n}", 100 << 20, 100))
    data = bytearray(builder.finish())
    [block] = blocks_of(bytes(data))
    assert [(p.first, p.last) for p in block.pieces] == [(0, 5), (5, 10), (10, 15), (15, 20)]
    data[block.offset + block.size + 5500] ^= 1
    pack = Pack.of(bytes(data))
    [damage] = [item for item in pack.scan() if isinstance(item, Damage)]
    assert (damage.offset, damage.size) == (block.offset + block.size + 5000, 5000)
    assert names_in(bytes(data)) == {f"s{n}" for n in (*range(5), *range(10, 20))}
    assert pack.of_block(block, 4).bitstring == bytes([4]) * 1000
    with pytest.raises(CorruptError, match="bitstrings"):
        pack.of_block(block, 5)


def test_headers_that_differ_are_damage_though_each_is_whole() -> None:
    """The first one is used. A pack that is made so has a digest, so only a comparison tells."""
    data = bytearray(pack_of(200))
    at = len(data) - FOOTER.size - HEADER.size
    header = [*HEADER.unpack(data[at : at + HEADER.size])]
    table = Pack.of(bytes(data)).begin - HEADER.size
    header[2] += 1  # moment
    fresh = HEADER.pack(*header)[:-4]
    data[at : at + HEADER.size] = fresh + zlib.crc32(data[at - table : at], zlib.crc32(fresh)).to_bytes(4, "little")
    pack = Pack.of(bytes(data))
    assert pack.head.moment == header[2] - 1 and pack.damaged_copies == ["second header"]
    with pytest.raises(CorruptError, match="second header"):
        pack.verify()
    data[10] ^= 1
    assert Pack.of(bytes(data)).head.moment == header[2]


def test_one_sound_header_is_enough_for_a_reader_of_records() -> None:
    """It does not read the second copy, and takes that where the first is damaged."""
    data, asked = bytearray(pack_of(200)), list[int]()

    def read(offset: int, size: int) -> bytes:
        asked.append(offset)
        return bytes(data[offset : offset + size])

    assert Pack(read, len(data), both=False).head == Pack.of(bytes(data)).head and asked == [0]
    data[10] ^= 1
    assert Pack(read, len(data), both=False).damaged_copies == ["header"] and max(asked) > 0


def test_a_small_pack_has_its_header_once() -> None:
    """Its parity is a copy, which has another one."""
    data = bytearray(pack_of(3))
    assert len(data) <= COPIED < len(pack_of(200)) and data.count(b"PLTp") == 1 and pack_of(200).count(b"PLTp") == 2
    data[10] ^= 1
    with pytest.raises(CorruptError, match="header"):
        Pack.of(bytes(data))


def test_a_bitstring_that_looks_like_a_record_is_none() -> None:
    inner = pack_of(1, b"x" * 8)
    begin, end = Pack.of(inner).begin, Pack.of(inner).end
    builder = Builder(100 << 20, b"s" * 8)
    context = builder.context(Context(0, b"d" * 16, "acme", b"t" * 16, b"b" * 16))
    builder.add(Record(context, NO_SEGMENT, segment_of(b"i" * 16), 5, inner[begin:end] * 50, "victim", 100 << 20, 100))
    data = bytearray(builder.finish())
    data[Pack.of(bytes(data)).begin + 3] ^= 1
    assert all(isinstance(item, Damage) for item in Pack.of(bytes(data)).scan())


@settings(max_examples=examples(200))
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

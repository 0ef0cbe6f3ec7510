"""Index: both kinds find what a dictionary does, in every section, and a damaged file never hides an entry."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.format import index_file
from pltz.archive.format.index_file import Entries, FileIndex, Location, Lookup, MemoryIndex, build, key_of
from pltz.archive.format.pack import MAX_SIZE
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from tests.examples import examples
from tests.golden.indexes import make

GOLDEN = Path(make.__file__).parent
PACKS = [bytes([n]) * 16 for n in range(3)]
SIZE = 1 << 20  # bytes of each
Row = tuple[int, int, int, int]  # section, number of an identity, pack, offset
rows = st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 2), st.integers(0, SIZE - 1))


def identity(number: int) -> bytes:
    """Return an id. Ids of 0..255 share their first three bytes, and 256 has the key of 0."""
    return b"%3d" % (number // 257) + bytes([number % 256]) + b"%12d" % number


def filled(entries: list[Row]) -> MemoryIndex:
    """Return an index in memory of three packs."""
    memory = MemoryIndex()
    for n, pack in enumerate(PACKS):
        mine = [(s, identity(i), at) for s, i, p, at in entries if p == n]
        memory.add_pack(pack, SIZE, index_file.by_section(mine))
    return memory


def places(entries: list[Row]) -> dict[tuple[int, int], set[Location]]:
    """Return the places by section and key."""
    found: dict[tuple[int, int], set[Location]] = {}
    for section, number, pack, at in entries:
        found.setdefault((section, key_of(identity(number))), set()).add(Location(PACKS[pack], at))
    return found


def check(index: Lookup, entries: list[Row]) -> None:
    """Compare an index with a dictionary."""
    wanted = places(entries)
    assert index.packs == dict.fromkeys(PACKS, SIZE)
    ids = [identity(n) for n in range(301)]
    for section in range(3):
        has = index.has(section, index_file.keys_in(ids)).tolist()
        for one, there in zip(ids, has, strict=True):
            found = wanted.get((section, key_of(one)), set())
            assert set(index.find(section, one)) == found and there == bool(found)
        mine = {(key, place) for (s, key), known in wanted.items() if s == section for place in known}
        assert set(index.entries(section)) == mine
        assert index.holds(section) == bool(mine)


@settings(max_examples=examples(40))
@given(st.lists(rows, max_size=120))
def test_both_kinds_find_what_a_dictionary_does(entries: list[Row]) -> None:
    memory = filled(entries)
    check(memory, entries)
    for bound in make.BOUNDS.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_file, "RANGED", bound)
            data = build([memory], dict(memory.packs))
            index = FileIndex.of(data)
            check(index, entries)
            assert index.verify() == data[-16:]
            assert build([index, memory], dict(memory.packs)) == data  # entries are kept once


def test_many_entries_in_pieces_and_of_packs_that_are_gone() -> None:
    dice = np.random.default_rng(4)
    memory = MemoryIndex()
    ids = [dice.bytes(16) for _ in range(20_000)]
    offsets = dice.integers(0, SIZE, len(ids)).tolist()
    for n, pack in enumerate(PACKS):
        memory.add_pack(pack, SIZE, {0: Entries.of(ids[n::3], offsets[n::3])})
    kept = {pack: SIZE for pack in PACKS[:2]}
    index = FileIndex.of(build([memory], kept))
    for n in range(0, len(ids), 7):
        found = index.find(0, ids[n])
        assert (Location(PACKS[n % 3], offsets[n]) in found) == (n % 3 < 2)
    keys = index_file.keys_in(ids)
    there = index.has(0, keys)
    assert there[0::3].all() and there[1::3].all() and there[2::3].sum() < 3


@pytest.mark.parametrize("bound", make.BOUNDS.values())
def test_a_flipped_bit_raises_or_changes_nothing(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "RANGED", bound)
    entries = [(n % 3, n, n % 2, 999 * n) for n in range(40)]
    memory = filled(entries)
    data = bytearray(build([memory], dict(memory.packs)))
    wanted = places(entries)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        try:
            index = FileIndex.of(bytes(data))
            found = {(s, key_of(identity(n))): set(index.find(s, identity(n))) for s, n, _, _ in entries}
            assert found == wanted, bit
        except (CorruptError, VersionError):
            pass
        with pytest.raises((CorruptError, VersionError)):
            FileIndex.of(bytes(data)).verify()
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("version", index_file.VERSIONS.by_version)
def test_each_version_that_is_read_has_a_golden_file(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (GOLDEN / f"version-{version}.index").read_bytes()
    index, known = FileIndex.of(data), make.entries()
    assert index.packs == make.PACKS and index.verify() == data[-16:]
    for section in range(3):
        held = {(key, at) for key, at in known.entries(section)}
        assert set(index.entries(section)) == held and len(index.addressed(section)[0]) == len(held)
        keys = known.columns(section)[0]
        assert index.has(section, keys).all() and not index.has(section, keys ^ np.uint64(1 << 35)).any()
        for key in keys[::50].tolist():
            one = (key << 28).to_bytes(8, "big") + bytes(8)
            assert set(index.find(section, one)) == set(known.find(section, one)) != set()
    for written, bound in make.BOUNDS.items():
        monkeypatch.setattr(index_file, "RANGED", bound)
        assert (build([index], dict(index.packs)) == data) == (version == written)


@pytest.mark.parametrize("version", index_file.VERSIONS.by_version)
def test_damage_of_any_page_is_named_when_it_is_met(version: int) -> None:
    """Look-ups that need other pages go on."""
    data = (GOLDEN / f"version-{version}.index").read_bytes()
    whole, known = FileIndex.of(data), make.entries().columns(index_file.SEGMENTS)[0][::90].tolist()
    ids = [(key << 28).to_bytes(8, "big") + bytes(8) for key in known]
    right = wrong = 0
    for at in range(200, len(data) - 16, 997):
        spoiled = FileIndex.of(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        for one in ids:
            try:
                assert spoiled.find(index_file.SEGMENTS, one) == whole.find(index_file.SEGMENTS, one)
                right += 1
            except CorruptError as exc:
                assert "does not match its checksum" in str(exc)
                wrong += 1
        with pytest.raises(CorruptError, match="does not match its checksum"):
            spoiled.verify()
    assert right > 100 and wrong > 100


def test_a_page_in_the_place_of_another_is_damage() -> None:
    memory = filled([(0, 5, 0, 99), (1, 5, 0, 99)])
    data = build([memory], dict(memory.packs))
    first, second = data[-42:-29], data[-29:-16]  # of a fan of 4 bytes, an entry of 5, and a crc
    assert first[:-4] == second[:-4] and first != second
    for swapped in (second + first, first + first, second + second):
        with pytest.raises(CorruptError, match=r"page [12] of the index does not match"):
            FileIndex.of(data[:-42] + swapped + data[-16:]).verify()


def crafted(data: bytes, at: int, value: int) -> FileIndex:
    """Return an index with another u32 at a place of a page, whose checks hold."""
    whole, out = FileIndex.of(data), bytearray(data)
    out[at : at + 4] = value.to_bytes(4, "little")
    for unit, (begin, size) in enumerate(zip(whole._page_begins.tolist(), whole._page_sizes.tolist(), strict=True)):
        check = zlib.crc32(out[begin : begin + size], (whole._check_start + 1 + unit) & 0xFFFFFFFF)
        out[begin + size : begin + size + 4] = check.to_bytes(4, "little")
    return FileIndex.of(bytes(out))


def test_a_bucket_that_ends_behind_its_page_is_refused() -> None:
    memory, nothing = MemoryIndex(), Entries.of([], [])
    keys = np.arange(9000, dtype=np.uint64) * np.uint64((1 << 36) // 9000)
    memory.add_pack(PACKS[0], SIZE, {0: Entries(keys, np.arange(9000, dtype=np.uint64)), 1: nothing, 2: nothing})
    data = build([memory], dict(memory.packs))
    section = FileIndex.of(data)._sections[0]
    assert section.entries.tolist() == [0, 4501, 9000]
    last = int(section.begins[0]) + section.fan_size - 4
    spoiled = crafted(data, last, int(section.entries[1]) + 1)
    key = ((1 << 35) - 1 << 28).to_bytes(8, "big") + bytes(8)  # the last one of the first page
    for look in (lambda: spoiled.find(0, key), lambda: spoiled.has(0, index_file.keys_in([key]))):
        with pytest.raises(CorruptError, match="out of order"):
            look()


def test_a_block_that_the_index_has_not_is_refused() -> None:
    memory = filled([(0, 7, 0, 10 * n) for n in range(3)])
    data = build([memory], dict(memory.packs))
    section = FileIndex.of(data)._sections[0]
    assert (section.low, section.fan_size) == (2, 4)
    at = int(section.begins[0]) + 4
    entry = int.from_bytes(data[at : at + 4], "little")
    assert entry & 3 == 0
    with pytest.raises(CorruptError, match="a block that it has not"):
        crafted(data, at, entry | 3).find(0, identity(7))


@pytest.mark.parametrize("version", [index_file.BY_BLOCK, index_file.BY_ADDRESS])
def test_many_entries_of_one_key_are_found_in_one_look(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of 20,000 versions in as many blocks took seconds, and a crafted bucket hours."""
    monkeypatch.setattr(index_file, "RANGED", 0 if version == index_file.BY_ADDRESS else 1 << 60)
    rows = [(1, 7, 0, 4 * n) for n in range(20_000)] + [(1, n, 1, 9) for n in range(200) if n != 7]
    memory = filled(rows)
    index = FileIndex.of(build([memory], dict(memory.packs)))
    begin = time.process_time()
    assert sorted(index.find(1, identity(7))) == [Location(PACKS[0], 4 * n) for n in range(20_000)]
    assert time.process_time() - begin < 0.5
    assert [index.find(1, identity(n)) for n in (6, 8)] == [[Location(PACKS[1], 9)]] * 2


def test_packs_of_more_bytes_than_an_index_covers_are_refused() -> None:
    names = (n.to_bytes(16, "big") for n in range(index_file.MAX_BYTES // MAX_SIZE))
    table = b"".join(index_file.PACK.pack(name, MAX_SIZE) for name in names)
    head = index_file.HEADER.pack(index_file.MAGIC, index_file.BY_ADDRESS, 0, 0, len(table) // 20, 0, 0, 0, 0, 0)[:-4]
    check = zlib.crc32(table, zlib.crc32(head)).to_bytes(4, "little")
    with pytest.raises(CorruptError, match="more bytes than an index covers"):
        FileIndex.of(head + check + table + bytes(20))


def test_a_newer_version_is_refused_by_name() -> None:
    head = index_file.HEADER.pack(index_file.MAGIC, index_file.BY_ADDRESS + 1, 4, 0, 0, 0, 0, 0, 0, 0)[:-4]
    with pytest.raises(VersionError, match="newer pltz"):
        FileIndex.of(head + zlib.crc32(head).to_bytes(4, "little") + bytes(16))


@pytest.mark.parametrize("version", index_file.VERSIONS.by_version)
def test_hostile_counts_claim_no_memory(version: int) -> None:
    width = 0 if version == index_file.BY_ADDRESS else 4
    head = index_file.HEADER.pack(
        index_file.MAGIC, version, width, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0
    )
    with pytest.raises(CorruptError, match="does not fit"):
        FileIndex.of(head + bytes(16))
    for counts in ((0, 0xFFFFFFFF, 0, 0), (0xFFFFFFFF, 0, 0, 0), (0, 1, 0, 0)):
        head = index_file.HEADER.pack(index_file.MAGIC, version, width, 0, 0, *counts, 0)[:-4]
        with pytest.raises(FormatError, match=r"expected an index of|do not fit|table of pages|of a newer version"):
            FileIndex.of(head + zlib.crc32(head).to_bytes(4, "little") + bytes(30))


@settings(max_examples=examples(60))
@given(st.sampled_from([*make.BOUNDS]), st.integers(0, 9), st.integers(0, 1 << 32), st.integers(-1, 0))
def test_pages_that_a_table_puts_elsewhere_are_refused(version: int, at: int, value: int, shift: int) -> None:
    """A head whose checks hold, as who crafts an index would make it."""
    data = (GOLDEN / f"version-{version}.index").read_bytes()
    whole, begin = FileIndex.of(data), 32 + 20 * len(make.PACKS)
    ends = np.frombuffer(data, "<u4", 4, begin).copy()
    ends[at % 4] = min(value, 0xFFFFFFFF) if at > 3 else max(0, int(ends[at]) + shift)
    check = zlib.crc32(ends.tobytes(), int.from_bytes(data[28:32], "little"))
    crafted = data[:begin] + ends.tobytes() + check.to_bytes(4, "little") + data[begin + 20 :]
    keys = make.entries().columns(index_file.SEGMENTS)[0][::900]
    try:
        index = FileIndex.of(crafted)
        assert (index.has(index_file.SEGMENTS, keys) == whole.has(index_file.SEGMENTS, keys)).all()
        assert crafted == data
    except CorruptError:
        assert crafted != data

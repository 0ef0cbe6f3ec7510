"""Index: both kinds find what a dictionary does, in every section, and a damaged file never hides an entry."""

import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.archive.format import index_file
from pltz.archive.format.byte_source import Held
from pltz.archive.format.index_file import Entries, FileIndex, Location, Lookup, MemoryIndex, build, key_of
from pltz.archive.format.pack import MAX_SIZE
from pltz.plt_codec.errors import CorruptError, FormatError, VersionError
from tests.examples import examples
from tests.golden.indexes import make

GOLDEN = Path(make.__file__).parent / f"version-{index_file.VERSION}.index"
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
        assert set(index.entries(section)) == mine and index.holds(section) == bool(mine)


@settings(max_examples=examples(40))
@given(st.lists(rows, max_size=120))
def test_both_kinds_find_what_a_dictionary_does(entries: list[Row]) -> None:
    memory = filled(entries)
    check(memory, entries)
    data = build([memory], dict(memory.packs))
    index = FileIndex.of(data)
    check(index, entries)
    assert index.verify().hex() == index_file.name_of(data)
    assert build([index, memory], dict(memory.packs)) == data  # entries are kept once


def test_each_version_that_is_read_has_a_golden_file() -> None:
    data = GOLDEN.read_bytes()
    index, known = FileIndex.of(data), make.entries()
    assert index.packs == make.PACKS and index.verify().hex() == index_file.name_of(data)
    for section in range(3):
        held = {(key, at) for key, at in known.entries(section)}
        assert set(index.entries(section)) == held and len(index.addressed(section)[0]) == len(held)
        keys = known.columns(section)[0]
        assert index.has(section, keys).all() and not index.has(section, keys ^ np.uint64(1 << 35)).any()
        for key in keys[::50].tolist():
            one = (key << 28).to_bytes(8, "big") + bytes(8)
            assert set(index.find(section, one)) == set(known.find(section, one)) != set()
    assert build([index], dict(index.packs)) == data


def test_a_page_in_the_place_of_another_is_damage() -> None:
    memory = filled([(0, 5, 0, 99), (1, 5, 0, 99)])
    data = build([memory], dict(memory.packs))
    size = (len(data) - (index_file.HEADER.size + 3 * 20 + 3 * 4)) // 2  # of a page of one entry, and its crc
    first, second = data[-2 * size : -size], data[-size:]
    assert first[:-4] == second[:-4] and first != second
    for swapped in (second + first, first + first, second + second):
        index = FileIndex.of(data[: -2 * size] + swapped)
        with pytest.raises(CorruptError, match=r"page [01] of the index does not match"):
            [index.find(section, identity(5)) for section in (0, 1)]


def crafted(data: bytes, at: int, value: int) -> FileIndex:
    """Return an index with another byte at a place of its last page, whose checks hold."""
    whole, out = FileIndex.of(data), bytearray(data)
    out[at] = value
    section = [s for s in whole._sections if s.size][-1]
    begin, unit = int(section.begins[-2]), section.first + len(section.begins) - 2
    check = zlib.crc32(out[begin:-4], (whole._check_start + 1 + unit) & 0xFFFFFFFF)
    return FileIndex.of(bytes(out[:-4]) + check.to_bytes(4, "little"))


def test_entries_that_a_page_has_not_are_refused() -> None:
    memory = filled([(0, 7, 0, 10 * n) for n in range(3)])
    data = build([memory], dict(memory.packs))
    begin = int(FileIndex.of(data)._sections[0].begins[0])
    for value, told in ((0, "not the entries it claims"), (0xFF, "not the entries it claims")):
        with pytest.raises(CorruptError, match=told):
            crafted(data, begin, value).find(0, identity(7))
    with pytest.raises(CorruptError, match="points behind its packs"):
        crafted(data, len(data) - 5, 0xFF).find(0, identity(7))


def test_many_entries_of_one_key_are_found_in_one_look() -> None:
    """A session of 20,000 versions in as many blocks took seconds, and a crafted bucket hours."""
    rows = [(1, 7, 0, 4 * n) for n in range(20_000)] + [(1, n, 1, 9) for n in range(200) if n != 7]
    memory = filled(rows)
    index = FileIndex.of(build([memory], dict(memory.packs)))
    begin = time.process_time()
    assert sorted(index.find(1, identity(7))) == [Location(PACKS[0], 4 * n) for n in range(20_000)]
    assert time.process_time() - begin < 0.5
    assert [index.find(1, identity(n)) for n in (6, 8)] == [[Location(PACKS[1], 9)]] * 2


class Counted(Held):
    """A file whose reads are counted."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.asked = list[int]()

    def read(self, offset: int, size: int) -> memoryview:
        self.asked.append(size)
        return super().read(offset, size)


def test_a_look_up_reads_a_page_and_many_read_near_pages_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep some of the pages in memory."""
    dice, nothing = np.random.default_rng(5), Entries.of([], [])
    keys, memory = dice.integers(0, 1 << 36, 200_000, np.uint64), MemoryIndex()
    memory.add_pack(PACKS[0], SIZE, {0: Entries(keys, keys % np.uint64(SIZE)), 1: nothing, 2: nothing})
    file = Counted(build([memory], dict(memory.packs)))
    index, opening = FileIndex(file), len(file.asked)
    for _ in range(2):
        index.find(0, (int(keys[0]) << 28).to_bytes(8, "big") + bytes(8))
    assert len(file.asked) == opening + 1 and file.asked[-1] < 1 << 15
    assert index.has(0, keys).all() and len(file.asked) == opening + 2
    assert index.has(0, keys).all() and len(index.addressed(0)[0]) == len(np.unique(keys)) == len(index)
    assert len(file.asked) == opening + 2
    monkeypatch.setattr(index_file, "MOST_PAGES", 3)
    few = FileIndex(file)
    assert few.has(0, keys).all() and len(few._pages) == 3
    for key in keys[:40].tolist():
        one = (key << 28).to_bytes(8, "big") + bytes(8)
        assert few.find(0, one) == index.find(0, one) != []


def head_of(version: int, table: bytes = b"", counts: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    """Return header and pack table of an index, whose checks hold."""
    head = index_file.HEADER.pack(index_file.MAGIC, version, bytes(3), len(table) // 20, *counts, 0, bytes(16))
    return head[:24] + index_file._check(head + table).to_bytes(4, "little") + bytes(16) + table


def test_packs_of_more_bytes_than_an_index_covers_are_refused() -> None:
    names = (n.to_bytes(16, "big") for n in range(index_file.MAX_BYTES // MAX_SIZE))
    table = b"".join(index_file.PACK.pack(name, MAX_SIZE) for name in names)
    head = head_of(index_file.VERSION, table)
    with pytest.raises(CorruptError, match="more bytes than an index covers"):
        FileIndex.of(head + bytes(20))


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(VersionError, match="newer pltz"):
        FileIndex.of(head_of(index_file.VERSION + 1) + bytes(16))


def test_hostile_counts_claim_no_memory() -> None:
    head = index_file.HEADER.pack(index_file.MAGIC, index_file.VERSION, bytes(3), *[0xFFFFFFFF] * 4, 0, bytes(16))
    with pytest.raises(CorruptError, match="does not fit"):
        FileIndex.of(head + bytes(16))
    for counts in ((0xFFFFFFFF, 0, 0), (1, 0, 0), (0, 0, 4000)):
        with pytest.raises(FormatError, match=r"expected an index of|do not fit|table of pages"):
            FileIndex.of(head_of(index_file.VERSION, counts=counts) + bytes(30))


@settings(max_examples=examples(60))
@given(st.integers(0, 11), st.integers(0, 1 << 32), st.integers(-1, 0))
def test_pages_that_a_table_puts_elsewhere_are_refused(at: int, value: int, shift: int) -> None:
    """A head whose checks hold, as who crafts an index would make it."""
    data = GOLDEN.read_bytes()
    whole, begin = FileIndex.of(data), index_file.HEADER.size + 20 * len(make.PACKS)
    ends = np.frombuffer(data, "<u4", 6, begin).copy()
    ends[at % 6] = min(value, 0xFFFFFFFF) if at > 5 else max(0, int(ends[at]) + shift)
    check = zlib.crc32(ends.tobytes(), int.from_bytes(data[24:28], "little"))
    crafted = data[:begin] + ends.tobytes() + check.to_bytes(4, "little") + data[begin + 28 :]
    keys = make.entries().columns(index_file.SEGMENTS)[0][::900]
    try:
        index = FileIndex.of(crafted)
        assert (index.has(index_file.SEGMENTS, keys) == whole.has(index_file.SEGMENTS, keys)).all() and crafted == data
    except CorruptError:
        assert crafted != data

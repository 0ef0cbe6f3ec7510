"""Index: both kinds find what a dictionary does, in every section, and a damaged file never hides an entry."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pltz.archive.format import index_file
from pltz.archive.format.index_file import Entries, FileIndex, Location, Lookup, MemoryIndex, build, key_of
from pltz.plt_codec.errors import CorruptError, VersionError
from tests.examples import examples

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


def test_a_flipped_bit_raises_or_changes_nothing() -> None:
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


def test_a_newer_version_is_refused_by_name() -> None:
    head = index_file.HEADER.pack(index_file.MAGIC, index_file.VERSION + 1, 4, 0, 0, 0, 0, 0, 0, 0)[:-4]
    with pytest.raises(VersionError, match="newer pltz"):
        FileIndex.of(head + zlib.crc32(head).to_bytes(4, "little") + bytes(16))


def test_hostile_counts_claim_no_memory() -> None:
    head = index_file.HEADER.pack(
        index_file.MAGIC, 2, 4, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0
    )
    with pytest.raises(CorruptError, match="does not fit"):
        FileIndex.of(head + bytes(16))
    head = index_file.HEADER.pack(index_file.MAGIC, 2, 4, 0, 0, 0, 0xFFFFFFFF, 0, 0, 0)[:-4]
    with pytest.raises(CorruptError, match="expected an index of"):
        FileIndex.of(head + zlib.crc32(head).to_bytes(4, "little") + bytes(16))

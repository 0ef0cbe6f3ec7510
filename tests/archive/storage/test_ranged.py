"""Ranged files: look-ups in a large index of a bucket fetch little of it, and find the same."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.errors import StoreError
from pltz.archive.format import index_file
from pltz.archive.format.index_file import MARKS, SEGMENTS, SESSIONS, FileIndex
from pltz.archive.format.manifest import MOST_HEADS, IndexHead
from pltz.archive.format.object_names import index
from pltz.archive.storage import ranged, s3
from pltz.archive.storage.ranged import RangedFile
from pltz.archive.storage.s3 import ObjectStore
from pltz.archive.writing.new_session import NewSession
from pltz.plt_codec.errors import CorruptError, FormatError
from pltz.plt_codec.identity import SIZE
from tests.archive.conftest import S3Server, ZlibCodec
from tests.archive.test_requests import Names
from tests.archive.towers import TowerArchive

DATA = np.random.default_rng(0).bytes(10_000)


class Counted:
    """An object whose requests are counted."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data, self.asked = data, list[tuple[int, int]]()

    def get(self, offset: int, size: int) -> bytes:
        self.asked.append((offset, size))
        return self.data[offset : offset + size]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "PIECE", 100)
    monkeypatch.setattr(ranged, "MOST_AHEAD", 1600)
    monkeypatch.setattr(ranged, "MOST_ASKED", 8)


@pytest.mark.parametrize("spread", [True, False])
def test_a_look_up_takes_one_request_and_another_for_the_place(
    tmp_path: Path, spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for the page of the key, wherever it is; where entries name blocks, one for the place if it is not there yet.

    Keys that are no hashes crowd in few pages, and are found as well.
    """
    for name, value in {"PIECE": 1 << 10, "MOST_AHEAD": 1 << 26, "MOST_ASKED": 1 << 20}.items():
        monkeypatch.setattr(ranged, name, value)
    dice = np.random.default_rng(2)
    keys = dice.integers(0, 1 << (36 if spread else 31), 100_000, np.uint64)
    rows = np.arange(len(keys), dtype=np.uint64) // np.uint64(50) * np.uint64(4000)
    tail = index_file.MemoryIndex()
    none = index_file.Entries(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    tail.add_pack(b"p" * 16, 1 << 28, {SEGMENTS: index_file.Entries(keys, rows), SESSIONS: none, MARKS: none})
    for bound, front, most in ((1 << 24, 1 << 14, {1}), (1 << 24, 600, {2}), (0, 600, {1})):  # with places, and without
        monkeypatch.setattr(index_file, "RANGED", bound)
        data = index_file.build([tail], {b"p" * 16: 1 << 28})
        whole, counted = FileIndex.of(data), Counted(data)
        requests = set[int]()
        for row in dice.integers(0, len(keys), 40).tolist():
            look = FileIndex(RangedFile(len(data), counted.get, data[:front], tmp_path))
            counted.asked.clear()
            identity = (int(keys[row]) << 28).to_bytes(8, "big") + bytes(8)
            assert look.find(SEGMENTS, identity) == whole.find(SEGMENTS, identity) != []
            requests.add(len(counted.asked))
        assert requests == most


@pytest.mark.parametrize("room", ["file", "memory"])
def test_any_ranges_in_any_order_give_the_bytes(tmp_path: Path, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if room == "memory":
        monkeypatch.setattr(ranged, "_temporary", lambda *_: None)
    dice = np.random.default_rng(1)
    for size in (1, 99, 100, 101, 9_950, 10_000):
        counted, whole = Counted(DATA[:size]), list[bytes]()
        file = RangedFile(size, counted.get, DATA[: min(size, 250)], tmp_path, lambda data: whole.append(bytes(data)))  # noqa: B023
        for _ in range(40):
            at, many = int(dice.integers(0, size)), int(dice.integers(0, 2 * size))
            assert file.read(at, many) == DATA[:size][at : at + many]
            held = bytearray(many)
            assert file.fill(memoryview(held), at) == len(DATA[:size][at : at + many])
        assert file.read(0, size) == file.map() == DATA[:size] and whole == [DATA[:size]]
        assert len(counted.asked) <= 8 + 10_000 // 1600 + 1
    assert not [*tmp_path.iterdir()]


def test_the_rest_of_a_larger_object_comes_after_more_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worth, most in ((10_000, 8), (500, 20)):
        monkeypatch.setattr(ranged, "WORTH", worth)
        counted = Counted()
        file = RangedFile(len(DATA), counted.get, DATA[:300], tmp_path)
        for at in range(400, 400 + 200 * (most + 1), 200):
            file.read(at, 4)
        assert [size for _, size in counted.asked[: most + 1]] == [100] * most + [1600]


def test_one_piece_is_asked_for_once_and_a_row_in_growing_steps(tmp_path: Path) -> None:
    counted = Counted()
    file = RangedFile(len(DATA), counted.get, DATA[:300], tmp_path)
    file.read(20, 200)
    assert counted.asked == []
    for at in (5_010, 5_090, 7_777):
        file.read(at, 4)
    assert counted.asked == [(5_000, 100), (7_700, 100)]
    for at in range(5_100, 6_000, 50):
        file.read(at, 50)
    assert counted.asked[2:] == [(5_100, 100), (5_200, 200), (5_400, 400), (5_800, 800)]


def test_an_object_that_was_cut_off_is_damaged(tmp_path: Path) -> None:
    file = RangedFile(len(DATA), Counted(DATA[:6_000]).get, b"", tmp_path)
    with pytest.raises(CorruptError, match="cut off"):
        file.read(6_050, 1)


def test_a_full_disk_is_an_error_and_no_end_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RangedFile(len(DATA), Counted().get, b"", tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match="no room for 100 bytes"):
        file.read(0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_no_false_byte_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Requests fail, answers are short, the disk is full at any write or takes a part, and there may be no file at all.

    Each read gives the bytes or a named error. A request begins with a piece that is not there, and has no other until
    the rest is fetched. ``whole`` is called once, with the object.
    """
    dice, write = np.random.default_rng(seed), os.pwrite
    if seed % 4 == 0:
        monkeypatch.setattr(ranged, "_temporary", lambda *_: None)
    size, there, coming = int(dice.integers(1_000, len(DATA))), set[int](), set[int]()
    whole, asked, failing = list[bytes](), 0, 0.0

    def get(offset: int, many: int) -> bytes:
        nonlocal asked, coming
        there.update(coming)  # what was asked for before in this read was kept
        coming = set(range(offset // 100, -(-(offset + many) // 100)))
        assert offset % 100 == 0 and offset // 100 not in there and 0 < many <= 1600
        assert asked >= 8 or not coming & there
        if dice.random() < failing:
            if dice.random() < 0.5:
                raise StoreError("the server fails")
            return DATA[offset : offset + int(dice.integers(0, many))]
        asked += 1
        return DATA[offset : offset + many]

    def pwrite(file: int, data: memoryview, at: int) -> int:
        if dice.random() < failing:
            raise OSError(28, "No space left on device")
        return write(file, data[: int(dice.integers(1, len(data) + 1))], at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    front = DATA[: int(dice.integers(0, size // 2))]
    file = RangedFile(size, get, front, tmp_path, lambda data: whole.append(bytes(data)))
    there.update(range(len(front) // 100))
    refused = 0
    for turn in range(120):
        failing = 0.4 if turn < 90 else 0.0
        at, many = int(dice.integers(0, size)), int(dice.integers(0, 700))
        try:
            assert file.read(at, many) == DATA[:size][at : at + many]
            there.update(coming)
        except (StoreError, CorruptError):
            refused += 1
        coming = set()
    assert file.read(0, size) == file.map() == DATA[:size] and whole == [DATA[:size]]
    assert refused and not [*tmp_path.iterdir()]


def in_bucket(s3_server: S3Server, folder: Path) -> tuple[ObjectStore, str, bytes]:
    """Put an index over 3,000 packs, as large as one is of which ranges are read, and return its name and bytes."""
    store = ObjectStore(s3_server.place(), folder)
    names = [os.urandom(SIZE) for _ in range(3_000)]
    data = index_file.build([Names(names)], dict.fromkeys(names, 1000))  # type: ignore[list-item]
    name = index(data[-SIZE:].hex())
    assert store.put(name, data)
    s3_server.requests.clear()
    return store, name, data


@pytest.fixture
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "RANGED", 50_000)
    monkeypatch.setattr(s3, "FRONT", 61_000)
    for name, value in {"PIECE": 2_000, "MOST_AHEAD": 32_000, "MOST_ASKED": 20}.items():
        monkeypatch.setattr(ranged, name, value)


def test_a_look_up_in_a_large_index_of_a_bucket_fetches_little(s3: S3Server, tmp_path: Path, low_bounds: None) -> None:
    store, name, data = in_bucket(s3, tmp_path)
    known = FileIndex.of(data)
    found = FileIndex(store.open_ranges(name))
    keys = known.columns(SESSIONS)[0][::300]
    for key in keys[:2].tolist():
        identity = (key << 28).to_bytes(8, "big") + bytes(8)
        assert found.find(SESSIONS, identity) == known.find(SESSIONS, identity) != []
    assert s3.count("GET") <= 1 + 2 * 5 and not [*tmp_path.rglob("*-*")]
    assert found.has(SESSIONS, keys).all() and not found.has(SEGMENTS, keys).any()
    assert all((a == b).all() for a, b in zip(found.columns(SEGMENTS), known.columns(SEGMENTS), strict=True))
    assert found.verify().hex() == Path(name).name
    assert s3.count("GET") < 40  # all pieces are there, and a copy was kept
    s3.requests.clear()
    again = FileIndex(ObjectStore(store.place, tmp_path).open_ranges(name))
    assert again.verify() == found.verify() and not s3.count("GET")
    store.delete(name)
    assert found.has(SESSIONS, keys).all()


def test_of_a_large_index_whose_head_is_known_a_page_is_fetched(s3: S3Server, tmp_path: Path, low_bounds: None) -> None:
    """Refuse damage in the head that the manifest has, and in the page."""
    store, name, data = in_bucket(s3, tmp_path)
    known = FileIndex.of(data)
    identity = (int(known.columns(SEGMENTS)[0][777]) << 28).to_bytes(8, "big") + bytes(8)

    def asked(head: IndexHead) -> int:
        s3.requests.clear()
        index = FileIndex(ObjectStore(store.place, tmp_path).open_ranges(name, head))
        assert index.find(SEGMENTS, identity) == known.find(SEGMENTS, identity) != []
        return s3.count("GET")

    size, head = known.size, known.head
    assert head == data[: len(head)] and asked(IndexHead(size, head)) == asked(IndexHead(size, head)) == 1
    for at in range(0, len(head), 997):
        with pytest.raises(FormatError):
            asked(IndexHead(size, head[:at] + bytes([head[at] ^ 1]) + head[at + 1 :]))
    for other in (size - 1, size + 1, 2 * size, len(head) + SIZE):
        with pytest.raises(CorruptError):
            asked(IndexHead(other, head))
    assert asked(IndexHead(size, head[:-100])) == 2, "what is lacking of a head is fetched"
    spoiled = bytearray(data)
    spoiled[len(head) :] = bytes(len(data) - len(head))
    store.delete(name)
    store.put(name, bytes(spoiled))
    with pytest.raises(CorruptError, match="does not match its checksum"):
        asked(IndexHead(size, head))
    store.delete(name)
    with pytest.raises(FileNotFoundError):
        asked(IndexHead(size, head))


def test_in_an_index_of_a_hundred_million_sessions_a_look_up_is_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head fits a manifest. Of 1.3 GB only the page of the key is made: whatever else is read is damaged."""
    monkeypatch.setattr(ranged, "PIECE", 1 << 16)
    monkeypatch.setattr(ranged, "MOST_AHEAD", 1 << 26)
    dice, count, packs, each = np.random.default_rng(3), 100_000_000, 2_000, 20_500_000
    fan_bits, width, low = index_file._shape(count, packs * each)
    pages = 1 << fan_bits - index_file.PAGE_BITS
    sizes = dice.multinomial(count, np.full(pages, 1 / pages), 2)  # entries of the pages of segments and sessions
    table = b"".join(index_file.PACK.pack(bytes([n % 256, n // 256]) * 8, each) for n in range(packs))
    head = index_file.HEADER.pack(index_file.MAGIC, index_file.BY_ADDRESS, 0, 0, packs, 0, count, count, 0, 0)[:-4]
    check = zlib.crc32(table, zlib.crc32(head))
    ends = np.cumsum(sizes, axis=1).astype("<u4").tobytes()
    head += check.to_bytes(4, "little") + table + ends + zlib.crc32(ends, check).to_bytes(4, "little")
    assert len(head) <= MOST_HEADS
    lengths = (4 << index_file.PAGE_BITS) + -(-sizes.reshape(-1) * width // 8) + index_file.CHECK
    begins = len(head) + np.concatenate([[0], np.cumsum(lengths)])
    # the page of one key among sessions: its bucket, and in it the other bits of the key
    number = pages + 777
    rest = np.uint64(index_file.KEY_BITS - fan_bits)
    rows = np.sort(dice.integers(0, 1 << int(rest) + index_file.PAGE_BITS, sizes[1, 777], np.uint64))
    fan = np.searchsorted(rows >> rest, np.arange(1 << index_file.PAGE_BITS, dtype=np.uint64), side="right")
    places = dice.integers(0, packs * each, len(rows), np.uint64)
    entries = (rows & np.uint64((1 << int(rest)) - 1)) << np.uint64(low) | places
    page = fan.astype("<u4").tobytes() + index_file._packed(entries, width)
    page += zlib.crc32(page, (check + number + 1) & 0xFFFFFFFF).to_bytes(4, "little")
    asked = list[int]()

    def get(offset: int, size: int) -> bytes:
        asked.append(size)
        made = bytearray(size)
        begin, end = max(offset, int(begins[number])), min(offset + size, int(begins[number + 1]))
        made[begin - offset : end - offset] = page[begin - int(begins[number]) : end - int(begins[number])]
        return bytes(made)

    found = FileIndex(RangedFile(int(begins[-1]) + SIZE, get, head, tmp_path))
    key = (777 << int(rest) + index_file.PAGE_BITS) + int(rows[5000])
    name, offset = divmod(int(places[5000]), each)
    known = found.find(SESSIONS, (key << 28).to_bytes(8, "big") + bytes(8))
    assert index_file.Location(found.names[name], offset) in known
    assert len(asked) == 1 and asked[0] <= 1 << 17


def test_damage_in_a_range_is_found_and_no_copy_is_kept(s3: S3Server, tmp_path: Path, low_bounds: None) -> None:
    store, name, data = in_bucket(s3, tmp_path)
    at = len(data) - 4_000
    spoiled = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    store.delete(name)
    store.put(name, spoiled)
    found = FileIndex(store.open_ranges(name))
    with pytest.raises(CorruptError, match="does not match its checksum"):
        found.verify()
    with pytest.raises(CorruptError):
        FileIndex(store.open(name)).verify()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_index_that_was_replaced_meanwhile_is_looked_up_in_its_successor(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole copy stays readable. Of one that is read by ranges the next range is gone."""
    monkeypatch.setattr("pltz.archive.format.index_file.RANGED", 0)
    monkeypatch.setattr("pltz.archive.storage.s3.FRONT", 200)
    place, codec = s3.place(), ZlibCodec()
    archive = TowerArchive.create(ObjectStore(place, tmp_path / "a"), [codec])
    archive.put([NewSession(f"s{n}", [np.arange(n, n + 9)]) for n in range(300)])
    archive.write_index()
    reader = TowerArchive.open(ObjectStore(place, tmp_path / "b"), [codec])
    writer = TowerArchive.open(ObjectStore(place, tmp_path / "c"), [codec])
    asker = TowerArchive.open(ObjectStore(place, tmp_path / "e"), [codec])
    looker = TowerArchive.open(ObjectStore(place, tmp_path / "f"), [codec])
    keeper = TowerArchive.open(ObjectStore(place, tmp_path / "g"), [codec])
    leaves = [v.leaf for v in archive.ls()]
    (name,) = reader.catalog.listing.indexes
    archive.put([NewSession("late", [np.arange(5)])])
    archive.write_index()
    assert name not in archive.store.list("index")
    assert isinstance(reader.catalog.listing.indexes[name]._file, RangedFile)
    keeper.write_index()  # over indexes of which it has read the beginnings
    (name,) = keeper.store.list("index")
    with asker.catalog.one_look(max_age=60):
        assert asker.stat().sessions == 301
    assert looker.catalog.lookup.known(SEGMENTS, leaves) == {*leaves}  # by a part of a call that begins with no look
    with reader.catalog.one_look(max_age=60), writer.catalog.one_look(max_age=60):
        for n in (3, 299):
            assert reader.get(f"s{n}").tokens.tolist() == [*range(n, n + 9)]
        writer.put([NewSession("later", [np.arange(3, 12)])])
    fresh = TowerArchive.open(ObjectStore(place, tmp_path / "d"), [codec])
    assert len([*fresh.ls()]) == 302 and fresh.verify(decode=True).sound

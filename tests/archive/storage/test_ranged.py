"""Ranges: look-ups in a large index of a bucket fetch little of it, and find the same."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.format import index_file
from pltz.archive.format.index_file import SEGMENTS, SESSIONS, FileIndex
from pltz.archive.format.object_names import index
from pltz.archive.storage import s3
from pltz.archive.storage.s3 import ObjectStore, RangedObject
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.identity import SIZE
from tests.archive.conftest import S3Server
from tests.archive.kit import NewSession, TowerArchive, ZlibCodec
from tests.archive.test_requests import Names


def in_bucket(s3_server: S3Server, folder: Path) -> tuple[ObjectStore, str, bytes]:
    """Put an index over 3,000 packs, as large as one is of which ranges are read, and return its name and bytes."""
    store = ObjectStore(s3_server.place(), folder)
    names = [os.urandom(SIZE) for _ in range(3_000)]
    data = index_file.build([Names(names)], dict.fromkeys(names, 1000))
    name = index(index_file.name_of(data))
    assert store.put(name, data)
    s3_server.requests.clear()
    return store, name, data


@pytest.fixture
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MOST_KEPT", 50_000)
    monkeypatch.setattr(s3, "FRONT", 61_000)


def test_a_look_up_in_a_large_index_of_a_bucket_fetches_a_page(s3: S3Server, tmp_path: Path, low_bounds: None) -> None:
    """The first bytes have the head, and no copy is kept."""
    store, name, data = in_bucket(s3, tmp_path)
    known, found = FileIndex.of(data), FileIndex(store.open(name), Path(name).name)
    keys = known.columns(SESSIONS)[0]
    key = int(keys[7])
    for asked in (2, 2):
        identity = (key << 28).to_bytes(8, "big") + bytes(8)
        assert found.find(SESSIONS, identity) == known.find(SESSIONS, identity) != [] and s3.count("GET") == asked
    assert found.has(SESSIONS, keys).all() and not found.has(SEGMENTS, keys).any()
    assert all((a == b).all() for a, b in zip(found.columns(SEGMENTS), known.columns(SEGMENTS), strict=True))
    assert found.verify().hex() == Path(name).name and not [*tmp_path.rglob("*-*")]
    store.delete(name)
    assert found.has(SESSIONS, keys).all(), "pages stay in memory"
    with pytest.raises(FileNotFoundError):
        found.verify()


def test_damage_in_a_range_is_found_and_no_copy_is_kept(s3: S3Server, tmp_path: Path, low_bounds: None) -> None:
    store, name, data = in_bucket(s3, tmp_path)
    at = len(data) - 4_000
    store.delete(name)
    store.put(name, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    found = FileIndex(store.open(name))
    with pytest.raises(CorruptError, match="does not match its checksum"):
        found.columns(SESSIONS)
    with pytest.raises(CorruptError, match="not what was written"):
        found.verify()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_index_that_was_cut_off_is_damaged(s3: S3Server, tmp_path: Path, low_bounds: None) -> None:
    store, name, data = in_bucket(s3, tmp_path)
    read = partial(store.read, name)
    store.delete(name)
    store.put(name, data[: len(data) // 2])
    with pytest.raises(CorruptError, match="does not fit the index"):
        FileIndex(store.open(name))
    found = FileIndex(RangedObject(len(data), read, memoryview(data)[:61_000]))
    with pytest.raises(CorruptError, match="cut off"):
        found.columns(SESSIONS)


def test_an_index_that_was_replaced_meanwhile_is_looked_up_in_its_successor(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole copy stays readable. Of one that is read by ranges the next range is gone."""
    monkeypatch.setattr("pltz.archive.storage.s3.MOST_KEPT", 0)
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
    assert isinstance(reader.catalog.listing.indexes[name]._file, RangedObject)
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

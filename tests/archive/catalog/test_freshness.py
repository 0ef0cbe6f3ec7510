"""Freshness: a token of an older state is no evidence; one of a newer state shows a roll-back."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.archive.catalog.freshness import Token, known_packs, rolled_back, token_of
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import UsageError
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive


def put(archive: TowerArchive, count: int) -> Token:
    archive.put([NewSession(f"s{count}", [np.arange(count)])])
    return token_of(archive.catalog)


def test_a_token_counts_all_packs_that_ever_were(archive: TowerArchive) -> None:
    assert token_of(archive.catalog).packs == 0
    assert put(archive, 1).packs == 1 and put(archive, 2).packs == 2
    archive.collect()
    archive.collect()
    assert token_of(archive.catalog).packs == 3 == len(known_packs(archive.catalog))


def test_a_token_names_the_newest_pack(archive: TowerArchive, disk: SimDisk, codec: SegmentCodec) -> None:
    token = put(archive, 1)
    assert archive.version("s1").location.pack.startswith(token.newest)
    disk.clock += 100
    token = put(archive, 2)
    fresh = TowerArchive.open(DirectoryStore(disk), [codec])  # it put nothing, so it reads the headers
    assert token_of(fresh.catalog) == token


def test_a_roll_back_is_seen(archive: TowerArchive, disk: SimDisk, codec: SegmentCodec) -> None:
    first = put(archive, 1)
    before = disk.seen.copy()
    second = put(archive, 2)
    older = TowerArchive.open(DirectoryStore(SimDisk(before)), [codec])
    assert rolled_back(older.catalog, second) and not rolled_back(older.catalog, first)
    assert not rolled_back(archive.catalog, second) and not rolled_back(archive.catalog, first)


def test_a_manifest_of_an_older_generation_is_seen(disk: SimDisk, codec: SegmentCodec) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [codec], manifest=True)
    token = put(archive, 1)
    newer = rolled_back(archive.catalog, token._replace(packs=token.packs + 1))
    assert not rolled_back(archive.catalog, token) and "the manifest of generation" in (newer or "")


def test_a_token_of_another_archive_is_refused(archive: TowerArchive, codec: SegmentCodec) -> None:
    other = TowerArchive.create(DirectoryStore(SimDisk(seed=2)), [codec])
    assert "is of archive" in (rolled_back(archive.catalog, token_of(other.catalog)) or "")


def test_a_token_is_read_back_from_its_text() -> None:
    token = Token(b"archive1", 12, b"newestpk")
    assert Token.parse(f" {token}\n") == token
    for text in ("", "12", f"{token}0", str(token).upper()):
        with pytest.raises(UsageError, match="expected a token"):
            Token.parse(text)

"""Freshness: a token of an older state is no evidence; one of a newer state shows a roll-back."""

import numpy as np
import pytest

from pltz.archive.catalog.freshness import Token, rolled_back, token_of
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.errors import UsageError
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive


def put(archive: TowerArchive, count: int) -> Token:
    archive.put([NewSession(f"s{count}", [np.arange(count)])])
    return token_of(archive.catalog)


def test_a_roll_back_is_seen(archive: TowerArchive, disk: SimDisk, codec: SegmentCodec) -> None:
    first = put(archive, 1)
    before = disk.seen.copy()
    second = put(archive, 2)
    older = TowerArchive.open(DirectoryStore(SimDisk(before)), [codec])
    assert "the manifest of generation" in (rolled_back(older.catalog, second) or "")
    assert not rolled_back(older.catalog, first)
    assert not rolled_back(archive.catalog, second) and not rolled_back(archive.catalog, first)


def test_a_token_is_read_back_from_its_text() -> None:
    token = Token(b"\xaa" * 8, 12)
    assert Token.parse(f" {token}\n") == token
    for text in ("", "12", f"{token}-0", str(token).upper()):
        with pytest.raises(UsageError, match="expected a token"):
            Token.parse(text)

"""The listing: packs with and without an index, missing ones, and work that is done again."""

import numpy as np
import pytest

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.freshness import Token, rolled_back, token_of
from pltz.archive.errors import ArchiveError, Outdated
from pltz.archive.format import object_names
from pltz.plt_codec.errors import UsageError
from tests.archive.kit import NewSession, SimDisk, TowerArchive, reopen


@pytest.fixture
def filled(archive: TowerArchive) -> TowerArchive:
    """Put two packs, of which an index covers the first."""
    archive.put([NewSession("a", [np.arange(9)])])
    archive.write_index()
    archive.put([NewSession("b", [np.arange(7)])])
    return archive


def listed(archive: TowerArchive) -> Catalog:
    catalog = Catalog(archive.store, archive.keys)
    catalog.refresh()
    return catalog


def test_a_pack_of_another_size_than_its_index_says_is_looked_at(filled: TowerArchive, disk: SimDisk) -> None:
    """An index covers it, and would hide that its end is gone."""
    [covered] = (pack for index in filled.catalog.listing.indexes.values() for pack in index.packs)
    path = object_names.pack(covered)
    disk.truncate(path, len(disk.seen.files()[path]) - 9)
    assert not filled.verify().sound and covered in filled.catalog.listing.packs


def test_an_index_names_no_pack_that_was_taken_out_meanwhile(filled: TowerArchive) -> None:
    """Named again, a pack that is gone would be missing."""
    keeper = TowerArchive.open(filled.store, [])
    made = keeper.catalog.listing.indexes
    filled.collect()
    filled.collect()
    with pytest.raises(Outdated):
        keeper.catalog.listing.publish(made=made)


def test_work_that_always_meets_deleted_packs_ends_with_an_error(filled: TowerArchive) -> None:
    listing = listed(filled).listing
    with pytest.raises(ArchiveError, match="try again"):
        listing.stable(listing.note_stale)


# ---- Freshness: a token of an older state is no evidence; one of a newer state shows a roll-back


def put(archive: TowerArchive, count: int) -> Token:
    archive.put([NewSession(f"s{count}", [np.arange(count)])])
    return token_of(archive.catalog)


def test_a_roll_back_is_seen(archive: TowerArchive, disk: SimDisk) -> None:
    first, before = put(archive, 1), disk.seen.copy()
    second, older = put(archive, 2), reopen(SimDisk(before))
    assert "the manifest of generation" in (rolled_back(older.catalog, second) or "")
    assert not rolled_back(older.catalog, first)
    assert not rolled_back(archive.catalog, second) and not rolled_back(archive.catalog, first)


def test_a_token_is_read_back_from_its_text() -> None:
    token = Token(b"\xaa" * 8, 12)
    assert Token.parse(f" {token}\n") == token
    for text in ("", "12", f"{token}-0", str(token).upper()):
        with pytest.raises(UsageError, match="expected a token"):
            Token.parse(text)

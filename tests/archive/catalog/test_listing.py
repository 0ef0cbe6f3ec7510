"""The listing: packs with and without an index, missing ones, and work that is done again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.catalog import listing as listing_module
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.errors import ArchiveError, Outdated
from pltz.archive.format import object_names
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.writing.new_session import NewSession
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive


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


def test_packs_without_an_index_are_scanned(filled: TowerArchive) -> None:
    listing = listed(filled).listing
    assert len(listing.packs) == 2 and len(listing.indexes) == 1
    assert listing.tail.packs.keys() == listing.packs.keys() - next(iter(listing.indexes.values())).packs.keys()


def test_a_pack_that_is_no_longer_named_is_gone_and_not_cut_off(filled: TowerArchive) -> None:
    listing = listed(filled).listing
    pack = next(iter(listing.packs))
    del listing.packs[pack]  # a look after a collector has deleted it
    with pytest.raises(FileNotFoundError, match=pack.hex()):
        listing.opened(pack)


def test_a_damaged_index_is_dropped_and_its_packs_are_scanned(filled: TowerArchive) -> None:
    catalog = listed(filled)
    leaf = filled.version("a").leaf
    [index] = catalog.listing.indexes.values()
    catalog.listing.drop_index(index, "damaged")
    assert not catalog.listing.indexes and catalog.listing.tail.packs.keys() == catalog.listing.packs.keys()
    assert catalog.lookup.find(SEGMENTS, leaf) and [p.kind for p in catalog.damage.problems] == ["index"]
    catalog.refresh()
    assert not catalog.listing.indexes  # it is not read again


def test_a_pack_of_another_size_than_its_index_says_is_looked_at(filled: TowerArchive, disk: SimDisk) -> None:
    """An index covers it, and would hide that its end is gone."""
    [covered] = (pack for index in filled.catalog.listing.indexes.values() for pack in index.packs)
    path = object_names.pack(covered)
    disk.truncate(path, len(disk.seen.files()[path]) - 9)
    assert not filled.verify().sound and covered in filled.catalog.listing.packs


def test_a_pack_that_is_named_and_not_there_is_missing(filled: TowerArchive, disk: SimDisk) -> None:
    gone, hidden = (filled.version(name).location.pack for name in "ab")
    filled.store.delete(object_names.pack(gone))
    disk.hidden = {object_names.pack(hidden)}  # the store does not list it
    catalog = listed(filled)
    assert catalog.listing.missing() == {gone} and catalog.listing.packs.keys() == {hidden}
    assert [v.name for v in catalog.lookup.all_versions()] == ["b"]


def test_what_others_took_out_is_not_missing(filled: TowerArchive) -> None:
    reader = listed(filled)
    for _ in range(2):
        filled.collect()
    assert [v.name for v in reader.lookup.all_versions()] == ["a", "b"]
    assert not reader.listing.missing() and reader.listing.packs == listed(filled).listing.packs


def test_an_index_names_no_pack_that_was_taken_out_meanwhile(filled: TowerArchive) -> None:
    """Named again, a pack that is gone would be missing."""
    keeper = TowerArchive.open(filled.store, [])
    made = keeper.catalog.listing.indexes
    filled.collect()
    filled.collect()
    with pytest.raises(Outdated):
        keeper.catalog.listing.publish(made=made)


def test_work_is_done_again_until_the_listing_is_not_stale(filled: TowerArchive) -> None:
    listing, turns = listed(filled).listing, [0]

    def work() -> int:
        turns[0] += 1
        if turns[0] < 3:
            listing.note_stale()
        return turns[0]

    assert listing.stable(work) == 3


def test_work_that_always_meets_deleted_packs_ends_with_an_error(filled: TowerArchive) -> None:
    listing = listed(filled).listing
    with pytest.raises(ArchiveError, match="try again"):
        listing.stable(listing.note_stale)


FIELDS = ("manifest", "packs", "indexes", "tail", "condemned", "unnamed", "staleness", "listed")
CHANGES = re.compile(
    rf"listing\.({'|'.join(FIELDS)})"
    r"(\[[^]]*\])?(\.(add|clear|discard|pop|popitem|remove|setdefault|update|add_pack)\(|\s*[-+|&^]?=[^=])"
)
DELETES = re.compile(rf"\bdel\b.*listing\.({'|'.join(FIELDS)})\b")


def written(code: str) -> list[str]:
    """Return the lines of code that change a field of a listing."""
    return [line for line in code.splitlines() if CHANGES.search(line) or DELETES.search(line)]


@pytest.mark.parametrize(
    "line",
    [
        "self._listing.packs = {}",
        "catalog.listing.packs[pack] = 1",
        "listing.condemned |= more",
        "del self.listing.indexes[name]",
        "listing.packs.pop(pack, None)",
        "self.catalog.listing.tail.add_pack(name, 1, {})",
    ],
)
def test_a_change_of_its_fields_is_seen(line: str) -> None:
    assert written(line)
    assert not written("if catalog.listing.staleness == before or not listing.packs[pack] >= 3: return")


def test_only_the_listing_changes_its_fields() -> None:
    room = Path(listing_module.__file__).parents[1]
    changes = {path.name: written(path.read_text()) for path in room.rglob("*.py") if path.name != "listing.py"}
    assert not {name: lines for name, lines in changes.items() if lines}

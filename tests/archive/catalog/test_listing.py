"""The listing: packs with and without an index, plans, packs that are not listed, and work that is done again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pltz.archive.catalog import listing as listing_module
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.ledger import PackState
from pltz.archive.errors import ArchiveError
from pltz.archive.format import object_names
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.manifest import Manifest
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
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


def test_a_pack_that_is_no_longer_listed_is_gone_and_not_cut_off(filled: TowerArchive) -> None:
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
    assert covered in listed(filled).damage.damaged()


def test_plans_condemn_packs_from_their_time_on(filled: TowerArchive) -> None:
    filled.collect()
    listing = listed(filled).listing
    assert listing.epoch == 1 and listing.has_plan(1) and listing.condemned == listing.packs.keys()
    now = filled.store.now()
    assert listing.condemned_by(now) == listing.condemned and not listing.condemned_by(now - 10**6)


def test_a_plan_whose_copy_alone_is_left_is_missing(filled: TowerArchive) -> None:
    filled.collect()
    filled.store.delete(object_names.plan(1))
    assert listed(filled).listing.missing_plans() == {1}


def test_a_pack_that_something_names_is_absent_with_its_state(filled: TowerArchive) -> None:
    listing = listed(filled).listing
    gone, *_ = sorted(listing.packs)
    assert listing.absent() == {}
    filled.store.delete(object_names.pack(gone))
    listing.read()
    assert listing.absent() == {gone: PackState.MISSING}


def test_a_pack_that_the_store_does_not_list_is_read_all_the_same(filled: TowerArchive, disk: SimDisk) -> None:
    hidden = filled.version("b").location.pack
    disk.hidden = {object_names.pack(hidden)}
    catalog = listed(filled)
    assert hidden not in catalog.listing.packs
    assert catalog.listing.absent() == {} and catalog.listing.unlisted == {hidden}
    assert [v.name for v in catalog.lookup.all_versions()] == ["a", "b"]


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


FIELDS = ("packs", "indexes", "tail", "epoch", "condemned", "newest", "unlisted", "staleness")
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
    assert not written("if catalog.listing.epoch == before or not listing.packs[pack] >= 3: return")


def test_only_the_listing_changes_its_fields() -> None:
    room = Path(listing_module.__file__).parents[1]
    changes = {path.name: written(path.read_text()) for path in room.rglob("*.py") if path.name != "listing.py"}
    assert not {name: lines for name, lines in changes.items() if lines}


def test_a_manifest_of_a_far_epoch_takes_no_more_plans_than_there_are(disk: SimDisk, codec: SegmentCodec) -> None:
    """One with a right digest made each process that was open ask for all plans up to it."""
    archive = TowerArchive.create(DirectoryStore(disk), [codec], manifest=True)
    for n in (9, 7):
        archive.put([NewSession(f"s{n}", [np.arange(n)])])
    other = TowerArchive.open(DirectoryStore(disk), [codec])
    archive.collect()
    content = archive.store.load("manifest")
    assert content
    found = Manifest.decode(content.data)
    far = replace(found, epoch=1 << 61, generation=found.generation + 1, random=b"of another state")
    assert archive.store.swap("manifest", far.encode(), content)
    assert [v.name for v in other.ls()] == ["s7", "s9"] == [v.name for v in archive.ls()]
    assert len(other.catalog.listing.condemned) == 2 and other.put([NewSession("s5", [np.arange(5)])])

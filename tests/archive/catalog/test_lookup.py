"""The look-up: identities to places to records; damaged records are noted and left out."""

from pathlib import Path

import numpy as np
import pytest

from pltz.archive.archive import Archive
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.lookup import RecordLookup
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.pack import Pack
from tests.archive.kit import NewSession, TowerArchive
from tests.watch import noted


@pytest.fixture
def lookup(archive: TowerArchive) -> RecordLookup:
    """Return the look-up of an archive with a session of two versions and one that shares its prompt."""
    archive.put([NewSession("a", [np.arange(5), np.arange(3)])])
    archive.write_index()
    grown = NewSession("a", [np.arange(5), np.arange(3), np.arange(2)])
    archive.put([grown, NewSession("b", [np.arange(5), np.arange(4) + 7])])
    return archive.catalog.lookup


def opened(archive: TowerArchive) -> Catalog:
    """Return a second catalogue, with an index over all packs, that has read no pack yet."""
    archive.write_index()
    fresh = Catalog(archive.store, archive.keys)
    fresh.refresh()
    return fresh


@pytest.mark.parametrize("change", ["gone", "cut"])
def test_a_pack_that_comes_back_is_read_again(archive: TowerArchive, lookup: RecordLookup, change: str) -> None:
    fresh, domain, store = opened(archive), archive.keys.domain(TENANT, "default"), archive.store
    kept = {f"packs/{name}": bytes(store.view(f"packs/{name}")) for name in store.list("packs")}
    for name, data in kept.items():
        store.delete(name)
        if change == "cut":
            store.put(name, bytes(len(data)))
    assert fresh.lookup.versions(domain, "b") == []
    for name, data in kept.items():
        store.delete(name)
        store.put(name, data)
    fresh.refresh()
    assert [v.version for v in fresh.lookup.versions(domain, "b")] == [1]


def test_an_identity_whose_first_bytes_alone_match_is_not_found(archive: TowerArchive, lookup: RecordLookup) -> None:
    other = archive.version("b").leaf[:8] + bytes(8)
    assert lookup.places(SEGMENTS, other) and not lookup.find(SEGMENTS, other)


def test_records_are_read_once(archive: TowerArchive, lookup: RecordLookup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put of the next turn looks at all versions of its session, and must not read all of them again."""
    domain, fresh = archive.keys.domain(TENANT, "default"), opened(archive).lookup
    reads = noted(monkeypatch, RecordLookup, "block", lambda _, place: place)
    versions = [fresh.versions(domain, "a") for _ in range(3)]
    assert versions[0] == versions[1] == versions[2] and len(reads) == 2
    assert [v.forgotten for v in lookup.versions(domain, "a")] == [False, False]
    archive.forget([versions[0][0]])
    assert [v.forgotten for v in lookup.versions(domain, "a")] == [True, False], "marks are looked up every time"


def test_a_get_of_many_parses_each_block_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions, the lengths of their towers and their tokens are in the same blocks."""
    names = [f"s{n}" for n in range(5)]
    with Archive.open(tmp_path / "cold", create=True) as cold:
        for name in names:
            cold.put(name, f"text of {name}")
    parsed = noted(monkeypatch, Pack, "block", lambda pack, offset: (bytes(pack.head.salt), offset))
    again = Archive.open(tmp_path / "cold")
    parsed.clear()  # opening scans packs
    assert [found.value for found in again.get_many(names)] == [f"text of {name}".encode() for name in names]
    assert len(parsed) == len(set(parsed)) == len(names)

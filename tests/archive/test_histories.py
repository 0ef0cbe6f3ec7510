"""Histories read one at a time equal the whole catalogue: records in an index, in none, in two, or in a damaged one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.lookup import Version
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive


@pytest.fixture
def filled(archive: TowerArchive) -> TowerArchive:
    """Put three versions of 40 sessions of two tenants, some forgotten, in packs with and without an index."""
    for turn in range(3):
        archive.put([NewSession(f"s{n}", [np.arange(n + turn + 1)], tenant="ab"[n % 2]) for n in range(40)])
        archive.forget(list(archive.ls())[: 3 * turn])
        if turn < 2:
            archive.write_index(everything=False)
    return archive


def grouped(catalog: Catalog) -> list[list[Version]]:
    rows = itertools.groupby(catalog.lookup.all_versions(), key=lambda v: (v.tenant, v.name))
    return [list(versions) for _, versions in rows]


def by_name(histories: list[list[Version]]) -> list[list[Version]]:
    return sorted(histories, key=lambda versions: (versions[0].tenant, versions[0].name))


def test_histories_are_the_catalogue(filled: TowerArchive) -> None:
    found = list(filled.catalog.lookup.histories())
    assert by_name(found) == grouped(filled.catalog)
    assert len(found) == 40 and all(len(versions) == 3 for versions in found)
    assert sum(v.forgotten for versions in found for v in versions) == 9
    filled.write_index()
    assert by_name(list(filled.catalog.lookup.histories())) == grouped(filled.catalog)


def test_an_empty_archive_has_none(archive: TowerArchive) -> None:
    assert list(archive.catalog.lookup.histories()) == []


def test_a_damaged_index_is_dropped(filled: TowerArchive, disk: SimDisk, codec: SegmentCodec) -> None:
    filled.write_index()
    wanted = by_name(list(filled.catalog.lookup.histories()))
    [name] = filled.store.list("index")
    data = bytearray(filled.store.read(f"index/{name}", 0, 1 << 20))
    for at in range(len(data) // 2, len(data) - 16):
        data[at] ^= 0x55
    filled.store.delete(f"index/{name}")
    filled.store.put(f"index/{name}", bytes(data))
    archive = TowerArchive.open(DirectoryStore(disk), [codec])
    assert by_name(list(archive.catalog.lookup.histories())) == wanted
    assert {problem.kind for problem in archive.problems} == {"index"}

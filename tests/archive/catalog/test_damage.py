"""The damage report: one state for each pack, and what damage may hide."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.archive.catalog.damage import DamageReport
from pltz.archive.catalog.losses import Losses, PackState
from pltz.archive.format import object_names
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import SESSIONS, key_of
from pltz.archive.writing.new_session import NewSession
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive


@pytest.fixture
def packs(archive: TowerArchive) -> list[bytes]:
    """Put two sessions in packs of their own, with one index, and return the packs."""
    for name in "ab":
        archive.put([NewSession(name, [np.arange(ord(name))])])
    archive.write_index()
    return [archive.version(name).location.pack for name in "ab"]


def key(archive: TowerArchive, name: str) -> bytes:
    return archive.keys.session_key(archive.keys.domain(TENANT, "default"), name)


def report(archive: TowerArchive) -> DamageReport:
    archive.catalog.refresh()
    return archive.catalog.damage


def test_without_damage_nothing_is_hidden(archive: TowerArchive, packs: list[bytes]) -> None:
    damage = report(archive)
    assert [damage.state(pack) for pack in packs] == [PackState.PRESENT] * 2
    assert not damage.hiding() and not damage.uncatalogued() and not damage.problems
    assert damage.hides(SESSIONS, key(archive, "a")) is None


def test_a_missing_pack_hides_the_sessions_that_an_index_names(archive: TowerArchive, packs: list[bytes]) -> None:
    archive.store.delete(object_names.pack(packs[0]))
    damage = report(archive)
    assert [damage.state(pack) for pack in packs] == [PackState.MISSING, PackState.PRESENT]
    assert damage.missing() == damage.hiding() == {packs[0]} and not damage.uncatalogued()
    assert damage.hides(SESSIONS, key(archive, "a")) is PackState.MISSING
    assert damage.hides(SESSIONS, key(archive, "b")) is None


def test_a_missing_pack_without_an_index_may_hide_anything(archive: TowerArchive, packs: list[bytes]) -> None:
    for name in archive.store.list(object_names.INDEXES):
        archive.store.delete(object_names.index(name))
    archive.store.delete(object_names.pack(packs[0]))
    assert report(TowerArchive.open(archive.store, [])).uncatalogued() == {packs[0]}


def test_a_damaged_record_makes_its_pack_damaged(
    archive: TowerArchive, packs: list[bytes], disk: SimDisk
) -> None:
    location, path = archive.version("a").location, object_names.pack(packs[0])
    data = bytearray(disk.seen.files()[path])
    data[location.offset + 8] ^= 1
    disk.overwrite(path, bytes(data))
    archive.catalog.lookup.all_versions()
    damage = report(archive)
    archive.catalog.lookup.all_versions()
    assert damage.state(packs[0]) is PackState.DAMAGED and damage.damaged() == {packs[0]}
    assert damage.hides(SESSIONS, key(archive, "a")) is PackState.DAMAGED


def test_a_lost_pack_hides_its_sessions_until_a_person_acknowledges_it(
    archive: TowerArchive, packs: list[bytes]
) -> None:
    archive.store.delete(object_names.pack(packs[0]))
    archive.store.delete(object_names.parity(packs[0]))
    row = Losses(archive.store).put(1, True, {key_of(key(archive, "a"))}, [])
    archive.catalog.listing.publish(lambda manifest: manifest.giving_up({packs[0]: row}))
    damage = report(archive)
    assert damage.state(packs[0]) is PackState.LOST and damage.hiding() == {packs[0]}
    assert archive.sight("a").newer is PackState.LOST and archive.sight("b").newer is None
    archive.acknowledge()
    assert not report(archive).hiding() and damage.state(packs[0]) is PackState.LOST


def test_a_collected_pack_is_deleted_and_hides_nothing(archive: TowerArchive, packs: list[bytes]) -> None:
    archive.collect()
    archive.collect()
    damage = report(archive)
    assert [damage.state(pack) for pack in packs] == [PackState.DELETED] * 2 and not damage.hiding()

"""Records of a domain: what an erase keeps from one reading of the packs is what the catalogue finds in them."""

from __future__ import annotations

import numpy as np

from pltz.archive.encryption.box import unit_of
from pltz.archive.format.ids import TENANT
from pltz.archive.maintenance.domain_records import DomainRecords
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from tests.archive.sealed import RAW
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import TowerArchive


def test_leaves_and_units_are_those_that_the_catalogue_finds(disk: SimDisk, codec: SegmentCodec) -> None:
    """Runs have older versions beside copies of them, a session is erased, one forgotten, one of another tenant."""
    archive = TowerArchive.create(DirectoryStore(disk), [codec], key=RAW)
    turns = [np.array([n, n + 1]) for n in range(6)]
    for count in range(1, 7):
        archive.put([NewSession(name, [np.arange(9), *turns[:count]], "acme") for name in "abc"])
    archive.put([NewSession("a", [np.arange(5)], "other")])
    archive.join()
    archive.put([NewSession("b", [np.arange(9), *turns, np.arange(3)], "acme")])
    archive.erase("acme", "c")
    archive.forget(archive.history("b", "acme")[-1:])
    domain, lookup = archive.keys.domain(TENANT, "acme"), archive.catalog.lookup
    archive.catalog.refresh()
    records = DomainRecords(archive.catalog, domain)
    assert all(records.rows(pack) is None for pack in archive.catalog.listing.packs)
    records.read()
    known = lookup.all_versions(domain)
    assert {v.name for v in known} == {"a", "b"} and len(known) > 12
    assert records.leaves() == {v.leaf for v in known}
    key = archive.keys.session_key(domain, "b")
    assert records.leaves(but=key) == {v.leaf for v in known if v.name == "a"} != records.leaves()
    rows = [row for pack in archive.catalog.listing.packs for row in records.rows(pack) or ()]
    units = {(root, unit) for root, some in rows for unit in some}
    assert units == {(root, unit) for root, some in records.units.items() for unit in some}
    assert any(unit == unit_of(key) for _, unit in units)
    blocks = records.blocks_with({root: {unit_of(key)} for root in records.units})
    named = {place for place in blocks for row in lookup.block(place)[1].heads() if row.name is not None}
    assert blocks and named == set(blocks) and {at.pack for at in blocks} < archive.catalog.listing.packs.keys()
    assert {v.location.block for v in known if v.name == "b"} <= set(blocks)

"""The walk over packs against reading record by record, and the batch lookups of indexes against single ones."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.format import index_file
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.format.index_file import U64, MemoryIndex, by_section
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.pack import Damage
from pltz.archive.maintenance.pack_walk import PackColumns, PackWalk, absent
from pltz.plt_codec.identity import SIZE
from tests.archive.kit import NewSession, SimDisk, TowerArchive, reopen


@pytest.fixture
def filled(archive: TowerArchive) -> TowerArchive:
    """Make several packs of records of every shape.

    They have parents of all kinds, versions, tags, times, marks, long names and no tokens.
    """
    prompts = [np.arange(30) + n for n in range(3)]
    for turn in range(3):
        archive.put(
            [
                NewSession(
                    f"s{n}" * (1 + 70 * (n == 3)),
                    [prompts[n % 3], np.arange(n), *(np.full(200, t) for t in range(turn))], tenant="ab"[n % 2],
                    shared=1, tags={"n": "x" * (40 * n)} if n % 4 == 0 else {}, time=1000 + 7 * n if n % 5 else None,
                )
                for n in range(40)
            ]
            + [NewSession(f"empty{turn}", [])]
        )
        archive.forget(list(archive.ls())[:2])
        if turn == 1:
            archive.write_index()
    return archive


def walked(catalog: Catalog) -> list[PackColumns]:
    """Return the columns of all packs that are proved."""
    walk = PackWalk(catalog)
    walk.look()
    return [pack.columns for pack in walk.run(sorted(catalog.listing.packs)) if pack.columns]


def test_a_sound_archive_is_proved_without_reading_records(filled: TowerArchive) -> None:
    catalog = Catalog(filled.store)
    catalog.refresh()
    found = walked(catalog)
    assert len(found) == len(catalog.listing.packs) > 5
    for swept in found:
        items = [i for i in catalog.listing.scan(swept.pack) if not isinstance(i, Damage)]
        assert swept.records == len(items)
        assert [row.tobytes()[:10] for row in swept.ids] == [i.record.id for i in items if i.record.id]
        parents = {i.record.parent for i in items if not i.record.mark and i.record.parent != NO_SEGMENT}
        found_parents = {row.tobytes()[:10] for row in swept.parents}
        assert parents - {i.record.id for i in items} <= found_parents <= parents
    assert not absent(found)


def naming(indexes: Iterable[str], manifest: Manifest) -> Manifest:
    """Return a manifest that names these indexes and no others."""
    return replace(manifest, indexes=frozenset(indexes))


@pytest.mark.parametrize(
    "defect", ["entry left out", "key changed", "entry moved", "key of a session", "session twice"]
)
def test_an_index_that_is_wrong_is_named(filled: TowerArchive, disk: SimDisk, defect: str) -> None:
    """The file is whole, its digest its name: only a look at both sides finds it."""
    filled.write_index()
    known = next(iter(filled.catalog.listing.indexes.values()))
    wrong, hurt = MemoryIndex(), False
    for pack in known.names:
        rows = []
        for section in range(3):
            for key, at in known.entries(section):
                if at.pack == pack:
                    rows.append((section, id_of(key), at.offset))
        spot = next((n for n, r in enumerate(rows) if r[0] == ("session" in defect)), None)
        if spot is not None and not hurt:
            hurt = True
            section, identity, offset = rows[spot]
            if defect == "entry left out":
                del rows[spot]
            elif defect == "entry moved":
                rows[spot] = section, identity, offset + 1
            elif defect == "session twice":
                rows += [(section, bytes([n]) * SIZE, offset) for n in range(1, 256)]
            else:
                rows[spot] = section, bytes(SIZE), offset
        wrong.add_pack(pack, known.packs[pack], by_section(rows))
    data = index_file.build([wrong], dict(known.packs))
    filled.store.put(f"index/{index_file.name_of(data)}", data)
    filled.catalog.listing.publish(partial(naming, [index_file.name_of(data)]))
    found = reopen(disk).verify(decode=defect == "key of a session")
    assert not found.sound and "index" in {p.kind for p in found.problems} <= {"index", "record", "session"}


def test_indexes_may_say_the_same(filled: TowerArchive) -> None:
    """A writer of an index died before it deleted those that it took in."""
    before = {name: filled.store.read(f"index/{name}", 0, 1 << 30) for name in filled.store.list("index")}
    filled.write_index()
    for name, data in before.items():
        assert filled.store.put(f"index/{name}", data)
    filled.catalog.listing.publish(partial(naming, [*before, *filled.catalog.listing.indexes]))
    catalog = Catalog(filled.store)
    catalog.refresh()
    assert len(catalog.listing.indexes) == 1 + len(before) and before
    assert len(walked(catalog)) == len(catalog.listing.packs)


def proved(records: int, ids: U64, parents: U64) -> PackColumns:
    """Return a pack of one block."""
    zero = np.zeros(1, np.int64)
    return PackColumns(bytes(16), records, zero, zero + len(ids), ids, parents)


def test_parents_anywhere_and_nowhere() -> None:
    """Of segments in other packs, behind the record or before it; where two begin alike, it is looked at one by one."""
    ids = np.random.default_rng(5).integers(0, 1 << 64, (3000, 2), np.uint64)
    ids[:, 1] &= 0xFFFF  # ids have ten bytes
    none = ids[:0]
    packs = [proved(1000, ids[at : at + 1000], none) for at in (0, 1000, 2000)]
    assert absent([*packs, proved(1, none, ids[::7])]) == absent(packs) == absent([]) == []
    assert not absent([proved(1, none, ids[-1:]), *packs])
    for half in (0, 1):
        other = ids[::7].copy()
        other[55, half] ^= np.uint64(1)
        assert absent([*packs, proved(1, none, other)]) == [other[55].tobytes()[:10]]
    alike = ids[:2].copy()
    alike[1, 0] = alike[0, 0]
    assert absent([proved(2, alike, none), proved(1, none, alike)]) and absent([proved(1, none, ids[:1])])


def id_of(key: int) -> bytes:
    """Return an id of this key."""
    return (key << 64 - index_file.KEY_BITS).to_bytes(8, "big") + bytes(8)

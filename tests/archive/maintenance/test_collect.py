"""Collect: two runs free forgotten sessions and merge packs; what is live is never deleted. Crashes: test_crash.py."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError
from pltz.archive.format import object_names
from pltz.archive.format.pack import Damage
from pltz.archive.storage.simulated_disk import SimDisk
from pltz.archive.storage.store import DirectoryStore
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import SegmentCodec
from pltz.plt_codec.identity import NONE
from tests.archive.towers import TowerArchive

PROMPT = np.arange(20)


@pytest.fixture
def filled(archive: TowerArchive) -> TowerArchive:
    """Put four sessions below one prompt, in packs of their own, and forget one."""
    for n in range(4):
        archive.put([NewSession(f"s{n}", [PROMPT, PROMPT + n])])
    archive.forget([archive.version("s1")])
    return archive


def names(archive: TowerArchive) -> list[str]:
    return [v.name for v in archive.ls()]


def test_the_first_run_condemns_and_the_second_deletes(filled: TowerArchive) -> None:
    packs = set(filled.catalog.listing.packs)
    first = filled.collect()
    assert (first.copied, first.deleted) == (0, 0) and first.condemned == len(packs)
    second = filled.collect()
    assert second.deleted == len(packs) and second.copied > 0 and second.freed > 0
    assert not packs & set(filled.catalog.listing.packs)
    assert (second.live_versions, second.live_segments) == (3, 4)
    assert names(filled) == ["s0", "s2", "s3"]
    assert all(filled.get(n).tokens.tolist() == [*PROMPT, *(PROMPT + int(n[1]))] for n in names(filled))


def test_undelete_works_until_the_second_run(filled: TowerArchive) -> None:
    [forgotten] = [v for v in filled.history("s1") if v.forgotten]
    filled.collect()
    assert filled.undelete([forgotten]) == 1
    filled.collect()
    assert filled.get("s1").tokens.tolist() == [*PROMPT, *(PROMPT + 1)]


def test_a_pack_stays_for_the_time_of_grace(filled: TowerArchive, disk: SimDisk) -> None:
    filled.collect()
    assert filled.collect(grace=3600).deleted == 0
    disk.clock += 3601
    assert filled.collect(grace=3600).deleted > 0


def test_a_dry_run_changes_nothing(filled: TowerArchive, disk: SimDisk) -> None:
    before = disk.seen.files()
    assert filled.collect(dry_run=True).condemned > 0 and disk.seen.files() == before
    filled.collect()
    before = disk.seen.files()
    assert filled.collect(dry_run=True).deleted > 0 and disk.seen.files() == before


def test_a_large_pack_with_few_dead_bytes_stays(filled: TowerArchive) -> None:
    filled.collect()
    filled.collect()
    assert filled.collect(small=0).condemned == 0
    filled.forget([filled.version("s0"), filled.version("s2")])
    assert filled.collect(small=0, dead_share=0.99).condemned == 0
    assert filled.collect(small=0, dead_share=0.1).condemned == 1


@pytest.mark.parametrize("defect", ["missing", "damaged", "plan"])
def test_it_deletes_nothing_where_something_is_wrong(
    filled: TowerArchive, disk: SimDisk, codec: SegmentCodec, defect: str
) -> None:
    filled.collect()
    pack = filled.version("s0").location.pack
    if defect == "missing":
        disk.unlink(object_names.pack(pack))
    elif defect == "damaged":
        disk.overwrite(object_names.pack(pack), bytes(200))
    else:
        disk.unlink(object_names.plan(1))
    before = set(disk.seen.files())
    with pytest.raises(ArchiveError, match="stops"):
        TowerArchive.open(DirectoryStore(disk), [codec]).collect()
    assert set(disk.seen.files()) == before


def test_what_was_put_between_the_runs_stays(filled: TowerArchive, disk: SimDisk, codec: SegmentCodec) -> None:
    filled.collect()
    other = TowerArchive.open(DirectoryStore(disk), [codec])
    other.put([NewSession("late", [PROMPT, PROMPT + 1])])  # the prompt lies in condemned packs alone
    filled.collect()
    assert filled.get("late").tokens.tolist() == [*PROMPT, *(PROMPT + 1)] and filled.verify(decode=True).sound


def test_records_come_in_the_order_of_their_commits(archive: TowerArchive) -> None:
    for number in range(8):
        archive.put([NewSession(f"s{number}", [PROMPT + number], time=1000 + number)])
    archive.collect()
    archive.collect()
    [pack] = archive.catalog.listing.packs
    found = [item.record.name for item in archive.catalog.listing.scan(pack) if not isinstance(item, Damage)]
    assert found == [f"s{number}" for number in range(8)]


def test_a_session_comes_behind_its_neighbour(disk: SimDisk, tower_codec: SegmentCodec) -> None:
    archive = TowerArchive.create(DirectoryStore(disk), [tower_codec])
    archive.neighbours = True
    dice = np.random.default_rng(0)
    topics = [dice.integers(0, 60_000, 200) for _ in range(3)]
    for number in range(12):  # the topics take turns
        archive.put([NewSession(f"s{number}", [np.append(topics[number % 3], number)], time=1000 + number)])
    archive.collect()
    archive.collect()
    [pack] = archive.catalog.listing.packs
    found = [item.record for item in archive.catalog.listing.scan(pack) if not isinstance(item, Damage)]
    assert [int((r.name or "")[1:]) % 3 for r in found] == [0] * 4 + [1] * 4 + [2] * 4
    for at, record in enumerate(found):
        assert record.neighbour in [NONE, *(r.id for r in found[:at])]
    assert sum(record.neighbour != NONE for record in found) == 9
    assert archive.verify(decode=True).sound

"""Collect: two runs free forgotten sessions and merge packs; what is live is never deleted."""

import numpy as np
import pytest

from pltz.archive.errors import ArchiveError
from pltz.archive.format import object_names
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.pack import Damage
from pltz.archive.maintenance.collect import SMALL, Collector, _tiers
from pltz.archive.writing.writer import Publisher
from tests.archive.kit import NewSession, SimDisk, TowerArchive, create, reopen

PROMPT = np.arange(20)
DAY = 86400


@pytest.fixture
def filled(archive: TowerArchive) -> TowerArchive:
    """Put four sessions below one prompt, in packs of their own, and forget one."""
    for n in range(4):
        archive.put([NewSession(f"s{n}", [PROMPT, PROMPT + n])])
    archive.forget([archive.version("s1")])
    return archive


def names(archive: TowerArchive) -> list[str]:
    return [v.name for v in archive.ls()]


def test_nothing_is_deleted_where_a_copy_lacks_a_record(filled: TowerArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof reads the copies: it finds what a faulty copying left out."""
    filled.collect()
    packs, copy = set(filled.catalog.listing.packs), Publisher.put
    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "put", lambda writer, rows, **how: copy(writer, list(rows)[:-1], **how))
        with pytest.raises(ArchiveError, match="was not found in a pack that stays"):
            filled.collect()
    assert packs < object_names.pack.listed(filled.store.list).keys()
    assert not filled.catalog.listing.present.gone
    assert filled.collect().deleted == len(packs) and names(filled) == ["s0", "s2", "s3"]


def test_parity_of_a_pack_that_vanishes_meanwhile_stays(
    filled: TowerArchive, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, sweep = filled.version("s0").location.pack, Collector._sweep

    def vanishing(collector: Collector) -> None:
        disk.unlink(object_names.pack(pack))
        collector.catalog.refresh()
        sweep(collector)

    monkeypatch.setattr(Collector, "_sweep", vanishing)
    with pytest.raises(ArchiveError):
        filled.collect()
    assert pack in object_names.parity.listed(filled.store.list)


def test_a_pack_stays_for_the_time_of_grace(filled: TowerArchive, disk: SimDisk) -> None:
    filled.collect()
    assert filled.collect(grace=3600).deleted == 0
    disk.clock += 3601
    assert filled.collect(grace=3600).deleted > 0


def test_a_large_pack_with_few_dead_bytes_stays(filled: TowerArchive) -> None:
    filled.collect()
    filled.collect()
    assert filled.collect(small=0).condemned == 0
    filled.forget([filled.version("s0"), filled.version("s2")])
    assert filled.collect(small=0, dead_share=0.99).condemned == 0
    assert filled.collect(small=0, dead_share=0.1).condemned == 1


@pytest.mark.parametrize("defect", ["missing", "damaged"])
def test_it_deletes_nothing_where_something_is_wrong(filled: TowerArchive, disk: SimDisk, defect: str) -> None:
    filled.collect()
    pack = filled.version("s0").location.pack
    if defect == "missing":
        disk.unlink(object_names.pack(pack))
    else:
        disk.overwrite(object_names.pack(pack), bytes(200))
    before = set(disk.seen.files())
    with pytest.raises(ArchiveError, match="stops"):
        reopen(disk).collect()
    assert set(disk.seen.files()) == before


def test_records_come_in_the_order_of_their_commits(archive: TowerArchive) -> None:
    for number in range(8):
        archive.put([NewSession(f"s{number}", [PROMPT + number], time=1000 + number)])
    archive.collect()
    archive.collect()
    [pack] = archive.catalog.listing.packs
    found = [item.record.name for item in archive.catalog.listing.scan(pack) if not isinstance(item, Damage)]
    assert found == [f"s{number}" for number in range(8)]


def kinds(disk: SimDisk, *folders: str) -> int:
    """Return the bytes of the files in some folders; of all but parity and its second copies without a name."""
    files = sizes(disk)
    if folders:
        return sum(size for p, size in files.items() if p.startswith(folders))
    return sum(size for p, size in files.items() if not p.startswith("parity/"))


def everything(disk: SimDisk) -> int:
    """Return the bytes of all files but the reserve and temporary ones."""
    return sum(sizes(disk).values())


def sizes(disk: SimDisk) -> dict[str, int]:
    """Return the bytes of each file without the records of the audit, 19 of each put."""
    found = dict[str, int]()
    for path, data in disk.seen.files().items():
        if not path.startswith(("tmp/", "reserve", "audit/")):
            rows = Manifest.decode(data).audit.rows if path.startswith("manifest/") else b""
            found[path] = len(data) - len(rows)
    return found


@pytest.mark.parametrize("nightly", [0, 12])
def test_236_sessions_put_one_by_one_take_at_most_a_tenth_more_than_one_put(nightly: int) -> None:
    """Not only at the end: also where a collector ran each night, behind every twelve of them."""
    sessions = [NewSession(f"chat-{n}", [np.arange(20) % (2 + n % 11) + n]) for n in range(236)]
    together, apart = SimDisk(), SimDisk(seed=1)
    at_once = create(together)
    at_once.put(sessions)
    at_once.write_index()
    archive = create(apart)
    for number, session in enumerate(sessions):
        archive.put([session])
        if nightly and number % nightly == 0:
            apart.clock += DAY
            archive.collect(grace=DAY // 2)
    scattered, with_parity = kinds(apart), everything(apart)
    for _ in range(2):
        archive.collect()
    archive.write_index()
    apart_bytes, together_bytes = kinds(apart), kinds(together)
    print(f"one put {together_bytes}, single puts {scattered}, collected {apart_bytes}")
    assert nightly or scattered > 2 * together_bytes
    assert apart_bytes <= 1.1 * together_bytes
    print(f"with parity: one put {everything(together)}, single puts {with_parity}, collected {everything(apart)}")
    assert everything(apart) <= 1.1 * everything(together)
    fresh = reopen(apart)
    assert {v.name for v in fresh.ls()} == {s.name for s in sessions} and fresh.verify(decode=True).sound


def test_a_byte_is_copied_a_bounded_number_of_times() -> None:
    """Nights of one pack each, of any size: the bytes that merges write stay below four times those that are put."""
    dice = np.random.default_rng(3)
    packs: dict[bytes, int] = {}
    put = copied = most = 0
    for night in range(3000):
        packs[night.to_bytes(16, "big")] = size = int(dice.integers(1 << 10, 1 << 20))
        put += size
        going = _tiers(packs, SMALL)
        if total := sum(packs.pop(pack) for pack in going):
            copied += total
            packs[(1 << 64 | night).to_bytes(16, "big")] = total
        most = max(most, len(packs) - sum(size >= SMALL for size in packs.values()))
    print(f"put {put}, copied {copied}: {copied / put:.2f}, at most {most} small packs")
    assert 1 < copied / put < 4 and most <= 25


def test_what_a_clock_ahead_condemned_stays_no_longer_than_the_grace(filled: TowerArchive, disk: SimDisk) -> None:
    disk.clock += 400 * DAY
    condemned = filled.collect().condemned
    disk.clock -= 400 * DAY
    assert filled.collect(grace=DAY).deleted == 0
    disk.clock += DAY
    assert filled.collect(grace=DAY).deleted == condemned

"""The store: what is found is what was put, in its tier, within its budget, and stays while it is used."""

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from pltz.archive import NO_SEGMENT
from pltz.kv.errors import WarmFileError
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore, space_of
from pltz.plt_codec.errors import UsageError
from tests.kv.store.peek import nodes

SPACE = space_of(b"fingerprint", "float32")
SIZE = 4 * 72  # bytes of a block of four tokens


class Store(HotStore):
    """With short names for what tests do all the time."""

    blocks: Any

    @classmethod
    def of(cls, blocks: Any, *budgets: int, **options: Any) -> "Store":
        store = cls.open(*budgets, **options)
        store.blocks = blocks
        return store

    def put(self, number: int, parent: int = 0, born: float | None = None, tokens: int = 4, wait: bool = True) -> bool:
        """Insert a block, and wait until nothing is left in the queue."""
        above = self.blocks.name(parent) if parent else NO_SEGMENT
        start = 4 if parent else 0
        kept = self.insert(SPACE, self.blocks.name(number), above, self.blocks(number, tokens, start), born)
        if wait:
            self.drain()
        return kept

    def where(self, *path: int) -> list[str]:
        with self.hold(SPACE, [self.blocks.name(n) for n in path]) as lease:
            for number, block in zip(path, lease.blocks, strict=False):
                assert bool((block.kv == number).all()) and bool((block.ids == number).all())
            return lease.tiers

    def here(self) -> set[int]:
        """Roots that are in memory, without touching them."""
        return {n for n in range(1, 40) if self.parent(SPACE, self.blocks.name(n)) is not None}


def test_a_path_is_found_up_to_where_it_is_missing(blocks: Any) -> None:
    store = Store.of(blocks, 10 * SIZE)
    assert store.put(1) and store.put(2, 1) and store.put(4, 3)
    assert store.where(1, 2, 3, 4) == ["device", "device"]
    assert store.where(2) == [], "not on this parent"
    assert store.where(3, 4) == []
    found = store.stats()
    assert (found.tiers["device"].hits, found.misses, found.hit_tokens, found.inserted) == (2, 5, 8, 3)
    assert (found.tiers["device"].used, found.tiers["device"].blocks) == (3 * SIZE, 3)
    assert store.parent(SPACE, blocks.name(2)) == blocks.name(1)


def test_another_target_or_dtype_is_another_space(blocks: Any) -> None:
    store = Store.of(blocks, 10 * SIZE)
    store.put(1)
    for space in (space_of(b"fingerprint", "bfloat16"), space_of(b"another", "float32")):
        with store.hold(space, [blocks.name(1)]) as lease:
            assert len(lease) == 0


def test_other_ids_under_a_name_take_its_place_unless_it_is_in_use(blocks: Any) -> None:
    store = Store.of(blocks, 10 * SIZE)
    store.put(1)
    other: KVBlock = blocks(9)
    with store.hold(SPACE, [blocks.name(1)]) as lease:
        assert store.insert(SPACE, blocks.name(1), NO_SEGMENT, other)
        with store.hold(SPACE, [blocks.name(1)]) as again:
            assert lease.blocks[0].ids[0] == again.blocks[0].ids[0] == 1
    assert store.insert(SPACE, blocks.name(1), NO_SEGMENT, other)
    with store.hold(SPACE, [blocks.name(1)]) as lease:
        assert lease.blocks[0].ids[0] == 9
    assert store.stats().tiers["device"].used == SIZE


def test_the_least_recently_used_goes_down_a_tier_at_a_time(blocks: Any, clock: Any, tmp_path: Path) -> None:
    store = Store.of(blocks, 2 * SIZE, 2 * SIZE, 1 << 20, folder=tmp_path, clock=clock)
    for n in range(1, 7):
        assert store.put(n)
        clock.now += 1000
    found = store.stats()
    assert (found.tiers["device"].blocks, found.tiers["host"].blocks, found.tiers["disk"].blocks) == (2, 2, 2)
    assert (found.demoted, found.dropped) == (4 + 2, 0)
    assert store.here() == {3, 4, 5, 6}
    assert store.where(6) == store.where(5) == ["device"]
    assert store.where(1) == ["device"], "promoted from its file, for it is used now"


def test_a_child_goes_before_its_parent(blocks: Any, clock: Any) -> None:
    store = Store.of(blocks, 3 * SIZE, clock=clock)
    store.put(1)
    store.put(2, 1)
    clock.now += 1000
    store.put(3)
    clock.now += 1000
    store.put(4)
    assert store.here() == {1, 3, 4}


def test_no_more_than_half_the_device_is_pinned(blocks: Any) -> None:
    store = Store.of(blocks, 4 * SIZE)
    store.put(1)
    store.put(2, 1)
    store.put(3, 2)
    path = [blocks.name(n) for n in (1, 2, 3)]
    assert not store.pin(SPACE, path) and store.pin(SPACE, path[:2])
    assert not store.pin(SPACE, [blocks.name(9)]), "not here"


def test_a_file_outlives_the_store_and_damage_is_a_miss(blocks: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path}
    first = Store.of(blocks, 0, 0, 1 << 20, **options)
    assert first.put(1) and first.put(2, 1)
    second = Store.of(blocks, SIZE, 0, 1 << 20, **options)
    assert second.where(1, 2) == ["device", "disk"], "the second stays below: no room beside what is leased"
    assert second.stats().tiers["device"].used == SIZE
    path = next(tmp_path.glob(f"*/{blocks.name(2).hex()}.*"))
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    assert second.where(1, 2) == ["device"]
    assert second.stats().tiers["disk"].damaged == 1 and not path.exists()


def test_what_is_discarded_is_nowhere_and_its_holder_keeps_it(blocks: Any, tmp_path: Path) -> None:
    store = Store.of(blocks, SIZE, 0, 1 << 20, folder=tmp_path)
    store.put(1)
    store.shared[0].write(SPACE, blocks.name(2), _warm(blocks, 2))
    lease = store.hold(SPACE, [blocks.name(1)])
    store.discard(SPACE, blocks.name(1))
    store.discard(SPACE, blocks.name(2))
    assert store.where(1) == store.where(2) == []
    assert bool((lease.blocks[0].kv == 1).all()) and store.stats().tiers["device"].used == SIZE
    lease.release()
    assert store.stats().tiers["device"].used == 0


@pytest.mark.parametrize("when", ["begun", "filled"])
@pytest.mark.parametrize("whose", ["inserted", "demoted", "another's"])
def test_a_file_that_is_being_written_is_discarded_too(
    blocks: Any, clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, when: str
) -> None:
    """An insert, an eviction or another process is writing it. It does not appear after the discard."""
    from pltz.kv.store.warm_file import WarmFile

    store = Store.of(blocks, SIZE if whose == "demoted" else 0, 0, 1 << 20, folder=tmp_path, clock=clock)
    other = Store.of(blocks, 0, 0, 1 << 20, folder=tmp_path, clock=clock) if whose == "another's" else store
    if whose == "demoted":
        store.put(1)
        clock.now += 1000
    fill = WarmFile.fill
    discarded = 0

    def late(file: WarmFile, part: int) -> None:
        nonlocal discarded
        if when == "filled":
            fill(file, part)
        store.discard(SPACE, blocks.name(1))
        discarded += 1
        if when == "begun":
            fill(file, part)

    with monkeypatch.context() as context:
        context.setattr(WarmFile, "fill", late)
        other.put(2 if whose == "demoted" else 1)
    assert discarded == 1 and store.where(1) == other.where(1) == []
    assert not list(tmp_path.glob(f"*/{blocks.name(1).hex()}.*"))
    assert not list(tmp_path.glob("*/*.part")) and not store._watches
    assert other.put(1) or whose == "demoted", "what is put after it is kept again"


def test_a_file_that_is_being_read_does_not_come_back_from_a_discard(
    blocks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.of(blocks, SIZE, 0, 1 << 20, folder=tmp_path)
    assert store.shared[0].write(SPACE, blocks.name(1), _warm(blocks, 1))
    read = store.shared[0].read

    def late(space: bytes, segment: bytes, codecs: Any) -> Any:
        found = read(space, segment, codecs)
        store.discard(space, segment)
        return found

    with monkeypatch.context() as context:
        context.setattr(store.shared[0], "read", late)
        assert store.where(1) == []
    assert store.where(1) == [] and store.stats().tiers["device"].used == 0 and not store._watches


def test_what_is_discarded_while_room_is_made_for_it_is_not_kept(
    blocks: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is evicted for it takes its time."""
    store = Store.of(blocks, SIZE, SIZE, clock=clock)
    store.put(1)
    clock.now += 1000
    host = store.memory[1]
    keep = host.keep

    def slow(block: Any) -> Any:
        store.discard(SPACE, blocks.name(2))
        return keep(block)

    monkeypatch.setattr(host, "keep", slow)
    assert not store.put(2)
    assert store.where(2) == [] and store.where(1) and not store._watches
    assert store.stats().tiers["device"].used + store.stats().tiers["host"].used == SIZE


def test_a_discard_that_cannot_remove_the_file_says_so(
    blocks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.of(blocks, 0, 0, 1 << 20, folder=tmp_path)
    store.put(1)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(WarmFileError, match="cannot remove the warm file"):
        store.discard(SPACE, blocks.name(1))


def _warm(blocks: Any, number: int) -> Any:
    from pltz.kv.store.tier import StoredBlock

    return StoredBlock(blocks(number), NO_SEGMENT, 0)


def test_a_machine_with_less_memory_than_the_budget_says_is_no_error(
    blocks: Any, clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.of(blocks, 2 * SIZE, 2 * SIZE, 1 << 20, folder=tmp_path, clock=clock)
    store.put(1)
    store.put(2)
    clock.now += 1000
    full = {"host"}

    def limit(tier: Any) -> None:
        keep = tier.keep
        monkeypatch.setattr(tier, "keep", lambda block: None if tier.name in full else keep(block))

    for tier in store.memory:
        limit(tier)
    assert store.put(3)
    tiers = store.stats().tiers
    assert tiers["host"].used == 0 and tiers["disk"].blocks == 1, "past the host"
    full.add("device")
    clock.now += 1000
    assert store.put(4) and store.where(4) == ["disk"]
    assert store.where(1) == ["disk"] and store.where(3) == ["device"]
    found = store.stats()
    assert found.tiers["host"].used == 0 and found.tiers["device"].used == SIZE * found.tiers["device"].blocks
    full.remove("host")
    assert store.put(5) and store.where(5) == ["host"] and store.stats().tiers["host"].used == SIZE


def test_a_warm_folder_and_its_budget_belong_together(tmp_path: Path) -> None:
    for options in ({"disk_bytes": 5}, {"folder": tmp_path}):
        with pytest.raises(UsageError, match="belong together"):
            HotStore.open(1, **options)
    for budgets in ((-1,), (1, -1), (1, 1, -1)):
        with pytest.raises(UsageError, match="from 0 up"):
            HotStore.open(*budgets, folder=tmp_path if len(budgets) == 3 else None)


def test_many_threads_leave_the_books_right(blocks: Any, tmp_path: Path) -> None:
    """Each finds what it was promised while others put, hold, pin and discard."""
    store = Store.of(blocks, 6 * SIZE, 4 * SIZE, 40 * SIZE, folder=tmp_path)

    def work(seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        for _ in range(120):
            n = int(torch.randint(1, 9, (1,), generator=draw))
            store.put(n, wait=False)
            store.put(10 + n, n, wait=False)
            assert set(store.where(n, 10 + n)) <= {"device", "host", "queue", "disk"}
            if n == 3:
                store.discard(SPACE, blocks.name(13))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    store.close()
    found = store.stats()
    assert (found.tiers["queue"].used, found.tiers["queue"].blocks, found.failed, found.failure) == (0, 0, 0, "")
    held = nodes(store)
    for tier in ("device", "host"):
        mine = [node for node in held if node.tier is not None and node.tier.name == tier]
        kept = found.tiers[tier]
        assert (kept.used, kept.blocks) == (sum(n.block.size for n in mine), len(mine))
        assert kept.used <= kept.budget
    assert all(node.leases == 0 and not node.moving for node in held)
    assert found.tiers["disk"].damaged == 0

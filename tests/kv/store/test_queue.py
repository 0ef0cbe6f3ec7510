"""The queue: nobody waits for a block to be coded or written, and it is found, exact, until that is done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from pltz.kv.port.codec import Span
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.store import HotStore
from pltz.kv.store.tier import DeviceTier, HostTier
from pltz.plt_codec.errors import UsageError
from tests.kv.store.conftest import SPACE, Blocks, held, put
from tests.kv.store.peek import nodes
from tests.kv.store.test_tier import RAW_SIZE, Drawer, Rounded

PATIENCE = 180  # seconds


class Gate(Rounded):
    """A form that is not exact, whose coding waits until it is let go, and may fail then."""

    def __init__(self) -> None:
        self.begun, self.go = Event(), Event()
        self.failure: Exception | None = None

    def encode(self, kv: torch.Tensor, span: Span) -> Any:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure
        return super().encode(kv, span)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.go.set()


@pytest.mark.parametrize("tier", ["host", "drawer", "disk"])
def test_an_eviction_does_not_wait_for_coding_and_the_block_is_found_meanwhile(
    blocks: Blocks, clock: Any, gate: Gate, tier: str, tmp_path: Path
) -> None:
    room = 1 << 20
    if tier == "disk":
        store = HotStore.open(RAW_SIZE, 0, room, folder=tmp_path, forms={"disk": gate}, clock=clock)
    else:
        lower = HostTier(room, codec=gate) if tier == "host" else Drawer(codec=gate)
        store = HotStore([DeviceTier(RAW_SIZE), lower], clock=clock)
    assert put(store, blocks, clock, 1, 2) == [True, True]
    assert gate.begun.wait(PATIENCE) and not gate.go.is_set(), "coding is under way, and nobody waited"
    with store.hold(SPACE, [blocks.name(2)]):  # so that the first has no room on the device
        assert held(store, blocks, 1) == (["queue"], ["raw"]), "exact"
        found = store.stats().tiers
        assert (found["queue"].blocks, found["queue"].used, found["queue"].hits) == (1, RAW_SIZE, 1)
        assert found["device"].used == RAW_SIZE
        gate.go.set()
        store.drain()
        assert held(store, blocks, 1) == ([], []), "coded: found by those only who allow the loss"
        assert held(store, blocks, 1, 0.01) == ([tier], ["rounded"])
    found = store.stats().tiers
    assert (found["queue"].blocks, found["queue"].used, found[tier].blocks) == (0, 0, 1)


def test_a_block_may_move_up_from_the_queue(blocks: Blocks, clock: Any, gate: Gate) -> None:
    drawer = Drawer(codec=gate)
    store = HotStore([DeviceTier(RAW_SIZE), drawer], clock=clock)
    put(store, blocks, clock, 9, 1, 2)  # 9 is being coded, 1 waits
    assert gate.begun.wait(PATIENCE)
    assert held(store, blocks, 1) == (["device"], ["raw"]), "in place of 2, which waits now"
    clock.now += 1000
    assert held(store, blocks, 2) == (["device"], ["raw"])
    gate.go.set()
    store.drain()
    assert {key[0] for key in drawer.blocks} == {SPACE + blocks.name(n) for n in (1, 9)}, "2 is on the device"
    assert store.stats().tiers["queue"].blocks == 0


@pytest.mark.parametrize("when", ["waiting", "under way"])
def test_what_is_discarded_in_the_queue_never_reaches_the_disk(
    blocks: Blocks, clock: Any, gate: Gate, when: str, tmp_path: Path
) -> None:
    store = HotStore.open(0, 0, 1 << 20, folder=tmp_path, forms={"disk": gate}, clock=clock)
    put(store, blocks, clock, 1, 2)
    assert gate.begun.wait(PATIENCE)
    gone, kept = (2, 1) if when == "waiting" else (1, 2)
    store.discard(SPACE, blocks.name(gone))
    assert held(store, blocks, gone) == ([], [])
    gate.go.set()
    store.close()
    assert [path.name.split(".")[0] for path in tmp_path.glob("*/*")] == [blocks.name(kept).hex()]
    found = store.stats()
    assert (found.dropped, found.tiers["queue"].used) == (0, 0), "what nobody wants is not counted as lost"


def test_clear_empties_the_queue(blocks: Blocks, clock: Any, gate: Gate, tmp_path: Path) -> None:
    store = HotStore.open(0, 0, 1 << 20, folder=tmp_path, forms={"disk": gate}, clock=clock)
    put(store, blocks, clock, 1, 2, 3)
    assert gate.begun.wait(PATIENCE)
    store.clear()
    gate.go.set()
    store.drain()
    assert not list(tmp_path.glob("*/*")) and not nodes(store) and store.stats().tiers["queue"].used == 0


@pytest.mark.parametrize("bound", ["bytes", "blocks"])
def test_a_full_queue_has_no_room_and_says_so(
    blocks: Blocks, clock: Any, gate: Gate, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "blocks":
        monkeypatch.setattr("pltz.kv.store.store.QUEUE_BLOCKS", 2)
    room = 2 * RAW_SIZE if bound == "bytes" else 1 << 20
    drawer = Drawer(codec=gate)
    store = HotStore([DeviceTier(RAW_SIZE), drawer], queue_bytes=room, clock=clock)
    assert put(store, blocks, clock, 1, 2, 3, 4) == [True] * 4
    found = store.stats()
    assert (found.demoted, found.dropped, found.queue_full, found.refused) == (2, 1, 1, 0)
    assert found.tiers["queue"].used == 2 * RAW_SIZE and held(store, blocks, 3) == ([], [])
    with store.hold(SPACE, [blocks.name(4)]):
        assert put(store, blocks, clock, 5) == [False]
    found = store.stats()
    assert (found.dropped, found.queue_full, found.refused) == (1, 2, 1)
    gate.go.set()
    store.drain()
    assert {key[0] for key in drawer.blocks} == {SPACE + blocks.name(n) for n in (1, 2)}
    with store.hold(SPACE, [blocks.name(4)]):
        assert put(store, blocks, clock, 5) == [True], "there is room again"


@pytest.mark.parametrize("shared", [True, False])
def test_a_block_leased_while_it_is_coded_stays_as_it_is_until_the_lease_ends(
    blocks: Blocks, clock: Any, gate: Gate, shared: bool
) -> None:
    lower = Drawer(codec=gate) if shared else HostTier(1 << 20, codec=gate)
    store = HotStore([DeviceTier(0), lower], clock=clock)
    put(store, blocks, clock, 1)
    assert gate.begun.wait(PATIENCE)
    lease = store.hold(SPACE, [blocks.name(1)])
    gate.go.set()
    store.drain()
    assert lease.tiers == ["queue"] and lease.blocks[0].codec.exact and bool((lease.blocks[0].kv == 1).all())
    assert store.stats().tiers["host" if not shared else "queue"].used == (0 if not shared else RAW_SIZE)
    lease.release()
    store.drain()
    assert store.stats().tiers["queue"].used == 0
    assert held(store, blocks, 1, 0.01) == ([lower.name], ["rounded"])


def test_an_error_in_the_background_is_counted_and_costs_one_block(blocks: Blocks, clock: Any, gate: Gate) -> None:
    gate.failure = ValueError("a bug")
    store = HotStore([DeviceTier(0), HostTier(1 << 20, codec=gate)], clock=clock)
    put(store, blocks, clock, 1)
    gate.go.set()
    store.drain()
    found = store.stats()
    assert (found.failed, found.dropped, found.failure) == (1, 1, "ValueError: a bug")
    assert found.tiers["queue"].used == found.tiers["host"].used == 0 and held(store, blocks, 1) == ([], [])
    gate.failure = UsageError("a shape that this form cannot hold")
    put(store, blocks, clock, 2)
    store.drain()
    found = store.stats()
    assert (found.failed, found.dropped) == (1, 2), "a refusal is no error, and no tier is left"
    gate.failure = None
    put(store, blocks, clock, 3)
    store.drain()
    assert held(store, blocks, 3, 0.01) == (["host"], ["rounded"])


def test_closing_writes_what_waits(blocks: Blocks, clock: Any, gate: Gate, tmp_path: Path) -> None:
    store = HotStore.open(0, 0, 1 << 20, folder=tmp_path, forms={"disk": gate}, clock=clock)
    put(store, blocks, clock, 1, 2, 3)
    assert gate.begun.wait(PATIENCE)
    closing = Thread(target=store.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    gate.go.set()
    closing.join(PATIENCE)
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 3
    put(store, blocks, clock, 4)
    store.close()
    assert len(list(tmp_path.glob("*/*.safetensors"))) == 4, "it can be used again"


CHILD = """
import os, sys
import numpy as np
import torch
from pltz.archive import NO_SEGMENT
from pltz.kv.store.store import HotStore
from pltz.kv.store.kv_block import KVBlock

store = HotStore.open(0, 0, 1 << 30, folder=sys.argv[1])
ids = np.arange(256, dtype=np.int32)
made = [KVBlock.raw(torch.full((2, 2, 4, 256, 64), float(number)), ids, ids, 0) for number in range(60)]
for number, block in enumerate(made):
    assert store.insert(b"space...........", number.to_bytes(10, "big"), NO_SEGMENT, block)
while not store.shared[0].written:
    pass
if sys.argv[2] == "killed":
    os._exit(0)
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_a_process_that_ends_with_a_full_queue_leaves_whole_files(blocks: Blocks, how: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", CHILD, str(tmp_path), how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    whole = list(tmp_path.glob("*/*.safetensors"))
    assert 1 <= len(whole) < 60, "what waited is lost, and nobody waited for it"
    disk = DiskTier(tmp_path, 1 << 30)
    for number in range(60):
        found = disk.read(SPACE, blocks.name(number))
        assert found is None or bool((found.block.kv == number).all())
        assert (found is not None) == disk.path(SPACE, blocks.name(number)).exists()
    assert disk.damaged == 0

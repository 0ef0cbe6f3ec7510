"""Any sequence of puts, holds, pins, discards and damage: budgets hold, segments in use stay, content is right."""

import tempfile
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pltz.archive import NO_SEGMENT
from pltz.kv.store import warm_file
from pltz.kv.store.background_worker import BackgroundWorker
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.store import HotStore
from pltz.plt_codec.errors import CorruptError
from tests.examples import examples
from tests.kv.store.peek import nodes

SPACE = b"space..........."
ROOTS = st.integers(1, 4)
# A tower is (root, child, grandchild): names 1..4, 11..44, 111..444
TOWERS = st.tuples(ROOTS, ROOTS, ROOTS).map(lambda t: (t[0], t[0] * 10 + t[1], t[0] * 100 + t[1] * 10 + t[2]))


def name(number: int) -> bytes:
    return number.to_bytes(10, "big")


def block(number: int, tokens: int) -> KVBlock:
    ids = np.full(tokens, number, np.int32)
    return KVBlock.raw(torch.full((1, 2, 1, tokens, 2), float(number)), ids, ids, 0)


class ByHand(BackgroundWorker[None]):
    """Does the work of the queue when it is told to."""

    def __init__(self) -> None:
        super().__init__("by hand", 0)
        self.pieces: list[Callable[[], None]] = []

    def submit(self, key: Hashable, work: Callable[[], None]) -> Future[None]:
        self.pieces.append(work)
        return Future()

    def drain(self) -> None:
        while self.pieces:
            self.pieces.pop(0)()


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1e6
        budgets: dict[str, Any] = {"folder": self.folder.name, "queue_bytes": 150}
        self.store = HotStore.open(300, 200, 1600, clock=lambda: self.now, **budgets)
        self.worker = self.store._worker = ByHand()
        self.leases: list[tuple[Any, list[int], list[str]]] = []
        self.pinned: list[list[int]] = []
        self.damaged = False

    def teardown(self) -> None:
        for lease, *_ in self.leases:
            lease.release()
        for path in self.pinned:
            self.store.unpin(SPACE, [name(n) for n in path])
        self.store.drain()
        assert all(node.leases == 0 for node in nodes(self.store))
        found = self.store.stats()
        assert (found.tiers["queue"].used, found.tiers["queue"].blocks, found.failed) == (0, 0, 0)
        self.folder.cleanup()

    @rule(tower=TOWERS, depth=st.integers(1, 3), age=st.sampled_from([0, 100, 100_000]))
    def put(self, tower: tuple[int, ...], depth: int, age: float) -> None:
        above = NO_SEGMENT
        for number in tower[:depth]:
            self.store.insert(SPACE, name(number), above, block(number, 1 + number % 5), self.now - age)
            above = name(number)

    @rule(tower=TOWERS)
    def hold(self, tower: tuple[int, ...]) -> None:
        lease = self.store.hold(SPACE, [name(n) for n in tower])
        for number, block in enumerate(lease.blocks):
            try:
                block.wait()
            except CorruptError:  # of a file that was damaged behind its beginning
                assert self.damaged
                lease.keep(number)
                break
        assert lease.segments == [name(n) for n in tower[: len(lease)]]
        self.leases.append((lease, list(tower[: len(lease)]), lease.tiers))

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        lease, *_ = self.leases.pop(which % len(self.leases))
        lease.release()

    @rule(tower=TOWERS)
    def pin(self, tower: tuple[int, ...]) -> None:
        if self.store.pin(SPACE, [name(n) for n in tower[:1]]):
            self.pinned.append(list(tower[:1]))

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        self.store.unpin(SPACE, [name(n) for n in self.pinned.pop()])

    @rule(tower=TOWERS, depth=st.integers(0, 2))
    def discard(self, tower: tuple[int, ...], depth: int) -> None:
        gone = tower[depth]
        self.store.discard(SPACE, name(gone))
        self.pinned = [path for path in self.pinned if gone not in path]
        assert len(self.store.hold(SPACE, [name(gone)])) == 0

    @rule(seconds=st.sampled_from([1, 100, 10_000]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.worker.pieces)
    @rule()
    def one_piece_of_the_queue(self) -> None:
        self.worker.pieces.pop(0)()

    @rule()
    def drain(self) -> None:
        self.store.drain()

    @rule(which=st.integers(0, 100), at=st.integers(0, 1000))
    def damage(self, which: int, at: int) -> None:
        [disk] = self.store.shared
        assert isinstance(disk, DiskTier)
        files = sorted(disk.folder.glob("*/*.safetensors"))
        held = {disk.path(SPACE, name(n)) for _, path, _ in self.leases for n in path}
        files = [f for f in files if f not in held]
        if files:
            path = files[which % len(files)]
            data = bytearray(path.read_bytes())
            data[at % len(data)] ^= 4
            path.unlink()
            path.write_bytes(data)
            self.damaged = True

    @invariant()
    def what_is_leased_is_what_it_was(self) -> None:
        for lease, path, tiers in self.leases:
            order = ["disk", "queue", "host", "device"]
            assert all(order.index(a) >= order.index(b) for a, b in zip(lease.tiers, tiers, strict=True))
            for number, found in zip(path, lease.blocks, strict=True):
                assert len(found.ids) == 1 + number % 5
                assert bool((found.kv == number).all()) and bool((found.ids == number).all())

    @invariant()
    def what_is_pinned_is_in_memory(self) -> None:
        for path in self.pinned:
            assert all(self.store.parent(SPACE, name(n)) is not None for n in path)

    @invariant()
    def the_books_are_right_and_within_budget(self) -> None:
        found = self.store.stats()
        held = {*nodes(self.store)}
        held |= {node for lease, *_ in self.leases for node in lease._nodes}
        for name_ in ("device", "host", "queue"):
            tier = found.tiers[name_]
            mine = [node for node in held if node.tier is not None and node.tier.name == name_]
            assert (tier.used, tier.blocks) == (sum(n.block.size for n in mine), len(mine))
            assert 0 <= tier.used <= tier.budget or (name_ == "queue" and tier.blocks == 1)
        assert found.tiers["disk"].used <= found.tiers["disk"].budget


class ManyChunks(Machine):
    """Threads read every file while the store goes on."""

    def __init__(self) -> None:
        self.chunk, warm_file.CHUNK = warm_file.CHUNK, 64
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        warm_file.CHUNK = self.chunk


TestHotStore = Machine.TestCase
TestHotStore.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestHotStoreOfManyChunks = ManyChunks.TestCase
TestHotStoreOfManyChunks.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)

"""Any sequence of turns, fetches, pins, erasures and damage: KV is that of its ids, budgets hold, no block is lost."""

import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pltz.kv.errors import PoolFull
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.store import kv_file
from tests.examples import examples
from tests.kv.store.conftest import Clock, cut_of, kv_of, store_of

DEVICE, HOST, DISK = 14, 6, 24_000
# A session is up to four turns of 5 to 40 ids each, so that beginnings are shared and end within blocks.
TURNS = {n: [n * 100 + k for k in range(length)] for n, length in enumerate((5, 16, 33, 40), 1)}
CHOSEN = st.lists(st.integers(1, 4), min_size=1, max_size=4)
SESSIONS = CHOSEN.map(lambda turns: [one for n in turns for one in TURNS[n]])
CPU = torch.device("cpu")


class Inline(ThreadPoolExecutor):
    """Does its work at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Machine(RuleBasedStateMachine):
    chunk = kv_file.CHUNK

    def __init__(self) -> None:
        super().__init__()
        self.before, kv_file.CHUNK = kv_file.CHUNK, self.chunk
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.held: list[tuple[PackedSession, list[int]]] = []
        self.pinned: list[tuple[bytes, list[int]]] = []
        self.damaged = False
        self.begin()

    def begin(self) -> None:
        place, room = Path(self.folder.name), {"blocks": DEVICE, "host": HOST, "disk": DISK}
        self.store = store_of(place, **room, clock=self.clock, queue_bytes=20_000)
        self.store._writer = Inline()  # else what is found depends on when a thread has written it

    def teardown(self) -> None:
        self.reopen()
        self.folder.cleanup()
        kv_file.CHUNK = self.before

    def right(self, found: Any, ids: list[int]) -> None:
        if found.tokens:
            assert torch.equal(torch.cat(found.pieces, 3), kv_of(ids)[:, :, :, : found.tokens])

    @rule(ids=SESSIONS)
    def keep(self, ids: list[int]) -> None:
        self.store.keep("t", ids, cut_of(ids))

    @rule(ids=SESSIONS)
    def turn(self, ids: list[int]) -> None:
        """Run what is missing in a pool, as a server does."""
        session, pool = self.store.match("t", ids), self.store._pool()
        if session is None:
            session = PackedSession(pool, [], 0, kv_of([])[:, :, :, :0])
        session.exact = torch.cat([session.exact, kv_of(ids)[:, :, :, session.tokens :]], 3)
        try:
            session.pack(0)
        except PoolFull:
            pass
        self.store.insert("t", ids, session)
        session.release()

    @rule(ids=SESSIONS)
    def hold(self, ids: list[int]) -> None:
        session = self.store.match("t", ids)
        if session is not None:
            self.held.append((session, ids))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        self.held.pop(which % len(self.held))[0].release()

    @rule(ids=SESSIONS)
    def read(self, ids: list[int]) -> None:
        self.right(self.store.read("t", ids, CPU), ids)

    @rule(ids=SESSIONS)
    def fetch(self, ids: list[int]) -> None:
        self.store.fetch("t", ids)

    @rule(ids=SESSIONS)
    def save(self, ids: list[int]) -> None:
        self.store.save("t", ids)

    @rule(ids=SESSIONS)
    def release(self, ids: list[int]) -> None:
        self.store.release("t", ids)

    @rule(ids=SESSIONS)
    def discard(self, ids: list[int]) -> None:
        shared = self.store.trie.path(self.store._names("t", ids, "", 0))
        left = next((n + 1 for n in reversed(range(len(shared))) if shared[n].children), 0)
        if len(shared) == len(ids) // 16 and shared and not shared[-1].children:
            left = next((n + 1 for n in reversed(range(len(shared) - 1)) if len(shared[n].children) > 1), 0)
        self.store.discard("t", ids)
        assert self.store.read("t", [*ids, 1], CPU).tokens <= 16 * left
        self.pinned = [(name, own) for name, own in self.pinned if self.store.trie.get(name) is not None]

    @rule(ids=SESSIONS)
    def pin(self, ids: list[int]) -> None:
        name = self.store.name("t", ids)
        if self.store.trie.get(name) is not None and len(self.pinned) < 2:
            self.store.pin(name)
            self.pinned.append((name, ids))

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        self.store.unpin(self.pinned.pop()[0])

    @rule(seconds=st.sampled_from([1, 1000]))
    def age(self, seconds: float) -> None:
        self.clock.now += seconds
        self.store.expire(500)  # of files nothing goes: they have the machine's time, which is later

    @rule()
    def drain(self) -> None:
        self.store.drain()

    @rule()
    def reopen(self) -> None:
        for session, _ in self.held:
            session.release()
        for name, _ in self.pinned:
            self.store.unpin(name)
        self.held, self.pinned = [], []
        self.store.close()
        assert self.store.stats().failed == 0
        with self.store._lock:
            for node in self.store.trie:
                if node.parent is None:
                    self.store._free(self.store.trie.remove(node))
        pool = self.store._pool()
        assert pool.host is not None and (pool.device.free, pool.host.free) == (DEVICE, HOST)
        self.begin()

    @rule(which=st.integers(0, 100), at=st.integers(0, 4000))
    def damage(self, which: int, at: int) -> None:
        self.store.drain()
        if files := sorted(Path(self.folder.name).glob("*/*.safetensors")):
            path = files[which % len(files)]
            data = bytearray(path.read_bytes())
            data[at % len(data)] ^= 4
            path.unlink()
            path.write_bytes(data)

    @invariant()
    def what_is_held_is_what_it_was(self) -> None:
        for session, ids in self.held:
            assert torch.equal(session.kv(), kv_of(ids)[:, :, :, : session.tokens])

    @invariant()
    def what_is_pinned_is_in_memory(self) -> None:
        assert all(self.store.tier(name) in ("device", "host") for name, _ in self.pinned)

    @invariant()
    def the_books_are_right_and_within_budget(self) -> None:
        pool = self.store._pool()
        for slab in (pool.device, pool.host):
            assert slab is not None and slab.free == sum(slab.holders(n) == 0 for n in range(slab.blocks))
        assert self.store.stats().tiers["disk"].used <= DISK
        for node in self.store.trie:
            assert node.parent is None or node.parent.children[node.name] is node


class ManyChunks(Machine):
    """Threads read every file while the store goes on."""

    chunk = 64


TestStore = Machine.TestCase
TestStore.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestStoreOfManyChunks = ManyChunks.TestCase
TestStoreOfManyChunks.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)

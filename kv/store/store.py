"""HotStore: a trie of segments with the KV of targets, each stored once for any number of sessions.

It walks one list of tiers (`tier.py`), from the fastest to the slowest. `HotStore.open` makes the usual one:

    device    blocks in the memory of the target's device    pinned bases, segments in use or soon to be used
    host      blocks in page-locked host memory              (budget 0 where the target computes on the CPU)
    queue     blocks in exact form that wait to be coded, or to be written      where they were before
    disk      files (`disk_tier.py`)                         shared with other processes

    with store.hold(space, path) as lease:                     # the longest prefix of the path that is hot
        cache = join(lease.blocks, ...)                        # nothing of it is evicted until the lease ends
    store.insert(space, segment, parent, block, born)

* A node is named by space (target fingerprint and dtype) and segment id, which fixes its whole tower. It is
  in one tier of memory at a time; a copy may exist in a shared tier below it, too.
* The bytes of a tier never exceed its budget: room is made before a block enters. The victim has the lowest
  priority (`eviction_policy.py`), is neither leased nor pinned, and ranks below the newcomer. If that frees
  too little, the newcomer goes one tier down, and is refused at last. A segment evicted from a tier of memory
  goes to the next one that takes it, then to a shared tier, then away.
* Nobody waits for a block to be coded or written. It enters the queue, and one thread moves it on. It is found there
  as in any tier, exact as it is, and may move up again. The queue has bounds: in a full one there is no room, so a
  segment evicted then is dropped, and a newcomer refused. A segment discarded in the queue never reaches a file.
* Promotion is by use: a held segment moves to the fastest tier that has room under the same rule.
* A block of a file may be leased while it is read. It enters a tier of memory only when it is there and sound.
* Each tier gives exact blocks the form of its codec (`kv/`) when they are inserted or evicted to it, never by
  promotion. A block that is not exact keeps its form, is found only by callers whose bound on the loss it keeps, and
  makes way for the exact one.
* Thread-safe: one lock protects the bookkeeping. Copies and files are handled outside of it, on nodes marked
  as moving.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from pltz.archive import NO_SEGMENT
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import RAW, KVCodec, loss, serves
from pltz.kv.store.background_worker import BackgroundWorker
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.eviction_policy import Priority, priority
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.lease import Lease
from pltz.kv.store.node import Node
from pltz.kv.store.store_metrics import StoreCollector
from pltz.kv.store.tier import (
    QUEUE,
    DeviceTier,
    FormStats,
    HostTier,
    MemoryTier,
    Queue,
    SharedTier,
    StoredBlock,
    Tier,
    TierStats,
)
from pltz.plt_codec import UsageError, digest

if TYPE_CHECKING:
    import torch

log = logging.getLogger("pltz.kv")

PIN_SHARE = 0.5  # largest share of the first tier's budget for pinned segments
QUEUE_BYTES = 1 << 30  # of blocks that wait, unless the caller says otherwise; a block alone may be larger
QUEUE_BLOCKS = 4096  # that wait


def space_of(fingerprint: bytes, dtype: str) -> bytes:
    """Return the 16 bytes that name a target's KV.

    ``fingerprint``: of the target. ``dtype``: as torch writes it.
    """
    return digest(b"pltz hot", fingerprint, dtype.encode())


@dataclass
class Stats:
    """The tiers of a store, by name, and counts since the store was made.

    ``hit_tokens``: ids whose KV was found. ``misses``: segments that were not found. ``inserted``: new blocks
    that were kept, or wait in the queue. ``refused``: new blocks for which there was no room. ``promoted``,
    ``demoted``: blocks moved up or down, to the queue included. ``dropped``: blocks evicted for good, or that no tier
    took from the queue. ``queue_full``: those of ``refused`` and ``dropped`` that found the queue full. ``failed``:
    those of ``dropped`` that met an error nobody expected in the queue's thread; ``failure``: the last of them.
    """

    tiers: dict[str, TierStats] = field(default_factory=dict)
    hit_tokens: int = 0
    misses: int = 0
    inserted: int = 0
    refused: int = 0
    promoted: int = 0
    demoted: int = 0
    dropped: int = 0
    queue_full: int = 0
    failed: int = 0
    failure: str = ""


@dataclass(eq=False)
class InFlight:
    """A segment being read or taken in. ``gone``: it was discarded since that began, so it is not kept."""

    gone: bool = False


class HotStore:
    """A store of KV in tiers (see the top of this file).

    Any thread may use it.

    Args:
        tiers: from the fastest to the slowest; those of memory before those that are shared.
        queue_bytes: most bytes of blocks that wait to be coded or written, beside the budgets of the tiers. They stay
            where they are, so those evicted from a device stay there. One block alone may take more.
        clock: returns seconds since 1970.

    Raises UsageError for tiers in another order, of equal names, or without one of memory, and for a queue of less
    than no bytes.
    """

    def __init__(
        self, tiers: Sequence[Tier], *, queue_bytes: int = QUEUE_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        self.tiers = tuple(tiers)
        self.memory = [tier for tier in tiers if isinstance(tier, MemoryTier)]
        self.shared = [tier for tier in tiers if isinstance(tier, SharedTier)]
        if [*self.memory, *self.shared] != list(tiers) or not self.memory:
            raise UsageError("expected tiers of memory, at least one, and then shared ones")
        if queue_bytes < 0:
            raise UsageError(f"expected bytes of the queue from 0 up, got {queue_bytes}")
        self._queue = Queue(queue_bytes)
        self._level = {tier.name: level for level, tier in enumerate((*tiers, self._queue))}
        if len(self._level) != len(self.tiers) + 1:
            names = ", ".join(tier.name for tier in tiers)
            raise UsageError(f"expected tiers of different names, none of them {QUEUE}, got {names}")
        codecs = {tier.codec.name: tier.codec for tier in tiers}
        self._codecs = sorted(codecs.values(), key=lambda codec: (not codec.exact, loss(codec)))
        self._clock = clock
        self._lock = Lock()
        self._nodes: dict[bytes, Node] = {}
        self._watches: dict[bytes, list[InFlight]] = {}  # by key
        self._pins: Counter[bytes] = Counter()
        budgets = {tier.name: tier.budget for tier in self.memory}
        self._books = {t.name: TierStats(t.codec.name, budgets.get(t.name, 0)) for t in tiers}
        self._books[QUEUE] = TierStats(RAW.name, queue_bytes)
        self._worker = BackgroundWorker[None]("pltz-queue", sys.maxsize)  # the books bound the queue
        self._hit_tokens: Counter[tuple[str, str]] = Counter()  # by names of tier and form
        self._stats = Stats()
        self._order = dict[str, list[tuple[bytes, float]]]((t.name, []) for t in self.memory)  # the lowest last

    @classmethod
    def open(
        cls,
        device_bytes: int,
        host_bytes: int = 0,
        disk_bytes: int = 0,
        *,
        folder: str | os.PathLike[str] | None = None,
        device: str | torch.device = "cpu",
        forms: Mapping[str, KVCodec] = MappingProxyType({}),
        queue_bytes: int = QUEUE_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Return a store over the device, host memory and a folder.

        Args:
            device_bytes, host_bytes, disk_bytes: budgets of the tiers.
            folder: of the disk tier; needed where ``disk_bytes`` is given.
            device: where the target computes, and where blocks of the device tier are.
            forms: the form of each tier, by its name: device, host or disk. A tier that is not named is raw. A form
                that is not exact is served to those who allow its loss only (`hold`).
            queue_bytes: most bytes of blocks that wait to be coded or written (`HotStore`).
            clock: returns seconds since 1970.

        Raises UsageError where a budget is below zero, forms name another tier or one without a budget, and where only
        one of folder and its budget is given.
        """
        if unknown := set(forms) - {"device", "host", "disk"}:
            raise UsageError(f"expected forms of device, host and disk, got one of {min(unknown)}")
        for name, form in forms.items():
            if not isinstance(form, KVCodec):
                raise UsageError(f"expected a form of `pltz.kv_forms` for the tier {name}, got {form!r}")
            if not {"device": device_bytes, "host": host_bytes, "disk": disk_bytes}[name]:
                raise UsageError(f"a form for the tier {name}, which has no budget: give {name}_bytes, or leave it out")
        first = DeviceTier(device_bytes, device, forms.get("device", RAW))
        host = HostTier(host_bytes, pin=first.device.type == "cuda", codec=forms.get("host", RAW))
        tiers: list[Tier] = [first, host]
        if (folder is None) != (disk_bytes == 0):
            raise UsageError("a warm folder and its budget (disk_bytes) belong together: give both, or neither")
        if folder is not None:
            pin = first.device.type == "cuda"
            tiers.append(DiskTier(folder, disk_bytes, forms.get("disk", RAW), pin=pin))
        return cls(tiers, queue_bytes=queue_bytes, clock=clock)

    def drain(self) -> None:
        """Wait until the queue's thread has nothing to do. Segments in use or pinned may stay in the queue."""
        self._worker.drain()

    def close(self) -> None:
        """Drain the queue and end its thread. Blocks in memory are as before, and the store can be used again.

        A process that ends without it loses what waits.
        """
        self._worker.drain()
        self._worker.close()
        with self._lock:
            for node in self._nodes.values():  # another thread let it wait after the queue was drained
                node.submitted = False
                self._submit(node)

    @property
    def lossy(self) -> bool:
        """Return whether a tier has a form that is not exact."""
        return any(not codec.exact for codec in self._codecs)

    # ---- looking up

    def parent(self, space: bytes, segment: bytes) -> bytes | None:
        """Return the id above a segment that is in memory, or None where it is not."""
        with self._lock:
            node = self._nodes.get(space + segment)
            return None if node is None else node.parent

    def hold(
        self,
        space: bytes,
        path: Sequence[bytes],
        born: float | None = None,
        *,
        max_kl: float = 0.0,
        max_kl_recall: float | None = None,
    ) -> Lease:
        """Lease the longest stored prefix of a path, shared tiers included, and move it towards the first tier.

        A coded block of a file is leased while it is read, and moves when `Lease.promote` is called. Decoding it raises
        CorruptError where it turns out to be damaged.

        ``path``: segment ids from the root. ``born``: when the requesting session began, in seconds since
        1970. ``max_kl``: bits per token that a form may lose, by its receipt. 0 finds exact blocks only, whatever a
        receipt says. A form without a receipt is found with infinity only. ``max_kl_recall``: bits per token that it
        may lose where early passages are asked for; None: four times ``max_kl``.

        Raises UsageError for bounds that are none.
        """
        bound = Bound.of(max_kl, max_kl_recall)
        lease = Lease([], self._release, self._promote)
        above = NO_SEGMENT
        try:
            for segment in path:
                node = self._take(space, segment, above, born, bound)
                if node is None:
                    break
                lease.add(node)
                above = segment
            with self._lock:
                self._stats.misses += len(path) - len(lease)
            lease.promote(wait=False)
            lease.keep(next((n for n, block in enumerate(lease.blocks) if block.damaged), len(lease)))
        except BaseException:  # nobody else could end it, and its segments would stay for ever
            lease.release()
            raise
        return lease

    def _take(
        self, space: bytes, segment: bytes, above: bytes, born: float | None, bound: Bound
    ) -> Node | None:
        """Lease one segment. Returns None where it is not stored or has another parent."""
        key = space + segment
        with self._lock:
            node = self._nodes.get(key)
            if not self.shared or (node is not None and self._serves(node, above, bound)):
                return self._leased(node, above, born, bound)
        with self._watching(key) as watch:
            tier, stored = self._read(space, segment, bound)
            with self._lock:
                node = self._nodes.get(key)
                if stored is not None and not watch.gone and (node is None or not self._serves(node, above, bound)):
                    new = Node(space, segment, stored.parent, stored.block, tier, stored.born, stored.born)
                    if node is None or not (node.leases or node.moving or key in self._pins):
                        if node is not None:
                            self._discard(node)
                        self._nodes[key] = new
                    node = new  # beside one in use that loses too much, it belongs to this lease alone
                return self._leased(node, above, born, bound)

    def _serves(self, node: Node, above: bytes, bound: Bound) -> bool:
        return node.parent == above and serves(node.block.codec, bound) and not node.block.damaged

    def _read(self, space: bytes, segment: bytes, bound: Bound) -> tuple[Tier | None, StoredBlock | None]:
        """Read a segment from the first shared tier that has it. Lock not held."""
        codecs = [codec for codec in self._codecs if serves(codec, bound)]
        for tier in self.shared:
            if (stored := tier.read(space, segment, codecs)) is not None:
                return tier, stored
        return None, None

    def _leased(self, node: Node | None, above: bytes, born: float | None, bound: Bound) -> Node | None:
        """Lease a segment that is in memory, or return None as `_take` does. Lock held."""
        if node is None or not self._serves(node, above, bound):
            self._forget_if_unused(node)
            return None
        node.leases += 1
        node.used = max(node.used, self._clock())
        node.born = min(node.born, node.used if born is None else born)
        if node.tier is not None:
            self._books[node.tier.name].hits += 1
            self._hit_tokens[node.tier.name, node.block.codec.name] += len(node.block.ids)
        self._stats.hit_tokens += len(node.block.ids)
        return node

    def _release(self, node: Node) -> None:
        with self._lock:
            node.leases -= 1
            self._forget_if_unused(node)
            self._submit(node)

    def _forget_if_unused(self, node: Node | None) -> None:
        """Release a block of a shared tier, or a discarded segment, once it is unused. Lock held."""
        if node is None or node.leases or node.moving:
            return
        in_memory = self._in_memory(node)
        if node.gone or not in_memory:
            if self._nodes.get(node.key) is node:
                del self._nodes[node.key]
            if in_memory:
                self._leave(node)
                node.tier = None

    def _in_memory(self, node: Node) -> bool:
        return node.tier is self._queue or node.tier in self.memory

    def _leave(self, node: Node) -> None:
        """Stop counting a node in its tier of memory, if it is in one. Lock held."""
        if node.tier is not None and self._in_memory(node):
            self._books[node.tier.name].leave(node.block.size, len(node.block.ids))

    # ---- taking in

    def insert(
        self, space: bytes, segment: bytes, parent: bytes, block: KVBlock, born: float | None = None
    ) -> bool:
        """Keep a segment in the fastest tier that has room, or in the queue of one that codes or writes it.

        Returns False where none has room. A stored one stays unchanged.

        A block of other ids under the same name replaces the old one, and so does an exact block one that is
        not, unless that is in use. A segment discarded during the insertion is not kept.
        """
        now = self._clock()
        node = Node(space, segment, parent, block, None, now if born is None else min(born, now), now)
        with self._watching(node.key) as watch:
            return self._insert(node, watch)

    def _insert(self, node: Node, watch: InFlight) -> bool:
        block = node.block
        with self._lock:
            if not self._replaces(node):
                return True
            level = self._waits_for(block, 0)
            for tier in self.memory[:level]:
                room = self._reserve(tier, block, self._rank(node))
                if room is None:
                    continue
                if watch.gone or node.key in self._nodes:  # another thread was first
                    self._books[tier.name].leave(room, len(block.ids))
                    return not watch.gone
                node.tier = tier
                self._nodes[node.key] = node
                try:
                    moved = self._in_tier(node, tier, room)
                except BaseException:
                    node.tier = None
                    if not node.gone:
                        self._discard(node)
                    raise
                if moved is None:
                    node.tier = None
                    if not node.gone:
                        self._discard(node)
                    node = replace(node, leases=0, gone=False)
                    continue
                node.block = moved
                self._stats.inserted += 1
                self._forget_if_unused(node)
                return not node.gone
            if watch.gone or node.key in self._nodes:
                return not watch.gone
            kept = self._wait_in_queue(node, level)
            self._stats.inserted += kept
            self._stats.refused += not kept
            return kept

    def _replaces(self, node: Node) -> bool:
        """Return whether a node is new or differs from the stored one, which is then discarded. Lock held."""
        stored = self._nodes.get(node.key)
        if stored is None:
            return True
        stored.born, stored.used = min(stored.born, node.born), max(stored.used, node.used)
        same = stored.parent == node.parent and stored.block.ids.tobytes() == node.block.ids.tobytes()
        kept = any(tier.codec.exact for tier in self.memory)  # else it would be coded anew each time
        better = (kept and node.block.codec.exact and not stored.block.codec.exact) or stored.block.damaged
        if (same and not better) or stored.leases or stored.moving:
            return False
        self._discard(stored)
        return True

    # ---- the queue of blocks that are coded or written

    def _waits_for(self, block: KVBlock, level: int) -> int:
        """Return the level of the first tier from ``level`` on that must code a block, or is shared."""
        coded = (n for n in range(level, len(self.memory)) if self._codes(self.memory[n], block))
        return next(coded, len(self.memory))

    def _codes(self, tier: MemoryTier, block: KVBlock) -> bool:
        return block.codec.exact and block.codec.name != tier.codec.name and bool(tier.budget)

    def _wait_in_queue(self, node: Node, level: int) -> bool:
        """Let a node in no tier wait for the tier at ``level``. Lock held.

        Returns False where the queue has no room, or no tier is left.
        """
        books, size = self._books[QUEUE], node.block.size
        if level == len(self.tiers):
            return False
        if books.blocks and (books.free < size or books.blocks >= QUEUE_BLOCKS):
            self._stats.queue_full += 1
            return False
        books.enter(size, len(node.block.ids))
        node.tier, node.level, node.stream = self._queue, level, node.block.stream()
        self._nodes[node.key] = node
        self._submit(node)
        return True

    def _submit(self, node: Node) -> None:
        """Let the queue's thread look at a node, unless it is in use or not in the queue. Lock held."""
        idle = node.tier is self._queue and not (node.leases or node.moving or node.submitted or node.gone)
        if idle:
            node.submitted = self._worker.submit(object(), lambda: self._move_on(node)) is not None

    def _move_on(self, node: Node) -> None:
        """Code or write a node that waits. An error is counted, and costs this node only. In the queue's thread."""
        with self._lock:
            node.submitted = False
            if node.tier is not self._queue or node.leases or node.moving or node.gone:
                return  # it moved up, is in use and will be submitted again, or was discarded
            try:
                with node.stream:
                    self._go_on(node)
            except Exception as exc:  # noqa: BLE001 - nobody waits here who could be told
                self._stats.failed += 1
                self._stats.dropped += 1
                self._stats.failure = f"{type(exc).__name__}: {exc}"
                log.warning("a block that waited is dropped: %s", self._stats.failure)
                if not node.gone:
                    self._discard(node)

    def _go_on(self, node: Node) -> None:
        """Move a node from the queue to the next tier that takes it, or away. Lock held, but released for the move.

        If it is leased during the move, it stays. A pinned one never leaves memory.
        """
        lower, moved = self._lower(node, self.memory[node.level :])
        kept = moved is not None
        if moved is None and node.key not in self._pins:
            node.moving = True
            try:
                with self._unlocked():
                    kept = self._write(node)
            finally:
                node.moving = False
        if self._stays(node, lower, moved):
            return
        self._stats.dropped += not (kept or node.gone)
        self._settle_in(node, lower, moved)

    def _write(self, node: Node) -> bool:
        """Write a node to the first shared tier that takes it, unless it is discarded meanwhile. Lock not held."""
        stored = StoredBlock(node.block, node.parent, node.born)
        with self._lock:
            in_use = frozenset({n.key for n in self._nodes.values() if n.leases} | set(self._pins))
        return any(
            tier.write(node.space, node.segment, stored, in_use, lambda: not node.gone) for tier in self.shared
        )

    # ---- moving between tiers

    def _rank(self, node: Node) -> Priority:
        return priority(self._clock(), node.used, node.born)

    def _reserve(self, tier: MemoryTier, block: KVBlock, rank: Priority) -> int | None:
        """Reserve room for a block in a tier, evicting lower ranks. Returns the bytes, or None without room.

        Lock held, but released while blocks move.
        """
        books, size = self._books[tier.name], tier.size(block)
        while books.free < size:
            if size > books.budget:
                return None
            victims = self._victims(tier, rank, size - books.free)
            if victims is None:
                return None
            for node in victims:
                if books.free < size and self._may_leave(node, tier, rank):  # the lock was released since
                    self._demote(node)
        books.enter(size, len(block.ids))
        return size

    def _victims(self, tier: MemoryTier, rank: Priority, missing: int) -> list[Node] | None:
        """Return the lowest nodes of a tier that together have ``missing`` bytes, None where too few may leave.

        All nodes are ranked once, and again when that order is used up. One that was used since is passed over.
        """
        for _ in range(2):
            order, victims, size = self._order[tier.name], list[Node](), 0
            while order and size < missing:
                key, used = order.pop()
                node = self._nodes.get(key)
                if node is not None and node.used == used and self._may_leave(node, tier, rank):
                    victims.append(node)
                    size += node.block.size
            if size >= missing:
                return victims
            nodes = [node for node in self._nodes.values() if node.tier is tier]
            nodes.sort(key=lambda n: (self._rank(n), -n.block.start), reverse=True)
            self._order[tier.name] = [(node.key, node.used) for node in nodes]
        return None

    def _settle(self, tier: MemoryTier, room: int, moved: KVBlock | None, block: KVBlock) -> None:
        """Count what a block takes in place of the room reserved for it, nothing if it did not move. Lock held."""
        books = self._books[tier.name]
        books.leave(room, len(block.ids))
        if moved is not None:
            books.enter(moved.size, len(moved.ids))

    def _may_leave(self, node: Node, tier: Tier, rank: Priority) -> bool:
        idle = not node.leases and not node.moving and node.key not in self._pins
        return idle and node.tier is tier and self._rank(node) < rank

    def _demote(self, node: Node) -> None:
        """Move a node down to the next tier that takes it, to the queue of one that codes or writes it, or away.

        If it is leased during the move, it stays. Lock held, but released for the move.
        """
        assert node.tier is not None
        level = self._level[node.tier.name] + 1
        waits_for = self._waits_for(node.block, level)
        lower, moved = self._lower(node, self.memory[level:waits_for])
        if self._stays(node, lower, moved):
            return
        gone = node.gone
        self._settle_in(node, lower, moved)
        kept = moved is not None or (not gone and self._wait_in_queue(node, waits_for))
        if not gone:
            self._stats.demoted += kept
            self._stats.dropped += not kept

    def _lower(self, node: Node, tiers: Sequence[MemoryTier]) -> tuple[MemoryTier | None, KVBlock | None]:
        """Return the first of some tiers that takes a node, and the block there, counted. Lock held, but released."""
        node.moving = True
        try:
            for tier in tiers:
                room = self._reserve(tier, node.block, self._rank(node))
                if room is not None and (moved := self._in_tier(node, tier, room)) is not None:
                    return tier, moved
        finally:
            node.moving = False
        return None, None

    def _stays(self, node: Node, lower: MemoryTier | None, moved: KVBlock | None) -> bool:
        """Undo the move of a node that was leased meanwhile, or pinned and would leave memory. Lock held.

        Returns False where it may go.
        """
        pinned = node.key in self._pins and moved is None and not node.gone
        if not node.leases and not pinned:
            return False
        if lower is not None and moved is not None:
            self._books[lower.name].leave(moved.size, len(moved.ids))
        return True

    def _settle_in(self, node: Node, lower: MemoryTier | None, moved: KVBlock | None) -> None:
        """Let a node leave its tier for a lower one, or for none. Lock held."""
        self._leave(node)
        node.tier, node.block = lower, moved or node.block
        self._forget_if_unused(node)

    def _in_tier(self, node: Node, tier: MemoryTier, room: int) -> KVBlock | None:
        """Return a node's block in a tier, counted in place of the room reserved there, or None if it cannot move.

        Lock held, but released for the move.
        """
        block = node.block
        moved: KVBlock | None = None
        before, node.moving = node.moving, True
        try:
            with self._unlocked():
                moved = tier.keep(block)
        finally:
            node.moving = before
            self._settle(tier, room, moved, block)
        return moved

    def _promote(self, node: Node) -> None:
        """Move a node to the fastest tier of memory that has room for it and is faster than its own.

        An exact block never enters a tier whose form loses something this way.
        """
        with self._lock:
            for tier in self.memory:
                if node.tier is tier or node.moving or self._nodes.get(node.key) is not node:
                    return
                if node.block.codec.exact and not tier.codec.exact:  # its holder may have asked for exact KV
                    continue
                if node.tier is self._queue and self._codes(tier, node.block):  # its holder would wait
                    continue
                room = self._reserve(tier, node.block, self._rank(node))
                if room is None:
                    continue
                still = self._nodes.get(node.key) is node and not node.moving
                if not still or not self._is_faster(tier, node):  # it moved during the evictions
                    self._books[tier.name].leave(room, len(node.block.ids))
                    return
                moved = self._in_tier(node, tier, room)
                if moved is None:
                    self._forget_if_unused(node)  # it may have been discarded meanwhile
                    continue
                self._leave(node)
                node.tier, node.block = tier, moved
                self._stats.promoted += 1
                self._forget_if_unused(node)
                return

    def _is_faster(self, tier: MemoryTier, node: Node) -> bool:
        return node.tier is None or self._level[tier.name] < self._level[node.tier.name]

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Release the lock while bytes move."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    @contextmanager
    def _watching(self, key: bytes) -> Iterator[InFlight]:
        """Learn of a discard while a segment is read or taken in. Lock not held."""
        watch = InFlight()
        with self._lock:
            self._watches.setdefault(key, []).append(watch)
        try:
            yield watch
        finally:
            with self._lock:
                left = self._watches[key]
                left.remove(watch)
                if not left:
                    del self._watches[key]

    # ---- pinning and discarding

    def pin(self, space: bytes, path: Sequence[bytes]) -> bool:
        """Keep all segments of a path, from the root, in memory until `unpin`. For shared bases.

        Returns False, with nothing pinned, where one is not in memory. The same holds where pinned segments
        would exceed PIN_SHARE of the first tier's budget.
        """
        keys = [space + segment for segment in path]
        with self._lock:
            if any(key not in self._nodes or not self._in_memory(self._nodes[key]) for key in keys):
                return False
            pinned = {*self._pins, *keys} & self._nodes.keys()
            if sum(self._nodes[key].block.size for key in pinned) > PIN_SHARE * self.memory[0].budget:
                return False
            self._pins.update(keys)
            return True

    def unpin(self, space: bytes, path: Sequence[bytes]) -> None:
        """Undo one `pin` of the same path."""
        with self._lock:
            self._pins.subtract(space + segment for segment in path)
            self._pins = +self._pins
            for node in [self._nodes[key] for segment in path if (key := space + segment) in self._nodes]:
                self._submit(node)

    def discard(self, space: bytes, segment: bytes) -> None:
        """Forget a segment in every tier, for an erasure. Raises WarmFileError where its file cannot be removed.

        Holders of a lease keep it, but it is not found again. That also covers threads that are just reading
        it or taking it in, and other processes that share the folder.
        """
        with self._lock:
            node = self._nodes.get(space + segment)
            self._pins.pop(space + segment, None)
            for watch in self._watches.get(space + segment, ()):
                watch.gone = True
            if node is not None:
                self._discard(node)
        for tier in self.shared:
            tier.discard(space, segment)

    def _discard(self, node: Node) -> None:
        """Remove a node from the trie. Lock held."""
        node.gone = True
        del self._nodes[node.key]
        self._forget_if_unused(node)

    def clear(self) -> None:
        """Forget everything, including the files of other processes that share the folder."""
        with self._lock:
            self._pins.clear()
            for watch in itertools.chain(*self._watches.values()):
                watch.gone = True
            for node in list(self._nodes.values()):
                self._discard(node)
        for tier in self.shared:
            tier.clear()

    def stats(self) -> Stats:
        """Return a copy of the counts as they are now.

        Bytes, blocks and tokens of a shared tier are those of all processes.
        """
        with self._lock:
            books = {name: replace(tier, forms={}) for name, tier in self._books.items()}
            stats = replace(self._stats, tiers=books)
            hits = dict(self._hit_tokens)
            for node in self._nodes.values():
                if node.tier is not None and self._in_memory(node) and not node.moving:
                    forms = books[node.tier.name].forms
                    forms.setdefault(node.block.codec.name, FormStats()).add(node.block.size, len(node.block.ids))
        for tier in self.shared:
            stats.tiers[tier.name] = replace(tier.stats(), hits=books[tier.name].hits)
        for (name, form), tokens in hits.items():
            stats.tiers[name].forms.setdefault(form, FormStats()).hit_tokens = tokens
        return stats

    def metrics(self) -> StoreCollector:
        """Return a collector for a registry of prometheus_client. Raises UsageError without that."""
        return StoreCollector(self.stats)

"""HotStore: a trie of segments with the KV of targets, each stored once for any number of sessions.

    device    slabs in the memory of the target's device    pinned bases, segments in use or soon to be used
    host      slabs in page-locked host memory              (budget 0 where the target computes on the CPU)
    disk      memory-mapped files (`disk_tier.py`)          shared with other processes

    with store.hold(space, path) as lease:                     # the longest prefix of the path that is hot
        cache = join(lease.slabs, ...)                         # nothing of it is evicted until the lease ends
    store.insert(space, segment, parent, slab, born)

* A node is named by space (target fingerprint and dtype) and segment id, which fixes its whole tower. It is
  in one tier of memory at a time; a file may exist below it, too.
* The bytes of a tier never exceed its budget: room is made before a slab enters. The victim has the lowest
  priority (`eviction_policy.py`), is neither leased nor pinned, and ranks below the newcomer. If that frees
  too little, the newcomer goes one tier down, and is refused at last. A segment evicted from the device goes
  to the host, then to disk, then away.
* Promotion is by use: a held segment moves to the device if there is room under the same rule. `promote`
  fills free room with the best of the host tier.
* Thread-safe: one lock protects the bookkeeping. Copies and files are handled outside of it, on nodes marked
  as moving.
"""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from pltz.archive.format.ids import NONE, digest
from pltz.archive.kv_store.disk_tier import DiskTier, Warm
from pltz.archive.kv_store.eviction_policy import Priority, priority
from pltz.archive.kv_store.kv_block import KVBlock
from pltz.archive.kv_store.lease import Lease
from pltz.archive.kv_store.stats import Stats, Tier
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch

DEVICE, HOST, DISK = "device", "host", "disk"
PIN_SHARE = 0.5  # largest share of the device's budget for pinned segments


def space_of(fingerprint: bytes, dtype: str) -> bytes:
    """Return the 16 bytes that name a target's KV.

    ``fingerprint``: of the target. ``dtype``: as torch writes it.
    """
    return digest(b"pltz hot", fingerprint, dtype.encode())


@dataclass(eq=False)
class Node:
    """A segment in memory, or mapped while it is leased.

    ``parent``: a segment id. Times are in seconds since 1970.
    """

    space: bytes
    segment: bytes
    parent: bytes
    slab: KVBlock
    tier: str
    born: float
    used: float
    leases: int = 0
    moving: bool = False
    gone: bool = False  # discarded while in use: removed at the end of the last lease

    @property
    def key(self) -> bytes:
        """Return the key of the node in its store, 32 bytes."""
        return self.space + self.segment


@dataclass(eq=False)
class Watch:
    """A segment being read or taken in. ``gone``: it was discarded since that began, so it is not kept."""

    gone: bool = False


class HotStore:
    """A store of KV in three tiers (see the top of this file).

    Args:
        device_bytes, host_bytes, disk_bytes: budgets of the tiers.
        folder: of the disk tier; needed where ``disk_bytes`` is given.
        device: where the target computes, and where slabs of the device tier are.
        clock: returns seconds since 1970.

    Raises UsageError where a budget is below zero, or where only one of folder and its budget is given.
    """

    def __init__(
        self,
        device_bytes: int,
        host_bytes: int = 0,
        disk_bytes: int = 0,
        *,
        folder: str | os.PathLike[str] | None = None,
        device: str | torch.device = "cpu",
        clock: Callable[[], float] = time.time,
    ) -> None:
        import torch

        if min(device_bytes, host_bytes, disk_bytes) < 0:
            raise UsageError("a budget is a number of bytes from 0 up")
        if (folder is None) != (disk_bytes == 0):
            raise UsageError("a warm folder and its budget (disk_bytes) belong together")
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.warm = None if folder is None else DiskTier(folder, disk_bytes)
        self._clock = clock
        self._lock = Lock()
        self._nodes: dict[bytes, Node] = {}
        self._watches: dict[bytes, list[Watch]] = {}  # by key
        self._pins: Counter[bytes] = Counter()
        self._tiers = {DEVICE: Tier(device_bytes), HOST: Tier(host_bytes), DISK: Tier(disk_bytes)}
        self._stats = Stats(self._tiers[DEVICE], self._tiers[HOST], self._tiers[DISK])

    # ---- looking up

    def parent(self, space: bytes, segment: bytes) -> bytes | None:
        """Return the id above a segment that is in memory, or None where it is not."""
        with self._lock:
            node = self._nodes.get(space + segment)
            return None if node is None else node.parent

    def hold(self, space: bytes, path: Sequence[bytes], born: float | None = None) -> Lease:
        """Lease the longest stored prefix of a path, warm files included, and move it towards the device.

        ``path``: segment ids from the root. ``born``: when the requesting session began, in seconds since
        1970.
        """
        nodes: list[Node] = []
        above = NONE
        for segment in path:
            node = self._take(space, segment, above, born)
            if node is None:
                break
            nodes.append(node)
            above = segment
        with self._lock:
            self._stats.misses += len(path) - len(nodes)
        for node in nodes:
            self._promote(node)
        return Lease(nodes, self._release)

    def _take(self, space: bytes, segment: bytes, above: bytes, born: float | None) -> Node | None:
        """Lease one segment. Returns None where it is not stored or has another parent."""
        with self._lock:
            node = self._nodes.get(space + segment)
        if node is None and self.warm is not None:
            with self._watching(space + segment) as watch:
                read = self.warm.read(space, segment)
                with self._lock:
                    if read is not None and not watch.gone and space + segment not in self._nodes:
                        new = Node(space, segment, read.parent, read.slab, DISK, read.born, read.born)
                        self._nodes[new.key] = new
                    return self._leased(space + segment, above, born)
        with self._lock:
            return self._leased(space + segment, above, born)

    def _leased(self, key: bytes, above: bytes, born: float | None) -> Node | None:
        """Lease a segment that is in memory, or return None as `_take` does. Lock held."""
        node = self._nodes.get(key)
        if node is None or node.parent != above:
            self._forget_if_unused(node)
            return None
        node.leases += 1
        node.used = max(node.used, self._clock())
        node.born = min(node.born, node.used if born is None else born)
        self._tiers[node.tier].hits += 1
        self._stats.hit_tokens += len(node.slab.ids)
        return node

    def _release(self, node: Node) -> None:
        with self._lock:
            node.leases -= 1
            self._forget_if_unused(node)

    def _forget_if_unused(self, node: Node | None) -> None:
        """Release a mapped file, or a discarded segment, once it is unused. Lock held."""
        if node is None or node.leases or node.moving:
            return
        if node.gone or node.tier == DISK:
            if self._nodes.get(node.key) is node:
                del self._nodes[node.key]
            if node.tier != DISK:
                self._tiers[node.tier].leave(node.slab.size)
                node.tier = DISK

    # ---- taking in

    def insert(
        self, space: bytes, segment: bytes, parent: bytes, slab: KVBlock, born: float | None = None
    ) -> bool:
        """Keep a segment in the highest tier that has room.

        Returns False where none has. A stored one stays unchanged.

        A slab of other ids under the same name replaces the old one, unless that is in use. A segment
        discarded during the insertion is not kept.
        """
        now = self._clock()
        node = Node(space, segment, parent, slab, DISK, now if born is None else min(born, now), now)
        with self._watching(node.key) as watch:
            return self._insert(node, watch)

    def _insert(self, node: Node, watch: Watch) -> bool:
        slab = node.slab
        with self._lock:
            if not self._replaces(node):
                return True
            for tier in (DEVICE, HOST):
                if not self._reserve(tier, slab.size, self._rank(node)):
                    continue
                if watch.gone or node.key in self._nodes:  # another thread was first
                    self._tiers[tier].leave(slab.size)
                    return not watch.gone
                node.tier, node.moving = tier, True
                self._nodes[node.key] = node
                with self._unlocked():
                    moved = self._on(tier, slab)
                node.moving = False
                if moved is None:
                    if not node.gone:
                        self._discard(node)
                    self._forget_if_unused(node)
                    node = replace(node, tier=DISK, leases=0, gone=False)
                    continue
                node.slab = moved
                self._stats.inserted += 1
                self._forget_if_unused(node)
                return not node.gone
        kept = self._write(node, watch)
        with self._lock:
            self._stats.inserted += kept
            self._stats.refused += not kept
        return kept

    def _replaces(self, node: Node) -> bool:
        """Return whether a node is new or differs from the stored one, which is then discarded. Lock held."""
        known = self._nodes.get(node.key)
        if known is None:
            return True
        known.born, known.used = min(known.born, node.born), max(known.used, node.used)
        same = known.parent == node.parent and known.slab.ids.tobytes() == node.slab.ids.tobytes()
        if same or known.leases or known.moving:
            return False
        self._discard(known)
        return True

    def _on(self, tier: str, slab: KVBlock) -> KVBlock | None:
        """Return the slab in the memory of a tier; None where the machine has less than the budget says."""
        import torch

        to = self.device if tier == DEVICE else torch.device("cpu")
        pin = tier == HOST and self.device.type == "cuda"
        own = slab.kv.device == to and not pin and slab.kv.untyped_storage().nbytes() == slab.kv.nbytes
        try:
            return slab if own else slab.to(to, pin=pin)
        except (RuntimeError, MemoryError):  # torch.OutOfMemoryError, or no page to lock
            return None

    def _write(self, node: Node, watch: Watch | None = None) -> bool:
        """Write a node's file, unless it is discarded during the write. Lock not held."""
        if self.warm is None:
            return False
        warm = Warm(node.slab, node.parent, node.born)

        def wanted() -> bool:
            return not (node.gone or (watch is not None and watch.gone))

        return self.warm.write(node.space, node.segment, warm, self._in_use(), wanted)

    def _in_use(self) -> Callable[[Path], bool]:
        """Return a test for files that must stay: those of segments leased or pinned here."""
        with self._lock:
            keys = {n.key for n in self._nodes.values() if n.leases} | set(self._pins)
        assert self.warm is not None
        paths = {self.warm.path(key[:16], key[16:]) for key in keys}
        return lambda path: path in paths

    # ---- moving between tiers

    def _rank(self, node: Node) -> Priority:
        return priority(self._clock(), node.used, node.born)

    def _reserve(self, tier: str, size: int, rank: Priority) -> bool:
        """Reserve room in a tier, evicting lower ranks. Lock held, but released while slabs move."""
        here = self._tiers[tier]
        while here.free < size:
            victims = [n for n in self._nodes.values() if self._may_leave(n, tier, rank)]
            if here.free + sum(n.slab.size for n in victims) < size:
                return False
            self._demote(min(victims, key=lambda n: (self._rank(n), -n.slab.start)))
        here.enter(size)
        return True

    def _may_leave(self, node: Node, tier: str, rank: Priority) -> bool:
        idle = not node.leases and not node.moving and node.key not in self._pins
        return idle and node.tier == tier and self._rank(node) < rank

    def _demote(self, node: Node) -> None:
        """Move a node one tier down, or away.

        If it is leased during the move, it stays. Lock held, but released for the move.
        """
        node.moving = True
        size = node.slab.size
        lower, moved, kept = DISK, None, False
        if node.tier == DEVICE and self._reserve(HOST, size, self._rank(node)):
            with self._unlocked():
                moved = self._on(HOST, node.slab)
            if moved is not None:
                lower, kept = HOST, True
            else:
                self._tiers[HOST].leave(size)
        if moved is None:
            with self._unlocked():
                kept = self._write(node)
        node.moving = False
        if node.leases:
            if lower == HOST:
                self._tiers[HOST].leave(size)
            return
        if not node.gone:
            self._stats.demoted += kept
            self._stats.dropped += not kept
        self._tiers[node.tier].leave(size)
        node.tier, node.slab = lower, moved or node.slab
        self._forget_if_unused(node)

    def _promote(self, node: Node) -> None:
        """Move a node to the device, or a mapped one to the host, where there is room for it."""
        with self._lock:
            for tier in (DEVICE, HOST):
                if node.tier == tier or node.moving or node.gone:
                    return
                size = node.slab.size
                if not self._reserve(tier, size, self._rank(node)):
                    continue
                still = self._nodes.get(node.key) is node and not node.moving
                if not still or node.tier in (tier, DEVICE):  # it moved during the evictions
                    self._tiers[tier].leave(size)
                    return
                node.moving = True
                with self._unlocked():
                    moved = self._on(tier, node.slab)
                node.moving = False
                if moved is None:
                    self._tiers[tier].leave(size)
                    continue
                if node.tier != DISK:
                    self._tiers[node.tier].leave(size)
                node.tier, node.slab = tier, moved
                self._stats.promoted += 1
                self._forget_if_unused(node)
                return

    def promote(self) -> int:
        """Fill free room on the device with the best of the host tier, evicting nothing.

        Returns the number of segments moved.
        """
        with self._lock:
            found = sorted((n for n in self._nodes.values() if n.tier == HOST), key=self._rank, reverse=True)
        moved = 0
        for node in found:
            with self._lock:
                fits = node.slab.size <= self._tiers[DEVICE].free
            if fits:
                self._promote(node)
                moved += node.tier == DEVICE
        return moved

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Release the lock while bytes move."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    @contextmanager
    def _watching(self, key: bytes) -> Iterator[Watch]:
        """Learn of a discard while a segment is read or taken in. Lock not held."""
        watch = Watch()
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
        would exceed PIN_SHARE of the device's budget.
        """
        keys = [space + segment for segment in path]
        with self._lock:
            if any(key not in self._nodes or self._nodes[key].tier == DISK for key in keys):
                return False
            pinned = {*self._pins, *keys} & self._nodes.keys()
            if sum(self._nodes[key].slab.size for key in pinned) > PIN_SHARE * self._tiers[DEVICE].budget:
                return False
            self._pins.update(keys)
            return True

    def unpin(self, space: bytes, path: Sequence[bytes]) -> None:
        """Undo one `pin` of the same path."""
        with self._lock:
            self._pins.subtract(space + segment for segment in path)
            self._pins = +self._pins

    def discard(self, space: bytes, segment: bytes) -> None:
        """Forget a segment in every tier, for an erasure. Raises StoreError where its file cannot be removed.

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
        if self.warm is not None:
            self.warm.discard(space, segment)

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
        if self.warm is not None:
            self.warm.clear()

    def stats(self) -> Stats:
        """Return a copy of the counts as they are now.

        The disk tier's bytes and segments are those of the whole folder, of all processes.
        """
        with self._lock:
            found = copy.deepcopy(self._stats)
        if self.warm is not None:
            found.disk.used, found.disk.segments = self.warm.usage()
            found.damaged = self.warm.damaged
        return found

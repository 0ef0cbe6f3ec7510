"""PrefixTree: the blocks of sessions by the ids that they begin with, so that sessions of one tenant share them.

    tenant -- block of ids -- block of ids -- ...       a node's name hashes its ids and its parent's name
                           \\- block of ids

A tenant's names begin with the tenant, so no session finds another tenant's blocks. The tree holds each block once.
Blocks that nobody else holds are given up when the pool runs full, the least recently used first, or in the order of
`PrefixTree.rank`: to host memory where there is room, else for good. Pinned prefixes stay where they are.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from pltz.kv.errors import PoolFull
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from pltz.kv.pool.slab import Slab

    Ids = Sequence[int] | NDArray[np.integer]


@dataclass(eq=False)
class _Node:
    """Hold the blocks of one step of a prefix: its pages, and for the first step the sinks after them."""

    parent: _Node | None
    name: bytes
    blocks: list[int]
    serial: int
    spilled: bool = False
    children: dict[bytes, _Node] = field(default_factory=dict)
    pins: int = 0


@dataclass(frozen=True)
class Step:
    """A step of a prefix. ``name``, ``parent``: hashes, no parent for the first. ``blocks``: on the host if spilled.

    ``serial``: of this copy; a step that was given up and came again has another.
    """

    name: bytes
    parent: bytes | None
    blocks: tuple[int, ...]
    serial: int
    spilled: bool
    pins: int


class PrefixTree:
    """The prefixes of a pool's sessions. One thread uses it at a time.

    ``rank``: of a step by its name; those of a lower rank are given up first. None: the least recently used.
    ``spills``: whether a full device moves steps to host memory; else it forgets them.
    """

    def __init__(
        self, pool: BlockPool, rank: Callable[[bytes], float] | None = None, *, spills: bool = True
    ) -> None:
        self.pool, self.rank, self.spills = pool, rank, spills
        self._nodes: OrderedDict[bytes, _Node] = OrderedDict()  # the least recently used first
        self._serials = itertools.count()
        pool.device.reclaimers.append(self._reclaim)

    def __len__(self) -> int:
        return len(self._nodes)

    def insert(self, tenant: str, ids: Ids, session: PackedSession) -> int:
        """Offer the full blocks of a session to later ones of its tenant. Returns how many steps are new here.

        A full pool takes none, and nothing else happens.
        ``ids``: of the session's tokens, at least of those that are packed. Raises UsageError for too few.
        """
        slab = self.pool.device
        if len(ids) < session.packed or session.spilled or session.pool is not self.pool:
            raise UsageError("expected a session of this pool, on the device, and the ids of all its packed tokens")
        names = self._names(tenant, ids, session.packed // slab.block)
        parent: _Node | None = None
        added = 0
        for step, name in enumerate(names):
            node = self._nodes.get(name)
            if node is None:
                blocks = [session.blocks[step]]
                if step == 0 and session.sinks:
                    try:
                        blocks += slab.put_sinks(session.exact[:, :, :, : session.sinks])
                    except PoolFull:
                        break
                slab.retain(blocks[:1])
                node = _Node(parent, name, blocks, next(self._serials))
                self._nodes[name] = node
                if parent is not None:
                    parent.children[name] = node
                added += 1
            parent = node
        self._touch(parent)
        return added

    def match(self, tenant: str, ids: Ids) -> PackedSession | None:
        """Return a session of the longest prefix of ``ids`` that is known, at most all but the last id; None for none.

        It holds its blocks, and has no tail yet. Blocks in host memory are warmed by one copy; where the device has
        no room for them, the prefix ends before.
        """
        slab = self.pool.device
        path: list[_Node] = []
        for name in self._names(tenant, ids, max(len(ids) - 1, 0) // slab.block):
            node = self._nodes.get(name)
            if node is None:
                break
            path.append(node)
        self._touch(path[-1] if path else None)
        for held in path:  # so that room for the others is not made of these
            self._slab(held).retain(held.blocks)
        path = self._warmed(path)
        if not path:
            return None
        blocks, sinks = [step.blocks[0] for step in path], path[0].blocks[1:]
        exact = slab.sinks(sinks) if sinks else self._no_sinks()
        slab.release(sinks)  # copied
        return PackedSession(self.pool, blocks, len(path) * slab.block, exact)

    def names(self, tenant: str, ids: Ids) -> list[bytes]:
        """Return the names of the steps of a prefix, as far as it is known."""
        names = self._names(tenant, ids, len(ids) // self.pool.block)
        known = next((n for n, name in enumerate(names) if name not in self._nodes), len(names))
        return names[:known]

    def steps(self) -> Iterator[Step]:
        """Yield all steps, the least recently used first. The tree must not change meanwhile."""
        for node in self._nodes.values():
            parent = None if node.parent is None else node.parent.name
            yield Step(node.name, parent, tuple(node.blocks), node.serial, node.spilled, node.pins)

    def __contains__(self, name: bytes) -> bool:
        """Return whether a step is known."""
        return name in self._nodes

    def idle(self, name: bytes) -> bool:
        """Return whether only the tree holds the blocks of a step."""
        node = self._nodes[name]
        return all(self._slab(node).holders(block) == 1 for block in node.blocks)

    def serial(self, name: bytes) -> int | None:
        """Return the serial of a step, None for an unknown one."""
        node = self._nodes.get(name)
        return None if node is None else node.serial

    def pin(self, name: bytes) -> int:
        """Keep a prefix, named by its last step, where it is until `unpin`, and return the serial of that step.

        Raises UsageError for an unknown one.
        """
        for node in self._path(name):
            node.pins += 1
        return self._nodes[name].serial

    def unpin(self, name: bytes) -> None:
        """End one `pin`. Raises UsageError for a prefix that has none."""
        path = self._path(name)
        if not all(node.pins for node in path):
            raise UsageError("this prefix is not pinned")
        for node in path:
            node.pins -= 1

    def move(self, names: Sequence[bytes], *, to_host: bool) -> int:
        """Spill or warm steps that only the tree holds, in one copy. Pinned ones are not spilled.

        Returns how many moved. Raises PoolFull where there is no room: nothing moved then.
        """
        nodes = [self._nodes[name] for name in names if name in self._nodes and self._nodes[name].spilled != to_host]
        idle = [node for node in nodes if self.idle(node.name) and not (to_host and node.pins)]
        flat = [block for node in idle for block in node.blocks]
        if not flat:
            return 0
        moved = self.pool.spill(flat) if to_host else self._warm(flat)
        for node in idle:
            node.blocks, moved = moved[: len(node.blocks)], moved[len(node.blocks) :]
            node.spilled = to_host
        return len(idle)

    def forget(self, names: Sequence[bytes]) -> None:
        """Give up cold steps that only the tree holds and that nothing follows, in this order. Others stay."""
        for name in names:
            node = self._nodes.get(name)
            if node is not None and node.spilled and not node.pins and not node.children and self.idle(name):
                self._forget(node)

    def adopt(self, name: bytes, parent: bytes | None, blocks: Sequence[int]) -> int:
        """Add a step whose blocks lie in host memory; the caller's hold is the tree's from then on.

        Returns its serial. Raises UsageError for a step that is known, and for an unknown parent.
        """
        above = None if parent is None else self._nodes.get(parent)
        if name in self._nodes or (parent is not None and above is None) or self.pool.host is None:
            raise UsageError("expected a new step of a known prefix, in host memory")
        node = self._nodes[name] = _Node(above, name, list(blocks), next(self._serials), spilled=True)
        if above is not None:
            above.children[name] = node
        self._touch(node)
        return node.serial

    def _path(self, name: bytes) -> list[_Node]:
        """Return a step and all before it. Raises UsageError for an unknown one."""
        node, path = self._nodes.get(name), list[_Node]()
        if node is None:
            raise UsageError("no such prefix: insert it first")
        while node is not None:
            path.append(node)
            node = node.parent
        return path

    def _warm(self, blocks: Sequence[int]) -> list[int]:
        """Warm blocks without giving up others: a move that was asked for is no reason to spill."""
        if len(blocks) > self.pool.device.free:
            raise PoolFull(f"{len(blocks)} blocks do not fit in {self.pool.device.free} free ones of the device")
        return self.pool.warm(blocks)

    def clear(self, tenant: str | None = None, ids: Ids = ()) -> None:
        """Forget all prefixes, or those of a tenant that begin with ``ids``, a multiple of the block."""
        if tenant is None:
            for node in self._nodes.values():
                self._slab(node).release(node.blocks)
            self._nodes.clear()
            return
        names = self._names(tenant, ids, len(ids) // self.pool.block)
        last = self._nodes.get(names[-1]) if names else None
        if last is not None:
            self._forget(last)

    def _warmed(self, path: list[_Node]) -> list[_Node]:
        """Return the beginning of a path that is on the device now. The caller's hold moves along, or ends."""
        while away := [node for node in path if node.spilled]:
            flat = [block for node in away for block in node.blocks]
            host = self._slab(away[0])
            try:
                moved = self.pool.warm(flat)  # the caller's hold
            except PoolFull:
                last = path.pop()
                self._slab(last).release(last.blocks)
                continue
            host.release(flat)  # the tree's
            self.pool.device.retain(moved)
            for node in away:
                node.blocks, moved = moved[: len(node.blocks)], moved[len(node.blocks) :]
                node.spilled = False
        return path

    def _reclaim(self, missing: int) -> bool:
        """Give up blocks of the device that only the tree holds, ends of prefixes first, until enough are free.

        Returns whether there were any.
        """
        slab, victims = self.pool.device, list[_Node]()
        gone: set[bytes] = set()
        order = list(self._nodes.values())
        if self.rank is not None:
            rank = self.rank
            order.sort(key=lambda node: rank(node.name))  # stable: of equal ranks the least recently used first
        found = True
        while missing > 0 and found:  # a step of a low rank may stand above one of a high rank, which goes first
            found = False
            for node in order:
                if missing <= 0:
                    break
                here = [child for child in node.children.values() if not child.spilled and child.name not in gone]
                taken = node.spilled or node.pins or node.name in gone or here
                if not taken and all(slab.holders(block) == 1 for block in node.blocks):
                    victims.append(node)
                    gone.add(node.name)
                    missing -= len(node.blocks)
                    found = True
        flat = [block for node in victims for block in node.blocks]
        try:
            if not self.spills:
                raise PoolFull("this tree leaves host memory to others")
            self._make_host_room(len(flat))
            moved = self.pool.spill(flat)
        except PoolFull:
            for node in victims:
                if node.name in self._nodes:  # not forgotten with its parent yet
                    self._forget(node)
            return bool(victims)
        for node in victims:
            node.blocks, moved = moved[: len(node.blocks)], moved[len(node.blocks) :]
            node.spilled = True
        return bool(victims)

    def _make_host_room(self, count: int) -> None:
        """Forget spilled prefixes, the least recently used first, until the host has room for ``count`` blocks."""
        host = self.pool.host
        if host is None or count > host.blocks:
            return
        for node in list(self._nodes.values()):
            if host.free >= count:
                return
            unused = node.spilled and not node.children and not node.pins
            if unused and all(host.holders(block) == 1 for block in node.blocks):
                self._forget(node)

    def _forget(self, node: _Node) -> None:
        """Drop a node and all that follow it."""
        if node.parent is not None:
            del node.parent.children[node.name]
        leaving = [node]
        while leaving:  # a prefix may have more steps than Python has frames
            node = leaving.pop()
            leaving += node.children.values()
            self._slab(node).release(node.blocks)
            del self._nodes[node.name]

    def _slab(self, node: _Node) -> Slab:
        slab = self.pool.host if node.spilled else self.pool.device
        if slab is None:
            raise PoolFull("this pool has no host memory: open it with `host_tokens`")
        return slab

    def _touch(self, node: _Node | None) -> None:
        """Make the path to a node the most recently used, its beginning last."""
        while node is not None:
            self._nodes.move_to_end(node.name)
            node = node.parent

    def _names(self, tenant: str, ids: Ids, steps: int) -> list[bytes]:
        """Return the names of the first steps of a tenant's ids."""
        array = np.ascontiguousarray(ids, dtype="<i8")
        name = blake2b(tenant.encode("utf8", "surrogateescape"), digest_size=32, person=b"pltz prefix").digest()
        names = []
        for step in range(steps):
            part = array[step * self.pool.block : (step + 1) * self.pool.block]
            name = blake2b(name + part.tobytes(), digest_size=32, person=b"pltz prefix").digest()
            names.append(name)
        return names

    def _no_sinks(self) -> torch.Tensor:
        import torch

        form = self.pool.form
        shape = form.layers, 2, form.heads, 0, form.dim
        return torch.empty(shape, dtype=form.dtype, device=self.pool.device.device)

"""Trie: blocks of KV by the ids up to their end, who pins them, and which of them leaves first.

    tenant -- block of ids -- block of ids -- ...       a block's name hashes its ids and the name before it
                           \\- block of ids

A tenant's names begin with the tenant, so no session finds another tenant's blocks, in memory or in a folder. Which
blocks leave is one function of a name: `rank`, the lowest first. Without one it is the time of the last use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.kv.port.codec import KVCodec

    Ids = Sequence[int] | NDArray[np.integer]

Rank = Callable[[bytes], float]
PERSON = b"pltz prefix"


def root_of(tenant: str, apart: str = "") -> bytes:
    """Return the name before the first block. ``apart``: of KV that this session alone may find, "" for all."""
    name = blake2b(tenant.encode("utf8", "surrogateescape"), digest_size=32, person=PERSON).digest()
    if not apart:
        return name
    return blake2b(name + apart.encode("utf8", "surrogateescape"), digest_size=32, person=b"pltz apart").digest()


def names_of(above: bytes, ids: Ids, block: int) -> list[bytes]:
    """Return the names of the full blocks of ids that follow the block ``above``."""
    array = np.ascontiguousarray(ids, dtype="<i8")
    names = []
    for at in range(0, len(array) // block * block, block):
        above = blake2b(above + array[at : at + block].tobytes(), digest_size=32, person=PERSON).digest()
        names.append(above)
    return names


@dataclass(eq=False)
class Node:
    """A block in memory: its pages, and for the first of a prefix the sinks after them.

    ``ids``: its own, (block,). ``tenant``: its `KVFolder.owner`. ``above``: name of the block before it, or root.
    ``lost``: a form that it was in, and that lost something. ``mass``: (block,), the attention that each id received,
    where that was seen. ``used``: seconds since 1970. ``lasting``: may be written into a file.
    """

    name: bytes
    above: bytes
    parent: Node | None
    tenant: bytes
    ids: NDArray[np.int32]
    start: int
    blocks: list[int]
    spilled: bool = False
    lost: KVCodec | None = None
    mass: NDArray[np.float32] | None = None
    used: float = 0.0
    pins: int = 0
    lasting: bool = True
    children: dict[bytes, Node] = field(default_factory=dict)


class Trie:
    """Nodes by name. One thread uses it at a time."""

    def __init__(self, rank: Rank | None = None) -> None:
        self.rank = rank
        self._nodes: OrderedDict[bytes, Node] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def get(self, name: bytes) -> Node | None:
        """Return a node, None for an unknown one."""
        return self._nodes.get(name)

    def path(self, names: Iterable[bytes]) -> list[Node]:
        """Return the nodes of the first names that are known."""
        found: list[Node] = []
        for name in names:
            if (node := self._nodes.get(name)) is None:
                break
            found.append(node)
        return found

    def add(self, node: Node) -> None:
        """Add a node below its parent, which is here."""
        self._nodes[node.name] = node
        if node.parent is not None:
            node.parent.children[node.name] = node

    def touch(self, node: Node | None, now: float) -> None:
        """Make the path to a node the most recently used, its beginning last."""
        while node is not None:
            self._nodes.move_to_end(node.name)
            node.used = now
            node = node.parent

    def remove(self, node: Node) -> list[Node]:
        """Remove a node and all that follow it. Returns them."""
        if node.parent is not None:
            del node.parent.children[node.name]
        leaving, gone = [node], list[Node]()
        while leaving:  # a prefix may have more blocks than Python has frames
            node = leaving.pop()
            leaving += node.children.values()
            gone.append(self._nodes.pop(node.name))
        return gone

    def pin(self, name: bytes, times: int = 1) -> None:
        """Keep a prefix, named by its last block, in memory; with -1 as ``times`` end that. Raises UsageError."""
        node = self._nodes.get(name)
        path = []
        while node is not None:
            path.append(node)
            node = node.parent
        if not path or any(one.pins + times < 0 for one in path):
            raise UsageError("no such prefix, or it is not pinned")
        for one in path:
            one.pins += times

    def leaving(self, spilled: bool, missing: int, idle: Callable[[Node], bool]) -> list[Node]:
        """Return nodes of one tier that may leave it and have ``missing`` blocks, ends of prefixes first.

        There are fewer where no more may leave. ``idle``: whether nobody but the trie holds a node's blocks.
        """
        order: Iterable[Node] = self._nodes.values()
        if (rank := self.rank) is not None:  # stable: of equal ranks the least recently used first
            order = sorted(order, key=lambda node: rank(node.name))
        found, gone, again = list[Node](), set[bytes](), True
        while missing > 0 and again:  # a block of a low rank may stand above one of a high rank, which goes first
            again = False
            for node in order:
                if missing <= 0:
                    break
                if node.spilled is not spilled or node.pins or node.name in gone:
                    continue
                # what follows on the device keeps a block there, and whatever follows keeps it in host memory
                below = (c for c in node.children.values() if c.name not in gone and (spilled or not c.spilled))
                if next(below, None) is None and idle(node):
                    found.append(node)
                    gone.add(node.name)
                    missing -= len(node.blocks)
                    again = True
        return found


def chains(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return nodes as chains of blocks that follow each other, as few as possible."""
    among = {node.name: node for node in nodes}
    ends = [node for node in nodes if not node.children.keys() & among.keys()]
    found = []
    for node in ends:
        chain = [among.pop(node.name)]
        while (above := among.pop(chain[-1].above, None)) is not None:
            chain.append(above)
        found.append(chain[::-1])
    return found

"""Look into a hot store: the blocks in memory, with their leases and moves, however the store keeps them."""

from __future__ import annotations

from pltz.kv.store.node import Node
from pltz.kv.store.store import HotStore


def nodes(store: HotStore) -> list[Node]:
    """Return the nodes of the blocks that a store holds in memory."""
    return list(store._nodes.values())

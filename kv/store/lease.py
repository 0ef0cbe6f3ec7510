"""Lease: segments in use, which therefore stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from pltz.kv.store.kv_block import KVBlock
    from pltz.kv.store.node import Node


class Lease:
    """The hot prefix of a path, from the root.

    `HotStore.hold` makes it. End it with `release`, or use it in a ``with``.
    """

    def __init__(
        self, nodes: list[Node], release: Callable[[Node], None], promote: Callable[[Node], None] = lambda node: None
    ) -> None:
        self._nodes = nodes
        self._give_back, self._promote = release, promote

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def segments(self) -> list[bytes]:
        """Return the ids of the segments held."""
        return [node.segment for node in self._nodes]

    @property
    def blocks(self) -> list[KVBlock]:
        """Return their KV, in the fastest tiers that had room."""
        return [node.block for node in self._nodes]

    @property
    def tiers(self) -> list[str]:
        """Return the name of the tier in which each segment is now."""
        return ["" if node.tier is None else node.tier.name for node in self._nodes]

    def add(self, node: Node) -> None:
        """Hold one more segment, which is leased already. For the store."""
        self._nodes.append(node)

    def promote(self, *, wait: bool = True) -> None:
        """Move the segments towards the first tier.

        ``wait``: also coded ones that are still being read. Damaged ones stay where they are.
        """
        for node in self._nodes:
            if wait or node.block.there or node.block.codec.exact:
                self._promote(node)

    def keep(self, count: int) -> None:
        """Release all but the first ``count`` segments."""
        for node in self._nodes[count:]:
            self._give_back(node)
        del self._nodes[count:]

    def release(self) -> None:
        """Release all segments. A second call does nothing."""
        self.keep(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

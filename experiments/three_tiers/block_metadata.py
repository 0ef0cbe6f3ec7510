"""BlockMetadata: where a block of a pool comes from, how much it matters, and when it was last looked at.

    name of a step  ->  source "rules", importance 0.8, tokens 32 .. 48, tenant "acme", priority 85

A block is known by the name of its step in the tree of prefixes, so its metadata follow it between tiers and over a
restart. The order in which sources are given up is a hierarchy, which an application replaces by its own.
Source: "3-Tier KV Cache", BlockMetadataTable.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pltz.kv.pool.prefix_tree import PrefixTree
from pltz.kv.store.eviction_policy import priority
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.kv.pool.prefix_tree import Ids

MOST = 1000  # priorities are below
FADES = 0.5  # weight of what was seen before, when attention is seen again


@dataclass(frozen=True)
class Hierarchy:
    """The priority of each source: a lower one is given up first. Immutable: any thread may use it.

    ``default``: of a source that is not named.
    """

    priorities: Mapping[str, int] = field(
        default_factory=lambda: {
            "axioms": 100, "identity": 90, "rules": 85, "capabilities": 80, "soul": 75, "partner": 55, "neurons": 40,
            "memories": 35, "affect": 20, "user_turn": 15,
        }
    )  # fmt: skip
    default: int = 30

    def __post_init__(self) -> None:
        """Raise UsageError for a priority that cannot be."""
        if any(type(one) is not int or not 0 <= one < MOST for one in (*self.priorities.values(), self.default)):
            raise UsageError(f"expected priorities from 0 to {MOST - 1}")

    def priority(self, source: str) -> int:
        """Return the priority of a source."""
        return self.priorities.get(source, self.default)


@dataclass(frozen=True)
class PromptSection:
    """A part of a prompt, tokens ``start`` to ``end``. Immutable: any thread may use it.

    ``importance``: from 0 to 1.
    """

    source: str
    start: int
    end: int
    importance: float = 0.5


@dataclass(frozen=True)
class BlockMetadata:
    """Facts about a block.

    ``source``: the layer of the prompt it comes from. ``importance``: from 0 to 1. ``created``, ``last_attended``:
    seconds since 1970. ``priority``: of the source. ``tokens``: first and end. ``mass``: share of its session's
    attention that it received lately.
    """

    source: str
    importance: float
    created: float
    last_attended: float
    priority: int
    tokens: tuple[int, int]
    tenant: str
    mass: float = 0.0


class MetadataTable:
    """The metadata of a tree's blocks by the names of their steps. One thread uses it at a time."""

    def __init__(
        self, tree: PrefixTree, hierarchy: Hierarchy | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.tree, self.hierarchy, self._clock = tree, hierarchy or Hierarchy(), clock
        self.blocks: dict[bytes, BlockMetadata] = {}

    def describe(self, tenant: str, ids: Ids, sections: Iterable[PromptSection]) -> list[bytes]:
        """Describe the known blocks of a prefix, and return their names. What was observed of a block stays.

        A block over several sections belongs to the one of the highest priority. Raises UsageError for a section
        whose importance cannot be.
        """
        parts = sorted(sections, key=lambda one: (-self.hierarchy.priority(one.source), -one.importance))
        if any(not 0 <= one.importance <= 1 or one.start > one.end for one in parts):
            raise UsageError("expected sections with an importance from 0 to 1, ending after their start")
        now, size = self._clock(), self.tree.pool.block
        names = self.tree.names(tenant, ids)
        for n, name in enumerate(names):
            tokens = n * size, (n + 1) * size
            inside = (one for one in parts if one.start < tokens[1] and tokens[0] < one.end)
            part = next(inside, PromptSection("", 0, 0, 0.0))
            before = self.blocks.get(name)
            self.blocks[name] = BlockMetadata(
                part.source,
                part.importance,
                now if before is None else before.created,
                now if before is None else before.last_attended,
                self.hierarchy.priority(part.source),
                tokens,
                tenant,
                0.0 if before is None else before.mass,
            )
        return names

    def attended(self, names: Sequence[bytes], shares: Sequence[float]) -> None:
        """Note the share of attention that blocks received, as `BatchKVCache.block_mass` gives it."""
        now = self._clock()
        for name, share in zip(names, shares, strict=False):
            if (one := self.blocks.get(name)) is not None:
                seen = FADES * one.mass + (1 - FADES) * float(share)
                self.blocks[name] = replace(one, mass=seen, last_attended=now)

    def rank(self, name: bytes) -> float:
        """Return the rank of a block for `PrefixTree.rank`: its priority, and importance among equal ones."""
        one = self.blocks.get(name)
        return 0.0 if one is None else one.priority + one.importance / 2

    def attention_rank(self, name: bytes) -> float:
        """Return another rank for `PrefixTree.rank`: bands of idle time, and in a band the attention received.

        `docs/memory.md` compares it with others: in a tree it is no better than the default, the least recently used.
        """
        one = self.blocks.get(name)
        if one is None:
            return -math.inf
        return priority(self._clock(), one.last_attended, one.created).band + min(one.mass, 1.0) / 2

    def prune(self) -> int:
        """Forget blocks that the tree gave up for good. Returns how many."""
        gone = [name for name in self.blocks if name not in self.tree]
        for name in gone:
            del self.blocks[name]
        return len(gone)


class PrefixPins:
    """The prefixes that stay on the device, each by its hash. One thread uses it at a time.

    A pinned prefix is neither spilled nor given up, whatever its priority.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self.tree = tree
        self._held: dict[bytes, tuple[int, int]] = {}  # serial of the step that is pinned, and how often

    @property
    def pins(self) -> dict[bytes, int]:
        """Return how often each prefix is pinned. A `clear` of the tree ends pins; a step that comes again has none."""
        return {name: times for name, (serial, times) in self._held.items() if self.tree.serial(name) == serial}

    def pin(self, tenant: str, ids: Ids) -> bytes | None:
        """Pin the known blocks of a prefix, and return its hash; None where no block of it is known.

        Raises PoolFull where spilled blocks of it do not fit on the device.
        """
        names = self.tree.names(tenant, ids)
        if not names:
            return None
        self.tree.move(names, to_host=False)
        self.hold(names[-1])
        return names[-1]

    def hold(self, name: bytes, times: int = 1) -> None:
        """Pin a prefix by its hash, where its blocks are."""
        for _ in range(times):
            self._held[name] = self.tree.pin(name), self._times(name) + 1

    def unpin(self, name: bytes) -> None:
        """End one pin. Raises UsageError for a prefix that has none."""
        serial, times = self._held.pop(name, (-1, 0))
        if self.tree.serial(name) != serial:
            raise UsageError("this prefix is not pinned")
        if times > 1:
            self._held[name] = serial, times - 1
        self.tree.unpin(name)

    def _times(self, name: bytes) -> int:
        serial, times = self._held.get(name, (-1, 0))
        return times if self.tree.serial(name) == serial else 0

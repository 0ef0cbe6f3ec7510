"""ContextPipeline: prompts of layers, whose stable beginning stays in the pool and whose rest gets the room there is.

    rules | capabilities | memories | chat
    stable -------------->  budget x 1 in a full pool .. x 5 in one that is half empty
    hashed, pinned once     described by layer, so that a full pool gives up the right blocks

Source: "3-Tier KV Cache", CacheAwareContextPipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from pltz.experiments.three_tiers.block_metadata import MetadataTable, PrefixPins, PromptSection
from pltz.kv.errors import PoolFull
from pltz.kv.pool.packed_session import PackedSession
from pltz.plt_codec.errors import UsageError

AMPLE, SCARCE = 0.5, 0.1  # free share of the pool from which budgets are largest, and below which they are smallest
Shorten = Callable[[Sequence[int], int], Sequence[int]]


@dataclass(frozen=True)
class PromptLayer:
    """A layer of a prompt. Immutable: any thread may use it.

    ``stable``: the same in every turn; such layers come first.

    ``budget``: ids that a full pool allows to a layer that is not stable, None for all.
    """

    source: str
    ids: Sequence[int]
    stable: bool = False
    budget: int | None = None
    importance: float = 0.5


@dataclass(frozen=True, eq=False)
class BuiltPrompt:
    """A prompt, ready to be run.

    ``ids``: of all layers. ``sections``: where each lies. ``stable``: ids of the stable prefix. ``prefix``: its hash.
    ``known``: the prefix is that of the turn before. ``factor``: by which budgets were raised. ``session``: the KV of
    the first ids, None where none is known; the caller releases it.
    """

    ids: list[int]
    sections: tuple[PromptSection, ...]
    stable: int
    prefix: bytes
    known: bool
    factor: float
    session: PackedSession | None


class ContextPipeline:
    """The prompts of one tenant. One thread uses it at a time.

    ``most``: factor of budgets where the pool is half empty. ``shorten``: takes ids and a budget, and returns at most
    so many; by default the first ones.
    """

    def __init__(
        self,
        tenant: str,
        table: MetadataTable,
        pins: PrefixPins,
        *,
        most: float = 5.0,
        shorten: Shorten = lambda ids, budget: ids[:budget],
    ) -> None:
        if most < 1:
            raise UsageError(f"expected a factor of at least 1, got {most}")
        self.tenant, self.table, self.pins, self.tree = tenant, table, pins, table.tree
        self.most, self.shorten = most, shorten
        self._prefix = b""
        self._pinned: tuple[bytes, bytes, int] | None = None  # prefix, name of its last step, steps

    def factor(self) -> float:
        """Return by how much budgets are raised now: 1 in a full pool, ``most`` in one that is half empty."""
        pool = self.tree.pool
        slabs = [slab for slab in (pool.device, pool.host) if slab is not None]
        free = sum(slab.free for slab in slabs) / sum(slab.blocks for slab in slabs)
        part = min(max((free - SCARCE) / (AMPLE - SCARCE), 0.0), 1.0)
        return 1 + (self.most - 1) * part

    def build(self, layers: Sequence[PromptLayer]) -> BuiltPrompt:
        """Return the prompt of layers, with the KV that is known. Raises UsageError for a stable one after another."""
        stable_first = sorted(layers, key=lambda layer: not layer.stable)
        if list(layers) != stable_first or not any(len(layer.ids) for layer in layers):
            raise UsageError("expected ids, and stable layers before all others")
        factor = self.factor()
        ids: list[int] = []
        sections = []
        stable = 0
        for layer in layers:
            part = list(layer.ids)
            if not layer.stable and layer.budget is not None:
                part = list(self.shorten(part, int(layer.budget * factor)))
            sections.append(PromptSection(layer.source, len(ids), len(ids) + len(part), layer.importance))
            ids += part
            stable = len(ids) if layer.stable else stable
        prefix = blake2b(np.array(ids[:stable], "<i8").tobytes(), digest_size=32, person=b"pltz stable").digest()
        known, self._prefix = prefix == self._prefix, prefix
        session = self.tree.match(self.tenant, ids)
        return BuiltPrompt(ids, tuple(sections), stable, prefix, known, factor, session)

    def done(self, context: BuiltPrompt, session: PackedSession) -> int:
        """Keep what a prompt computed: offer it to later ones, describe it, pin its stable prefix. Returns new steps.

        ``session``: the KV of the prompt, or of it and more. One stable prefix is pinned at a time.
        """
        if session.packed <= len(context.ids):
            added = self.tree.insert(self.tenant, context.ids, session)
        else:
            added = self._insert_beginning(context, session)
        self.table.describe(self.tenant, context.ids, context.sections)
        self._pin(context)
        return added

    def _insert_beginning(self, context: BuiltPrompt, session: PackedSession) -> int:
        """Offer the blocks of the prompt alone, of a session that went on."""
        part = session.fork()
        try:
            part.cut(len(context.ids))
            return self.tree.insert(self.tenant, context.ids, part)
        finally:
            part.release()

    def _pin(self, context: BuiltPrompt) -> None:
        """Pin the stable prefix in place of the one before, if it is another or more of it is known."""
        names = self.tree.names(self.tenant, context.ids[: context.stable])
        if self._pinned is not None:
            prefix, name, steps = self._pinned
            held = name in self.pins.pins  # a `clear` of the tree ends pins
            if held and prefix == context.prefix and steps >= len(names):
                return
            if held:
                self.pins.unpin(name)
            self._pinned = None
        try:
            pinned = self.pins.pin(self.tenant, context.ids[: context.stable])
        except PoolFull:  # a part of it is spilled and finds no room: the next turn tries again
            return
        if pinned is not None:
            self._pinned = context.prefix, pinned, len(names)

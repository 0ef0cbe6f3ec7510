"""MemoryLoop: observe the pool, orient by scores, decide which blocks move between tiers, act; and suggest thresholds.

    observe   how full device and host are
    orient    score of each block: priority, importance, recency, attention
    decide    device too full: the lowest scores go cold, and lower ones in a full host are given up;
              room there: cold ones above a score come back
    act       one copy per direction; then a suggestion by how full the host is

    host below 50 %: memory is cheap, so promote at lower scores. Above 80 %: promote and demote at higher ones.

Source: "3-Tier KV Cache", TierCacheBridge.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from pltz.experiments.three_tiers.block_metadata import MetadataTable
from pltz.kv.errors import PoolFull
from pltz.kv.pool.prefix_tree import Step
from pltz.plt_codec.errors import UsageError

INTERVAL = 60.0  # seconds
ROOMY, TIGHT = 0.5, 0.8  # use of the host below which, and above which, other thresholds are suggested
CHANGE = 0.8  # factor of a suggestion
HALF = 600.0  # seconds after which recency counts half


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of a loop. Immutable: any thread may use it.

    ``promote``: score from which a cold block comes back. ``demote``: use of the device, from 0 to 1, above which
    blocks go cold. ``aim``: use of the device at which both stop.
    """

    promote: float = 0.5
    demote: float = 0.9
    aim: float = 0.75

    def __post_init__(self) -> None:
        """Raise UsageError for thresholds that cannot be."""
        if not (0 <= self.promote <= 1 and 0 < self.aim <= self.demote <= 1):
            raise UsageError("expected thresholds from 0 to 1, and an aim not above demote")


@dataclass(frozen=True)
class Observation:
    """The state of a pool. ``device``, ``host``: share of blocks in use, from 0 to 1. ``steps``: of the tree."""

    device: float
    host: float
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Decision:
    """Names of the steps to move. The lowest scores are demoted first, the highest promoted first.

    ``forget``: cold steps that make room for those.
    """

    demote: tuple[bytes, ...] = ()
    promote: tuple[bytes, ...] = ()
    forget: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Cycle:
    """The result of a cycle. ``demoted``, ``promoted``: steps that moved. ``suggested``: thresholds, None for none."""

    observed: Observation
    demoted: int
    promoted: int
    suggested: Thresholds | None


class MemoryLoop:
    """The loop over a tree's pool. One thread uses it at a time.

    ``adapt``: take each suggestion. ``clock``: seconds since 1970, as the table's.
    """

    def __init__(
        self,
        table: MetadataTable,
        thresholds: Thresholds | None = None,
        *,
        interval: float = INTERVAL,
        adapt: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.table, self.tree, self.thresholds = table, table.tree, thresholds or Thresholds()
        self.interval, self.adapt, self._clock = interval, adapt, clock
        self._next = clock() + interval

    def tick(self) -> Cycle | None:
        """Run a cycle if it is time. Call it often."""
        if self._clock() < self._next:
            return None
        self._next = self._clock() + self.interval
        return self.cycle()

    def cycle(self) -> Cycle:
        """Run the four parts once."""
        observed = self.observe()
        decision = self.decide(observed, self.orient(observed))
        demoted, promoted = self.act(decision)
        suggested = self.suggest(self.observe())
        if self.adapt and suggested is not None:
            self.thresholds = suggested
        return Cycle(observed, demoted, promoted, suggested)

    def observe(self) -> Observation:
        """Return how full the tiers are, and the steps of the tree."""
        pool = self.tree.pool
        host = 1.0 if pool.host is None else 1 - pool.host.free / pool.host.blocks
        return Observation(1 - pool.device.free / pool.device.blocks, host, tuple(self.tree.steps()))

    def orient(self, observed: Observation) -> dict[bytes, float]:
        """Return the score of each step, from 0 to 1. A step never ranks below one that follows it."""
        now = self._clock()
        scores = {step.name: self._score(step.name, now) for step in observed.steps}
        parents = {step.name: step.parent for step in observed.steps}
        for name, score in sorted(scores.items(), key=lambda one: -one[1]):
            above = parents[name]
            while above is not None and scores[above] < score:
                scores[above] = score
                above = parents[above]
        return scores

    def decide(self, observed: Observation, scores: dict[bytes, float]) -> Decision:
        """Return which steps should move."""
        total = self.tree.pool.device.blocks
        used, aim = observed.device * total, self.thresholds.aim * total
        place = {step.name: n for n, step in enumerate(observed.steps)}  # what follows comes before, at equal scores
        ranked = sorted(observed.steps, key=lambda step: (scores[step.name], place[step.name]))
        moved = []
        if observed.device > self.thresholds.demote:
            for step in ranked:
                if used <= aim:
                    break
                if not step.spilled and not step.pins and self.tree.idle(step.name):
                    moved.append(step)
                    used -= len(step.blocks)
            return self._fitted(moved, ranked, scores)
        back = []
        for step in reversed(ranked):
            if scores[step.name] < self.thresholds.promote or used + len(step.blocks) > aim:
                break
            if step.spilled and self.tree.idle(step.name):
                back.append(step.name)
                used += len(step.blocks)
        return Decision(promote=tuple(back))

    def _fitted(self, moved: list[Step], ranked: list[Step], scores: dict[bytes, float]) -> Decision:
        """Return as many of the steps to demote as the host takes, once lower scores there are given up."""
        host = self.tree.pool.host
        room = 0 if host is None else host.free
        needed = sum(len(step.blocks) for step in moved)
        forgotten = list[Step]()
        followed = Counter(step.parent for step in ranked)
        for step in ranked:  # what follows a step comes before it
            if needed <= room or not moved or scores[step.name] >= scores[moved[-1].name]:
                break
            if step.spilled and not step.pins and not followed[step.name] and self.tree.idle(step.name):
                forgotten.append(step)
                followed[step.parent] -= 1
                room += len(step.blocks)
        while needed > room:
            needed -= len(moved.pop().blocks)
        return Decision(tuple(s.name for s in moved), forget=tuple(s.name for s in forgotten))

    def act(self, decision: Decision) -> tuple[int, int]:
        """Move steps, and return how many went cold and came back. A tier without room moves none."""
        counts = []
        self.tree.forget(decision.forget)
        for names, to_host in ((decision.demote, True), (decision.promote, False)):
            try:
                counts.append(self.tree.move(names, to_host=to_host))
            except PoolFull:
                counts.append(0)
        self.table.prune()
        return counts[0], counts[1]

    def suggest(self, observed: Observation) -> Thresholds | None:
        """Return other thresholds where the host is below half full or above four fifths, None in between."""
        now = self.thresholds
        if observed.host < ROOMY:
            return replace(now, promote=now.promote * CHANGE)
        if observed.host > TIGHT:
            demote = 1 - (1 - now.demote) * CHANGE
            return replace(now, promote=1 - (1 - now.promote) * CHANGE, demote=demote)
        return None

    def _score(self, name: bytes, now: float) -> float:
        one = self.table.blocks.get(name)
        if one is None:
            return 0.0
        recent = 0.5 ** (max(now - one.last_attended, 0.0) / HALF)
        parts = min(one.priority / 100, 1.0), one.importance, recent, min(one.mass, 1.0)
        return sum(parts) / len(parts)

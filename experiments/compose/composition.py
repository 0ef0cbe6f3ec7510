"""Composition: put segments side by side at new positions, and repair what they have not seen.

    composer = Composer(target)
    found = composer.compose([prompt, document, other], repair=0.15)
    cache = found.cache(target)

Exact where each segment stands behind the ids that it was computed behind, as in a tower that moves as a whole (Towers
of Segments, theorem 9): the turn of keys then adds rounding only. All other KV is named approximate. Its form is
`composed`, which has no receipt, so a store hands it out to those only who allow any loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pltz.experiments.compose.kv_block import KVBlock
from pltz.experiments.compose.raw_codec import RawCodec
from pltz.experiments.compose.repair import FIRST, deviation, refreshed
from pltz.kv.port.rotary import Rotary, turned
from pltz.models.target.cache import cache_of
from pltz.plt_codec.errors import ContentError, UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache

    from pltz.experiments.compose.segment import Segment
    from pltz.models.target.target import Target

    Ids = NDArray[np.int32]


class ComposedCodec(RawCodec):
    """KV that was composed and may differ from that of a prefill: one tensor, held as it is, never exact."""

    name = "composed"
    exact = False


COMPOSED = ComposedCodec()


@dataclass(frozen=True, eq=False)
class Composition:
    """KV of segments side by side.

    ``kv``: (layers, 2, heads, T, D) at positions ``start`` onwards, of ``ids`` (T,). ``exact``: a prefill computes the
    same but for rounding. ``moved``: ranges of indices that stand behind other ids than before. ``repaired``: tokens
    that were computed anew. Immutable: any thread may use it.
    """

    ids: Ids
    kv: torch.Tensor
    start: int
    exact: bool
    moved: tuple[range, ...]
    repaired: int

    def cache(self, target: Target) -> DynamicCache:
        """Return a cache to continue from. Raises UsageError for a composition that does not begin at position 0.

        transformers counts positions from the length of the cache, so it would go on at the wrong one.
        """
        if self.start:
            raise UsageError(
                f"this composition begins at position {self.start}: compose from 0, or give the model `position_ids`"
            )
        return cache_of(((kv[0][None], kv[1][None]) for kv in self.kv), target.model.config)

    def block(self) -> KVBlock:
        """Return a block for a store, in the form `composed`: turned keys are never under an exact name."""
        return KVBlock({"kv": self.kv}, self.ids, self.ids, self.start, None, COMPOSED)


class Composer:
    """Composes segments of one target. Raises ModelError where its keys cannot be turned.

    One thread uses it at a time.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.rotary = Rotary.of(target)

    def compose(self, segments: Sequence[Segment], *, start: int = 0, repair: float = 0.15) -> Composition:
        """Return segments side by side, the first at position ``start``.

        Args:
            segments: at least one, of this target.
            start: the position of the first id; nothing is attended to before it.
            repair: share of the tokens that stand behind other ids than before, 0 to 1, to compute anew. The first 16
                of each such segment come first, then those whose KV deviates most at layer 1. 0 computes nothing.

        Raises:
            UsageError: no segments, other shapes, or a share out of range.
            ContentError: more tokens than the target has positions.
            CorruptError: a segment's block is damaged.
        """
        import torch

        if not segments or not 0 <= repair <= 1 or start < 0:
            raise UsageError("expected segments, a position from 0 and a share of 0 to 1 to repair")
        ids = np.concatenate([one.block.ids for one in segments])
        most = self.target.max_positions
        if most is not None and start + len(ids) > most:
            raise ContentError(f"expected at most {most} positions (the target's), found {start + len(ids)}")
        kvs = [one.block.kv_near(self.target.device) for one in segments]
        if len({(kv.shape[:3], kv.shape[4], kv.dtype) for kv in kvs}) != 1:
            raise UsageError("expected segments of one target: their KV has other shapes or types")
        at, moved = 0, []
        placed = []
        for segment, kv in zip(segments, kvs, strict=True):
            placed.append(self._at(kv, start + at - segment.block.start))
            if not np.array_equal(segment.before, ids[:at]):
                moved.append(range(at, at + len(segment)))
            at += len(segment)
        with torch.inference_mode():
            kv = placed[0] if len(placed) == 1 else torch.cat(placed, 3)
        chosen = self._chosen(kv, ids, start, moved, repair)
        if len(chosen):
            kv = refreshed(self.target, kv, ids, start, chosen)
        return Composition(ids, kv, start, not moved, tuple(moved), len(chosen))

    def _at(self, kv: torch.Tensor, distance: int) -> torch.Tensor:
        """Return KV (layers, 2, heads, T, D) moved by so many positions: keys are turned once, values stay."""
        import torch

        if not distance:
            return kv
        cos, sin = self.rotary.angles(distance, 1, kv.device)
        with torch.inference_mode():
            return torch.stack([turned(kv[:, 0], cos, sin).to(kv.dtype), kv[:, 1]], 1)

    def _chosen(
        self, kv: torch.Tensor, ids: Ids, start: int, moved: Sequence[range], repair: float
    ) -> NDArray[np.int64]:
        """Return the tokens to compute anew, ascending."""
        tokens = np.concatenate([np.zeros(0, np.int64), *(np.arange(one.start, one.stop) for one in moved)])
        count = round(repair * len(tokens))
        if count in (0, len(tokens)):
            return tokens[:count]
        score = np.full(len(ids), -1.0)
        score[tokens] = deviation(self.target, kv, ids, start)[tokens]
        for one in moved:  # the first tokens of each, those nearest to its beginning first
            first = one[:FIRST]
            score[first.start : first.stop] = 1e30 - np.arange(len(first)) * 1e24
        return np.sort(np.argsort(-score, kind="stable")[:count])

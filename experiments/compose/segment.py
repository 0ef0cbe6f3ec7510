"""Segment: KV of a run of ids, with the ids that stood before it when it was computed.

Source: Towers of Segments, definitions 1 and 2. A segment of a tower may stand at another position once its keys are
turned there: values have no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pltz.experiments.compose.kv_block import KVBlock, cut
from pltz.experiments.compose.raw_codec import RAW
from pltz.kv.calibrate.measure import watched
from pltz.kv.port.codec import KVCodec, Span
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.models.target.target import Target

    Ids = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Segment:
    """A block of KV, in any form, and the ids ``before`` it, (start,) int32, that its tokens attended to.

    Immutable: any thread may use it.
    """

    block: KVBlock
    before: Ids

    def __post_init__(self) -> None:
        """Check that the block stands behind its ids. Raises UsageError otherwise."""
        if self.block.start != len(self.before):
            raise UsageError(
                f"expected the {self.block.start} ids that stood before the segment, found {len(self.before)}: give "
                "those that it was computed behind"
            )

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.block.ids)

    @classmethod
    def alone(cls, target: Target, ids: Sequence[int] | Ids, codec: KVCodec = RAW) -> Segment:
        """Return the segment of ids (T,) that is prefilled with nothing before it, its KV in a form.

        Raises ContentError where the target cannot take the ids, and UsageError where the form cannot hold the KV.
        """
        checked = target.check_ids(ids).astype(np.int32)
        kv, mass = watched(target, checked)
        block = KVBlock(RAW.encode(kv, Span(checked, 0)), checked, checked, 0, None, RAW, mass)
        return cls(block.recode(codec), np.zeros(0, np.int32))

    @classmethod
    def tower(cls, target: Target, runs: Sequence[Sequence[int] | Ids]) -> list[Segment]:
        """Return the raw segments of runs of ids that stand one behind the other, prefilled in one pass.

        Raises as `alone`.
        """
        arrays = [target.check_ids(run).astype(np.int32) for run in runs]
        whole = np.concatenate([np.zeros(0, np.int32), *arrays])
        cache, _ = target.prefill(whole)
        found, start = [], 0
        for ids in arrays:
            found.append(cls(cut(cache, start, ids, ids), whole[:start]))
            start += len(ids)
        return found

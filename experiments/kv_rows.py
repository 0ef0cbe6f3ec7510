"""KVRows: rows of token ids, the exact KV of their contexts, and what the target loses on another KV."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from pltz.kv.calibrate.measure import Outcome
    from pltz.kv.port.rotary import Rotary
    from pltz.models.session.session import Session
    from pltz.models.target.target import Target


@dataclass(frozen=True, eq=False)
class KVRows:
    """Rows of a target in float32, drawn from sessions.

    ``rows``, ``context``, ``new``: how many, their tokens that are kept as KV, and those scored after them.
    """

    target: Target
    sessions: Sequence[Session]
    rows: int
    context: int
    new: int

    @cached_property
    def drawn(self) -> NDArray[np.int32]:
        """Return the rows, (rows, context + new)."""
        from pltz.kv.calibrate.measure import sessions_to_rows

        return sessions_to_rows(self.target, self.sessions, self.rows, self.context + self.new)

    @cached_property
    def kvs(self) -> list[torch.Tensor]:
        """Return the exact KV of each row's context."""
        from pltz.kv.calibrate.measure import prefilled

        return [prefilled(self.target, row[: self.context]) for row in self.drawn]

    @cached_property
    def rotary(self) -> Rotary:
        """Return the target's rotary embedding. Raises ModelError where it has none that turns."""
        from pltz.kv.port.rotary import Rotary

        return Rotary.of(self.target)

    @cached_property
    def _exact(self) -> list[torch.Tensor]:
        from pltz.kv.calibrate.measure import scored

        pairs = zip(self.drawn, self.kvs, strict=True)
        return [scored(self.target, kv, row[self.context :]) for row, kv in pairs]

    def forms(self, named: Sequence[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the figures of forms of KV on the rows, by name."""
        from pltz.kv.calibrate.measure import compare

        found: list[Outcome] = compare(self.target, self.drawn, self.context, named, control=False)
        return {one.name: one.row() for one in found}

    def loss(self, changed: Sequence[torch.Tensor]) -> tuple[float, float]:
        """Return KL in bits per token, and the share of equal top-1, of the next tokens of the first rows.

        ``changed``: the KV that takes the place of each one's.
        """
        from pltz.kv.calibrate.measure import scored

        kl, same = [], []
        for row, exact, other in zip(self.drawn, self._exact, changed, strict=False):
            got = scored(self.target, other, row[self.context :])
            kl.append(float((exact.exp() * (exact - got)).sum(-1).mean()) / math.log(2))
            same.append(float((exact.argmax(-1) == got.argmax(-1)).double().mean()))
        return max(statistics.mean(kl), 0.0), statistics.mean(same)

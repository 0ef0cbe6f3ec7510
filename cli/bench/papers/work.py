"""Work: the target, sessions and codec that the claims of the papers are measured on."""

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

    from pltz.cli.bench.deployment import Deployment
    from pltz.coding.codec import Codec
    from pltz.kv.calibrate.measure import Outcome
    from pltz.kv.port.rotary import Rotary
    from pltz.models.session.session import Session
    from pltz.models.target.target import Target

COMMUNITIES, BOTS = 5, 20  # of the deployment


@dataclass(frozen=True, eq=False)
class Work:
    """Hold what is measured: a target in float32 by name, sessions, a codec, and how much of them.

    ``rows``, ``context``, ``new``: rows of tokens, those that are kept as KV, those scored after them. ``count``:
    sessions of the deployment.
    """

    model: str
    target: Target
    sessions: Sequence[Session]
    codec: Codec
    bundle: str | None
    threads: int | None
    rows: int
    context: int
    new: int
    count: int

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
    def deployment(self) -> Deployment:
        """Return a small deployment."""
        from pltz.cli.bench.deployment import Deployment

        return Deployment.made(self.target, self.sessions, communities=COMMUNITIES, bots=BOTS, count=self.count)

    def forms(self, named: Sequence[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the figures of forms of KV on the rows, by name."""
        from pltz.kv.calibrate.measure import compare

        found: list[Outcome] = compare(self.target, self.drawn, self.context, named, control=False)
        return {one.name: one.row() for one in found}

    def loss(self, changed: Sequence[torch.Tensor]) -> tuple[float, float]:
        """Return KL in bits per token, and the share of equal top-1, of each row's next tokens on a changed KV."""
        from pltz.kv.calibrate.measure import scored

        kl, same = [], []
        for row, kv, other in zip(self.drawn, self.kvs, changed, strict=True):
            exact, got = (scored(self.target, one, row[self.context :]) for one in (kv, other))
            kl.append(float((exact.exp() * (exact - got)).sum(-1).mean()) / math.log(2))
            same.append(float((exact.argmax(-1) == got.argmax(-1)).double().mean()))
        return max(statistics.mean(kl), 0.0), statistics.mean(same)

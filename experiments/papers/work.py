"""Work: the target, sessions and codec that the claims of the papers are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pltz.experiments.kv_rows import KVRows

if TYPE_CHECKING:
    from pltz.coding.codec import Codec
    from pltz.experiments.deployment import Deployment

COMMUNITIES, BOTS = 5, 20  # of the deployment


@dataclass(frozen=True, eq=False)
class Work(KVRows):
    """Hold what is measured: rows of a target, a codec, and a deployment.

    ``model``: the target by name. ``count``: sessions of the deployment.
    """

    model: str
    codec: Codec
    bundle: str | None
    threads: int | None
    count: int

    @cached_property
    def deployment(self) -> Deployment:
        """Return a small deployment."""
        from pltz.experiments.deployment import Deployment

        return Deployment.made(self.target, self.sessions, communities=COMMUNITIES, bots=BOTS, count=self.count)

"""Durations of the stages of a thaw, in milliseconds. GPU work counts in the stage that launched it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class StageTimer:
    """A timer for the stages of a batch, which follow one another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self._last = time.perf_counter()
        self._stages: dict[str, float] = {}

    def end(self, stage: str) -> None:
        """End a stage, and wait until the device has finished it, too."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self._stages[stage] = 1e3 * (now - self._last)
        self._last = now

    def since(self, asked_at: float, admitted_at: float) -> dict[str, float]:
        """Return milliseconds by stage for one session; ``total`` is their sum.

        ``asked_at``: when the session was asked for. ``admitted_at``: when its version was known. Both are in
        seconds of the performance counter.
        """
        known = dict(self._stages)
        stages = {
            "read": 1e3 * (admitted_at - asked_at) + known.pop("read"),
            "wait": 1e3 * (self._start - admitted_at),
            **known,
        }
        return stages | {"total": sum(stages.values())}

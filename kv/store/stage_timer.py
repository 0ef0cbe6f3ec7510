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
        self._laps: dict[str, float] = {}

    def end(self, stage: str, *, wait: bool = True) -> None:
        """End a stage, and wait until the device has finished it, too.

        Without ``wait`` only the host's time counts.
        """
        if wait and self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self._laps[stage] = 1e3 * (now - self._last)
        self._last = now

    def split(self, first: str, second: str, first_ms: float) -> None:
        """Divide the time of two overlapping stages.

        The first gets ``first_ms``, the second the rest of both.
        """
        both = self._laps[first] + self._laps[second]
        self._laps[first] = min(first_ms, both)
        self._laps[second] = both - self._laps[first]

    def since(self, asked: float, boarded: float) -> dict[str, float]:
        """Return milliseconds by stage for one session; ``total`` is their sum.

        ``asked``: when the session was asked for. ``boarded``: when its version was known. Both are in
        seconds of the performance counter.
        """
        laps = dict(self._laps)
        stages = {
            "read": 1e3 * (boarded - asked) + laps.pop("read"),
            "wait": 1e3 * (self._start - boarded),
            **laps,
        }
        return stages | {"total": sum(stages.values())}

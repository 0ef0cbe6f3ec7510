"""Laps: how long each stage of a thaw took, in milliseconds, with a GPU's work counted in the stage that asked for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Laps:
    """Times the stages of a batch, one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def end(self, stage: str, *, wait: bool = True) -> None:
        """A stage is over, on the device too; without ``wait``, on the host alone."""
        if wait and self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self._laps[stage] = 1e3 * (now - self._last)
        self._last = now

    def split(self, first: str, second: str, first_ms: float) -> None:
        """Two stages that ran one into the other: the first took so long, the second the rest of both."""
        both = self._laps[first] + self._laps[second]
        self._laps[first] = min(first_ms, both)
        self._laps[second] = both - self._laps[first]

    def since(self, asked: float, boarded: float) -> dict[str, float]:
        """Milliseconds by stage, for who asked at ``asked`` and whose version was known at ``boarded``; ``total`` is their sum."""
        laps = dict(self._laps)
        stages = {
            "read": 1e3 * (boarded - asked) + laps.pop("read"),
            "wait": 1e3 * (self._start - boarded),
            **laps,
        }
        return stages | {"total": sum(stages.values())}

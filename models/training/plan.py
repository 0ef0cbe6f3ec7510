"""The length and rates of training: budget, batch, rates and their schedule. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Budget, batch and rates of a training run.

    A net of contract 1 is trained by Muon on the matrices and AdamW on the rest. A gated one, which starts
    from pretrained weights, is trained by AdamW alone: each matrix moves in proportion to its own size.
    """

    steps: int = 0  # how long: either steps
    seconds: float = 0.0  # or seconds, compiling not counted
    rows: int = 16  # rows per batch, on each GPU
    row: int = 8192  # tokens per row
    warmup: int = 40  # steps until the full rate, at most a tenth of `steps`
    decay: float = 0.5  # share of the budget, the last, over which the rate falls to zero
    muon_rate: float = 0.02
    adam_rate: float = 0.004
    relative_rate: float = 0.003  # gated: of a matrix, in root mean squares of it
    weight_decay: float = 0.03  # of the matrices; gated: none
    dropout: float = 0.0  # share of each layer's addition to the residual that is left out at random

    def done(self, step: int, elapsed: float) -> float:
        """Return the share of the budget used."""
        return min(1.0, step / self.steps if self.steps else elapsed / self.seconds)

    def factor(self, step: int, elapsed: float, first: int = 0) -> float:
        """Return the factor on the rates. `first`: the step at which the optimisers began with empty state."""
        warmup = min(self.warmup, self.steps // 10) if self.steps else self.warmup
        up = min(1.0, (step - first + 1) / max(warmup, 1))
        return up * min(1.0, (1.0 - self.done(step, elapsed)) / max(self.decay, 1e-9))

"""The length and the rates of training: budget, batch, optimisers and their schedule.

torch is loaded by `optimisers` alone, so that a configuration is read without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pltz.training.nets.net import Net

CLASS_RATE, SHIFT_RATE, OTHER_RATE = 1e-4, 0.02, 2e-3  # gated: classes, class_shift, biases and temperatures


@dataclass(frozen=True)
class Schedule:
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

    def done(self, step: int, elapsed: float) -> float:
        """Return the share of the budget used."""
        return min(1.0, step / self.steps if self.steps else elapsed / self.seconds)

    def factor(self, step: int, elapsed: float) -> float:
        """Return the factor on the rates after `step` steps and `elapsed` seconds."""
        warmup = min(self.warmup, self.steps // 10) if self.steps else self.warmup
        up = min(1.0, (step + 1) / max(warmup, 1))
        return up * min(1.0, (1.0 - self.done(step, elapsed)) / max(self.decay, 1e-9))


def optimisers(net: Net, schedule: Schedule, *, fused: bool) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices and AdamW for the rest; for a gated net AdamW alone, see `_gentle`.

    Each group holds its full rate in `initial_lr`.
    """
    import torch

    if net.cfg.gated:
        made: list[torch.optim.Optimizer] = [_gentle(net, schedule.relative_rate, fused=fused)]
    else:
        matrices = [p for n, p in net.named_parameters() if _matrix(n, p)]
        made = [
            torch.optim.Muon(
                matrices, lr=schedule.muon_rate, weight_decay=schedule.weight_decay, momentum=0.95, nesterov=True
            ),
            torch.optim.AdamW(_rest(net), lr=schedule.adam_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=fused),
        ]
    for optimiser in made:
        for group in optimiser.param_groups:
            group["initial_lr"] = group["lr"]
    return made


def clipped(net: Net) -> list[nn.Parameter]:
    """Return the parameters whose gradient norm is bounded.

    Muon needs no bound, since it takes the direction alone.
    """
    return list(net.parameters()) if net.cfg.gated else _rest(net)


def _matrix(name: str, p: nn.Parameter) -> bool:
    return name.startswith("blocks") and p.ndim == 2


def _rest(net: Net) -> list[nn.Parameter]:
    return [p for n, p in net.named_parameters() if not _matrix(n, p)]


def _gentle(net: Net, rate: float, *, fused: bool) -> torch.optim.Optimizer:
    """Return AdamW for pretrained weights.

    Each matrix moves in proportion to its own size; gains stay as they were equalised.
    """
    import torch

    groups: list[dict[str, Any]] = []
    for name, p in net.named_parameters():
        size = float(p.detach().float().square().mean().sqrt())
        if "norm_" in name:
            p.requires_grad_(False)
            continue
        if _matrix(name, p):
            lr = rate * size
        else:
            lr = {"embed": 3 * rate * size, "classes": CLASS_RATE, "class_shift": SHIFT_RATE}.get(name, OTHER_RATE)
        groups.append({"params": [p], "lr": lr})
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)

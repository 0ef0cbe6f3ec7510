"""The optimisers of a net, each group's full rate in `initial_lr`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pltz.models.training.net import Net
from pltz.models.training.plan import Plan

CLASS_RATE, SHIFT_RATE, OTHER_RATE = 1e-4, 0.02, 2e-3  # gated: classes, class_shift, biases and temperatures


def optimisers(net: Net, plan: Plan, *, fused: bool) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices and AdamW for the rest; for a gated net AdamW alone, see `_gentle`."""
    if net.cfg.gated:
        made: list[torch.optim.Optimizer] = [_gentle(net, plan.relative_rate, fused=fused)]
    else:
        matrices = [p for n, p in net.named_parameters() if _matrix(n, p)]
        made = [
            torch.optim.Muon(
                matrices, lr=plan.muon_rate, weight_decay=plan.weight_decay, momentum=0.95, nesterov=True
            ),
            torch.optim.AdamW(
                _rest(net), lr=plan.adam_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=fused
            ),
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
    groups: list[dict[str, Any]] = []
    for name, p in net.named_parameters():
        size = float(p.detach().float().square().mean().sqrt())
        if "norm_" in name:
            p.requires_grad_(False)
            continue
        if _matrix(name, p):
            lr = rate * size
        else:
            lr = {"embed": 3 * rate * size, "classes": CLASS_RATE, "class_shift": SHIFT_RATE}.get(
                name, OTHER_RATE
            )
        groups.append({"params": [p], "lr": lr})
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)

"""Course: how long something is trained, on which rows, and at which rate; and the two stages of a decoder.

    regression   squared error of keys and of values of each layer, over their variance
    KL           of the tokens that follow a context, plus a tenth of the regression

The rate falls to zero over each run. Matrices of blocks that begin at random take Muon, everything else AdamW.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pltz.experiments.learned_kv.frozen_target import SINKS, FrozenTarget
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.experiments.learned_kv.network import Decoder

REGRESSION = 0.1  # its weight beside KL
SOLVED = 4  # batches that readers are solved from
WARM_UP = 0.03  # of a course


@dataclass(frozen=True)
class Course:
    """Say how to train: ``batch`` rows per step, of ``context`` ids and ``new`` ones to score, until one limit.

    A limit of zero trains nothing: readers are solved, and that is all.
    """

    batch: int
    context: int
    new: int
    steps: int = 1_000_000
    seconds: float = float("inf")
    kl_share: float = 0.5  # of the course is the second stage

    def __post_init__(self) -> None:
        if self.steps >= 1_000_000 and self.seconds == float("inf"):
            raise UsageError("expected a limit of steps or of seconds")

    def done(self, step: int, began: float) -> float:
        """Return the share of the course that is over after ``step`` steps since ``began``."""
        if min(self.steps, self.seconds) <= 0:
            return 1.0
        return min(1.0, max(step / self.steps, (time.perf_counter() - began) / self.seconds))


def rate_at(done: float) -> float:
    """Return the factor on the rates: up over the warm-up, then linearly down to zero."""
    return min(1.0, (done + 1e-3) / WARM_UP) * (1.0 - done)


def batches(rows: NDArray[np.int32], count: int, device: torch.device, seed: int) -> Iterator[torch.Tensor]:
    """Yield random batches of rows (n, length) without end: ids (count, length), int64."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(rows))
        for begin in range(0, max(len(order) - count + 1, 1), count):
            yield torch.from_numpy(rows[order[begin : begin + count]].astype(np.int64)).to(device)


def mixed(device: torch.device) -> Any:
    """Return the context in which a network computes: bfloat16 where there is a GPU."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def centres_of(frozen: FrozenTarget, rows: NDArray[np.int32], count: int) -> torch.Tensor:
    """Return centres of ``count`` regions, (count, width of the target): k-means of mean embeddings of rows."""
    table = frozen.model.get_input_embeddings().weight.detach().float()
    points = torch.stack([table[torch.from_numpy(row.astype(np.int64)).to(table.device)].mean(0) for row in rows])
    chosen = np.random.default_rng(0).permutation(len(points))[:count]
    centres = points[torch.from_numpy(chosen).to(points.device)]
    for _ in range(20):
        near = torch.cdist(points, centres).argmin(1)
        centres = torch.stack([points[near == n].mean(0) if (near == n).any() else centres[n] for n in range(count)])
    return centres


def regression(got: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the mean over layers, keys and values of the squared error over the variance. Sinks do not count.

    ``got``, ``exact``: (B, T, layers, row). ``scale``: of `scale_of`.
    """
    error = (got[:, SINKS:] - exact[:, SINKS:]).unflatten(3, (2, -1)).square().mean((0, 1, 4))
    found: torch.Tensor = (error / scale).mean()
    return found


def scale_of(exact: torch.Tensor) -> torch.Tensor:
    """Return the variance of keys and of values of each layer, (layers, 2), the mean of their elements."""
    found: torch.Tensor = exact[:, SINKS:].unflatten(3, (2, -1)).var((0, 1)).mean(-1).clamp_min(1e-12)
    return found


def train(decoder: Decoder, frozen: FrozenTarget, rows: NDArray[np.int32], course: Course) -> dict[str, float]:
    """Train a decoder on the first ids of rows, (n, context + new or more).

    Returns tokens and steps seen, and the last losses of both stages.
    """
    feed = batches(rows[:, : course.context + course.new], course.batch, frozen.device, seed=1)
    with mixed(frozen.device):
        first = [next(feed) for _ in range(SOLVED)]
        scale = scale_of(frozen.exact(first[0]))
        decoder.solve_readers((ids, frozen.exact(ids)) for ids in first)
    optimisers = _optimisers(decoder)
    told = {"steps": 0.0, "tokens": 0.0, "regression": float("nan"), "kl": float("nan")}
    if not optimisers:
        return told
    began, step = time.perf_counter(), 0
    while (done := course.done(step, began)) < 1:
        ids = next(feed)
        exact = frozen.exact(ids)
        with mixed(frozen.device):
            got = decoder(ids if done < 1 - course.kl_share else ids[:, : course.context])
        if done < 1 - course.kl_share:
            loss = regression(got, exact, scale)
            told["regression"] = loss.detach()  # type: ignore[assignment]
        else:
            before = exact[:, : course.context]
            kl = frozen.loss(before, got, ids[:, course.context :])
            loss = kl + REGRESSION * regression(got, before, scale)
            told["kl"] = kl.detach()  # type: ignore[assignment]
        loss.backward()
        step_all(optimisers, rate_at(done))
        step += 1
        told["tokens"] += ids.numel()
    return {name: float(value) for name, value in told.items()} | {"steps": float(step)}


def step_all(optimisers: list[torch.optim.Optimizer], factor: float) -> None:
    """Make a step with every optimiser at a factor on its rates, and clear the gradients."""
    for one in optimisers:
        for group in one.param_groups:
            group["lr"] = factor * group["initial_lr"]
        one.step()
        one.zero_grad(set_to_none=True)


def rated(optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return an optimiser whose groups keep their full rate in ``initial_lr``."""
    for group in optimiser.param_groups:
        group["initial_lr"] = group["lr"]
    return optimiser


def _optimisers(decoder: Decoder) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of blocks, AdamW for the rest; gentler where the blocks are copies."""
    copies = decoder.bridge is None
    trained = [p for p in decoder.parameters() if p.requires_grad and p.numel()]
    muon = [p for p in decoder.blocks.parameters() if p.ndim == 2]
    held = {id(p) for p in muon}
    rest: list[nn.Parameter] = [p for p in trained if id(p) not in held]
    found: list[torch.optim.Optimizer] = []
    if muon:
        found.append(rated(torch.optim.Muon(muon, lr=0.002 if copies else 0.02, weight_decay=0.0)))
    if rest:
        found.append(rated(torch.optim.AdamW(rest, lr=5e-4 if copies else 2e-3, betas=(0.9, 0.98), weight_decay=0.0)))
    return found

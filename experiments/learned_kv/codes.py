"""Codes: trained linear encoders and decoders of KV, of a rank for each layer under one budget (seed 1).

    code    = (row - mean) encoder, times a gate per column      row: keys, or values, of a layer over all heads
    decoded = code decoder + mean

The gates of a layer open its first k columns: sigmoid((k - column - 1/2) / temperature). The ranks k share a budget as
in equation 1 of "Learnable Adaptive KV-cache Compression": a softmax over learnt numbers, times what all may have
together; a rank above the width gives what is over to the others. The paper scores columns to choose among them; here
matrices are trained, so their order is as good as any. They begin as the principal directions, the largest first. The
temperature falls, and for the last part of a course ranks are whole numbers and gates are open or shut.

Keys and values of a layer have a rank each. Means, matrices and ranks belong to the target: a session keeps codes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from pltz.experiments.learned_kv.course import Course, batches, rate_at, rated, step_all
from pltz.experiments.learned_kv.frozen_target import SINKS, FrozenTarget

if TYPE_CHECKING:
    from numpy.typing import NDArray

HARD = 0.7  # of a course is over when gates shut
WARM, COLD = 8.0, 0.5  # temperatures, in columns
FITTED = 8  # batches of the principal directions
ROUNDS = 8  # in which ranks above the width give way


class Codes(nn.Module):
    """Codes of all layers. ``ratio``: elements over coded ones. Call it with rows (B, T, layers, row).

    Groups are keys, then values, of each layer: ``mean`` (groups, d), ``into`` and ``back`` (groups, d, d), d the width
    of a group, and ``share`` (groups,), of the budget before the softmax.
    """

    def __init__(self, frozen: FrozenTarget, ratio: float) -> None:
        super().__init__()
        groups, width = 2 * frozen.layers, frozen.width // 2
        self.ratio, self.width = ratio, width
        self.total = int(groups * width / ratio)
        self.register_buffer("mean", torch.zeros(groups, width, device=frozen.device))
        self.into = nn.Parameter(torch.eye(width, device=frozen.device).repeat(groups, 1, 1))
        self.back = nn.Parameter(self.into.detach().clone())
        self.share = nn.Parameter(torch.zeros(groups, device=frozen.device))
        self.temperature: float | None = None  # None: gates are open or shut

    def ranks(self) -> torch.Tensor:
        """Return the rank of each group as it is learnt, (groups,), float."""
        free = torch.full_like(self.share, float(self.total))
        shares = self.share.softmax(0)
        k = free * shares
        for _ in range(ROUNDS):
            over = k >= self.width
            room = self.total - self.width * over.sum()
            rest = shares.masked_fill(over, 0.0)
            k = torch.where(over, torch.full_like(k, self.width), rest / rest.sum().clamp_min(1e-9) * room)
        return k

    def whole_ranks(self) -> torch.Tensor:
        """Return the ranks as whole numbers whose sum is the budget: largest remainders first."""
        k = self.ranks().detach()
        low = k.floor().clamp(max=self.width)
        left = round(self.total - float(low.sum()))
        order = (k - low).masked_fill(low >= self.width, -1.0).argsort(descending=True)
        low[order[:left]] += 1
        return low.long()

    def gates(self) -> torch.Tensor:
        """Return the gates, (groups, d)."""
        column = torch.arange(self.width, device=self.share.device)
        if self.temperature is None:
            return (column < self.whole_ranks()[:, None]).to(self.into.dtype)
        return torch.sigmoid((self.ranks()[:, None] - column - 0.5) / self.temperature)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the decoded rows (B, T, layers, row)."""
        batch, tokens, layers, row = rows.shape
        halves = rows.reshape(batch * tokens, 2 * layers, row // 2).transpose(0, 1)
        x = halves - self.mean[:, None]  # type: ignore[index]
        y = ((x @ self.into) * self.gates()[:, None]) @ self.back + self.mean[:, None]  # type: ignore[index]
        return y.transpose(0, 1).reshape(rows.shape)

    @torch.no_grad()
    def solve(self, frozen: FrozenTarget, rows: NDArray[np.int32], batch: int, *, by_variance: bool = False) -> None:
        """Take means and principal directions of the KV of rows (n, length); ranks stay even.

        ``by_variance``: budgets with the least squared error that a rank for each group can reach, too.
        """
        feed = batches(rows, batch, frozen.device, seed=3)
        count = torch.zeros((), dtype=torch.float64)
        first: torch.Tensor = torch.zeros(self.into.shape[:2], dtype=torch.float64, device=frozen.device)
        second = torch.zeros(self.into.shape, dtype=torch.float64, device=frozen.device)
        for _ in range(min(FITTED, -(-len(rows) // batch))):
            exact = frozen.exact(next(feed))[:, SINKS:]
            x = exact.reshape(-1, len(first), self.width).transpose(0, 1)
            first += x.sum(1).double()
            second += (x.mT @ x).double()
            count += x.shape[1]
        mean = first / count.to(first.device)
        values, vectors = torch.linalg.eigh(second / count.to(first.device) - mean[:, :, None] * mean[:, None])
        self.mean.copy_(mean.float())  # type: ignore[operator]
        self.into.copy_(vectors.flip(2).float())
        self.back.copy_(self.into.mT)
        if by_variance:
            best = values.flip(1).flatten().argsort(descending=True)[: self.total]
            kept = torch.bincount(best // self.width, minlength=len(values)).float()
            self.share.copy_(kept.clamp_min(1e-3).log())

    def train_on(
        self, frozen: FrozenTarget, rows: NDArray[np.int32], course: Course, *, by_kl: bool, budgets: bool = True
    ) -> int:
        """Train matrices, and ``budgets`` too unless they stay as they are. Returns the steps made.

        ``by_kl``: by what the target says after the context, else by the squared error of equation 3.
        """
        groups = [{"params": [self.into, self.back], "lr": 5e-4}]
        if budgets:
            groups.append({"params": [self.share], "lr": 0.03})
        optimiser = rated(torch.optim.Adam(groups, betas=(0.9, 0.98)))
        feed = batches(rows[:, : course.context + course.new], course.batch, frozen.device, seed=2)
        began, step = time.perf_counter(), 0
        while (done := course.done(step, began)) < 1:
            self.temperature = WARM * (COLD / WARM) ** (done / HARD) if done < HARD and budgets else None
            ids = next(feed)
            exact = frozen.exact(ids[:, : course.context])
            got = self(exact)
            if by_kl:
                loss = frozen.loss(exact, got, ids[:, course.context :])
            else:
                loss = (got - exact)[:, SINKS:].square().sum(-1).mean()
            loss.backward()
            step_all([optimiser], rate_at(done))
            step += 1
        self.temperature = None
        return step

    @property
    def bits(self) -> float:
        """Return bits per element of what a session keeps, in 16 bits per coded element."""
        return 16.0 * self.total / (len(self.share) * self.width)

"""The reference engine: the numeric contract (NUMERICS.md) in stock torch, on any device.

Products of small integers run as float32 matrix products. These are exact in any order while every partial
sum stays below 2^24. The bound is proved per matrix at load from its row sums, and a matrix that breaks it is
cut into column pieces. A self-check multiplies extreme values. Everything else is int64. There are two ways
through the same layers:

    parallel(jobs)   all positions of given blocks at once, under the lane mask: for encoding
    Stepper(jobs)    one step of all lanes of all jobs at a time, keys and values kept: for decoding

Both call `_enter`, `_heads`, `_weigh`, `_join` and `_head_*`, so their formulas cannot disagree. The tests
compare them bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pltz.plt_codec.errors import ModelError, UsageError
from pltz.plt_codec.lanes import TokenBlock
from pltz.plt_codec.weights import CLASS, GATE_MAX, PRECISION, RESIDUAL_MAX, Weights

EXACT = 1 << 24  # float32 holds all integers below
QUERY_CHUNK = 1 << 22  # scores computed at once in the parallel pass
GATHER_ROWS = 48  # up to this many rows are gathered; more are multiplied class by class
F = TypeVar("F", bound=Callable[..., Any])


def exactly(method: F) -> F:
    """Wrap a method to run without autograd, autocast or reduced float32 precision, whatever the caller has set."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        before = torch.get_float32_matmul_precision()
        if before != "highest":
            torch.set_float32_matmul_precision("highest")
        try:
            with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
                return method(self, *args, **options)
        finally:
            if before != "highest":
                torch.set_float32_matmul_precision(before)

    return run  # type: ignore[return-value]


def rs(a: Tensor, n: int) -> Tensor:
    """Divide integers, of any shape (...,), by 2^n in place, rounding half up."""
    return a.add_(1 << (n - 1)).bitwise_right_shift_(n)


@dataclass
class Memory:
    """The keys and values of the last positions of a block: per layer (kv_heads, positions, head_dim) float32."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def size(self) -> int:
        """Return the number of positions kept."""
        return self.keys[0].shape[1]


@dataclass
class BlockJob:
    """One block to run.

    ``block``: its grid. ``inputs``: its input ids (steps, lanes), where known. ``memory``: the keys and
    values it remembers of the block before.
    """

    block: TokenBlock
    inputs: npt.NDArray[np.int64] | None
    memory: Memory | None

    @property
    def remembered(self) -> int:
        """Return the number of positions in memory."""
        return self.memory.size if self.memory else 0


class Product:
    """The exact product x -> rs((w @ x) * m, 24), for inputs with |x| <= ``largest``.

    Args:
        w: weights, (out, in) int8.
        m: multiplier of each row, (out,) int32.
        largest: bound on the inputs.
        device: where it runs.
    """

    def __init__(self, w: npt.NDArray[np.int8], m: npt.NDArray[np.int32], largest: int, device: torch.device):
        pieces = 1
        while any(
            np.abs(part.astype(np.int64)).sum(1).max() * largest >= EXACT
            for part in np.array_split(w, pieces, axis=1)
        ):
            pieces += 1
        parts = np.array_split(w, pieces, axis=1)
        self.columns = [p.shape[1] for p in parts]
        self.weights = [torch.from_numpy(np.ascontiguousarray(p)).to(device, torch.float32) for p in parts]
        self.multiplier = torch.from_numpy(m.astype(np.int64)).to(device)

    def __call__(self, a: Tensor) -> Tensor:
        """Multiply a (rows, in), integers in float32, and return (rows, out) int64."""
        if len(self.weights) == 1:
            y = torch.nn.functional.linear(a, self.weights[0]).long()
        else:
            parts = zip(a.split(self.columns, 1), self.weights, strict=True)
            y = sum(
                (torch.nn.functional.linear(x, w).long() for x, w in parts),
                torch.zeros((), dtype=torch.int64, device=a.device),
            )
        return rs(y.mul_(self.multiplier), 24)


class TorchEngine:
    """The model on one device.

    Args:
        weights: the model.
        device: a torch device.
        threads: torch's threads for the process; None leaves them as they are.

    Raises:
        UsageError: the device cannot be used, or ``threads`` is below 1.
        ModelError: this torch does not multiply small integers exactly.
    """

    def __init__(self, weights: Weights, device: str = "cpu", threads: int | None = None):
        try:
            self.device = torch.device(device)
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as exc:
            raise UsageError(f"device {device!r} cannot be used here: {str(exc).splitlines()[0]}") from exc
        if threads is not None:
            if threads < 1:
                raise UsageError(f"expected at least 1 thread, got {threads}")
            torch.set_num_threads(threads)
        # weights as the device's integers; products know the largest sum that they meet
        self.shape = s = weights.shape

        def wide(name: str) -> Tensor:
            return torch.from_numpy(weights[name].astype(np.int64)).to(self.device)

        def product(name: str, largest: int) -> Product:
            return Product(weights[name + ".w"], weights[name + ".m"], largest, self.device)

        self.embed_m, self.member_m, self.member_b = wide("embed.m"), wide("member.m"), wide("member.b")
        self.embed = torch.from_numpy(weights["embed.w"]).to(self.device)
        self.members = self.embed.to(torch.float32).view(s.classes, CLASS, s.d)
        self.shift = rs(wide("shift.w") * wide("shift.m")[:, None], 16)
        self.classes, self.class_b = product("class", 127), wide("class.b")
        self.layers = [
            (product(f"layer.{i}.qkv", 127), product(f"layer.{i}.out", 127), product(f"layer.{i}.up", 127),
             product(f"layer.{i}.down", 127 if s.gated else 254))
            for i in range(s.layers)
        ]  # fmt: skip
        # gated shapes have gates and gains, others have none
        self.gates = [product(f"layer.{i}.gate", 127) for i in range(s.layers)] if s.gated else []
        self.norm_in = [wide(f"layer.{i}.norm_in") if s.gated else None for i in range(s.layers)]
        self.norm_mid = [wide(f"layer.{i}.norm_mid") if s.gated else None for i in range(s.layers)]
        self.norm_out = wide("norm_out") if s.gated else None
        self.act = wide("table.act") if s.gated else None
        self.heat = [wide(f"layer.{i}.heat").view(s.kv_heads, -1, 1, 1) for i in range(s.layers)]
        # tables of exponentials and of turns
        exp = wide("table.exp")
        e = torch.arange(1984, device=self.device)
        self.symbol_weight = exp[e & 63] >> (e >> 6)
        self.key_weight = (rs(exp.clone(), 5)[e & 63] >> (e >> 6))[:1024]
        self.cos, self.sin, self.phase = wide("table.cos"), wide("table.sin"), wide("table.phase")
        self._self_check()

    @exactly
    def _self_check(self) -> None:
        """Refuse a torch that does not multiply small integers exactly."""
        s = self.shape
        for n, largest in ((s.d, 127), (min(s.hidden, 520), 254)):
            a = torch.full((33, n), float(largest), device=self.device)
            a[1::2] *= -1
            w = torch.full((64, n), 127.0, device=self.device)
            w[:, -1] = 1
            want = largest * (127 * (n - 1) + 1)
            got = torch.nn.functional.linear(a, w).abs()
            if want < EXACT and not bool((got == want).all()):
                raise ModelError(
                    f"this torch ({torch.__version__}, {self.device}) does not multiply small integers exactly"
                )

    # -- the pieces that both passes share

    def _norm(self, x: Tensor, gain: int, gains: Tensor | None = None) -> Tensor:
        """Normalise (..., n) int64 to (..., n) float32 integers within 127; `gains` (n,) in contract 2."""
        total = (x * x).sum(-1, keepdim=True)
        root = total.double().sqrt().long()
        root -= (root * root > total).long()
        root += ((root + 1) * (root + 1) <= total).long()
        scale = torch.div(gain << 32, root.clamp_(min=1), rounding_mode="floor")
        y = rs(x * scale, 40) if gains is None else rs(rs(x * scale, 32).mul_(gains), 20)
        return y.clamp_(-127, 127).float()

    def _enter(self, tokens: Tensor) -> Tensor:
        """Return the residuals (rows, d) of token ids (rows,)."""
        x = rs(self.embed[tokens].long() * self.embed_m[tokens][:, None], 16)
        return x.clamp_(-RESIDUAL_MAX, RESIDUAL_MAX)

    def _turns(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (rows, 1, head_dim / 2), of positions (rows,)."""
        j = ((at[:, None] * self.phase) >> 10) & 1023
        return self.cos[j][:, None], self.sin[j][:, None]

    def _heads(self, i: int, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (rows, heads, D) and k, v (rows, kv_heads, D), float32 integers, of residuals (rows, d)."""
        s, (cos, sin) = self.shape, turns
        y = self.layers[i][0](self._norm(x, s.norm_gain, self.norm_in[i])).view(len(x), -1, s.head_dim)
        qk = y[:, : s.heads + s.kv_heads].clamp(-32767, 32767)
        a, b = qk.chunk(2, -1)
        qk = rs(torch.cat([a * cos - b * sin, a * sin + b * cos], -1), 14)
        qk = rs(qk, 7).clamp_(-127, 127).float() if s.gated else self._norm(qk, s.head_gain)
        return qk[:, : s.heads], qk[:, s.heads :], y[:, s.heads + s.kv_heads :].clamp(-127, 127).float()

    def _weigh(self, i: int, score: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Turn scores (..., kv_heads, group, rows, keys) float32 into attention weights float32.

        `hidden` keys get none.
        """
        if hidden is not None:
            score.masked_fill_(hidden, float("-inf"))
        e = (score.amax(-1, keepdim=True) - score).clamp_(max=float(1 << 22)).long()
        e = e.mul_(self.heat[i]).bitwise_right_shift_(16).clamp_(max=1023)
        w = self.key_weight[e]
        if hidden is not None:
            w.masked_fill_(hidden, 0)
        share = torch.div(1 << 40, w.sum(-1, keepdim=True), rounding_mode="floor")
        return rs(w.mul_(share), 24).float()

    def _mix(self, weight: Tensor, value: Tensor) -> Tensor:
        """Multiply weights (..., rows, keys) and values (..., keys, D).

        Return attention output, float32 integers within 127.
        """
        return rs((weight @ value).long(), 15).clamp_(-127, 127).float()

    def _join(self, i: int, x: Tensor, o: Tensor) -> Tensor:
        """Return the residual after attention output o (rows, heads * D) and the hidden layer."""
        _, out, up, down = self.layers[i]
        x = out(o).add_(x).clamp_(-RESIDUAL_MAX, RESIDUAL_MAX)
        a = self._norm(x, self.shape.norm_gain, self.norm_mid[i])
        if self.act is None:
            u = up(a).clamp_(0, 255)
            hidden = rs(u.mul_(u), 8)
        else:
            gate = self.gates[i](a).clamp_(-GATE_MAX, GATE_MAX).add_(GATE_MAX)
            hidden = rs(self.act[gate].mul_(up(a).clamp_(-32767, 32767)), 16).clamp_(-127, 127)
        return down(hidden.float()).add_(x).clamp_(-RESIDUAL_MAX, RESIDUAL_MAX)

    def _bounded(self, logits: Tensor) -> Tensor:
        """Clamp logits in contract 2. Contract 1 needs no bound here, since later steps bound them further."""
        return logits.clamp_(-(1 << 30), 1 << 30) if self.shape.gated else logits

    def _frequencies(self, logits: Tensor) -> Tensor:
        """Turn logits (rows, n) int64 into frequencies (rows, n) that sum to 2^24."""
        n = logits.shape[1]
        e = (logits.amax(1, keepdim=True) - logits).clamp_(max=1983)
        total = self.symbol_weight[e].cumsum(1)
        ratio = torch.div(((1 << PRECISION) - n) << 20, total[:, -1:], rounding_mode="floor")
        cum = (total * ratio).bitwise_right_shift_(20).add_(torch.arange(1, n + 1, device=self.device))
        cum[:, -1] = 1 << PRECISION
        return torch.diff(cum, dim=1, prepend=torch.zeros_like(cum[:, :1]))

    @exactly
    def class_frequencies(self, x: Tensor) -> npt.NDArray[np.int64]:
        """Return class frequencies (rows, classes), summing to 2^24, of residuals (rows, d)."""
        logits = self._bounded(self.classes(self._norm(x, self.shape.norm_gain, self.norm_out)))
        logits.add_(self.class_b)
        return self._frequencies(logits).cpu().numpy()

    @exactly
    def member_frequencies(self, x: Tensor, classes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return member frequencies (rows, 128), summing to 2^24, of residuals (rows, d) and their classes (rows,)."""
        c = torch.from_numpy(np.asarray(classes, np.int64)).to(self.device)
        z = (x + self.shift[c]).clamp_(-RESIDUAL_MAX, RESIDUAL_MAX)
        a = self._norm(z, self.shape.norm_gain, self.norm_out)
        if len(a) <= GATHER_ROWS:
            dot = torch.bmm(self.members[c], a[:, :, None])[:, :, 0].long()
        else:
            dot = torch.empty((len(a), CLASS), dtype=torch.int64, device=self.device)
            order = torch.argsort(c)
            found, counts = torch.unique_consecutive(c[order], return_counts=True)
            begin = 0
            for number, count in zip(found.tolist(), counts.tolist(), strict=True):
                rows = order[begin : begin + count]
                dot[rows] = (a[rows] @ self.members[number].T).long()
                begin += count
        logits = self._bounded(rs(dot.mul_(self.member_m.view(-1, CLASS)[c]), 24)).add_(
            self.member_b.view(-1, CLASS)[c]
        )
        return self._frequencies(logits).cpu().numpy()

    # -- all positions at once

    @exactly
    def parallel(self, jobs: Sequence[BlockJob]) -> tuple[list[Tensor], list[Memory]]:
        """Run all positions of some blocks at once.

        Return the residuals of each job in step-major order, (steps * lanes, d), and the memory that its next
        block may see.

        Raises:
            UsageError: a job has no input ids.
        """
        s = self.shape
        # the positions of all jobs, one behind the other
        inputs = np.concatenate([_inputs(j).reshape(-1) for j in jobs])
        at = np.concatenate([(j.block.start + j.block.targets()).reshape(-1) for j in jobs])
        sizes = [j.block.steps * j.block.lanes for j in jobs]
        positions = torch.from_numpy(at).to(self.device)
        x = self._enter(torch.from_numpy(inputs).to(self.device))
        turns = self._turns(positions)
        keep = [torch.from_numpy(_kept(j.block, s.memory)).to(self.device) for j in jobs]
        memories = [Memory([], []) for _ in jobs]
        for i in range(s.layers):
            q, k, v = self._heads(i, x, turns)
            out = []
            for n, (job, qj, kj, vj) in enumerate(
                zip(jobs, q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
            ):
                # keys and values behind those that the job remembers; what the next block may see is kept
                kj, vj = kj.transpose(0, 1), vj.transpose(0, 1)  # (kv_heads, N, D)
                memories[n].keys.append(kj[:, keep[n]])
                memories[n].values.append(vj[:, keep[n]])
                if job.memory:
                    kj = torch.cat([job.memory.keys[i], kj], 1)
                    vj = torch.cat([job.memory.values[i], vj], 1)
                out.append(self._attend_block(i, job, qj, kj, vj))
            x = self._join(i, x, torch.cat(out))
        return list(x.split(sizes)), memories

    @exactly
    def step(
        self, stepper: Stepper, number: int, inputs: npt.NDArray[np.int64], at: npt.NDArray[np.int64]
    ) -> Tensor:
        """Run one step of all lanes of a stepper's jobs: ids and positions (rows,) -> residuals (rows, d)."""
        x = self._enter(torch.from_numpy(inputs).to(self.device))
        turns = self._turns(torch.from_numpy(at).to(self.device))
        for i in range(self.shape.layers):
            q, k, v = self._heads(i, x, turns)
            x = self._join(i, x, stepper.attend(i, number, q, k, v))
        return x

    def _attend_block(self, i: int, job: BlockJob, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend within one block under the lane mask.

        Takes q (N, heads, D) and k, v (kv_heads, memory + N, D); returns (N, heads * D).
        """
        s, lanes, old = self.shape, job.block.lanes, job.remembered
        n, group = len(q), s.heads // s.kv_heads
        q = q.view(n, s.kv_heads, group, s.head_dim).permute(1, 2, 0, 3)
        rows = max(1, QUERY_CHUNK // (s.heads * k.shape[1]))
        out = []
        for begin in range(0, n, rows):
            end = min(n, begin + rows)
            seen = old + ((end - 1) // lanes + 1) * lanes  # keys the last row sees
            score = q[:, :, begin:end] @ k[:, None, :seen].transpose(-1, -2)
            limit = old + (torch.arange(begin, end, device=self.device) // lanes + 1) * lanes
            hidden = torch.arange(seen, device=self.device) >= limit[:, None]
            o = self._mix(self._weigh(i, score, hidden), v[:, None, :seen])
            out.append(o.permute(2, 0, 1, 3).reshape(end - begin, -1))
        return torch.cat(out)


def _inputs(job: BlockJob) -> npt.NDArray[np.int64]:
    if job.inputs is None:
        raise UsageError("the parallel pass needs the input ids of every job")
    return job.inputs


def _kept(block: TokenBlock, memory: int) -> npt.NDArray[np.int64]:
    """Return the step-major places of the inputs that a later block may see: the last `memory` positions."""
    return np.flatnonzero((block.targets() >= block.tokens - memory).reshape(-1))


@dataclass
class _Jobs:
    """Jobs of one lane count and one memory size, longest first, with their keys and values."""

    jobs: list[BlockJob]
    lanes: int
    old: int
    keys: list[Tensor]  # per layer (jobs, kv_heads, old + steps * lanes, D) float32
    values: list[Tensor]

    def alive(self, step: int) -> int:
        """Return the number of jobs that still have this step."""
        return sum(j.block.steps > step for j in self.jobs)


class Stepper:
    """Blocks that run step by step, side by side. `order` says which job each run of rows belongs to.

    The rows of a step are the jobs of `order` that still have this step, in that order, each with its lanes.
    """

    def __init__(self, engine: TorchEngine, jobs: Sequence[BlockJob]):
        self.engine = engine
        self.order = sorted(
            range(len(jobs)), key=lambda n: (jobs[n].block.lanes, jobs[n].remembered, -jobs[n].block.steps)
        )
        self.groups: list[_Jobs] = []
        for n in self.order:
            job = jobs[n]
            key = (job.block.lanes, job.remembered)
            if not self.groups or (self.groups[-1].lanes, self.groups[-1].old) != key:
                self.groups.append(_Jobs([], *key, [], []))
            self.groups[-1].jobs.append(job)
        for g in self.groups:
            self._allocate(g)

    @staticmethod
    def cache_bytes(engine: TorchEngine, block: TokenBlock, remembered: int) -> int:
        """Return the bytes of keys and values of a block while it is stepped, with `remembered` positions before it."""
        s = engine.shape
        return (remembered + block.steps * block.lanes) * s.kv_heads * s.head_dim * 8 * s.layers

    def _allocate(self, g: _Jobs) -> None:
        s = self.engine.shape
        size = (len(g.jobs), s.kv_heads, g.old + g.jobs[0].block.steps * g.lanes, s.head_dim)
        for i in range(s.layers):
            g.keys.append(torch.zeros(size, device=self.engine.device))
            g.values.append(torch.zeros(size, device=self.engine.device))
            for n, job in enumerate(g.jobs):
                if job.memory:
                    g.keys[i][n, :, : g.old] = job.memory.keys[i]
                    g.values[i][n, :, : g.old] = job.memory.values[i]

    def step(self, number: int, inputs: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> Tensor:
        """Feed step `number`: inputs and positions (rows,) -> residuals (rows, d)."""
        return self.engine.step(self, number, inputs, at)

    def attend(self, i: int, number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append the keys and values of this step and attend.

        Takes q (rows, heads, D) and k, v (rows, kv_heads, D); returns (rows, heads * D).
        """
        e, s = self.engine, self.engine.shape
        out, row = [], 0
        for g in self.groups:
            n = g.alive(number)
            if not n:
                continue
            rows = slice(row, row + n * g.lanes)
            row = rows.stop
            begin, end = g.old + number * g.lanes, g.old + (number + 1) * g.lanes
            g.keys[i][:n, :, begin:end] = k[rows].view(n, g.lanes, s.kv_heads, s.head_dim).transpose(1, 2)
            g.values[i][:n, :, begin:end] = v[rows].view(n, g.lanes, s.kv_heads, s.head_dim).transpose(1, 2)
            # one product for all query heads of a key head: (n, kv_heads, group * lanes, D)
            query = q[rows].view(n, g.lanes, s.kv_heads, -1, s.head_dim).permute(0, 2, 3, 1, 4)
            score = query.reshape(n, s.kv_heads, -1, s.head_dim) @ g.keys[i][:n, :, :end].transpose(-1, -2)
            weight = e._weigh(i, score.view(n, s.kv_heads, -1, g.lanes, end))
            o = e._mix(weight.view(n, s.kv_heads, -1, end), g.values[i][:n, :, :end])
            o = o.view(n, s.kv_heads, -1, g.lanes, s.head_dim).permute(0, 3, 1, 2, 4)
            out.append(o.reshape(n * g.lanes, -1))
        return torch.cat(out)

    def memories(self) -> list[Memory]:
        """Return the memory that the next block may see of each job, in `order`."""
        out = []
        for g in self.groups:
            for n, job in enumerate(g.jobs):
                keep = torch.from_numpy(_kept(job.block, self.engine.shape.memory) + g.old).to(
                    self.engine.device
                )
                out.append(Memory([k[n][:, keep] for k in g.keys], [v[n][:, keep] for v in g.values]))
        return out

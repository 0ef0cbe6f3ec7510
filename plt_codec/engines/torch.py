"""The reference engine: the numeric contract (NUMERICS.md) in stock torch, on any device.

Products of small integers run as float32 matrix products. These are exact in any order while every partial
sum stays below 2^24. The bound is proved per matrix at load from its row sums, and a matrix that breaks it is
cut into column pieces. A self-check multiplies extreme values. Everything else is int64.

    memory = Memory.empty(engine)
    x = engine.run(inputs, positions, memory)      # all steps of a block at once, for encoding; or one, for decoding
    engine.class_frequencies(x), engine.member_frequencies(x, classes)

It is written to be read. It takes one sequence at a time, and other engines are compared with it bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
GATHER_ROWS = 64  # rows whose members are gathered at once
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
    """The keys and values that the next position may see: per layer (kv_heads, positions, head_dim) float32."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls, engine: TorchEngine) -> Memory:
        """Return a memory of no position."""
        s = engine.shape
        nothing = [torch.zeros((s.kv_heads, 0, s.head_dim), device=engine.device)] * s.layers
        return cls(nothing, nothing)

    @property
    def size(self) -> int:
        """Return the number of positions kept."""
        return self.keys[0].shape[1]

    def after(self, block: TokenBlock, most: int) -> Memory:
        """Return what a later block may see, of a memory that ends with a block: its last ``most`` positions."""
        old = self.size - block.steps * block.lanes
        keep = torch.from_numpy(old + np.flatnonzero((block.targets() >= block.tokens - most).reshape(-1)))
        keep = keep.to(self.keys[0].device)
        return Memory([k[:, keep] for k in self.keys], [v[:, keep] for v in self.values])


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
            np.abs(part.astype(np.int64)).sum(1).max() * largest >= EXACT for part in np.array_split(w, pieces, axis=1)
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

    # -- the layers

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

    def _weigh(self, i: int, score: Tensor, hidden: Tensor) -> Tensor:
        """Turn scores (kv_heads, group, rows, keys) float32 into attention weights float32; `hidden` keys get none."""
        score.masked_fill_(hidden, float("-inf"))
        e = (score.amax(-1, keepdim=True) - score).clamp_(max=float(1 << 22)).long()
        e = e.mul_(self.heat[i]).bitwise_right_shift_(16).clamp_(max=1023)
        w = self.key_weight[e].masked_fill_(hidden, 0)
        share = torch.div(1 << 40, w.sum(-1, keepdim=True), rounding_mode="floor")
        return rs(w.mul_(share), 24).float()

    def _mix(self, weight: Tensor, value: Tensor) -> Tensor:
        """Mix values (..., keys, D) by weights (..., rows, keys): float32 integers within 127."""
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
        pieces = zip(a.split(GATHER_ROWS), c.split(GATHER_ROWS), strict=True)
        dot = torch.cat([torch.bmm(self.members[n], part[:, :, None])[:, :, 0].long() for part, n in pieces])
        logits = self._bounded(rs(dot.mul_(self.member_m.view(-1, CLASS)[c]), 24)).add_(
            self.member_b.view(-1, CLASS)[c]
        )
        return self._frequencies(logits).cpu().numpy()

    # -- positions

    @exactly
    def run(self, inputs: npt.NDArray[np.int64], at: npt.NDArray[np.int64], memory: Memory) -> Tensor:
        """Run steps of a block: ids and their positions, (steps, lanes) -> residuals (steps * lanes, d), step by step.

        A position sees ``memory``, to which those of these steps are added, and these up to its own step.
        """
        lanes, old = inputs.shape[1], memory.size
        keys, values = list(memory.keys), list(memory.values)
        x = self._enter(torch.from_numpy(inputs.reshape(-1)).to(self.device))
        turns = self._turns(torch.from_numpy(at.reshape(-1)).to(self.device))
        for i in range(self.shape.layers):
            q, k, v = self._heads(i, x, turns)
            keys[i] = torch.cat([keys[i], k.transpose(0, 1)], 1)
            values[i] = torch.cat([values[i], v.transpose(0, 1)], 1)
            x = self._join(i, x, self._attend(i, lanes, old, q, keys[i], values[i]))
        memory.keys, memory.values = keys, values
        return x

    def _attend(self, i: int, lanes: int, old: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend under the lane mask: q (N, heads, D) and k, v (kv_heads, old + N, D) -> (N, heads * D)."""
        s = self.shape
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

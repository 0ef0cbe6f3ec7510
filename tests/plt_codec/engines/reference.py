"""The numeric contract in plain numpy: slow and obvious, one position at a time. Tests judge every engine by it.

It follows NUMERICS.md line by line, with Python integers for what must not overflow. It keeps the keys and
values of one sequence. For each position it returns the cumulative frequencies of both levels.
"""

from collections.abc import Sequence
from math import isqrt

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.lanes import LANE_MARK, Layout, TokenBlock
from pltz.plt_codec.range_coder import RangeEncoder
from pltz.plt_codec.weights import CLASS, GATE_MAX, PRECISION, RESIDUAL_MAX, Weights

Ints = npt.NDArray[np.int64]


def rs(a: Ints, n: int) -> Ints:
    """Divide integers, of any shape (...,), by 2^n, rounding half up."""
    return (a + (1 << (n - 1))) >> n


def norm(x: Ints, gain: int) -> Ints:
    """Normalise a vector (n,) to integers (n,) within 127: NUMERICS.md, "norm"."""
    root = max(1, isqrt(int((x * x).sum())))
    scale = (gain << 32) // root
    return np.clip(rs(x * scale, 40), -127, 127)


def gained(x: Ints, gain: int, gains: Ints) -> Ints:
    """Normalise a vector (n,) with gains (n,), within 127: NUMERICS.md, contract 2, "norm with gains"."""
    root = max(1, isqrt(int((x * x).sum())))
    unit = rs(x * ((gain << 32) // root), 32)
    return np.clip(rs(unit * gains, 20), -127, 127)


def cumulative(logits: Ints, exp: Ints) -> Ints:
    """Turn logits (n,) into cumulative frequencies (n + 1,): NUMERICS.md, "frequencies". ``exp``: table.exp, (64,)."""
    n, e = len(logits), np.minimum(logits.max() - logits, 1983)
    w = exp[e & 63] >> (e >> 6)
    below = np.concatenate([[0], np.cumsum(w)])
    ratio = (((1 << PRECISION) - n) << 20) // int(below[n])
    cum = np.arange(n + 1) + ((below * ratio) >> 20)
    cum[n] = 1 << PRECISION
    return cum


class Oracle:
    """The model of one set of weights, run on one sequence at a time, step by step."""

    def __init__(self, weights: Weights):
        self.shape = weights.shape
        self.t = {k: v.astype(np.int64) for k, v in weights.tensors.items()}

    def step(
        self, tokens: Sequence[int], at: Sequence[int], keys: list[list[Ints]], values: list[list[Ints]]
    ) -> list[Ints]:
        """Feed one step of all lanes and return the residual of each lane, (d,).

        Args:
            tokens, at: input id and position of each lane.
            keys, values: per layer a list of (kv_heads, head_dim); those of this step are appended.
        """
        s, t = self.shape, self.t
        xs = [np.clip(rs(t["embed.w"][u] * t["embed.m"][u], 16), -RESIDUAL_MAX, RESIDUAL_MAX) for u in tokens]
        for i in range(s.layers):
            queries = []
            for x, p in zip(xs, at, strict=True):
                q, k, v = self._heads(i, self._norm(x, f"layer.{i}.norm_in"), p)
                queries.append(q)
                keys[i].append(k)
                values[i].append(v)
            xs = [self._join(i, x, self._attend(i, q, keys[i], values[i])) for x, q in zip(xs, queries, strict=True)]
        return xs

    def _norm(self, x: Ints, gains: str) -> Ints:
        if self.shape.gated:
            return gained(x, self.shape.norm_gain, self.t[gains])
        return norm(x, self.shape.norm_gain)

    def _product(self, name: str, a: Ints) -> Ints:
        y = rs((self.t[name + ".w"] @ a) * self.t[name + ".m"], 24)
        return np.clip(y, -(1 << 30), 1 << 30) if self.shape.gated else y

    def _heads(self, i: int, a: Ints, p: int) -> tuple[Ints, Ints, Ints]:
        s = self.shape
        y = self._product(f"layer.{i}.qkv", a).reshape(-1, s.head_dim)
        turn = ((p * self.t["table.phase"]) >> 10) & 1023
        cos, sin = self.t["table.cos"][turn], self.t["table.sin"][turn]
        out = []
        for head in np.clip(y[: s.heads + s.kv_heads], -32767, 32767):
            a0, a1 = head[: s.head_dim // 2], head[s.head_dim // 2 :]
            turned = np.concatenate([rs(a0 * cos - a1 * sin, 14), rs(a0 * sin + a1 * cos, 14)])
            out.append(np.clip(rs(turned, 7), -127, 127) if s.gated else norm(turned, s.head_gain))
        return (np.array(out[: s.heads]), np.array(out[s.heads :]), np.clip(y[s.heads + s.kv_heads :], -127, 127))

    def _attend(self, i: int, q: Ints, keys: list[Ints], values: list[Ints]) -> Ints:
        s = self.shape
        k, v = np.array(keys), np.array(values)  # (N, kv_heads, head_dim)
        out = []
        for h in range(s.heads):
            group = h // (s.heads // s.kv_heads)
            score = k[:, group] @ q[h]
            e = np.minimum(((score.max() - score) * self.t[f"layer.{i}.heat"][h]) >> 16, 1023)
            w = rs(self.t["table.exp"][e & 63], 5) >> (e >> 6)
            p = rs(w * ((1 << 40) // int(w.sum())), 24)
            out.append(np.clip(rs(p @ v[:, group], 15), -127, 127))
        return np.concatenate(out)

    def _join(self, i: int, x: Ints, o: Ints) -> Ints:
        x = np.clip(x + self._product(f"layer.{i}.out", o), -RESIDUAL_MAX, RESIDUAL_MAX)
        hidden = self._hidden(i, self._norm(x, f"layer.{i}.norm_mid"))
        out: Ints = np.clip(x + self._product(f"layer.{i}.down", hidden), -RESIDUAL_MAX, RESIDUAL_MAX)
        return out

    def _hidden(self, i: int, a: Ints) -> Ints:
        u = self._product(f"layer.{i}.up", a)
        if not self.shape.gated:
            u = np.clip(u, 0, 255)
            return rs(u * u, 8)
        gate = np.clip(self._product(f"layer.{i}.gate", a), -GATE_MAX, GATE_MAX)
        act = self.t["table.act"][gate + GATE_MAX]
        return np.clip(rs(act * np.clip(u, -32767, 32767), 16), -127, 127)

    def class_frequencies(self, x: Ints) -> Ints:
        """Return the cumulative class frequencies, (classes + 1,), of a residual (d,)."""
        logits = self._product("class", self._norm(x, "norm_out")) + self.t["class.b"]
        return cumulative(logits, self.t["table.exp"])

    def member_frequencies(self, x: Ints, c: int) -> Ints:
        """Return the cumulative member frequencies, (129,), of a residual (d,) whose token is of class ``c``."""
        t = self.t
        z = np.clip(x + rs(t["shift.w"][c] * t["shift.m"][c], 16), -RESIDUAL_MAX, RESIDUAL_MAX)
        rows = slice(c * CLASS, (c + 1) * CLASS)
        y = rs((t["embed.w"][rows] @ self._norm(z, "norm_out")) * t["member.m"][rows], 24)
        if self.shape.gated:
            y = np.clip(y, -(1 << 30), 1 << 30)
        return cumulative(y + t["member.b"][rows], t["table.exp"])

    def sequence(
        self, tokens: npt.NDArray[np.integer], layout: Layout, context: Sequence[int] = ()
    ) -> list[tuple[int, Ints, Ints]]:
        """Return (token, class frequencies, member frequencies) for each token (T,), in coding order of positions.

        ``context``: ids of the tokens before the sequence. The frequencies are cumulative, (classes + 1,) and
        (129,).
        """
        out: list[tuple[int, Ints, Ints]] = []
        kept: list[list[list[Ints]]] = [[[] for _ in range(self.shape.layers)] for _ in range(2)]
        known = np.array(context[max(0, len(context) - self.shape.memory) :], np.int64)
        if len(known):
            kept = self._block(TokenBlock(0, len(known), 1), known, LANE_MARK, kept, [])
        tokens = np.concatenate([known, tokens])
        for block in layout.blocks(len(tokens) - len(known), len(known)):
            part = tokens[block.start : block.start + block.tokens]
            before = int(tokens[block.start - 1]) if block.start else LANE_MARK
            kept = self._block(block, part, before, kept, out)
        return out

    def _block(
        self, block: TokenBlock, part: npt.NDArray[np.integer], before: int, kept: list[list[list[Ints]]],
        out: list[tuple[int, Ints, Ints]],
    ) -> list[list[list[Ints]]]:
        keys, values = [list(k) for k in kept[0]], [list(v) for v in kept[1]]
        old = len(keys[0])
        inputs, targets, starts = block.inputs(part, before), block.targets(), block.lane_starts()
        positions: list[int] = []
        for s in range(block.steps):
            at = [int(block.start + starts[k] + s) for k in range(block.lanes)]
            positions += at
            xs = self.step([int(u) for u in inputs[s]], at, keys, values)
            for k in range(block.active(s)):
                token = int(part[targets[s, k]])
                out.append((token, self.class_frequencies(xs[k]), self.member_frequencies(xs[k], token // CLASS)))
        end = block.start + block.tokens
        remember = [old + j for j, p in enumerate(positions) if p >= end - self.shape.memory]
        return [[[k[j] for j in remember] for k in keys], [[v[j] for j in remember] for v in values]]


def frame(
    weights: Weights, tokens: npt.NDArray[np.integer], layout: Layout, context: npt.NDArray[np.integer] | None = None
) -> bytes:
    """Return what NUMERICS.md says of tokens (T,) behind a context (C,), through the reference range coder."""
    before = [] if context is None else context.tolist()
    encoder, found = RangeEncoder(), iter(Oracle(weights).sequence(tokens, layout, before))
    for block in layout.blocks(len(tokens)):
        for step in range(block.steps):
            rows = [next(found) for _ in range(block.active(step))]
            classes = np.array([token // CLASS for token, _, _ in rows], np.int32)
            members = np.array([token % CLASS for token, _, _ in rows], np.int32)
            encoder.encode(classes, np.array([np.diff(c) for _, c, _ in rows]))
            encoder.encode(members, np.array([np.diff(m) for _, _, m in rows]))
    assert next(found, None) is None
    return encoder.finish()

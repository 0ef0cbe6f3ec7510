"""Decoder: a network that computes an approximate KV of all layers of a target from tokens, in one pass (U_M).

    ids -> embedding of the target -> its first `exact` layers, unchanged -> `blocks` trained ones -> a reader per layer

KV up to layer `exact` is the target's own. For the others a reader takes the state of the block that stands at the same
depth, in proportion. A stream as wide as the target's begins as copies of its layers, whose MLP keeps the `hidden`
largest neurons; a narrower one begins at random behind a projection of the embedding. With experts each block holds
several MLPs, and a row takes that of its region: the nearest of so many centres of mean embeddings.

This is Conjecture 35 of "Towers of Segments", with truncated and narrower copies of the target on the same scale. It
knows targets built like Llama.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from pltz.experiments.learned_kv.frozen_target import FrozenTarget
from pltz.plt_codec.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

RIDGE = 1e-3  # of the mean diagonal


@dataclass(frozen=True)
class Size:
    """Say how large a decoder is.

    ``exact``: layers of the target that run unchanged. ``blocks``: trained ones behind them, ``width`` wide, with
    ``heads`` heads of the target's dimension and ``hidden`` neurons. ``experts``: MLPs per block, one of which runs.
    """

    name: str
    exact: int
    blocks: int
    width: int
    heads: int
    hidden: int
    experts: int = 1


@dataclass(frozen=True)
class TargetShape:
    """The sizes of a target built like Llama."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    dim: int
    hidden: int

    @classmethod
    def of(cls, frozen: FrozenTarget) -> TargetShape:
        """Return the sizes of a target. Raises ModelError where it is not built like Llama."""
        config = frozen.model.config
        if config.model_type != "llama" or config.hidden_act != "silu":
            raise ModelError(f"expected a target built like Llama, found {config.model_type}")
        return cls(frozen.layers, config.hidden_size, config.num_attention_heads, frozen.heads, frozen.dim,
                   config.intermediate_size)  # fmt: skip

    def prefill_macs(self, tokens: int) -> int:
        """Return the multiply-adds per token of a prefill of so many tokens, without the output layer."""
        return self.layers * block_macs(self.width, self.heads, self.kv_heads, self.dim, self.hidden, tokens)

    def macs(self, size: Size, tokens: int) -> int:
        """Return the multiply-adds per token of a decoder. Embeddings, also projected ones, are looked up."""
        whole = block_macs(self.width, self.heads, self.kv_heads, self.dim, self.hidden, tokens)
        own = block_macs(size.width, size.heads, size.heads, self.dim, size.hidden, tokens)
        if size.width == self.width:  # copies keep the target's heads
            own = block_macs(size.width, self.heads, self.kv_heads, self.dim, size.hidden, tokens)
        row = 2 * self.kv_heads * self.dim
        bridge = self.width * size.width if size.width != self.width and size.exact else 0
        # The exact layers compute their own KV; behind them come the target's own of one more layer, and readers.
        last = self.width * row
        readers = (self.layers - 1 - size.exact) * size.width * row
        return size.exact * whole + last + bridge + size.blocks * own + readers


def block_macs(width: int, heads: int, kv_heads: int, dim: int, hidden: int, tokens: int) -> int:
    """Return the multiply-adds of a layer per token, the causal attention at its mean over so many tokens."""
    projections = width * dim * (2 * heads + 2 * kv_heads)
    return projections + 3 * width * hidden + heads * dim * tokens


class LlamaLayer(nn.Module):
    """A layer of Llama. ``experts`` MLPs, of which each row takes the one of its region."""

    def __init__(self, width: int, heads: int, kv_heads: int, dim: int, hidden: int, experts: int, eps: float) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim, self.eps = heads, kv_heads, dim, eps
        self.norm_in, self.norm_mlp = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.q = _matrix(heads * dim, width)
        self.k, self.v = (_matrix(kv_heads * dim, width) for _ in range(2))
        self.o = _matrix(width, heads * dim, 0.3)
        self.gate, self.up = (_matrix(hidden, width, experts=experts) for _ in range(2))
        self.down = _matrix(width, hidden, 0.3, experts=experts)

    @classmethod
    def copied(cls, layer: Any, shape: TargetShape, hidden: int, experts: int, eps: float) -> LlamaLayer:
        """Return a copy of a target's layer whose MLP keeps the neurons with the largest product of norms."""
        block = cls(shape.width, shape.heads, shape.kv_heads, shape.dim, hidden, experts, eps)
        attention, mlp = layer.self_attn, layer.mlp
        size = mlp.gate_proj.weight.norm(dim=1) * mlp.up_proj.weight.norm(dim=1) * mlp.down_proj.weight.norm(dim=0)
        kept = size.argsort(descending=True)[:hidden].sort().values
        with torch.no_grad():
            block.norm_in.copy_(layer.input_layernorm.weight)
            block.norm_mlp.copy_(layer.post_attention_layernorm.weight)
            for name in "qkvo":
                getattr(block, name).copy_(getattr(attention, f"{name}_proj").weight)
            block.gate.copy_(mlp.gate_proj.weight[kept].expand_as(block.gate))
            block.up.copy_(mlp.up_proj.weight[kept].expand_as(block.up))
            block.down.copy_(mlp.down_proj.weight[:, kept].expand_as(block.down))
        return block

    def keys_values(self, x: torch.Tensor) -> torch.Tensor:
        """Return keys at position 0 and values of a stream (B, T, width): (B, T, 2 * kv_heads * dim)."""
        h = F.rms_norm(x, (x.shape[-1],), self.norm_in, self.eps)
        return torch.cat([F.linear(h, self.k), F.linear(h, self.v)], -1)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], region: torch.Tensor) -> torch.Tensor:
        """Return the stream (B, T, width) after this layer. ``angles``: (T, dim / 2) each. ``region``: (B,)."""
        h = F.rms_norm(x, (x.shape[-1],), self.norm_in, self.eps)
        q = _turned(F.linear(h, self.q).unflatten(-1, (self.heads, self.dim)).transpose(1, 2), angles)
        k = _turned(F.linear(h, self.k).unflatten(-1, (self.kv_heads, self.dim)).transpose(1, 2), angles)
        v = F.linear(h, self.v).unflatten(-1, (self.kv_heads, self.dim)).transpose(1, 2)
        if self.kv_heads != self.heads:
            k, v = (one.repeat_interleave(self.heads // self.kv_heads, 1) for one in (k, v))
        a = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        x = x + F.linear(a.transpose(1, 2).flatten(2), self.o)
        h = F.rms_norm(x, (x.shape[-1],), self.norm_mlp, self.eps)
        if len(self.gate) == 1:
            inner = F.silu(F.linear(h, self.gate[0])) * F.linear(h, self.up[0])
            return x + F.linear(inner, self.down[0])
        inner = F.silu(h @ self.gate[region].mT.to(h.dtype)) * (h @ self.up[region].mT.to(h.dtype))
        return x + inner @ self.down[region].mT.to(inner.dtype)


def _matrix(out: int, into: int, gain: float = 1.0, experts: int | None = None) -> nn.Parameter:
    shape = (out, into) if experts is None else (experts, out, into)
    one = torch.randn(shape[-2:]) * gain * into**-0.5
    return nn.Parameter(one.expand(shape).clone())


def _turned(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = (one.to(x.dtype) for one in angles)
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Decoder(nn.Module):
    """The network of a size for a target. Call it with ids (B, T): rows (B, T, layers, width of a row), float32.

    Raises ModelError for a target that is not built like Llama, and UsageError for a size that does not fit it.
    """

    def __init__(self, frozen: FrozenTarget, size: Size, centres: torch.Tensor | None = None) -> None:
        super().__init__()
        shape, model = TargetShape.of(frozen), frozen.model.model
        if not 0 <= size.exact < shape.layers:
            raise UsageError(f"expected fewer exact layers than {shape.layers}, the target's, found {size.exact}")
        if size.experts > 1 and (centres is None or len(centres) != size.experts):
            raise UsageError(f"expected {size.experts} centres of regions")
        self.size, self.shape, self.rotary = size, shape, frozen.rotary
        eps = float(frozen.model.config.rms_norm_eps)
        table = frozen.model.get_input_embeddings().weight.detach().float()
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("centres", centres if centres is not None else torch.zeros(1, shape.width))
        layers = list(model.layers)
        whole = [LlamaLayer.copied(layer, shape, shape.hidden, 1, eps) for layer in layers[: size.exact + 1]]
        self.whole = nn.ModuleList(whole).requires_grad_(False)  # of the last only keys and values
        copies = size.width == shape.width
        left = shape.layers - 1 - size.exact
        depth = [size.exact + n * left // max(size.blocks, 1) for n in range(size.blocks)]
        self.blocks = nn.ModuleList(
            LlamaLayer.copied(layers[n], shape, size.hidden, size.experts, eps) if copies
            else LlamaLayer(size.width, size.heads, size.heads, shape.dim, size.hidden, size.experts, eps)
            for n in depth
        )  # fmt: skip
        self.bridge = None if copies else _matrix(size.width, shape.width)
        row = 2 * shape.kv_heads * shape.dim
        self.reader = nn.Parameter(torch.zeros(left, size.width, row))
        self.offset = nn.Parameter(torch.zeros(left, row))
        # The state that each reader takes: 0 is the one before the trained blocks.
        self.sources = [-(-(n + 1) * size.blocks // left) for n in range(left)]

    def regions(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the region of each row of ids (B, T), (B,): the nearest centre to its mean embedding."""
        centres: Any = self.centres
        if len(centres) == 1:
            return torch.zeros(len(ids), dtype=torch.long, device=ids.device)
        return torch.cdist(self._embedded(ids).mean(1), centres).argmin(1)

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        table: Any = self.table
        found: torch.Tensor = table[ids]
        return found

    def states(self, ids: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return exact rows of the first layers, (B, T, row) each, and the normed states that readers take."""
        x = self._embedded(ids)
        angles = self.rotary.angles(0, ids.shape[1], ids.device)
        region = self.regions(ids)
        exact: list[torch.Tensor] = []
        with torch.no_grad():
            for n, block in enumerate(self.whole):
                exact.append(block.keys_values(x))  # type: ignore[operator]
                if n < self.size.exact:
                    x = block(x, angles, torch.zeros_like(region))
        if self.bridge is not None:
            x = F.linear(x, self.bridge)
        found = [F.rms_norm(x, (x.shape[-1],))]
        for block in self.blocks:
            x = block(x, angles, region)
            found.append(F.rms_norm(x, (x.shape[-1],)))
        return exact, found

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids (B, T): (B, T, layers, row), float32."""
        exact, states = self.states(ids)
        rows = [one.float() for one in exact]
        for n, source in enumerate(self.sources):
            rows.append((states[source] @ self.reader[n].to(states[source].dtype)).float() + self.offset[n])
        return torch.stack(rows, 2)

    @torch.no_grad()
    def solve_readers(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Set the readers by ridge regression. ``batches``: ids (B, T) and the exact rows of them."""
        width, first = self.size.width, self.size.exact + 1
        count = len(self.blocks) + 1
        device = self.reader.device
        xx = torch.zeros(count, width + 1, width + 1, dtype=torch.float64, device=device)
        xy = torch.zeros(len(self.reader), width + 1, self.reader.shape[2], dtype=torch.float64, device=device)
        for ids, rows in batches:
            states = [F.pad(one.float().flatten(0, 1), (0, 1), value=1.0) for one in self.states(ids)[1]]
            for n, x in enumerate(states):
                xx[n] += (x.T @ x).double()
            for n, source in enumerate(self.sources):
                xy[n] += (states[source].T @ rows[:, :, first + n].flatten(0, 1)).double()
        for n, source in enumerate(self.sources):
            ridge = RIDGE * xx[source].diagonal()[:-1].mean() * torch.eye(width + 1, dtype=torch.float64, device=device)
            solved = torch.linalg.solve(xx[source] + ridge, xy[n]).float()
            self.reader[n], self.offset[n] = solved[:-1], solved[-1]

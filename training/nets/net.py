"""The float model that is trained: the integer model of NUMERICS.md with rounding in the loop.

Every place where the integer contract rounds or clamps has its twin here, with a straight-through gradient.
So the exported integers behave as the trained floats did.

The shape is a Llama's: pre-norm decoder blocks, rotary positions, grouped queries. Norms have no gain,
queries and keys are normalised, and the head has two levels. Squared ReLU replaces SwiGLU (one product and
one table fewer in integers).
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from pltz.training.nets import checkpoint
from pltz.training.nets.checkpoint import NetConfig, Rounded

A_SCALE = 20.0  # int8 units per unit of a normalised activation
QK_SCALE = 24.0  # int8 units per unit of a normalised query or key
V_SCALE = 12.0  # int8 units per unit of a value
O_SCALE = 24.0  # int8 units per unit of an attention output: twice V_SCALE, as the contract's shift has it
U_SCALE = 64.0  # units of the hidden activation before squaring, clamped to 0..255; squared >> 8 after
GATE_SCALE = 32.0  # gated: units of the gate, clamped to 511
ACT_SCALE = 2048.0  # gated: units of the gate's function, int16
LINEAR_SCALE = 32.0  # gated: units of the linear half of the hidden layer, int16


def ste_round(x: Tensor) -> Tensor:
    """Round a tensor (...,) with the gradient of the identity."""
    return x + (x.round() - x).detach()


def weight_scale(w: Tensor, step: float) -> Tensor:
    """Return the step of each row (output channel) of w (n, m), (n, 1).

    The largest weight is at most 127 steps, and a step is at least `step` root mean squares.
    """
    scale = w.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
    return torch.maximum(scale, step * w.square().mean(1, keepdim=True).sqrt()) if step else scale


def fake_weight(w: Tensor, step: float = 0.0) -> Tensor:
    """Round w (n, m) to int8 per row (output channel), symmetric, and return it as floats."""
    scale = weight_scale(w.detach().float(), step)
    return w + ((w / scale).round() * scale - w).detach()


def fake_act(x: Tensor, scale: float) -> Tensor:
    """Round x (...,) to int8 with a fixed scale; float32 inside."""
    return (ste_round((x.float() * scale).clamp(-127, 127)) / scale).to(x.dtype)


def unit(x: Tensor) -> Tensor:
    """Divide x (..., n) by the root mean square of the last axis."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-12)


def rope_phases(cfg: NetConfig) -> Tensor:
    """Return frequencies as integer fractions of a turn: (head_dim / 2,) multiples of 2^-20 turns per position."""
    half = cfg.head_dim // 2
    turns = cfg.rope_base ** (-torch.arange(half, dtype=torch.float64) / half) / (2 * math.pi)
    return (turns * 2**20).round().long().clamp(min=1)


def rope_tables(position: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin (B, 1, N, head_dim / 2) of positions (B, N) and phases (head_dim / 2,).

    The phase is cut to 1/1024 turn as in the integer contract.
    """
    index = ((position.long()[..., None] * phases.to(position.device)) >> 10) & 1023
    angle = index.float() * (2 * math.pi / 1024)
    return angle.cos()[:, None], angle.sin()[:, None]


class Linear(nn.Module):
    """A product with int8 rows."""

    def __init__(self, n_in: int, n_out: int, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * gain / math.sqrt(n_in))

    def forward(self, x: Tensor, step: float = 0.0) -> Tensor:
        """Multiply x (..., in) and return (..., out)."""
        return F.linear(x, fake_weight(self.weight, step).to(x.dtype))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """Return attention (B, H, N, D) of q (B, H, N, D) to k, v (B, K, N, D); `mask` as `mask_of` makes it."""
    if isinstance(mask, Tensor):  # on a CPU, where FlexAttention has no backward
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=True)
    o: Tensor = flex_attention(q, k, v, block_mask=mask, scale=1.0, enable_gqa=True)
    return o


class PlainBlock(nn.Module):
    """A layer: attention and squared-ReLU network, each on the normalised residual."""

    def __init__(self, cfg: NetConfig):
        super().__init__()
        self.cfg = cfg
        qkv = (cfg.heads + 2 * cfg.kv_heads) * cfg.head_dim
        self.qkv = Linear(cfg.d, qkv)
        self.out = Linear(cfg.heads * cfg.head_dim, cfg.d, 0.1)
        self.up = Linear(cfg.d, cfg.hidden)
        self.down = Linear(cfg.hidden, cfg.d, 0.1)
        self.log_temperature = nn.Parameter(torch.full((cfg.heads,), math.log(1.2 / math.sqrt(cfg.head_dim))))

    def heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, H, N, D) and k, v (B, K, N, D) of x (B, N, d); q already carries the temperature."""
        c = self.cfg
        a = fake_act(unit(x), A_SCALE).bfloat16()
        y = self.qkv(a).unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
        q, k, v = y.split([c.heads, c.kv_heads, c.kv_heads], 1)

        def rotate(z: Tensor) -> Tensor:
            a, b = z.float().chunk(2, -1)
            z = unit(torch.cat([a * cos - b * sin, a * sin + b * cos], -1))
            return fake_act(z, QK_SCALE)

        t = self.log_temperature.exp()[:, None, None]
        return (rotate(q) * t).bfloat16(), rotate(k).bfloat16(), fake_act(v, V_SCALE).bfloat16()

    def join(self, x: Tensor, o: Tensor) -> Tensor:
        """Add attention output o (B, H, N, D) and the hidden layer to the residual x (B, N, d)."""
        o = fake_act(o.transpose(1, 2).flatten(2), O_SCALE)
        x = x + self.out(o).float()
        a = fake_act(unit(x), A_SCALE).bfloat16()
        u = ste_round((self.up(a).float() * U_SCALE).clamp(0, 255))
        h = ste_round(u * u / 256) * (256 / U_SCALE**2)
        out: Tensor = x + self.down(h.bfloat16()).float()
        return out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        """Run the layer on the residual x (B, N, d), with cos and sin (B, 1, N, head_dim / 2); return (B, N, d)."""
        return self.join(x, attend(*self.heads(x, cos, sin), mask))


def whole(x: Tensor, limit: float) -> Tensor:
    """Round x (...,) to whole numbers within the limit; float32 inside."""
    return ste_round(x.float().clamp(-limit, limit))


class GatedBlock(nn.Module):
    """A Llama block in the integers of contract 2.

    Activations are in units of the integers: gains and weights carry the scales.
    """

    def __init__(self, cfg: NetConfig):
        super().__init__()
        self.cfg = cfg
        qkv = (cfg.heads + 2 * cfg.kv_heads) * cfg.head_dim
        self.qkv = Linear(cfg.d, qkv, 1 / A_SCALE)
        self.out = Linear(cfg.heads * cfg.head_dim, cfg.d, 0.1 / A_SCALE)
        self.gate = Linear(cfg.d, cfg.hidden, GATE_SCALE / A_SCALE)
        self.up = Linear(cfg.d, cfg.hidden, LINEAR_SCALE / A_SCALE)
        self.down = Linear(cfg.hidden, cfg.d, 0.1)
        self.norm_in = nn.Parameter(torch.full((cfg.d,), A_SCALE))
        self.norm_mid = nn.Parameter(torch.full((cfg.d,), A_SCALE))
        self.log_temperature = nn.Parameter(torch.full((cfg.heads,), math.log(1 / math.sqrt(cfg.head_dim))))

    def heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, H, N, D) and k, v (B, K, N, D) of x (B, N, d); q already carries the temperature."""
        c = self.cfg
        a = whole(unit(x) * self.norm_in, 127).bfloat16()
        y = self.qkv(a, c.step).unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
        q, k, v = y.split([c.heads, c.kv_heads, c.kv_heads], 1)

        def rotate(z: Tensor) -> Tensor:
            a, b = z.float().chunk(2, -1)
            return whole(torch.cat([a * cos - b * sin, a * sin + b * cos], -1), 127)

        t = self.log_temperature.exp()[:, None, None]
        return (rotate(q) * t).bfloat16(), rotate(k).bfloat16(), whole(v, 127).bfloat16()

    def hidden(self, x: Tensor) -> Tensor:
        """Return the hidden layer's activations (B, N, F) of x (B, N, d)."""
        c = self.cfg
        a = whole(unit(x) * self.norm_mid, 127).bfloat16()
        gate = whole(self.gate(a, c.step), 511) / GATE_SCALE
        linear = whole(self.up(a, c.step), 32767) / LINEAR_SCALE
        act = whole(F.silu(gate) * ACT_SCALE, 32767) / ACT_SCALE
        return whole(act * linear, 127)

    def join(self, x: Tensor, o: Tensor) -> Tensor:
        """Add attention output o (B, H, N, D) and the hidden layer to the residual x (B, N, d)."""
        c = self.cfg
        o = whole(2 * o.transpose(1, 2).flatten(2), 127).bfloat16()
        x = self.bounded(x + self.out(o, c.step).float())
        return self.bounded(x + self.down(self.hidden(x).bfloat16(), c.step).float())

    def bounded(self, x: Tensor) -> Tensor:
        """Clamp the residual (B, N, d) to the bounds of the integers."""
        return x.clamp(-self.cfg.residual_max, self.cfg.residual_max)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Any) -> Tensor:
        """Run the layer on the residual x (B, N, d), with cos and sin (B, 1, N, head_dim / 2); return (B, N, d)."""
        return self.join(x, attend(*self.heads(x, cos, sin), mask))


class Net(nn.Module):
    """A net from token ids to the two levels' logits, in nats."""

    def __init__(self, cfg: NetConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Parameter(torch.randn(cfg.vocab, cfg.d) / math.sqrt(cfg.d))
        self.blocks = nn.ModuleList([(GatedBlock if cfg.gated else PlainBlock)(cfg) for _ in range(cfg.layers)])
        self.classes = nn.Parameter(torch.zeros(cfg.vocab // 128, cfg.d))
        self.class_bias = nn.Parameter(torch.zeros(cfg.vocab // 128))
        self.member_bias = nn.Parameter(torch.zeros(cfg.vocab))
        self.class_shift = nn.Parameter(
            torch.zeros(cfg.vocab // 128, cfg.d)
        )  # added to the residual once the class is known
        self.member_gain = nn.Parameter(torch.zeros(()))
        self.norm_out = nn.Parameter(torch.full((cfg.d,), A_SCALE)) if cfg.gated else None
        self.phases: Tensor
        self.register_buffer("phases", rope_phases(cfg), persistent=False)

    def table(self) -> Tensor:
        """Return the embedding as the integers have it, unit rows: (V, d) float32."""
        if self.cfg.gated:
            return fake_weight(self.embed, self.cfg.step / 2)
        e = self.embed * torch.rsqrt(self.embed.square().mean(1, keepdim=True) + 1e-12)
        return fake_weight(e)

    def body(self, tokens: Tensor, position: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        """Return the residual after the last block (B, N, d) float32, and the table (V, d), for tokens and
        positions (B, N)."""
        table = self.table()
        x = F.embedding(tokens.long(), table)
        cos, sin = rope_tables(position, self.phases)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return x, table

    def last_norm(self, x: Tensor) -> Tensor:
        """Return the input of the head's products, (T, d) bfloat16, of residuals x (T, d)."""
        if self.norm_out is not None:
            return whole(unit(x) * self.norm_out, 127).bfloat16()
        return fake_act(unit(x), A_SCALE).bfloat16()

    def class_logits(self, x: Tensor) -> Tensor:
        """Return logits (T, classes), in nats, of residuals x (T, d)."""
        h = self.last_norm(x)
        return (h @ fake_weight(self.classes).t().bfloat16()).float() + self.class_bias

    def member_hidden(self, x: Tensor, cls: Tensor) -> Tensor:
        """Return the normalised residual with the class added, (T, d), of x (T, d) and classes (T,)."""
        return self.last_norm(x + F.embedding(cls, fake_weight(self.class_shift)))

    def member_logits(self, raw: Tensor, cls: Tensor) -> Tensor:
        """Return logits (T, 128), in nats, from the plain products raw (T, 128) and classes (T,)."""
        scale = self.member_gain.exp() / math.sqrt(self.cfg.d)
        return raw.float() * scale + F.embedding(cls, self.member_bias.view(-1, 128))

    def levels(self, x: Tensor, table: Tensor, order: Tensor, cls: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of class and of member, (T, classes) and (T, 128), for the rows of x (T, d) in `order` (T,).

        ``table``: (V, d). The classes `cls` (T,) of the rows in that order ascend.
        """
        x = x[order]
        ends = torch.bincount(cls, minlength=self.cfg.vocab // 128).cumsum(0).to(torch.int32)
        rows = table.view(-1, 128, self.cfg.d).bfloat16()
        raw = F.grouped_mm(self.member_hidden(x, cls), rows.transpose(1, 2), offs=ends)
        return self.class_logits(x), self.member_logits(raw, cls)

    def losses(self, x: Tensor, table: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return nats of class and of member, (T,) each, for the rows of x (T, d) and their targets (T,).

        ``table``: (V, d). Rows whose target is -1 cost nothing.
        """
        keep = target >= 0
        target = target.clamp(min=0).long()
        cls, order = torch.sort(target >> 7)
        classes, members = self.levels(x, table, order, cls)
        first, second = nats(classes, cls), nats(members, (target & 127)[order])
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return first[back] * keep, second[back] * keep


def built(found: Rounded) -> Net:
    """Return the float net of a rounded one.

    Raises:
        RuntimeError: tensors are missing or of another shape.
    """
    net = Net(found.config)
    net.load_state_dict({k: torch.from_numpy(v) for k, v in found.floats().items()})
    return net


def state(net: Net) -> dict[str, Tensor]:
    """Return a net's tensors on the CPU, by their names before compiling (shapes: `NetConfig.tensors`)."""
    return {k.replace("_orig_mod.", ""): v.detach().cpu() for k, v in net.state_dict().items()}


def rounded_net(net: Net) -> Rounded:
    """Return a net as its integers will be."""
    return checkpoint.rounded({k: v.numpy() for k, v in state(net).items()}, net.cfg)


def nats(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy of each row, (T,) nats, of logits (T, n) and targets (T,)."""
    return F.cross_entropy(logits, target, reduction="none")


def divergence(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross entropy of each row of logits (T, n) against the teacher's logits (T, n), (T,) nats."""
    return -(F.softmax(teacher, -1) * F.log_softmax(logits, -1)).sum(-1)


def visible(batch: dict[str, Tensor], memory: int) -> Any:
    """Return a mask_mod: the same session, and the same block not later, or the last positions of the block before.

    ``batch``: tensors (rows, row) by key.
    """
    doc, time, position, begin = batch["doc"], batch["time"], batch["position"], batch["block_start"]

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        tq, tk = time[b, q], time[b, k]
        same = (tq >> 16) == (tk >> 16)
        before = ((tq >> 16) == (tk >> 16) + 1) & (position[b, k] >= begin[b, q] - memory)
        return (doc[b, q] == doc[b, k]) & ((same & (tk <= tq)) | before)

    return mod


def block_mask(batch: dict[str, Tensor], memory: int, compiled: Any = create_block_mask) -> Any:
    """Return the FlexAttention mask of a batch of tensors (rows, row)."""
    b, n = batch["doc"].shape
    return compiled(visible(batch, memory), b, None, n, n, device=batch["doc"].device)


def mask_of(batch: dict[str, Tensor], memory: int, compiled: Any = create_block_mask) -> Any:
    """Return the mask of a batch of tensors (rows, row).

    It is FlexAttention's on a GPU, (rows, 1, row, row) bool on a CPU.
    """
    if batch["doc"].device.type == "cuda":
        return block_mask(batch, memory, compiled)
    rows, n = batch["doc"].shape
    return create_mask(visible(batch, memory), rows, None, n, n, device="cpu")


def compile_net(net: Net) -> None:
    """Compile the slow parts in place. Without that, FlexAttention would hold all scores at once."""
    torch._dynamo.config.cache_size_limit = 64
    for i, block in enumerate(net.blocks):
        net.blocks[i] = cast(nn.Module, torch.compile(block, dynamic=False))
    for name in ("table", "class_logits", "member_hidden", "member_logits"):
        setattr(net, name, torch.compile(getattr(net, name), dynamic=False))

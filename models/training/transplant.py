"""Start a gated net from a pretrained Llama: its layers, and its embeddings carried over to the bundle's tokens.

    python -m pltz.models.training.transplant --gguf SmolLM2-135M-Instruct.Q4_1.gguf --data data --out runs/init
    python -m pltz.models.training.transplant --gguf qwen2.5-coder-1.5b-instruct-q4_k_m.gguf --data data \\
        --out runs/teacher --teacher

There are three steps. `read` takes the layers out of a GGUF file (llama.cpp's order of rotary rows undone).
`embeddings` gives each token of the bundle the mean of the pretrained vectors of the pieces that spell it;
most are single pieces there too. `equalise` then runs the float net on training rows and moves factors
between neighbouring matrices, without changing the function. It goes on until every activation that becomes
an int8 fills its range. Pretrained networks have a few channels a hundred times larger than the rest, which a
common scale would spoil. A teacher is never in integers, so it is not equalised.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pltz.models.training import net as nets
from pltz.models.training import net_files
from pltz.models.training.dataloader import Sampler
from pltz.models.training.net import A_SCALE, GatedBlock, Net, block_mask, rounded_net
from pltz.models.training.shape import NetConfig

TENSORS = {
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "attn_norm",
    "ffn_norm",
}
RANGE = 127.0


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any], list[str]]:
    """Return tensors by GGUF name in float32, the shape, and the pieces of the vocabulary.

    Raises:
        SystemExit: the file is neither a Llama nor a Qwen 2.
    """
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(str(path))
    field = {k: v.contents() for k, v in reader.fields.items() if not k.startswith("tokenizer.ggml.merges")}
    kind = field.get("general.architecture")
    if kind not in ("llama", "qwen2"):
        raise SystemExit(f"{path}: expected a Llama or a Qwen 2, found {kind!r}")
    stored = {t.name: t for t in reader.tensors}
    if "output.weight" in stored:  # the same table once more, in more bits: all these models are tied
        stored["token_embd.weight"] = stored.pop("output.weight")
    tensors = {k: np.asarray(dequantize(t.data, t.tensor_type), np.float32) for k, t in stored.items()}
    heads, kv = int(field[f"{kind}.attention.head_count"]), int(field[f"{kind}.attention.head_count_kv"])
    d, layers = int(field[f"{kind}.embedding_length"]), int(field[f"{kind}.block_count"])
    for i in range(layers if kind == "llama" else 0):
        for name, n in (("attn_q", heads), ("attn_k", kv)):
            w = tensors[f"blk.{i}.{name}.weight"]
            halves = w.reshape(n, -1, 2, w.shape[1]).swapaxes(
                1, 2
            )  # llama.cpp interleaves the rows that one rotation turns
            tensors[f"blk.{i}.{name}.weight"] = halves.reshape(w.shape)
    shape = {
        "d": d, "layers": layers, "heads": heads, "kv_heads": kv, "head_dim": d // heads,
        "hidden": int(field[f"{kind}.feed_forward_length"]), "rope_base": float(field[f"{kind}.rope.freq_base"]),
        "bias": kind == "qwen2",
    }  # fmt: skip
    return tensors, shape, list(field["tokenizer.ggml.tokens"])


def embeddings(tokens: list[str], pieces: list[str], vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Return start vectors, (len(tokens), d), and the share of tokens that are one piece.

    `vectors`: (pieces, d). Both vocabularies spell bytes as GPT-2 does.
    """
    number = {piece: i for i, piece in enumerate(pieces)}
    longest = max(map(len, pieces))
    out, single = np.empty((len(tokens), vectors.shape[1]), np.float32), 0
    for i, token in enumerate(tokens):
        found, at = [], 0
        while at < len(token):
            end = next(
                (e for e in range(min(len(token), at + longest), at, -1) if token[at:e] in number), None
            )
            if end is None:
                break
            found.append(number[token[at:end]])
            at = end
        single += len(found) == 1
        out[i] = vectors[found].mean(0) if found and at == len(token) else vectors.mean(0)
    return out, single / len(tokens)


def transplant(path: Path, tokens: list[str], options: dict[str, Any]) -> Net:
    """Return a float net with the pretrained layers; `options` as NetConfig."""
    tensors, shape, pieces = read(path)
    cfg = NetConfig(**{**options, **shape, "vocab": len(tokens), "gated": True, "quant": False})
    net = Net(cfg)
    special = {
        "<|system|>": "system",
        "<|user|>": "user",
        "<|assistant|>": "assistant",
        "<|lane|>": "<|im_start|>",
    }
    table, share = embeddings([special.get(t, t) for t in tokens], pieces, tensors["token_embd.weight"])
    print(f"{share:.1%} of the tokens are one piece of the pretrained vocabulary", flush=True)
    state: dict[str, np.ndarray] = {"embed": table, "norm_out": A_SCALE * tensors["output_norm.weight"]}
    state["classes"] = table.reshape(-1, 128, cfg.d).mean(1) / A_SCALE
    state["member_gain"] = np.array(math.log(math.sqrt(cfg.d) / A_SCALE), np.float32)
    for i in range(cfg.layers):
        t = {name: tensors.pop(f"blk.{i}.{name}.weight") for name in TENSORS}
        here = f"blocks.{i}."
        if cfg.bias:
            state[here + "qkv.bias"] = np.concatenate([tensors[f"blk.{i}.attn_{n}.bias"] for n in "qkv"])
        state[here + "norm_in"], state[here + "norm_mid"] = A_SCALE * t["attn_norm"], A_SCALE * t["ffn_norm"]
        state[here + "qkv.weight"] = np.concatenate([t["attn_q"], t["attn_k"], t["attn_v"]]) / A_SCALE
        state[here + "gate.weight"] = t["ffn_gate"] * nets.GATE_SCALE / A_SCALE
        state[here + "up.weight"] = t["ffn_up"] * nets.LINEAR_SCALE / A_SCALE
        state[here + "out.weight"], state[here + "down.weight"] = t["attn_output"] / 2, t["ffn_down"]
    missing, extra = net.load_state_dict(
        {k: torch.from_numpy(np.require(v, np.float32, ["C", "W"])) for k, v in state.items()}, strict=False
    )
    assert not extra, extra
    print("started anew:", ", ".join(m for m in missing if "temperature" not in m), flush=True)
    return net


EMBED, HEAD = 0.134, 2264.0  # root mean square of the table, and of the head's input times d, in `base`


@torch.no_grad()
def like_base(net: Net) -> None:
    """Bring residual and head to the units of `base`, for which the rates of optimisers.py are made.

    The function stays the same.
    """
    more = EMBED / net.embed.square().mean().sqrt()
    net.embed.mul_(more)
    for block in net.blocks:
        assert isinstance(block, GatedBlock)
        block.out.weight.mul_(more)
        block.down.weight.mul_(more)
    assert net.norm_out is not None
    fed = HEAD / (net.cfg.d * net.norm_out.square().mean().sqrt())
    net.norm_out.mul_(fed)
    net.classes.div_(fed)
    net.member_gain.sub_((more * fed).log())


class Observer:
    """The largest and mean square value of each channel at every rounding, in the order of `net.whole` calls."""

    def __init__(self) -> None:
        self.peak: list[Tensor] = []
        self.square: list[Tensor] = []
        self.at = 0

    def __call__(self, x: Tensor, limit: float, quant: bool) -> Tensor:
        flat = (
            x.detach().float().transpose(1, 2).flatten(0, 1).flatten(1)
            if x.ndim == 4
            else x.detach().float().flatten(0, -2)
        )
        peak, square = flat.abs().amax(0), flat.square().mean(0)
        if self.at == len(self.peak):
            self.peak.append(peak)
            self.square.append(square)
        else:
            self.peak[self.at] = torch.maximum(self.peak[self.at], peak)
            self.square[self.at] += square
        self.at += 1
        return x.float()

    def limits(self, batches: int, most: float) -> list[Tensor]:
        """Return the value that should become the largest integer, for each rounding and channel: (channels,) each.

        It is the peak, at most `most` root mean squares.
        """
        pairs = zip(self.peak, self.square, strict=True)
        return [torch.minimum(p, most * (s / batches).sqrt()).clamp(min=1e-6) for p, s in pairs]


CALLS = 10  # roundings of a block: norm_in, q, k, v, o, norm_mid, gate, linear, act, hidden


@torch.no_grad()
def equalise(net: Net, batches: list[dict[str, Tensor]], most: float = 16.0) -> None:
    """Fill the int8 ranges on these batches, tensors (rows, row) by key.

    The function stays the same (`net.cfg.quant` is off).
    """
    observer, rounding = Observer(), nets.whole
    nets.whole = observer
    try:
        for batch in batches:
            observer.at = 0
            x, _ = net.body(batch["input"], batch["position"], block_mask(batch, net.cfg.memory))
            net.last_norm(x.flatten(0, 1))
    finally:
        nets.whole = rounding
    limits = observer.limits(len(batches), most)
    for i, block in enumerate(net.blocks):
        assert isinstance(block, GatedBlock)
        _equalise_block(block, limits[CALLS * i : CALLS * (i + 1)])
    last = RANGE / limits[-1].max()  # the table is tied: one factor for all channels
    assert net.norm_out is not None
    net.norm_out.mul_(last)
    net.classes.div_(last)
    net.member_gain.sub_(last.log())


def _equalise_block(block: GatedBlock, limits: list[Tensor]) -> None:
    c = block.cfg
    norm_in, q, k, v, o, norm_mid, _, linear, _, hidden = limits
    group, half = c.heads // c.kv_heads, c.head_dim // 2
    for norm, limit, readers in (
        (block.norm_in, norm_in, [block.qkv]),
        (block.norm_mid, norm_mid, [block.gate, block.up]),
    ):
        norm.mul_(RANGE / limit)
        for reader in readers:
            reader.weight.mul_(limit / RANGE)
    # Rotated pairs keep one factor. A group of query heads shares its keys.
    # Query times key changes by a constant per head.
    q_pair = q.view(c.kv_heads, group, 2, half).amax((1, 2))
    k_pair = k.view(c.kv_heads, 2, half).amax(1)
    times = RANGE**2 / (q_pair * k_pair).amax(1, keepdim=True)  # (kv_heads, 1)
    k_factor = (times * q_pair / k_pair).sqrt().minimum(RANGE / k_pair)
    q_factor = times / k_factor
    rows_q = q_factor[:, None, None].expand(-1, group, 2, -1).reshape(-1)
    rows_k = k_factor[:, None].expand(-1, 2, -1).reshape(-1)
    o_group = o.view(c.kv_heads, group, c.head_dim).amax(1)  # 2 p v, before the factor
    rows_v = (RANGE / v.view(c.kv_heads, -1)).minimum(RANGE / o_group).reshape(-1)
    block.qkv.weight.mul_(torch.cat([rows_q, rows_k, rows_v])[:, None])
    block.log_temperature.sub_(times.log().expand(-1, group).reshape(-1))
    block.out.weight.div_(rows_v.view(c.kv_heads, 1, -1).expand(-1, group, -1).reshape(1, -1))
    factor = (RANGE / hidden).minimum(32000.0 / linear)  # `linear` was seen in its int16 units
    block.up.weight.mul_(factor[:, None])
    block.down.weight.div_(factor)


def main() -> None:
    """Run the command line described at the top of this file."""
    p = argparse.ArgumentParser()
    p.add_argument("--gguf", type=Path, required=True)
    p.add_argument(
        "--data", type=Path, required=True, help="prepared folder: tokenizer.json and training rows"
    )
    p.add_argument("--step", type=float, default=0.28)
    p.add_argument("--memory", type=int, default=1024)
    p.add_argument("--batches", type=int, default=8)
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--row", type=int, default=4096)
    p.add_argument(
        "--teacher", action="store_true", help="stays in floats: rounded once, to travel, in steps of --step"
    )
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    vocab = json.loads((a.data / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocab, key=lambda t: int(vocab[t]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = transplant(a.gguf, tokens, {"step": a.step, "memory": a.memory}).to(device)
    sampler = Sampler(a.data, row=a.row, block=4096, power=0.85, text_share=0.2, seed=5)
    batches = []
    for _ in range(a.batches):
        rows = sampler.rows(a.rows)
        batches.append({k: torch.from_numpy(v).to(device) for k, v in rows.items()})
    report(net, batches[:1], "float")
    if a.teacher:
        like_base(net)
    else:
        equalise(net, batches)
        report(net, batches[:1], "equalised")
        for step in (0.0, a.step):
            net.cfg = replace(net.cfg, quant=True, step=step)
            for block in net.blocks:
                block.cfg = net.cfg  # type: ignore[assignment]
            report(net, batches[:1], f"rounded, steps of {step} root mean squares")
        net.cfg = replace(net.cfg, step=0.0)  # all of int8: training makes the steps larger
    a.out.mkdir(parents=True, exist_ok=True)
    net_files.write(rounded_net(net), a.out)


@torch.no_grad()
def report(net: Net, batches: list[dict[str, Tensor]], title: str) -> None:
    """Print bits per token of both levels, for batches of tensors (rows, row) by key."""
    for batch in batches:
        x, table = net.body(batch["input"], batch["position"], block_mask(batch, net.cfg.memory))
        target = batch["target"].flatten()
        first, second = net.losses(x.flatten(0, 1), table, target)
        count = (target >= 0).sum() * math.log(2)
        print(
            f"{title}: {float(first.sum() / count):.3f} + {float(second.sum() / count):.3f} bits a token",
            flush=True,
        )


if __name__ == "__main__":
    main()

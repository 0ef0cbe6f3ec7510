"""A pretrained Llama becomes a gated net, then integers, a Qwen 2 a teacher in floats: the function survives each step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from pltz.models.training import net as nets
from pltz.models.training.dataloader import KEYS, lay
from pltz.models.training.export import export
from pltz.models.training.net import Net, block_mask, rounded_net
from pltz.models.training.transplant import embeddings, equalise, like_base, transplant
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.errors import ModelError

gguf = pytest.importorskip("gguf")
D, LAYERS, HEADS, KV, HIDDEN = 64, 2, 4, 2, 96
PIECES = [f"p{i}" for i in range(200)] + [chr(97 + i) for i in range(26)]
TOKENS = [f"p{i}" for i in range(100)] + ["ab", "cde"] + [f"p{i}" for i in range(102, 200)] + ["?"] * 56


def random_model(kind: str) -> Any:
    torch.manual_seed(3)
    config, of = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[kind]
    model: Any = of(
        config(
            hidden_size=D, intermediate_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            num_key_value_heads=KV, vocab_size=len(PIECES), tie_word_embeddings=True, rms_norm_eps=1e-12,
        )
    )  # fmt: skip
    model.eval()
    for name, p in model.named_parameters():
        if name.endswith("bias"):  # as large as in a real one
            p.data = torch.randn_like(p)
        elif "norm" in name:  # gains of both signs, one of them large: what equalising is for
            p.data = torch.randn_like(p) * 0.3 + 0.5
            p.data[3] = 8.0
        else:
            p.data = torch.randn_like(p) * (0.5 if "embed" in name else 0.15)
    return model


def write(model: Any, path: Path, kind: str) -> None:
    """The model as a GGUF file, a Llama's rotary rows in llama.cpp's order; a Qwen 2 with biases, and its tied table twice."""
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_embedding_length(D)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list(PIECES)
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    state = model.state_dict()
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    if kind == "qwen2":
        writer.add_tensor("output.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    for i in range(LAYERS):
        for theirs, ours in names.items():
            w = state[f"model.layers.{i}.{theirs}.weight"].numpy()
            heads = {"attn_q": HEADS, "attn_k": KV}.get(ours)
            if kind == "qwen2" and ours in ("attn_q", "attn_k", "attn_v"):
                writer.add_tensor(f"blk.{i}.{ours}.bias", state[f"model.layers.{i}.{theirs}.bias"].numpy())
            elif heads:
                w = w.reshape(heads, 2, -1, D).swapaxes(1, 2).reshape(w.shape)
            writer.add_tensor(f"blk.{i}.{ours}.weight", np.ascontiguousarray(w))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def batch(ids: np.ndarray) -> dict[str, torch.Tensor]:
    rows = lay(ids, 4096, lambda n: 1, 0)
    return {k: torch.from_numpy(rows[i][None].astype(np.int32)) for i, k in enumerate(KEYS)}


def bits(net: Net, b: dict[str, torch.Tensor]) -> float:
    with torch.no_grad():
        x, table = net.body(b["input"], b["position"], block_mask(b, net.cfg.memory))
        first, second = net.losses(x.flatten(0, 1), table, b["target"].flatten())
    return float((first + second).sum()) / math.log(2)


def carried_over(kind: str, folder: Path) -> tuple[Any, Net]:
    model, path = random_model(kind), folder / f"{kind}.gguf"
    write(model, path, kind)
    return model, transplant(path, TOKENS, {"memory": 64, "block": 256})


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Net]:
    return carried_over("llama", tmp_path_factory.mktemp("gguf"))


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_the_layers_compute_what_the_pretrained_ones_do(kind: str, tmp_path: Path) -> None:
    model, net = carried_over(kind, tmp_path)
    b = batch(np.random.default_rng(1).integers(0, 250, 80))
    with torch.no_grad():
        x, _ = net.body(b["input"], b["position"], block_mask(b, 64))
        want = model.model(inputs_embeds=net.embed[b["input"].long()]).last_hidden_state
        assert net.norm_out is not None
        got = nets.unit(x) * net.norm_out / nets.A_SCALE
    assert float((got - want).abs().mean() / want.abs().mean()) < 0.03  # products run in bfloat16


def test_equalising_keeps_the_function_and_rounding_costs_little(
    pretrained: tuple[Any, Net],
) -> None:
    _, net = pretrained
    ids = np.random.default_rng(2).integers(0, 200, 200)
    b = batch(ids)
    before = bits(net, b)
    equalise(net, [b])
    assert bits(net, b) == pytest.approx(before, rel=0.01)
    net.cfg = replace(net.cfg, quant=True)
    for block in net.blocks:
        block.cfg = net.cfg  # type: ignore[assignment]
    rounded = bits(net, b)
    assert rounded == pytest.approx(before, rel=0.05)
    weights = export(rounded_net(net))
    assert weights.contract == 2
    coded = TokenCoder(TorchEngine(weights)).encode([ids], lanes=1, steps=256)[0]
    assert coded.ideal_bits == pytest.approx(rounded, rel=0.05)


def test_a_token_starts_as_the_mean_of_its_pieces() -> None:
    vectors = np.arange(len(PIECES) * 2, dtype=np.float32).reshape(-1, 2)
    found, share = embeddings(TOKENS, PIECES, vectors)
    a, c = PIECES.index("a"), PIECES.index("c")
    assert found[7].tolist() == vectors[7].tolist()
    assert found[100].tolist() == vectors[a : a + 2].mean(0).tolist()
    assert found[101].tolist() == vectors[c : c + 3].mean(0).tolist()
    assert found[-1].tolist() == vectors.mean(0).tolist()
    assert share == 198 / 256


def test_a_teacher_is_scaled_like_base_and_never_exported(tmp_path: Path) -> None:
    _, net = carried_over("qwen2", tmp_path)
    b = batch(np.random.default_rng(4).integers(0, 200, 120))
    before = bits(net, b)
    like_base(net)
    assert bits(net, b) == pytest.approx(before, rel=0.01)
    assert float(net.embed.detach().square().mean().sqrt()) == pytest.approx(0.134, rel=0.01)
    assert net.norm_out is not None
    assert float(net.norm_out.detach().square().mean().sqrt()) * D == pytest.approx(2264, rel=0.01)
    with pytest.raises(ModelError, match="can teach but has no integers"):
        export(rounded_net(net))

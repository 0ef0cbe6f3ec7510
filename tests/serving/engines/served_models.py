"""The models that tests against other servers serve.

They are the target that ships with pltz as a GGUF file (the same weights, tokenizer and chat template), and LoRA
adapters of random weights for it.

    python -m tests.serving.engines.served_models mini-llama.gguf
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pltz.models.target.checkpoint import resolve

LAYER = {  # Hugging Face -> GGUF
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, folder: Path | None = None) -> Path:
    """Write the Llama model in ``folder`` (None: ``mini-llama``) to ``path``, in float32, with its byte-level BPE."""
    import gguf

    folder = folder or resolve("mini-llama")
    config = json.loads((folder / "config.json").read_bytes())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, folder, config["vocab_size"])
    for name, weight in load_file(folder / "model.safetensors").items():
        writer.add_tensor(*_tensor(name, weight.to(torch.float32).numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, folder: Path, size: int) -> None:
    import gguf

    tree = json.loads((folder / "tokenizer.json").read_bytes())
    added = {token["id"]: token["content"] for token in tree["added_tokens"]}
    pieces = {number: piece for piece, number in tree["model"]["vocab"].items()} | added
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tree["model"]["merges"]]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([pieces[i] for i in range(size)])
    writer.add_token_types([control if i in added else normal for i in range(size)])
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(next(i for i in added if added[i] == "<|user|>"))  # with which an answer ends
    writer.add_chat_template(json.loads((folder / "tokenizer_config.json").read_bytes())["chat_template"])


def _tensor(name: str, weight: NDArray[np.float32], config: dict[str, Any]) -> tuple[str, NDArray[np.float32]]:
    """Return GGUF's name of a tensor, and its values: queries and keys in llama.cpp's order of rotary pairs."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight", weight
    if name == "model.norm.weight":
        return "output_norm.weight", weight
    _, _, number, *part = name.removesuffix(".weight").split(".")
    kind = LAYER[".".join(part)]
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(kind)
    if heads:
        rows = weight.reshape(config[heads], 2, -1, weight.shape[1])
        weight = np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))
    return f"blk.{number}.{kind}.weight", weight


def write_gguf_lora(path: Path, seed: int = 0) -> Path:
    """Write a LoRA adapter of random weights for the same model, strong enough to change its answers."""
    import gguf

    config = json.loads((resolve("mini-llama") / "config.json").read_bytes())
    width, rank, random = config["hidden_size"], 4, np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(rank))
    for part, shape in (("a", (rank, width)), ("b", (width, rank))):
        writer.add_tensor(f"blk.0.attn_output.weight.lora_{part}", random.normal(0, 0.3, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_peft_lora(folder: Path, seed: int = 0) -> Path:
    """Write the same adapter for Hugging Face's servers, as a folder in PEFT's form."""
    config = json.loads((resolve("mini-llama") / "config.json").read_bytes())
    width, rank, random = config["hidden_size"], 4, torch.Generator().manual_seed(seed)
    folder.mkdir()
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_{}.weight"
    shapes = {"A": (rank, width), "B": (width, rank)}
    weights = {name.format(part): 0.3 * torch.randn(shape, generator=random) for part, shape in shapes.items()}
    save_file(weights, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["o_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]))

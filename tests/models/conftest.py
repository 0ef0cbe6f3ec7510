"""Fixtures of the tests of models: a small llama with random weights, saved as a user's model is.

``llama`` is its folder, and ``copy`` one to damage. ``save_model(folder, config)`` makes another.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pltz.benchmarks.kv import tokenizer_files

VOCAB = 384
POSITIONS = 256
SaveModel = Callable[..., Path]


@pytest.fixture(scope="session")
def save_model(tiny_tokenizer_json: Callable[..., bytes]) -> SaveModel:
    def save(folder: Path, config: transformers.PretrainedConfig, positions: int = POSITIONS) -> Path:
        """Save a model with random weights, large enough that its greedy choices are not ties, and a tokenizer."""
        torch.manual_seed(7)
        auto: Any = transformers.AutoModelForCausalLM  # its hints are not whole
        model = auto.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(folder)
        source = folder / "bundle_tokenizer.json"
        source.write_bytes(tiny_tokenizer_json(config.vocab_size))
        tokenizer_files.write_tokenizer(source, folder, positions)
        source.unlink()
        return folder

    return save


@pytest.fixture(scope="session")
def llama_config() -> dict[str, Any]:
    """Return the shape of the small llama, as config.json has it."""
    config: Any = transformers.LlamaConfig
    found: dict[str, Any] = config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=POSITIONS, bos_token_id=None, eos_token_id=2,
    ).to_dict()
    return found


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory, save_model: SaveModel, llama_config: dict[str, Any]) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"), transformers.LlamaConfig(**llama_config))


@pytest.fixture
def copy(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "copy"))

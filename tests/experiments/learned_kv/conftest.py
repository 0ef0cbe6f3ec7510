"""A small llama of three layers, frozen, and rows of ids that a trained network can learn something of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from numpy.typing import NDArray

from pltz.experiments.learned_kv.frozen_target import FrozenTarget
from pltz.models.target.target import Target
from tests.models.conftest import VOCAB, SaveModel, llama_config, save_model

__all__ = ["llama_config", "save_model"]


@pytest.fixture(scope="session")
def deep_llama(tmp_path_factory: pytest.TempPathFactory, save_model: SaveModel, llama_config: dict[str, Any]) -> Path:
    config = transformers.LlamaConfig(**llama_config | {"num_hidden_layers": 3, "hidden_size": 64, "head_dim": 16})
    return save_model(tmp_path_factory.mktemp("deep"), config)


@pytest.fixture(scope="session")
def frozen(deep_llama: Path) -> FrozenTarget:
    return FrozenTarget(Target.load(deep_llama, "cpu", "float32"))


@pytest.fixture(scope="session")
def rows() -> NDArray[np.int32]:
    """Return rows (16, 72) of ids, of which few different ones occur, so that little training suffices."""
    return np.random.default_rng(0).integers(3, VOCAB // 12, (16, 72)).astype(np.int32)

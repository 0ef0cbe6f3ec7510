"""Fixtures of the tests of models, which those of KV use too."""

from tests.models.conftest import copy, llama, llama_config, save_model

__all__ = ["copy", "llama", "llama_config", "save_model"]

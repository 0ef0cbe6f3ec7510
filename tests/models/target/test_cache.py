"""The name by which a model takes its cache."""

import warnings
from pathlib import Path

import pytest
import torch

from pltz.models.target.cache import cache_argument, cache_of
from pltz.models.target.target import Target


def test_a_real_model_takes_it_without_a_warning(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Target.load(llama).model
    cache = cache_of([], model.config)
    with torch.inference_mode(), warnings.catch_warnings(), caplog.at_level("WARNING"):
        warnings.simplefilter("error")
        model(input_ids=torch.arange(5)[None], **cache_argument(model, cache))
    assert cache.get_seq_length() == 5 and "deprecated" not in caplog.text

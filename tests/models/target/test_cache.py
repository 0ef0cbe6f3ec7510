"""The name by which a model takes its cache."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from pltz.models.target.cache import cache_argument, cache_of
from pltz.models.target.target import Target


class Former:
    def forward(self, input_ids: Any, past_key_values: Any = None) -> None: ...


class Later:
    def forward(self, input_ids: Any, cache: Any = None) -> None: ...


def test_a_cache_goes_by_the_name_that_the_model_has_for_it() -> None:
    assert cache_argument(Former(), 1) == {"past_key_values": 1}
    assert cache_argument(Later(), 1) == {"cache": 1}


def test_a_real_model_takes_it_without_a_warning(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Target.load(llama).model
    cache = cache_of([], model.config)
    with torch.inference_mode(), warnings.catch_warnings(), caplog.at_level("WARNING"):
        warnings.simplefilter("error")
        model(input_ids=torch.arange(5)[None], **cache_argument(model, cache))
    assert cache.get_seq_length() == 5 and "deprecated" not in caplog.text

"""A model that transformers loaded is a target, if its weights are those of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pltz
from pltz.models.target.target import Target


def loaded(folder: Path, **options: Any) -> Any:
    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, **options)


def test_it_thaws_as_the_folder_does(llama: Path) -> None:
    data = pltz.compress([[33, 40, 51, 62]], tokenizer=llama / "tokenizer.json")
    by_folder = pltz.thaw(data, llama)
    tokenizer = Target.load(llama).tokenizer
    for words in ({}, {"tokenizer": tokenizer}):
        by_model = pltz.thaw(data, loaded(llama), **words)
        assert by_model.token_ids.tolist() == by_folder.token_ids.tolist() == [33, 40, 51, 62]
        assert torch.equal(by_model.logits, by_folder.logits)
    assert Target.of(loaded(llama)).fingerprint == Target.load(llama).fingerprint == pltz.fingerprint_of(llama)
    assert Target.of(loaded(llama, dtype=torch.bfloat16)).model.dtype == torch.bfloat16


def test_other_weights_are_refused(llama: Path) -> None:
    model = loaded(llama)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    with pytest.raises(pltz.ModelError, match="is not the one in"):
        Target.of(model)


def test_a_weight_of_its_own_is_refused(llama: Path) -> None:
    model = loaded(llama)
    model.register_parameter("extra", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(pltz.ModelError, match="have no weight extra"):
        Target.of(model)


def test_another_tokenizer_is_refused(llama: Path) -> None:
    other = Target.load(llama).tokenizer
    other.add_tokens(["<another>"])
    with pytest.raises(pltz.ModelError, match="another vocabulary"):
        Target.of(loaded(llama), other)


def test_what_is_no_loaded_model_is_refused(llama: Path) -> None:
    data = pltz.compress(["hello"])
    with pytest.raises(pltz.UsageError, match="model of transformers"):
        pltz.thaw(data, 3.5)
    with pytest.raises(pltz.UsageError, match="leave it out"):
        pltz.thaw(data, llama, tokenizer=Target.load(llama).tokenizer)
    model = loaded(llama)
    model.name_or_path = model.config._name_or_path = ""
    with pytest.raises(pltz.UsageError, match="where it was loaded from"):
        Target.of(model)

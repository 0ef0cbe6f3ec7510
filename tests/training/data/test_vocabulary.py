"""Bundle tokenizers made of a target's (training/data/vocabulary.py)."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.target.target import Target
from pltz.plt_codec.errors import ModelError
from pltz.training.data import vocabulary


def test_a_targets_tokenizer_becomes_a_bundles(foreign: Path) -> None:
    raw = (foreign / "tokenizer.json").read_bytes()
    made = BundleTokenizer(vocabulary.from_target(raw))
    assert made.size % 128 == 0 and vocabulary.covered(made, raw)
    theirs = Tokenizer.from_file(str(foreign / "tokenizer.json"))
    known = vocabulary.counterparts(made, raw)
    text = "Hello there, what's a KV cache?\n\n  Zwölf \U0001f600 1234"
    assert known[made.encode(text.encode())].tolist() == theirs.encode(text, add_special_tokens=False).ids
    bridge = Bridge(raw, made)
    chat = Target.load(foreign).render([{"role": "user", "content": text}])
    tokens, patch = bridge.to_bundle(chat)
    assert patch == b"" and len(tokens) == len(chat) and bridge.from_bundle(tokens, patch).tolist() == chat
    assert known[:32].max() == -1 and made.decode(made.encode(b"\xff<|im_start|>")) == b"\xff<|im_start|>"


def changed(raw: bytes, **model: Any) -> bytes:
    tree = json.loads(raw)
    tree["model"].update(model)
    return json.dumps(tree).encode()


def test_tokenizers_that_cannot_be_a_bundles_are_refused_by_name(foreign: Path) -> None:
    raw = (foreign / "tokenizer.json").read_bytes()
    many = {**json.loads(raw)["model"]["vocab"], **{f"x{i}": 600 + i for i in range(1 << 16)}}
    for bad, said in (
        (b"{}", "another kind"), (changed(raw, type="Unigram"), "Unigram"),
        (changed(raw, byte_fallback=True), "byte-level"), (changed(raw, end_of_word_suffix="</w>"), "suffixes"),
        (changed(raw, vocab={"a": 0}, merges=[]), "are missing"), (changed(raw, vocab=many), "at most 65536"),
    ):
        with pytest.raises(ModelError, match=said) as caught:
            vocabulary.from_target(bad)
        assert "bundle's tokenizer instead" in str(caught.value)

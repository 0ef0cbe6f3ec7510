"""What tests share: a small tokenizer of the bundle's shape, trained on the sample sessions.

Asked for as a fixture: ``tiny_tokenizer`` is a BundleTokenizer of 1024 ids, ``tiny_tokenizer_json(size)``
the bytes of one of any size. Files named conftest.py cannot be imported in pytest's importlib mode.
"""

import json
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import settings
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pltz.datasets import sample_sessions
from pltz.models.tokenizer import SPECIALS, BundleTokenizer

settings.register_profile("pltz", deadline=None)  # a shared machine stalls for longer than a deadline
settings.load_profile("pltz")

WORDS = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)


@cache
def _make(size: int) -> bytes:
    """A byte-level BPE of ``size`` ids as tokenizers JSON: specials at 0..31, the others in mixed order."""
    texts = [
        message["content"] for session in sample_sessions()[:60] for message in session.value["messages"]
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tree = json.loads(tokenizer.to_str())
    names = [f"<|{name}|>" for name in SPECIALS]
    names += sorted(tree["model"]["vocab"], key=lambda piece: piece[::-1])
    tree["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    return json.dumps(tree, ensure_ascii=False).encode()


@pytest.fixture(scope="session")
def tiny_tokenizer_json() -> Callable[..., bytes]:
    """``tiny_tokenizer_json(size=1024)``: the bytes of a tokenizer JSON; the same bytes every time."""

    def make(size: int = 1024) -> bytes:
        return _make(size)

    return make


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_tokenizer_json: Callable[..., bytes]) -> BundleTokenizer:
    """A BundleTokenizer of 1024 ids."""
    return BundleTokenizer(tiny_tokenizer_json())

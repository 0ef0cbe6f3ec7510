"""The bundle's tokenizer gives every byte string back, in linear time, and refuses what could not."""

import base64
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.tokenizer import BLOCK, SPECIALS, BundleTokenizer
from pltz.plt_codec.errors import CorruptError, ModelError

texts = st.text(st.characters(codec="utf-8")).map(str.encode)
mixtures = st.lists(texts | st.binary(max_size=8)).map(b"".join)


@given(data=st.binary() | texts | mixtures)
def test_every_byte_string_comes_back(tiny_tokenizer: BundleTokenizer, data: bytes) -> None:
    ids = tiny_tokenizer.encode(data)
    assert ids.dtype == np.int32 and ids.ndim == 1 and tiny_tokenizer.decode(ids) == data
    assert int(tiny_tokenizer.lengths[ids].sum()) == len(data)


def _bpe(tokenizer: BundleTokenizer, run: bytes) -> list[int]:
    """The library's own ids of valid UTF-8."""
    ids: list[int] = tokenizer._bpe.encode(run.decode(), add_special_tokens=False).ids
    return ids


@given(
    text=st.text(st.characters(max_codepoint=127))
    | st.lists(st.sampled_from(["'ll", "'", "\r", "\n", " ", "\t", "\x1c", "a", "Be", "12", "?", "~" * 129, "he"])).map(
        "".join
    )
)
def test_ascii_is_split_and_spelt_as_the_library_does(text: str) -> None:
    tokenizer = Bundle.load("nano").tokenizer
    assert tokenizer.encode(text.encode()).tolist() == _bpe(tokenizer, text.encode())


def test_text_never_makes_a_special(tiny_tokenizer: BundleTokenizer) -> None:
    text = "".join(f"<|{name}|>" for name in SPECIALS).encode()
    assert tiny_tokenizer.encode(text).min() >= len(SPECIALS)
    assert tiny_tokenizer.specials["lane"] == 0 and tiny_tokenizer.specials["x15"] == 31


@pytest.mark.parametrize("name, unit", [
    ("letters", b"a"), ("spaces", b" "), ("lines", b"\n"), ("digits", b"7"), ("marks", b"!"),
    ("han", "\u6f22".encode()), ("noise", random.Random(1).randbytes(1 << 18)),
    ("base64", base64.b64encode(random.Random(2).randbytes(3 << 16))), ("continuation bytes", b"\x80"),
    ("latin-1", "d\u00e9j\u00e0 vu, ".encode("latin-1")),
])
def test_a_long_input_takes_linear_time(tiny_tokenizer: BundleTokenizer, name: str, unit: bytes) -> None:
    data = (unit * (1 + (1 << 18) // len(unit)))[: 1 << 18]
    start, ids = time.process_time(), tiny_tokenizer.encode(data)
    assert time.process_time() - start < 5, name  # measured: at most 0.4 s; a quadratic path takes minutes
    assert tiny_tokenizer.decode(ids) == data


@pytest.mark.parametrize("tail", [b"\n", b" ", b"", "\u6f22".encode()])
@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_blocks_join_exactly(tiny_tokenizer: BundleTokenizer, tail: bytes, shift: int) -> None:
    data = (b"x" * (BLOCK + shift) + tail + "\u00e9".encode() * BLOCK) * 2
    assert tiny_tokenizer.decode(tiny_tokenizer.encode(data)) == data


@pytest.mark.parametrize("ids", [[0], [40, 31], [-1], [1024], [2**31 - 1], np.array([[40]]), np.array([40.0])])
def test_decode_refuses_what_is_not_text(tiny_tokenizer: BundleTokenizer, ids: Any) -> None:
    with pytest.raises(CorruptError):
        tiny_tokenizer.decode(ids)


def test_the_fingerprint_follows_every_byte(tiny_tokenizer_json: Callable[..., bytes]) -> None:
    data = tiny_tokenizer_json()
    assert len(BundleTokenizer(data).fingerprint) == 16
    assert BundleTokenizer(data).fingerprint == BundleTokenizer(data).fingerprint
    assert BundleTokenizer(data + b" ").fingerprint != BundleTokenizer(data).fingerprint


def _drop_byte(tree: dict[str, Any]) -> None:
    vocab = tree["model"]["vocab"]
    vocab["aaaaaaaa"] = vocab.pop("a")


def _swap(tree: dict[str, Any], a: str, b: str) -> None:
    vocab = tree["model"]["vocab"]
    vocab[a], vocab[b] = vocab[b], vocab[a]


DEFECTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no model": lambda tree: tree.pop("model"), "not BPE": lambda tree: tree["model"].update(type="WordPiece"),
    "no vocabulary": lambda tree: tree["model"].update(vocab={}, merges=[]),
    "size not a multiple of 128": lambda tree: tree["model"]["vocab"].update(zzz=1024),
    "gap in the ids": lambda tree: tree["model"]["vocab"].update(a=5000),
    "id not an integer": lambda tree: tree["model"]["vocab"].update(a="7"),
    "id a truth value": lambda tree: tree["model"]["vocab"].update(a=True),
    "special missing": lambda tree: _swap(tree, "<|lane|>", "a"),
    "specials in another order": lambda tree: _swap(tree, "<|user|>", "<|tool|>"), "a byte missing": _drop_byte,
    "not byte-level": lambda tree: tree["model"]["vocab"].update({"\u6f22": tree["model"]["vocab"].pop("\u0120the")}),
    "added tokens": lambda tree: tree.update(added_tokens=[{"id": 2, "content": "<|user|>", "special": True}]),
    "normalizer": lambda tree: tree.update(normalizer={"type": "NFC"}),
    "dropout": lambda tree: tree["model"].update(dropout=0.5),
    "whole words before merges": lambda tree: tree["model"].update(ignore_merges=True),
    "merge to a special": lambda tree: tree["model"]["merges"].append(["<|us", "er|>"]),
    "merge of one": lambda tree: tree["model"]["merges"].append(["a"]),
    "merge to nothing known": lambda tree: tree["model"]["merges"].append(["a", "zzzz"]),
    "prefix space": lambda tree: tree["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
    "split drops text": lambda tree: tree["pre_tokenizer"]["pretokenizers"][0].update(behavior="Removed"),
    "no byte-level step": lambda tree: tree["pre_tokenizer"]["pretokenizers"].pop(1),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_tokenizer_with_this_defect_is_refused(tiny_tokenizer_json: Callable[..., bytes], defect: str) -> None:
    tree = json.loads(tiny_tokenizer_json())
    DEFECTS[defect](tree)
    with pytest.raises(ModelError):
        BundleTokenizer(json.dumps(tree).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"model":[]}', b"\xff", b"[" * 100_000])
def test_other_json_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        BundleTokenizer(data)


def test_merges_may_be_written_as_one_string(tiny_tokenizer_json: Callable[..., bytes]) -> None:
    tree = json.loads(tiny_tokenizer_json())
    tree["model"]["merges"] = [" ".join(pair) for pair in tree["model"]["merges"]]
    text = b"the same tokens either way"
    old = BundleTokenizer(json.dumps(tree).encode())
    assert old.encode(text).tolist() == BundleTokenizer(tiny_tokenizer_json()).encode(text).tolist()

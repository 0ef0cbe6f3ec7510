"""Token ids through a codec with a fake coder: the bundle's own, and those of another tokenizer over a bridge."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.datasets import sample_sessions
from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.container.frame import Kind
from pltz.plt_codec.errors import CorruptError, TokenizerMismatch
from tests.coding.fake_coder import TALK, FakeBundle


@pytest.fixture(scope="module")
def foreign(tiny_tokenizer_json: Callable[..., bytes], bundle: FakeBundle) -> Bridge:
    """A bridge to a tokenizer that is not the bundle's."""
    bridge = Bridge(tiny_tokenizer_json(1536), bundle.tokenizer)
    assert not bridge.identity
    return bridge


@pytest.fixture(scope="module")
def own(tiny_tokenizer_json: Callable[..., bytes], bundle: FakeBundle) -> Bridge:
    """A bridge to the bundle's own tokenizer."""
    bridge = Bridge(tiny_tokenizer_json(), bundle.tokenizer)
    assert bridge.identity
    return bridge


def foreign_ids(tiny_tokenizer_json: Callable[..., bytes], text: str) -> Session:
    return Session("ids", BundleTokenizer(tiny_tokenizer_json(1536)).encode(text.encode()))


def test_ids_cross_the_bridge(codec: Codec, foreign: Bridge, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    canonical = foreign_ids(tiny_tokenizer_json, "The capital of France is Paris, a city on the river Seine.")
    sampled = Session("ids", np.random.default_rng(2).integers(40, 1500, 30))
    frozen = codec.compress([canonical, TALK, sampled], bridge=foreign)
    reader = Reader(frozen)
    assert reader.header.tokenizer_fingerprint == foreign.fingerprint
    assert reader.frame(0).content is Kind.IDS and not reader.frame(0).patch
    assert codec.decompress(reader, bridge=foreign) == [canonical, TALK, sampled]
    assert codec.decompress(reader, [1]) == [TALK]


def test_patched_ids_come_back(codec: Codec, foreign: Bridge, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    ids = foreign_ids(tiny_tokenizer_json, "Frozen and thawed again, a session is what it was before.").value.copy()
    ids[7] = 1400
    reader = Reader(codec.compress([Session("ids", ids)], bridge=foreign))
    assert reader.frame(0).patch and codec.decompress(reader, bridge=foreign) == [Session("ids", ids)]


def test_ids_are_refused_without_their_bridge(
    codec: Codec, foreign: Bridge, own: Bridge, tiny_tokenizer_json: Callable[..., bytes]
) -> None:
    words = foreign_ids(tiny_tokenizer_json, "Words, and then a few more of them, so that there is something to code.")
    frozen = codec.compress([words], bridge=foreign)
    for wrong in (None, own, Bridge(tiny_tokenizer_json(1280), codec.bundle.tokenizer)):
        with pytest.raises(TokenizerMismatch, match=foreign.fingerprint.hex()):
            codec.decompress(frozen, bridge=wrong)
    with pytest.raises(TokenizerMismatch, match="bundle's own"):
        codec.decompress(codec.compress([Session("ids", np.arange(40, 90))]), bridge=foreign)


def test_ids_out_of_the_vocabulary_are_refused_by_number(codec: Codec) -> None:
    with pytest.raises(TokenizerMismatch, match="session 1: "):
        codec.compress([TALK, Session("ids", [5, 50_000])])


def test_a_bridge_that_splits_otherwise_is_noticed(
    codec: Codec, foreign: Bridge, tiny_tokenizer_json: Callable[..., bytes]
) -> None:
    """As another version of the tokenizer library might: same fingerprint, other ids."""

    class Other(Bridge):
        def from_bundle(self, bundle_ids: Any, patch: bytes) -> Any:
            return super().from_bundle(bundle_ids, patch)[::-1]

    frozen = codec.compress(
        [foreign_ids(tiny_tokenizer_json, "Words, and then a few more of them, so that there is something to code.")],
        bridge=foreign,
    )
    with pytest.raises(CorruptError, match="checksum"):
        codec.decompress(frozen, bridge=Other(tiny_tokenizer_json(1536), codec.bundle.tokenizer))


def test_copies_and_a_patch_stand_in_one_frame(
    codec: Codec, foreign: Bridge, tiny_tokenizer_json: Callable[..., bytes]
) -> None:
    text = max((m["content"] for s in sample_sessions() for m in s.value["messages"]), key=len)[:1500]
    ids = np.tile(foreign_ids(tiny_tokenizer_json, text).value, 2)
    cut = [foreign_ids(tiny_tokenizer_json, letter).value for letter in "the"]  # not as a tokenizer would
    session = Session("ids", np.concatenate([ids, *cut]))
    frozen = codec.compress([session], bridge=foreign)
    frame = Reader(frozen).frame(0)
    assert frame.copied and frame.patch and codec.decompress(frozen, bridge=foreign) == [session]


def test_token_ids_of_foreign_ids(codec: Codec, foreign: Bridge, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    session = foreign_ids(
        tiny_tokenizer_json, "Words, and then a few more of them, so that there is something to code."
    )
    reader = Reader(codec.compress([session], bridge=foreign))
    assert np.array_equal(codec.token_ids(reader, 0, bridge=foreign), session.value)
    with pytest.raises(TokenizerMismatch):
        codec.token_ids(reader, 0)

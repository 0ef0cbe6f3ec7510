"""Token ids through a codec with a fake coder: the bundle's own, and those of another tokenizer over a bridge."""

from collections.abc import Callable

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.models.bundle.bridge import Bridge
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import TokenizerMismatch
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


def test_token_ids_of_foreign_ids(codec: Codec, foreign: Bridge, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    session = foreign_ids(
        tiny_tokenizer_json, "Words, and then a few more of them, so that there is something to code."
    )
    reader = Reader(codec.compress([session], bridge=foreign))
    assert np.array_equal(codec.token_ids(reader, 0, bridge=foreign), session.value)
    with pytest.raises(TokenizerMismatch):
        codec.token_ids(reader, 0)

"""Many sessions in one file: batches, and no more read than one of them."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.coding import decoder as session_decoder, pipeline as module
from pltz.coding.codec import Codec
from pltz.coding.neighbours import Neighbours
from pltz.coding.options import CodingOptions
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.types import Encoded, FrameItem


class FakeCoder:
    """A byte per token (ids below 256), so that model frames win; remembers the tokens of each call."""

    def __init__(self) -> None:
        self.encoded: list[int] = []
        self.decoded: list[int] = []

    def encode(self, sequences: Sequence[Any], **options: Any) -> list[Encoded]:
        self.encoded.append(sum(map(len, sequences)))
        return [Encoded(np.asarray(ids, np.uint8).tobytes(), 0.0, 1) for ids in sequences]

    def decode(self, items: Sequence[FrameItem], **options: Any) -> list[Any]:
        self.decoded.append(sum(item.tokens for item in items))
        if any(len(item.data) != item.tokens for item in items):
            raise CorruptError("the bitstring does not decode")
        return [np.frombuffer(item.data, np.uint8).astype(np.int64) for item in items]


@pytest.fixture
def codec(tiny_tokenizer: BundleTokenizer) -> Codec:
    return Codec(SimpleNamespace(id=bytes(16), tokenizer=tiny_tokenizer, zstd_dict=b""), FakeCoder())


def ids(n: int, start: int = 32) -> Session:
    return Session("ids", np.arange(start, start + n) % 200)


def pipeline_of(codec: Codec, earlier: Neighbours | None = None) -> module.Pipeline:
    return module.Pipeline(codec, codec._work, codec.workers, None, CodingOptions(), None, earlier)


def counted(items: Sequence[Any], seen: list[int]) -> Iterator[Any]:
    """The items, and in ``seen`` how many were taken."""
    for item in items:
        seen.append(1)
        yield item


def test_no_more_is_read_than_a_batch(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 4000)
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    monkeypatch.setattr(session_decoder, "BATCH_TOKENS", 1000)
    monkeypatch.setattr(module, "GROUP", 4)
    seen: list[int] = []
    assert next(pipeline_of(codec).frames(counted([ids(100)] * 40, seen))) and len(seen) == 12
    monkeypatch.setattr(module, "GROUP_BYTES", 4 * 150)
    seen.clear()
    assert next(pipeline_of(codec).frames(counted([ids(3000)] * 4, seen))) and len(seen) == 1


def test_sessions_that_hold_nothing_fill_a_batch_too(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """180,000 lines of {"messages":[]} were one batch of a gigabyte, and empty members of a zip likewise."""
    monkeypatch.setattr(module, "BATCH_BYTES", 1 << 17)
    seen: list[int] = []
    nothing = [Session("text", b""), Session("chat", []), ids(0)] * 200
    assert next(pipeline_of(codec, Neighbours()).frames(counted(nothing, seen))) and len(seen) == 128
    read = Reader(codec.compress(nothing)).frames(range(600))
    monkeypatch.setattr(session_decoder, "BATCH_TOKENS", 1 << 12)
    assert {len(read[part]) for part in session_decoder._parts(read)} == {64, 600 % 64}
    assert codec.decompress(codec.compress(nothing)) == nothing

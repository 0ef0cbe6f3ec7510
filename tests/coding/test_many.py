"""Many sessions, a file each: the order of the input, one bad one named or returned, no more read than a batch."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.coding import codec as module
from pltz.coding import decoder as session_decoder
from pltz.coding.codec import Codec
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import (
    BundleMismatch,
    CorruptError,
    FormatError,
    ModelError,
    OpaqueContentError,
    PltzError,
    UsageError,
)
from pltz.plt_codec.types import Encoded, FrameItem

IMAGE = Session(
    "chat",
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
)


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


class ForgetfulCoder(FakeCoder):
    """Decodes sevens as eights."""

    def decode(self, items: Sequence[FrameItem], **options: Any) -> list[Any]:
        return [np.where(ids == 7, 8, ids) for ids in super().decode(items)]


def codec_of(tokenizer: BundleTokenizer, coder: FakeCoder) -> Codec:
    return Codec(SimpleNamespace(id=bytes(16), contract=1, tokenizer=tokenizer, zstd_dict=b""), coder)


@pytest.fixture
def codec(tiny_tokenizer: BundleTokenizer) -> Codec:
    return codec_of(tiny_tokenizer, FakeCoder())


def ids(n: int, start: int = 32) -> Session:
    return Session("ids", np.arange(start, start + n) % 200)


def counted(items: Sequence[Any], seen: list[int]) -> Iterator[Any]:
    """The items, and in ``seen`` how many were taken."""
    for item in items:
        seen.append(1)
        yield item


def test_each_session_gets_the_file_it_would_get_alone(codec: Codec) -> None:
    sessions = [ids(n) for n in (5, 300, 0, 1, 64)] + [ids(2)]
    files = list(codec.compress_many(iter(sessions)))
    assert files == [codec.compress([session]) for session in sessions]
    assert [found for (found,) in codec.decompress_many(iter(files))] == sessions
    assert list(codec.compress_many([])) == [] and list(codec.decompress_many([])) == []


def test_they_are_coded_side_by_side_in_batches(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 4000)
    monkeypatch.setattr(session_decoder, "BATCH_TOKENS", 1000)
    monkeypatch.setattr(module, "GROUP", 4)
    sessions = [ids(100)] * 30
    files = list(codec.compress_many(sessions))
    list(codec.decompress_many(files))
    coder: Any = codec.coder
    assert coder.encoded == [1200, 1200, 600]  # whole groups up to a thousand
    assert coder.decoded == [1200, 1200, 600] + [1000] * 3  # to verify; then by file


def test_no_more_is_read_than_a_batch(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 4000)
    monkeypatch.setattr(session_decoder, "BATCH_TOKENS", 1000)
    monkeypatch.setattr(module, "GROUP", 4)
    seen: list[int] = []
    next(codec.compress_many(counted([ids(100)] * 40, seen)))
    assert len(seen) == 12
    files = list(codec.compress_many([ids(100)] * 40))
    seen.clear()
    next(codec.decompress_many(counted(files, seen)))
    assert len(seen) == 11  # the one that does not fit is known by then
    monkeypatch.setattr(module, "GROUP_BYTES", 4 * 150)
    seen.clear()
    next(codec.compress_many(counted([ids(3000)] * 4, seen)))
    assert len(seen) == 1


def test_a_bad_session_is_named_or_returned_in_its_place(codec: Codec) -> None:
    sessions: list[Session | PltzError] = [ids(3), IMAGE, ids(4), UsageError("no such thing"), ids(5)]
    with pytest.raises(OpaqueContentError, match=r"^session 1: "):
        list(codec.compress_many(sessions))
    with pytest.raises(UsageError, match=r"^session 3: no such thing"):
        list(codec.compress_many(sessions, keep_opaque=True))
    found = list(codec.compress_many(sessions, errors="return"))
    assert [type(one) for one in found] == [bytes, OpaqueContentError, bytes, UsageError, bytes]
    assert str(found[1]).startswith("session 1: ")
    good = [one for one in found if isinstance(one, bytes)]
    assert [back for (back,) in codec.decompress_many(good)] == [ids(3), ids(4), ids(5)]


def test_a_session_that_does_not_come_back_is_no_file(tiny_tokenizer: BundleTokenizer) -> None:
    broken = codec_of(tiny_tokenizer, ForgetfulCoder())
    sessions = [ids(3), ids(3, 6), ids(3)]
    with pytest.raises(ModelError, match="session 1 does not come back"):
        list(broken.compress_many(sessions))
    found = list(broken.compress_many(sessions, errors="return"))
    assert isinstance(found[1], ModelError)
    assert [isinstance(one, bytes) for one in found] == [True, False, True]


def damaged(file: bytes) -> bytes:
    """The last byte of the frames gone, with all checksums in order."""
    import io

    from pltz.plt_codec.container.file import Writer
    from pltz.plt_codec.container.frame import Frame

    reader, sink = Reader(file), io.BytesIO()
    writer = Writer(sink, reader.header)
    frame = reader.frame(0)
    writer.add(Frame(frame.kind, frame.count, frame.check, frame.data[:-1]))
    writer.finish()
    return sink.getvalue()


def test_a_bad_file_is_named_or_returned_in_its_place(codec: Codec, tiny_tokenizer: BundleTokenizer) -> None:
    two = codec.compress([ids(3), ids(4)])
    other = codec_of(tiny_tokenizer, FakeCoder())
    other.bundle.id = b"another bundle's"  # type: ignore[misc]
    files = [two, damaged(codec.compress([ids(9)])), other.compress([ids(3)]), b"junk", two[:-1], two]
    found = list(codec.decompress_many(files, errors="return"))
    assert found[0] == found[5] == [ids(3), ids(4)]
    kinds = [CorruptError, BundleMismatch, FormatError, FormatError]
    for number, (one, kind) in enumerate(zip(found[1:5], kinds, strict=True), 1):
        assert isinstance(one, kind) and str(one).startswith(f"file {number}: ")
    for bad in range(1, 5):
        with pytest.raises(PltzError, match=r"^file 1: "):
            list(codec.decompress_many([two, files[bad], two]))
    before = codec.decompress_many([two, files[1]])
    assert next(before) == [ids(3), ids(4)]

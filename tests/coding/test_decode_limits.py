"""Files that ask for much work are refused before decoding, unless they are trusted."""

import time
from typing import Any

import numpy as np
import pytest

import pltz
from pltz.coding.codec import Codec
from pltz.coding.decode_limits import DecodeLimits
from pltz.models.session.session import Session
from pltz.plt_codec import repeats
from pltz.plt_codec.container.file import pack
from pltz.plt_codec.container.frame import Frame, Kind, Method, content_check
from pltz.plt_codec.container.header import Header
from pltz.plt_codec.errors import LimitError, UsageError
from tests.failing import raising


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.load("mini")


def bomb(codec: Codec, tokens: int) -> bytes:
    """Return a file of a frame that claims so many tokens and has few bytes. Its bits are not worth decoding."""
    size = -(-tokens // 256)
    coding = Kind.TEXT, Method.MODEL
    frame = Frame(*coding, tokens, content_check(*coding, tokens, np.zeros(tokens, np.int64)), bytes(size))
    return pack(Header(codec.bundle.id), [frame])


@pytest.fixture
def idle(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec.coder, "decode", raising(AssertionError("decoded before the limits were checked")))


def test_a_small_file_of_many_tokens_is_refused_unasked(codec: Codec, idle: None) -> None:
    data = bomb(codec, 60_000)
    assert len(data) < 320
    with pytest.raises(LimitError, match="--max-tokens 60000, or none"):
        pltz.decompress(data, bundle=codec)
    with pltz.open(data, bundle=codec) as file, pytest.raises(LimitError):
        next(iter(file))
    with pytest.raises(LimitError):
        codec.token_ids(pltz.open(data, bundle=codec).reader, 0)
    with pytest.raises(AssertionError, match="decoded"):
        pltz.decompress(data, bundle=codec, max_tokens=60_000)


def test_limits_that_a_caller_sets_are_checked_before_decoding(codec: Codec) -> None:
    data = pltz.compress(["one two three four " * 3, b"\x00\x01" * 4000], bundle=codec)
    assert len(pltz.decompress(data, bundle=codec, max_tokens=2000, max_bytes=9000, max_seconds=600)) == 2
    for limit in ({"max_tokens": 2}, {"max_bytes": 100}, {"max_bytes": 8000}):
        with pytest.raises(LimitError):
            pltz.decompress(data, bundle=codec, **limit)  # type: ignore[arg-type]


def test_time_that_is_over_ends_the_decoding(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pltz.compress([Session("text", bytes(range(32, 127)) * 3)], bundle=codec)
    now = iter(range(0, 10**6, 5))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    with pytest.raises(LimitError, match="longer than 1 s"):
        pltz.decompress(data, bundle=codec, max_seconds=1)


def test_copies_cost_no_steps_and_do_not_count() -> None:
    data = repeats.pack([repeats.Copy(10, 1000, 10)]) + b"abc"
    copied = Frame(Kind.TEXT, Method.MODEL, 1010, 0, data, copied=True)
    DecodeLimits(max_tokens=10).check([copied])
    with pytest.raises(LimitError, match="claim 10:"):
        DecodeLimits(max_tokens=9).check([copied])


@pytest.mark.parametrize("wrong", [-1, "many", True, float("nan")])
def test_a_limit_is_a_number(wrong: Any) -> None:
    for name in ("max_tokens", "max_bytes", "max_seconds"):
        with pytest.raises(UsageError, match=name):
            DecodeLimits(**{name: wrong})

"""The exact form of bfloat16 KV: every bit comes back, or an error does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zstandard

from pltz.kv.forms.lossless import LosslessCodec
from pltz.kv.port.codec import Span
from pltz.plt_codec.errors import CorruptError, UsageError

CODEC = LosslessCodec()


def kv_of(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def bits(kv: torch.Tensor) -> torch.Tensor:
    return kv.contiguous().view(torch.int16)


@pytest.mark.parametrize("tokens", [0, 1, 7, 300])
def test_every_bit_comes_back(tokens: int) -> None:
    kv, span = kv_of(3, 2, 2, tokens, 16), Span(np.zeros(tokens, np.int32), 4)
    parts = CODEC.encode(kv, span)
    CODEC.check(parts, tokens)
    assert sum(part.numel() * part.element_size() for part in parts.values()) <= CODEC.size(kv)
    assert torch.equal(bits(CODEC.decode(parts, span)), bits(kv))


def test_any_numbers_come_back_also_those_that_are_none() -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    kv, span = every.reshape(2, 2, 4, 64, 64), Span(np.zeros(64, np.int32), 0)
    assert torch.equal(bits(CODEC.decode(CODEC.encode(kv, span), span)), bits(kv))
    some = kv.permute(0, 1, 3, 2, 4)[:, :, :, ::2]  # with gaps in memory
    assert torch.equal(bits(CODEC.decode(CODEC.encode(some, span), span)), bits(some))


def test_numbers_of_like_size_take_two_thirds() -> None:
    kv = kv_of(2, 2, 4, 1000, 64)
    parts = CODEC.encode(kv, Span(np.zeros(1000, np.int32), 0))
    assert 1.4 < 2 * kv.numel() / sum(part.numel() * part.element_size() for part in parts.values()) < 1.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match="bfloat16"):
        CODEC.encode(kv_of(1, 2, 1, 3, 8).to(dtype), Span(np.zeros(3, np.int32), 0))


def test_damaged_parts_are_errors_within_bounds() -> None:
    span = Span(np.zeros(50, np.int32), 0)
    parts = dict(CODEC.encode(kv_of(1, 2, 2, 50, 16), span))
    large = zstandard.ZstdCompressor().compress(bytes(1 << 28))  # a frame of 256 MiB
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1600))
    for frame in (large, unknown, b"", b"no frame", parts["kv.high"].numpy().tobytes()[:20]):
        half = parts["kv.high"][int(parts["kv.sizes"][0, 0]) :]
        high = torch.cat([torch.frombuffer(bytearray(frame), dtype=torch.uint8) if frame else half[:0], half])
        sizes = torch.tensor([[len(frame), len(half)]], dtype=torch.int32)
        with pytest.raises(CorruptError):
            CODEC.decode(parts | {"kv.high": high, "kv.sizes": sizes}, span)
    for pair in ([[-1, 5]], [[1 << 30, 1 << 30]]):
        with pytest.raises(CorruptError):
            CODEC.decode(parts | {"kv.sizes": torch.tensor(pair, dtype=torch.int32)}, span)
    for wrong in (
        {"kv.low": parts["kv.low"].int()},
        {"kv.low": parts["kv.low"][:, :1]},
        {"kv.high": parts["kv.high"].int()},
        {"kv.sizes": parts["kv.sizes"][:, :1]},
        {"kv.more": parts["kv.low"]},
    ):
        with pytest.raises(CorruptError):
            CODEC.check(parts | wrong, 50)
    with pytest.raises(CorruptError):
        CODEC.check(parts, 51)

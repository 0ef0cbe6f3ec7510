"""Frames: sequences to bytes and back (plt_codec/engines/token_coder.py)."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pltz.benchmarks.random_weights import random_weights
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.types import FrameItem
from tests.examples import examples
from tests.plt_codec.cuts import cut

Ints = npt.NDArray[np.int64]
WEIGHTS = random_weights(7, block=64, memory=24)


@pytest.fixture(scope="module")
def coder() -> TokenCoder:
    return TokenCoder(TorchEngine(WEIGHTS))


def sequences(*lengths: int, vocab: int = 512) -> list[Ints]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocab, n) for n in lengths]


def round_trip(coder: TokenCoder, rows: list[Ints], lanes: int | None, steps: int | None) -> list[bytes]:
    encoded = coder.encode(rows, layouts=cut(lanes, steps))
    items = [FrameItem(e.data, len(r), e.layout) for e, r in zip(encoded, rows, strict=True)]
    for got, want in zip(coder.decode(items), rows, strict=True):
        assert got.tolist() == want.tolist()
    return [e.data for e in encoded]


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 140), max_size=5), st.integers(1, 20), st.integers(1, 40))
def test_any_lengths_and_layouts(coder: TokenCoder, lengths: list[int], lanes: int, steps: int) -> None:
    round_trip(coder, sequences(*lengths), lanes, steps)


def test_coded_size_is_the_ideal_size(coder: TokenCoder) -> None:
    """At most 0.3 % over the model's own code length plus 5 bytes per block; here far less."""
    rows = sequences(60, 130, 300)
    for row, e in zip(rows, coder.encode(rows, layouts=Layout(4, 16)), strict=True):
        assert len(e.data) <= e.ideal_bits / 8 * 1.003 + 5 * e.blocks
        assert len(e.data) <= e.ideal_bits / 8 * 1.001 + 2
        assert e.blocks == -(-len(row) // 64)


def test_a_frame_cannot_hold_more_than_its_bytes(coder: TokenCoder) -> None:
    """A count that lies is found out soon after the bytes end, not after the whole count was decoded."""
    (tokens,) = sequences(40)
    data = coder.encode([tokens])[0].data
    seen: list[int] = []
    with pytest.raises(CorruptError, match="bytes end before"):
        coder.decode([FrameItem(data, 100_000)], progress=seen.append)
    assert sum(seen) < 1000


def test_impossible_counts_are_refused(coder: TokenCoder) -> None:
    with pytest.raises(CorruptError):
        coder.decode([FrameItem(b"", -1)])
    with pytest.raises(CorruptError):
        coder.decode([FrameItem(b"", 1 << 40)])


def test_a_frame_that_claims_very_many_blocks_is_refused_without_making_them(coder: TokenCoder) -> None:
    size = 400  # bytes: that is 102,400 blocks of one token
    item = FrameItem(bytes(range(1, 201)) * (size // 200), 256 * size, Layout(1, 1))
    tracemalloc.start()
    with pytest.raises(CorruptError):
        coder.decode([item])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6, f"{peak:,} bytes"

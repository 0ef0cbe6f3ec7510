"""Frames: sequences to bytes and back (plt_codec/engines/token_coder.py)."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.range_coder import RangeEncoder
from pltz.plt_codec.types import FrameItem
from pltz.plt_codec.weights import random_weights
from tests.examples import examples
from tests.plt_codec.engines.reference import Oracle

Ints = npt.NDArray[np.int64]
WEIGHTS = random_weights(7, block=64, memory=24)


@pytest.fixture(scope="module")
def coder() -> TokenCoder:
    return TokenCoder(TorchEngine(WEIGHTS))


def sequences(*lengths: int, vocab: int = 512) -> list[Ints]:
    rng = np.random.default_rng(sum(lengths))
    return [rng.integers(0, vocab, n) for n in lengths]


def round_trip(coder: TokenCoder, rows: list[Ints], lanes: int | None, steps: int | None) -> list[bytes]:
    encoded = coder.encode(rows, lanes=lanes, steps=steps)
    items = [FrameItem(e.data, len(r), e.lanes, e.steps) for e, r in zip(encoded, rows, strict=True)]
    for got, want in zip(coder.decode(items), rows, strict=True):
        assert got.tolist() == want.tolist()
    return [e.data for e in encoded]


@pytest.mark.parametrize(
    "lanes, steps", [(None, None), (1, 64), (4, 16), (16, 4), (3, 7)]
)
def test_round_trip_in_every_layout(coder: TokenCoder, lanes: int | None, steps: int | None) -> None:
    round_trip(coder, sequences(0, 1, 2, 40, 64, 65, 150), lanes, steps)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 140), max_size=5), st.integers(1, 20), st.integers(1, 40))
def test_any_lengths_and_layouts(coder: TokenCoder, lengths: list[int], lanes: int, steps: int) -> None:
    round_trip(coder, sequences(*lengths), lanes, steps)


def test_the_bytes_are_the_oracles(coder: TokenCoder) -> None:
    """The stream a slow, separate implementation would write: same model, symbols in the order of NUMERICS.md."""
    for lanes, steps in ((None, None), (4, 10)):
        (tokens,) = sequences(90)
        layout = Layout(lanes, steps)
        rows = iter(Oracle(WEIGHTS).sequence(tokens, layout))
        encoder = RangeEncoder()
        for block in layout.blocks(len(tokens), WEIGHTS.shape.block):
            for step in range(block.steps):
                here = [next(rows) for _ in range(block.active(step))]
                for token, classes, _ in here:
                    encoder.encode(np.array([token // 128], np.int32), np.diff(classes)[None])
                for token, _, members in here:
                    encoder.encode(np.array([token % 128], np.int32), np.diff(members)[None])
        assert coder.encode([tokens], lanes=lanes, steps=steps)[0].data == encoder.finish()


def test_alone_or_together_the_same_bytes(coder: TokenCoder) -> None:
    rows = sequences(*range(1, 65))
    together = [e.data for e in coder.encode(rows)]
    assert [coder.encode([r])[0].data for r in rows] == together
    assert [e.data for i in range(0, 64, 7) for e in coder.encode(rows[i : i + 7])] == together


def test_threads_change_nothing(coder: TokenCoder) -> None:
    rows = sequences(70, 33)
    before = torch.get_num_threads()
    try:
        found = set()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.add(tuple(round_trip(coder, rows, None, None)))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_the_bytes_of_a_wide_class_alphabet_are_the_oracles() -> None:
    weights = random_weights(
        3, vocab=16384, d=32, layers=1, heads=2, kv_heads=1, hidden=64, block=64, memory=16
    )
    coder = TokenCoder(TorchEngine(weights))
    (tokens,) = sequences(75, vocab=16384)
    (data,) = round_trip(coder, [tokens], 4, 9)
    rows = iter(Oracle(weights).sequence(tokens, Layout(4, 9)))
    encoder = RangeEncoder()
    for block in Layout(4, 9).blocks(75, 64):
        for step in range(block.steps):
            here = [next(rows) for _ in range(block.active(step))]
            for token, classes, _ in here:
                encoder.encode(np.array([token // 128], np.int32), np.diff(classes)[None])
            for token, _, members in here:
                encoder.encode(np.array([token % 128], np.int32), np.diff(members)[None])
    assert data == encoder.finish()


def test_coded_size_is_the_ideal_size(coder: TokenCoder) -> None:
    """At most 0.3 % over the model's own code length plus 5 bytes per block; here far less."""
    rows = sequences(60, 130, 300)
    for row, e in zip(rows, coder.encode(rows), strict=True):
        assert len(e.data) <= e.ideal_bits / 8 * 1.003 + 5 * e.blocks
        assert len(e.data) <= e.ideal_bits / 8 * 1.001 + 2
        assert e.blocks == -(-len(row) // 64)


def test_damaged_frames_decode_to_something_else_or_are_refused(coder: TokenCoder) -> None:
    (tokens,) = sequences(50)
    data = coder.encode([tokens])[0].data
    rng = np.random.default_rng(0)
    for _ in range(25):
        broken = bytearray(data)
        broken[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        try:
            got = coder.decode([FrameItem(bytes(broken), 50)])[0]
        except CorruptError:
            continue
        assert got.min() >= 0 and got.max() < 512  # ids in range; the container's check tells them apart


def test_a_frame_cannot_hold_more_than_its_bytes(coder: TokenCoder) -> None:
    """A count that lies is found out soon after the bytes end, not after the whole count was decoded."""
    (tokens,) = sequences(40)
    data = coder.encode([tokens])[0].data
    seen: list[int] = []
    with pytest.raises(CorruptError, match="bytes end before"):
        coder.decode([FrameItem(data, 100_000)], progress=seen.append)
    assert sum(seen) < 1000


def test_foreign_ids_are_refused(coder: TokenCoder) -> None:
    for bad in ([512], [-1], [[1, 2]]):
        with pytest.raises(ContentError):
            coder.encode([np.array(bad)])


def test_impossible_counts_are_refused(coder: TokenCoder) -> None:
    with pytest.raises(CorruptError):
        coder.decode([FrameItem(b"", -1)])
    with pytest.raises(CorruptError):
        coder.decode([FrameItem(b"", 1 << 40)])
    with pytest.raises(UsageError):
        coder.decode([FrameItem(b"", 5, 100, 100)])


def test_progress_counts_every_token(coder: TokenCoder) -> None:
    rows = sequences(40, 100)
    seen: list[int] = []
    encoded = coder.encode(rows, progress=seen.append)
    assert sum(seen) == 140
    seen.clear()
    coder.decode(
        [FrameItem(e.data, len(r)) for e, r in zip(encoded, rows, strict=True)], progress=seen.append
    )
    assert sum(seen) == 140


def test_a_frame_that_claims_very_many_blocks_is_refused_without_making_them(coder: TokenCoder) -> None:
    size = 400  # bytes: that is 102,400 blocks of one token
    item = FrameItem(bytes(range(1, 201)) * (size // 200), 256 * size, 1, 1)
    tracemalloc.start()
    with pytest.raises(CorruptError):
        coder.decode([item])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6, f"{peak:,} bytes"

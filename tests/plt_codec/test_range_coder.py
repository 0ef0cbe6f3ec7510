"""The range coder wrapper against a separate integer coder (plt_codec/range_coder.py)."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.range_coder import STATE, WORD, RangeDecoder, RangeEncoder, ideal_bits, most_words
from tests.examples import examples

TOTAL = 1 << 24


def frequencies(seed: int, rows: int, n: int, peak: float) -> npt.NDArray[np.int64]:
    """Rows of n integers >= 1 that sum to 2^24, more or less peaked."""
    rng = np.random.default_rng(seed)
    f = np.floor(rng.dirichlet(np.full(n, peak), rows) * (TOTAL - n)).astype(np.int64) + 1
    f[:, 0] += TOTAL - f.sum(1)
    return f


def integer_coder(symbols: npt.NDArray[np.int32], f: npt.NDArray[np.int64]) -> tuple[int, int, int]:
    """The recurrence of the design in Python integers: (lower with everything emitted, range, words emitted)."""
    lower, width, words = 0, (1 << 64) - 1, 0
    for s, row in zip(symbols.tolist(), f, strict=True):
        scale = width >> 24
        lower += scale * int(row[:s].sum())
        width = scale * int(row[s])
        while width < 1 << 32:
            lower, width, words = lower << 32, width << 32, words + 1
    return lower, width, words


@settings(max_examples=examples(60))
@given(
    st.integers(0, 2**31), st.integers(0, 60), st.sampled_from([1, 2, 4, 128, 256]), st.sampled_from([0.003, 0.1, 5.0])
)
def test_round_trip_and_shortest_end(seed: int, rows: int, n: int, peak: float) -> None:
    if n == 1:
        n = 2
    f = frequencies(seed, rows, n, peak)
    symbols = np.random.default_rng(seed).integers(0, n, rows).astype(np.int32)
    encoder = RangeEncoder()
    encoder.encode(symbols[: rows // 2], f[: rows // 2])
    encoder.encode(symbols[rows // 2 :], f[rows // 2 :])
    data = encoder.finish()
    lower, width, words = integer_coder(symbols, f)
    point = int.from_bytes(data, "big") << 8 * (8 + 4 * words - len(data))
    assert lower <= point < lower + width and len(data) >= 4 * words - 1
    if len(data) > max(0, 4 * words - 1):  # one byte less cannot name a point of the interval
        shift = 8 * (8 + 4 * words - len(data) + 1)
        assert (-(-lower >> shift) << shift) >= lower + width
    assert STATE // WORD + words <= most_words(len(data)) and len(data) * 8 <= ideal_bits(symbols, f) * 1.001 + 16
    if rows:
        decoder = RangeDecoder(data)
        assert decoder.decode(f).tolist() == symbols.tolist() and not decoder.spent
        assert RangeDecoder(data + bytes(5)).decode(f).tolist() == symbols.tolist()


def test_exact_bytes() -> None:
    """Golden: a change here is a new contract version, never a new number."""
    f = np.array([[(i * 37 + j * 101) % 4001 + 1 for j in range(128)] for i in range(40)], np.int64)
    f[:, 3] += TOTAL - f.sum(1)
    symbols = np.array([(i * 5) % 128 if i % 3 else 3 for i in range(40)], np.int32)
    encoder = RangeEncoder()
    encoder.encode(symbols, f)
    assert encoder.finish().hex() == (
        "f8b99cfd6d37a3a86e342eb622e1303b8fc3fb87ad1aef81473fe2da4476146c1b9b4c39dbc7cea015407f"
    )


def test_carry_through_emitted_words() -> None:
    """Symbols at the top of the interval force carries; the end must respect them."""
    f, symbols = np.array([[TOTAL - 1, 1]] * 300), np.zeros(300, np.int32)
    symbols[[10, 11, 12, 150, 299]] = 1
    encoder = RangeEncoder()
    encoder.encode(symbols, f)
    assert RangeDecoder(encoder.finish()).decode(f).tolist() == symbols.tolist()


def test_impossible_stream_is_corrupt() -> None:
    """2^64 - 1 lies above the last symbol's interval: floor((2^64 - 1) / 2^24) * 2^24 is less."""
    f = np.array([[1, TOTAL - 1]])
    with pytest.raises(CorruptError, match="damaged"):
        RangeDecoder(b"\xff" * 64).decode(f)

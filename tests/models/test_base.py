"""The embedded bundles of contract 2: the same bits from the engine and from the oracle, on every machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from pltz.benchmarks.exactness import fixed_sequences
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.engines.native.coder import NativeCoder
from pltz.plt_codec.types import FrameItem
from tests.second_reader.model import Model, layout_of, tokens_of

GOLDEN = {"base": json.loads((Path(__file__).parents[1] / "golden" / "base-be9333de.json").read_text())}
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("name", GOLDEN)]


def test_golden_frames(name: str) -> None:
    """Recorded once for these weights: another byte would be another model."""
    bundle = Bundle.load(name)
    sequences = fixed_sequences(bundle.weights.shape.vocab)
    frames = NativeCoder(bundle.weights).encode(sequences)
    assert [bundle.id.hex(), *(f.data.hex() for f in frames)] == GOLDEN[name]
    items = [FrameItem(f.data, len(s), f.layout) for f, s in zip(frames, sequences, strict=True)]
    assert all(np.array_equal(a, b) for a, b in zip(NativeCoder(bundle.weights).decode(items), sequences, strict=True))


def test_the_second_reader_decodes_them(name: str) -> None:
    weights = Bundle.load(name).weights
    sequence, model = fixed_sequences(weights.shape.vocab)[2], Model(weights.shape.to_dict(), dict(weights.tensors))
    data, length = bytes.fromhex(GOLDEN[name][3]), len(sequence)
    assert tokens_of(model, data, length, layout_of(0, length)) == sequence.tolist()

"""The embedded bundles of contract 2: the same bits from the compiled engine and from torch, on every machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from pltz.benchmarks.exactness import fixed_sequences
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.engines.native.coder import NativeCoder, available
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.types import FrameItem

GOLDEN = {"base": json.loads((Path(__file__).parents[1] / "golden" / "base-be9333de.json").read_text())}
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("name", GOLDEN)]


def test_golden_frames_of_the_compiled_engine(name: str) -> None:
    """Recorded once for these weights: another byte would be another model."""
    if not available():
        pytest.skip("the compiled engine was not built (no C compiler at install)")
    bundle = Bundle.load(name)
    sequences = fixed_sequences(bundle.weights.shape.vocab)
    frames = NativeCoder(bundle.weights).encode(sequences)
    assert [bundle.id.hex(), *(f.data.hex() for f in frames)] == GOLDEN[name]
    items = [FrameItem(f.data, len(s), f.layout) for f, s in zip(frames, sequences, strict=True)]
    assert all(np.array_equal(a, b) for a, b in zip(NativeCoder(bundle.weights).decode(items), sequences, strict=True))


def test_torch_decodes_what_the_compiled_engine_wrote(name: str) -> None:
    bundle = Bundle.load(name)
    sequence = fixed_sequences(bundle.weights.shape.vocab)[2]
    item = FrameItem(bytes.fromhex(GOLDEN[name][3]), len(sequence))
    assert TokenCoder(TorchEngine(bundle.weights)).decode([item])[0].tolist() == sequence.tolist()

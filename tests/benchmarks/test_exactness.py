"""The same frames everywhere (benchmarks/exactness.py): golden hashes on this machine."""

import json
from pathlib import Path

import pytest

from pltz.benchmarks.exactness import LAYOUTS, measure, models
from pltz.plt_codec.engines.native.coder import NativeCoder, kernels

CONTRACT = {"gated": 2, "gated extreme": 2, "gated wide": 2}
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "frames.json").read_text())
WIDE = [pytest.param(name, marks=pytest.mark.slow) for name in ("wide", "gated wide")]


@pytest.mark.parametrize("title", LAYOUTS)
@pytest.mark.parametrize("name", ["random", "extreme", "gated", "gated extreme", *WIDE])
def test_golden_frames(name: str, title: str) -> None:
    """Every kernel, on one thread and two: sequences side by side and alone, as recorded for the contract."""
    weights = models(None)[name]()
    for number, kernel in enumerate(kernels()):
        found = measure(NativeCoder(weights, 1 + number % 2, kernel), weights.shape.vocab, LAYOUTS[title])
        assert found == {GOLDEN[f"contract {CONTRACT.get(name, 1)}, {name}, {title}"]}, kernel


@pytest.mark.slow
@pytest.mark.parametrize(("bundle", "title"), [("mini", "16 lanes"), ("nano", "1 lane"), ("nano", "4 lanes")])
def test_golden_frames_of_the_bundle(bundle: str, title: str) -> None:
    for name, make in {k: v for k, v in models(bundle).items() if k.startswith("bundle")}.items():
        weights = make()
        found = measure(NativeCoder(weights), weights.shape.vocab, LAYOUTS[title])
        assert found == {GOLDEN[f"contract {weights.contract}, {name}, {title}"]}

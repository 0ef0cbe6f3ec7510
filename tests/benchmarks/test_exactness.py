"""The same frequencies everywhere (benchmarks/exactness.py): golden hashes on this machine."""

import json
from pathlib import Path

import pytest
import torch

from pltz.benchmarks.exactness import LAYOUTS, measure, models

CONTRACT = {"gated": 2, "gated extreme": 2, "gated wide": 2}
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "frequencies.json").read_text())
CASES = [
    *((name, title) for name in ("random", "extreme", "gated", "gated extreme") for title in LAYOUTS),
    *(pytest.param(name, "4 lanes", marks=pytest.mark.slow) for name in ("wide", "gated wide")),
]


@pytest.mark.parametrize(("name", "title"), CASES)
def test_golden_frequencies(name: str, title: str) -> None:
    """Parallel and stepwise agree with each other and with the values recorded for the contract."""
    found = measure(models(None)[name](), LAYOUTS[title], "cpu")
    assert found == {GOLDEN[f"contract {CONTRACT.get(name, 1)}, {name}, {title}"]}


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_matter(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = measure(models(None)["random"](), LAYOUTS["4 lanes"], "cpu")
    finally:
        torch.set_num_threads(before)
    assert found == {GOLDEN["contract 1, random, 4 lanes"]}


@pytest.mark.slow
@pytest.mark.parametrize(("bundle", "title"), [("mini", "16 lanes"), ("nano", "1 lane"), ("nano", "4 lanes")])
def test_golden_frequencies_of_the_bundle(bundle: str, title: str) -> None:
    for name, make in {k: v for k, v in models(bundle).items() if k.startswith("bundle")}.items():
        assert measure(make(), LAYOUTS[title], "cpu") == {GOLDEN[f"contract {CONTRACT.get(name, 1)}, {name}, {title}"]}

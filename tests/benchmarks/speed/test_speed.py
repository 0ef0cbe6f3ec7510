"""benchmarks speed: the figures follow from each other, and a wrong decoding gives no speed."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from pltz.benchmarks import plots
from pltz.benchmarks.speed import speed
from pltz.plt_codec.errors import ModelError
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.types import Encoded, FrameItem
from tests.cli.commands import Run

SMALL = ("--tokens", 70, "--lanes", 4, "--steps", 9, "--rounds", 1, "--threads", 1)


@pytest.fixture(scope="module")
def kept() -> list[Result]:
    """Keep the result of `whole` for the other tests of this module."""
    return []


@pytest.fixture
def whole(run: Run, tiny: Path, kept: list[Result], monkeypatch: pytest.MonkeyPatch) -> Result:
    """Run the command once, with all that it can measure here."""
    monkeypatch.setattr(speed, "LINEAR", (256,))
    if not kept:
        kept.append(run("speed", *SMALL, "--together", "1,3", "--linear", 256, "--engines"))
    assert kept[0].exit_code == 0, kept[0].output
    return kept[0]


def test_figures_follow_from_each_other(whole: Result) -> None:
    *table, last = whole.stdout.splitlines()
    found = json.loads(last)
    assert [(r["sessions"], r["decode_rows"]) for r in found["rows"]] == [(1, 4), (3, 12)]
    for row in found["rows"]:
        for way in ("encode", "decode"):
            assert row[f"{way}_tokens_per_s"] > 0
            assert row[f"{way}_over_int_mm"] <= row[f"{way}_with_attention_over_int_mm"]
            assert 0 < row[f"{way}_text_bytes_per_s"]
            if (split := row[f"{way}_us_per_token"]) is not None:
                total = 1e6 / row[f"{way}_tokens_per_s"]
                assert 0 < split["layers"] < sum(split.values()) <= 1.01 * total
    assert [one["tokens"] for one in found["linear"]] == [256]
    assert all(0 < one["decode_s"] and 0 < one["decode_processor_s"] for one in found["linear"])
    assert found["machine"]["engine"] and found["startup"] is None
    split = all(row["decode_us_per_token"] for row in found["rows"])
    assert sum(line.startswith("decode") for line in table) == (4 if split else 2)


def test_every_engine_is_timed_and_agrees(whole: Result) -> None:
    from pltz.plt_codec.engines.native.coder import kernels

    done = whole
    found = json.loads(done.stdout.splitlines()[-1])["engines"]
    assert [one["engine"] for one in found] == [*(f"compiled, {k}" for k in kernels()), "torch"]
    clocks = {f"{way}{clock}_s" for way in ("encode", "decode") for clock in ("", "_processor")}
    assert all(one.keys() == {"engine"} | clocks for one in found) and found[-1]["decode_s"] > 0
    lines = done.stdout.splitlines()
    assert any(line.startswith("torch ") and f"{found[-1]['decode_s']:.2f}" in line for line in lines)


def test_engines_that_disagree_have_no_speed() -> None:
    class Fake:
        def __init__(self, data: bytes):
            self.data = data

        def encode(self, sessions: list[np.ndarray], **layout: int) -> list[Encoded]:
            return [Encoded(self.data, 1.0, 1, Layout(4, 9)) for _ in sessions]

        def decode(self, items: list[FrameItem]) -> list[np.ndarray]:
            return [np.arange(item.tokens) for item in items]

    session, equal = np.arange(5), {"a": Fake(b"1"), "b": Fake(b"1")}
    assert len(speed.measure_engines(equal, session, 4, 9, 1)) == 2  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="2 frames"):
        speed.measure_engines({"a": Fake(b"1"), "b": Fake(b"2")}, session, 4, 9, 1)  # type: ignore[dict-item]


def test_the_plot_is_drawn_from_what_the_command_writes(whole: Result) -> None:
    """Draw every panel, then without those that were not measured: the CUDA engine counts no stages."""
    pytest.importorskip("matplotlib")
    found = json.loads(whole.stdout.splitlines()[-1])
    assert plots.draw("speed", [found], ".png").startswith(b"\x89PNG")
    for row in found["rows"]:
        row |= {"encode_us_per_token": None, "decode_us_per_token": None}
    assert plots.draw("speed", [{**found, "linear": [], "engines": []}], ".png").startswith(b"\x89PNG")
    drawing = plots.draw("speed", [found])  # dark on light, light on dark, and the same at every run
    assert b"prefers-color-scheme:dark" in drawing and b"currentColor" in drawing
    assert b"#000000" not in drawing and drawing == plots.draw("speed", [found])

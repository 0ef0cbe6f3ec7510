"""benchmarks speed: the figures follow from each other, and a wrong decoding gives no speed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from pltz.benchmarks import plots
from pltz.benchmarks.peers import llama_model
from pltz.benchmarks.speed import speed, timing
from pltz.benchmarks.speed.products import Products
from pltz.plt_codec.errors import ModelError, UsageError
from pltz.plt_codec.types import Encoded, FrameItem

Run = Callable[..., Result]
SMALL = ("--tokens", 70, "--lanes", 4, "--steps", 9, "--rounds", 1, "--threads", 1)


@pytest.fixture(scope="module")
def kept() -> list[Result]:
    """Keep the result of `whole` for the other tests of this module."""
    return []


@pytest.fixture
def whole(run: Run, tiny: Path, kept: list[Result]) -> Result:
    """Run the command once, with all that it can measure here."""
    if not kept:
        kept.append(run("speed", *SMALL, "--together", "1,3", "--linear", 1024, "--engines"))
    assert kept[0].exit_code == 0, kept[0].output
    return kept[0]


def test_figures_follow_from_each_other(whole: Result) -> None:
    done = whole
    *table, last = done.stdout.splitlines()
    found = json.loads(last)
    assert [(r["sessions"], r["decode_rows"]) for r in found["rows"]] == [(1, 4), (3, 12)]
    for row in found["rows"]:
        for way in ("encode", "decode"):
            ratio = row[f"{way}_gmacs_per_s"] / row[f"{way}_int_mm_gmacs_per_s"]
            assert row[f"{way}_over_int_mm"] == pytest.approx(ratio, rel=0.05, abs=0.006)
            assert row[f"{way}_tokens_per_s"] > 0
            assert row[f"{way}_over_int_mm"] <= row[f"{way}_with_attention_over_int_mm"]
            assert 0 < row[f"{way}_text_bytes_per_s"]
            if (split := row[f"{way}_us_per_token"]) is not None:
                total = 1e6 / row[f"{way}_tokens_per_s"]
                assert 0 < split["layers"] < sum(split.values()) <= 1.01 * total
    assert [one["tokens"] for one in found["linear"]] == [1024]
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
    assert all(one.keys() == {"engine"} | clocks for one in found)
    assert found[-1]["decode_s"] > 0
    lines = done.stdout.splitlines()
    assert any(line.startswith("torch ") and f"{found[-1]['decode_s']:.2f}" in line for line in lines)


def test_engines_that_disagree_have_no_speed() -> None:
    class Fake:
        def __init__(self, data: bytes):
            self.data = data

        def encode(self, sessions: list[np.ndarray], **layout: int) -> list[Encoded]:
            return [Encoded(self.data, 1.0, 1, 4, 9) for _ in sessions]

        def decode(self, items: list[FrameItem]) -> list[np.ndarray]:
            return [np.arange(item.tokens) for item in items]

    session = np.arange(5)
    equal = {"a": Fake(b"1"), "b": Fake(b"1")}
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


def test_with_json_alone_there_is_a_line_of_json(run: Run, tiny: Path) -> None:
    done = run("speed", *SMALL, "--together", "1", "--json")
    found = json.loads(done.stdout)
    assert [row["sessions"] for row in found["rows"]] == [1] and not found["linear"] and not found["engines"]


@pytest.mark.parametrize("gated", [False, True])
def test_products_count_the_multiply_adds_of_the_model(gated: bool) -> None:
    from pltz.plt_codec.weights import random_weights

    weights = random_weights(0, gated=gated)
    assert Products(weights, 8, "cpu").macs == 8 * weights.shape.macs


def test_a_pass_that_takes_long_is_measured_by_its_first_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a clock that advances with the weights multiplied: a pass takes 10 seconds."""
    from pltz.plt_codec.weights import random_weights

    products, now = Products(random_weights(0), 8, "cpu"), 0.0

    def multiply(_: Any, w: Any) -> None:
        nonlocal now
        now += 10 * 8 * w.numel() / products.macs

    monkeypatch.setattr("torch._int_mm", multiply)
    monkeypatch.setattr("pltz.benchmarks.speed.products.time.process_time", lambda: now)
    for longest, most in ((100, 20), (1, 10)):
        monkeypatch.setattr("pltz.benchmarks.speed.products.LONGEST", longest)
        now = 0.0
        assert products.seconds() == pytest.approx(10)
        assert now <= most + 1e-9  # for two orders


def test_multiply_adds_of_attention_are_those_of_the_keys_seen() -> None:
    """Compare with a count position by position, over blocks with a memory."""
    from pltz.plt_codec.lanes import Layout
    from pltz.plt_codec.weights import random_weights

    shape, keys, old = random_weights(0, block=64, memory=20).shape, 0, 0
    for block in Layout(4, 16).blocks(150, 64):
        keys += sum(block.lanes * (old + (s + 1) * block.lanes) for s in range(block.steps))
        old = 20
    assert speed.attention_macs(shape, 150, 4, 16) == 2 * keys * shape.layers * shape.heads * shape.head_dim


def test_a_session_that_does_not_come_back_has_no_speed() -> None:
    sessions: Sequence[np.ndarray] = [np.arange(4)]
    timing.check(sessions, [np.arange(4)])
    with pytest.raises(ModelError, match="no speed"):
        timing.check(sessions, [np.array([0, 1, 2, 4])])


@pytest.mark.parametrize("text", ["", "0", "1,x", "2,-1"])
def test_wrong_counts_are_refused(run: Run, tiny: Path, text: str) -> None:
    done = run("speed", "--together", text)
    assert done.exit_code == 2 and "--together" in done.stderr


def test_inspect_and_decompress_start_without_torch(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = pytest.importorskip("pltz.plt_codec.engines.native.coder")
    if not native.available():
        pytest.skip("the compiled engine was not built (no C compiler at install)")
    (tmp_path / "tiny").symlink_to(tiny / "bundles/mini")
    monkeypatch.setenv("PLTZ_BUNDLES", str(tmp_path))
    found = speed.start_times(tmp_path / "tiny")
    assert not found["inspect_loads_torch"] and not found["decompress_loads_torch"]
    assert found["inspect_s"] > 0 and found["decompress_s"] > 0


def test_llama_is_left_out_with_a_clear_line(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_model, "PACKAGES", {"no_such_module": "no-such-package"})
    done = run("speed", *SMALL, "--together", "1", "--llama")
    assert done.exit_code == 0, done.output
    assert "llama.cpp: not measured, no-such-package not installed" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["llama"].startswith("llama.cpp: not measured")


def test_the_export_holds_the_matrices(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from pltz.plt_codec.weights import random_weights

    weights = random_weights(0, d=64, hidden=128)
    llama_model.write_gguf(tmp_path / "model.gguf", weights)
    found = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert len(found) == 4 + 10 * weights.shape.layers
    want, scale = weights["layer.1.down.w"], weights["layer.1.down.m"] * 16 / 256 / 2**24
    tensor = found["blk.1.ffn_down.weight"]
    got = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    assert np.array_equal(np.round(got / scale[:, None]), want)  # the integers themselves


def test_a_gated_model_has_no_export(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from pltz.plt_codec.weights import random_weights

    with pytest.raises(UsageError, match="contract 1"):
        llama_model.write_gguf(tmp_path / "model.gguf", random_weights(0, gated=True))
    assert llama_model.unavailable(random_weights(0, gated=True))

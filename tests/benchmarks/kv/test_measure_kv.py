"""The measurement of thaws from small KV, on a CPU, with the kernels by emulation: so that it runs where a GPU is."""

import json
import sys
from pathlib import Path

import pytest

from pltz.benchmarks.kv import measure_kv
from pltz.benchmarks.kv.random_calibration import random_calibration
from pltz.kv.engines import cuda
from pltz.kv.predictive import predictive
from pltz.kv.predictive.calibration import KVShape
from tests.kv.engines.test_streams import drawn
from tests.plt_codec.engines.cuda import emulate


@pytest.mark.slow
@pytest.mark.skipif(not emulate.available(), reason="the emulation needs g++ on x86-64 Linux")
def test_every_way_is_measured(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = cuda.Kernels(emulate.EmulatedDevice(emulate.Emulation({}, text=cuda.source())))
    for module in (predictive, measure_kv):
        monkeypatch.setattr(module, "kernels_on", lambda device: kernels)
    file: Path = tmp_path_factory.mktemp("calibration") / "small.kv.safetensors"
    random_calibration(bytes(16), KVShape(2, 2, 16, 64), 0, drawn(1, 2, 64)[2]).save(file)
    words = ["--calibration", str(file), "--shape", "llama-tiny", "--tokens", "40", "--device", "cpu", "--rank", "0"]
    monkeypatch.setattr(sys, "argv", ["measure_kv", *words, "--points", "-6", "--rounds", "1", "--json"])
    measure_kv.main()
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 9 and all(row["ms"] > 0 for row in found["rows"])
    assert set(found["alone_ms"]) == {"copy", "q8", "q4"}
    (coded,) = found["coded"].values()  # `alone` compares the bytes of the kernels with those of C
    assert coded["off"] < 0.01 and coded["entropy_encode_ms"] > 0 and coded["encode_ms"] > 0

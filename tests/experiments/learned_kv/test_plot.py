"""The figure of decoders: a mark for each that was measured, none for those that were not."""

from __future__ import annotations

import pytest

from pltz.benchmarks import plots


def test_each_measured_decoder_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    trained = {"name": "narrow", "share": 0.05, "trained": {"steps": 9.0}, "loss": {"kl": 0.2}}
    solved = {"name": "half", "share": 0.5, "trained": {"steps": 0.0}, "loss": {"kl": 0.1}}
    cut_off = {"name": "thin", "share": 0.5}
    run = {"target": "mini-llama", "decoders": [trained, solved, cut_off], "ends": [{"form": "q4", "kl": 0.001}]}
    text = plots.draw("universal_decoder", [run]).decode()
    assert all(f"<!-- {one} -->" in text for one in ("narrow", "half", "readers solved alone", "q4, which is stored"))
    assert "<!-- thin -->" not in text and "<!-- the KV of another session -->" not in text

"""The matrix of distances: every pair is coded, and the picture shows the groups in either scheme."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.benchmarks.measure_distances import measure
from pltz.benchmarks.plots import distances
from pltz.plt_codec.errors import ModelError


class Coder:
    """Takes a byte per token that is not at the same place of the context."""

    def __init__(self, lossy: bool = False) -> None:
        self.lossy = lossy

    def encode(self, sequences: Any, contexts: Any) -> Any:
        rows = zip(sequences, contexts, strict=True)
        pairs = [(t, np.resize(c, len(t)) if c is not None else t + 1) for t, c in rows]
        return [SimpleNamespace(data=bytes(int((t != c).sum())), tokens=t) for t, c in pairs]

    def decode(self, items: Any) -> Any:
        return [np.arange(4) + n - self.lossy for n in (0, 0, 9)]


def codec(**how: bool) -> Any:
    weights = SimpleNamespace(shape=SimpleNamespace(memory=8))
    return SimpleNamespace(coder=Coder(**how), bundle=SimpleNamespace(weights=weights))


def test_every_session_is_coded_after_every_other_and_compared() -> None:
    tokens = [np.arange(4), np.arange(4), np.arange(4) + 9]
    assert measure(codec(), tokens) == ([4, 4, 4], [[0, 0, 4], [0, 0, 4], [4, 4, 0]])
    with pytest.raises(ModelError, match="changed"):
        measure(codec(lossy=True), tokens)


def test_the_picture_tells_groups_apart() -> None:
    pytest.importorskip("matplotlib")
    after = [[40 if a % 2 == b % 2 else 90 for b in range(6)] for a in range(6)]
    result = {"source": "communities", "groups": 2, "alone": [100] * 6, "after": after}
    assert distances.within(result) == {"alone": 100, "same group": 40, "another group": 90, "nearest": 40}
    drawn = distances.heat(result, ".svg").decode()
    assert "prefers-color-scheme:dark" in drawn and drawn.count("group 1") and "coded after" in drawn

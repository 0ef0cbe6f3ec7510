"""The average of bundles keeps to their steps and computes what lies between them (models/training/average.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.training import average as module
from pltz.models.training.average import average
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.weights import Weights, random_weights


def moved(weights: Weights, share: float, seed: int) -> Weights:
    """A net trained a little further: a share of its weights a step up, its scales and multipliers a little larger."""
    random, out = np.random.default_rng(seed), {}
    for name, tensor in weights.tensors.items():
        if name.startswith("table."):
            out[name] = tensor
        elif name.endswith(".w"):
            step = (random.random(tensor.shape) < share).astype(int)
            out[name] = np.clip(tensor.astype(int) + step, -127, 127).astype(np.int8)
        else:
            out[name] = (tensor.astype(np.int64) * 101 // 100).astype(tensor.dtype)
    return Weights(weights.shape, out)


@pytest.mark.parametrize("gated", [False, True])
def test_where_nets_agree_nothing_moves_and_elsewhere_the_mean_is_right(gated: bool) -> None:
    one = random_weights(3, gated=gated)
    other = moved(one, 0.2, 4)
    found = average([one, other], [0.3, 0.7])
    for name, tensor in found.tensors.items():
        a, b = one[name].astype(np.int64), other[name].astype(np.int64)
        assert tensor.dtype == one[name].dtype
        if name.endswith(".w"):
            assert (tensor[a == b] == a[a == b]).all()
            apart = (b - a)[a != b]
            taken = (tensor.astype(np.int64) - a)[a != b]
            assert ((taken == 0) | (taken == apart)).all()
            if apart.size > 2000:
                assert abs(taken.mean() - 0.7) < 0.05
        elif not name.startswith("table."):
            assert np.abs(tensor - (0.3 * a + 0.7 * b)).max() <= 0.5
    again = average([one, other], [0.3, 0.7])
    assert all((again[k] == v).all() for k, v in found.tensors.items())  # the same seed, the same net
    assert all((average([one, other], [1.0, 0.0])[k] == v).all() for k, v in one.tensors.items())


def test_what_has_no_average_is_refused() -> None:
    one = random_weights(3)
    with pytest.raises(UsageError, match="different shapes"):
        average([one, random_weights(3, layers=one.shape.layers + 1)], [0.5, 0.5])
    for shares in ([0.5, 0.6], [1.5, -0.5], [1.0]):
        with pytest.raises(UsageError, match="sum to 1"):
            average([one, one], shares)


def test_the_command_writes_a_bundle(
    tmp_path: Path, tiny_tokenizer_json: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = random_weights(1, vocab=1024)
    for name, weights in (("one", one), ("other", moved(one, 0.1, 2))):
        write_bundle(tmp_path / name, name, weights, tiny_tokenizer_json(1024), b"words", {"note": name})
    words = [f"{tmp_path}/one=0.5", f"{tmp_path}/other=0.5", "--out", str(tmp_path / "mean")]
    monkeypatch.setattr(sys, "argv", ["average.py", *words])
    module.main()
    found = Bundle.load(tmp_path / "mean")
    assert found.name == "other" and found.card == {"note": "other"}
    assert found.id not in {Bundle.load(tmp_path / "one").id, Bundle.load(tmp_path / "other").id}

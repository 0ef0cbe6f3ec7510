"""similarity: the Poisson estimate agrees with Gaussian cosines, and thresholds let through the share asked for."""

from __future__ import annotations

import math

import pytest
import torch

from pltz.experiments.joint.similarity import Similarity, no_fusion, ratio


@pytest.fixture
def similarity() -> Similarity:
    noise = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0)).double()
    return Similarity([0.3 + 0.1 * noise[0], 0.8 + 0.02 * noise[1]])


def test_estimates_agree_with_gaussian_cosines(similarity: Similarity) -> None:
    counted = similarity.above([0.5, 0.84])
    for expected in (similarity.gaussian([0.5, 0.84]), similarity.kernel([0.5, 0.84])):
        assert expected == pytest.approx(counted, rel=0.3)


def test_thresholds_by_layer_pass_the_share_asked_for(similarity: Similarity) -> None:
    thresholds = similarity.thresholds(0.01)
    assert thresholds[0] < thresholds[1], "the layer whose blocks are more alike has the higher threshold"
    assert similarity.gaussian(thresholds) == pytest.approx([0.01, 0.01])
    assert similarity.above(thresholds) == pytest.approx([0.01, 0.01], rel=0.2)


def test_compression_of_two_runs() -> None:
    assert ratio([0.0, 0.0], 10, 10) == 1
    assert ratio([0.05], 10, 10) == 20 / 15, "five of a hundred pairs"
    assert ratio([0.9], 10, 10) == 2, "a layer fuses at most all blocks of the right run"
    assert no_fusion(0.01, 10, 10) == pytest.approx(math.exp(-1))

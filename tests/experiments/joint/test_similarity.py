"""similarity: the Poisson estimate agrees with Gaussian cosines, and thresholds let through the share asked for."""

import pytest
import torch

from pltz.experiments.joint.similarity import Similarity


@pytest.fixture
def similarity() -> Similarity:
    noise = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0)).double()
    return Similarity([0.3 + 0.1 * noise[0], 0.8 + 0.02 * noise[1]])


def test_estimates_agree_with_gaussian_cosines(similarity: Similarity) -> None:
    counted = similarity.above([0.5, 0.84])
    for expected in (similarity.gaussian([0.5, 0.84]), similarity.kernel([0.5, 0.84])):
        assert expected == pytest.approx(counted, rel=0.3)

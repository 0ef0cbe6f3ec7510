"""deployment: the levels are as they say, and sessions are spread over the bots."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.datasets.loaders import sample_sessions
from pltz.experiments.deployment import Deployment
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load("mini-llama", dtype="float32")


def test_a_deployment_has_the_levels_it_says(target: Target) -> None:
    made = Deployment.made(target, sample_sessions()[:3], communities=2, bots=4, count=5, platform=50, most=40)
    assert [len(one) for one in made.levels().values()] == [1, 2, 4, 5] and len(made.platform) == 50
    tower = made.tower(4)
    assert np.array_equal(tower[3], made.chats[1]), "sessions are taken again from the first"
    assert tower[1] is made.communities[made.community_of_bot(made.bot_of(4))] and len(tower[3]) <= 40
    assert len({one.tobytes() for one in made.bots}) == 4
    with pytest.raises(UsageError, match="communities"):
        Deployment.made(target, sample_sessions()[:1], communities=51, bots=1, count=1)

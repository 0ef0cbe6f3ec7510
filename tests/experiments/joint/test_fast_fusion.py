"""fast_fusion: equal directions become one, others stay apart, and every block is a member once."""

from __future__ import annotations

import torch

from pltz.experiments.joint.fast_fusion import Directions, fast_fusion


def run(first: int, *angles: float) -> Directions:
    at = torch.tensor(angles)
    units = torch.stack([at.cos(), at.sin()], 1)
    return Directions(units, -units, [[first + n] for n in range(len(angles))])


def test_near_directions_become_their_mean_direction() -> None:
    found = fast_fusion([run(0, 0.0, 1.5), run(10, 0.2)], 0.9)
    assert found.members == [[0, 10], [1]]
    middle = torch.tensor(0.1)
    assert torch.allclose(found.keys[0], torch.stack([middle.cos(), middle.sin()]))
    assert torch.allclose(found.values, -found.keys), "values follow the keys"


def test_every_block_is_a_member_once() -> None:
    runs = [run(10 * n, 0.0, 0.1, 0.2, 2.0 + n) for n in range(5)]
    found = fast_fusion(runs, 0.95)
    members = sorted(one for group in found.members for one in group)
    assert members == sorted(10 * n + k for n in range(5) for k in range(4))
    assert len(found.members) == len(found.keys) == len(found.values) < 20
    assert len(fast_fusion(runs, 1.1).members) == 20, "no cosine is above the threshold"


def test_the_left_one_takes_each_right_one_that_is_free() -> None:
    found = fast_fusion([run(0, 0.0, 0.1), run(10, 0.05, 0.07)], 0.9)
    assert found.members == [[0, 10, 11], [1]]

"""joint_blocks: equal blocks fuse to one, others stay apart, and each keeps its norm."""

from __future__ import annotations

import torch

from pltz.cli.bench.papers.joint_blocks import fuse
from pltz.kv.port.rotary import Rotary

ROTARY = Rotary(torch.tensor([1.0, 0.1], dtype=torch.float64))


def kv(seed: int, tokens: int = 32) -> torch.Tensor:
    return torch.randn(2, 2, 2, tokens, 8, generator=torch.Generator().manual_seed(seed))


def test_equal_sessions_fuse_to_one_and_stay_as_they_were() -> None:
    found = fuse([kv(0), kv(0), kv(0)], ROTARY, 0.99)
    assert found.ratio == 3 and found.alike == 1
    assert all(torch.allclose(one, kv(0), atol=1e-5) for one in found.kvs)
    longer = fuse([kv(0), 2 * kv(0)], ROTARY, 0.99)
    assert longer.ratio == 2 and torch.allclose(longer.kvs[1], 2 * kv(0), atol=1e-5), "each block keeps its norm"


def test_other_sessions_do_not_fuse_until_the_threshold_is_low() -> None:
    apart = fuse([kv(0), kv(1)], ROTARY, 0.9)
    assert (apart.ratio, apart.alike, apart.found) == (1, 0, 0)
    assert all(torch.allclose(one, kv(n), atol=1e-5) for n, one in enumerate(apart.kvs))
    forced = fuse([kv(0), kv(1)], ROTARY, -1)
    assert forced.ratio == 2, "the first block of the left takes both of the right"

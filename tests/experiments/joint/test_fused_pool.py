"""FusedPool: KV comes back, pages are counted, each block keeps its norm, and tenants are never mixed."""

from __future__ import annotations

import pytest
import torch

from pltz.experiments.joint.fast_fusion import Directions, fast_fusion
from pltz.experiments.joint.fused_pool import BLOCK, FusedPool
from pltz.kv.errors import PoolFull
from pltz.kv.port.rotary import Rotary
from pltz.plt_codec.errors import UsageError

ROTARY = Rotary(torch.tensor([1.0, 0.1], dtype=torch.float64))
NEVER, ALWAYS = [2.0, 2.0], [-2.0, -2.0]


def kv(seed: int, tokens: int = 40) -> torch.Tensor:
    return torch.randn(2, 2, 2, tokens, 8, generator=torch.Generator().manual_seed(seed))


def pool_of(tokens: int = 256, rotary: Rotary | None = ROTARY, **given: object) -> FusedPool:
    return FusedPool(2, 2, 8, tokens, rotary, dtype=torch.float32, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("rotary", [ROTARY, None])
def test_what_is_not_fused_comes_back(rotary: Rotary | None) -> None:
    pool = pool_of(rotary=rotary)
    sessions = [pool.add("a", kv(n)) for n in range(3)]
    assert pool.fuse(sessions, NEVER) == 0 and pool.held == 3 * 2 * 2
    for n, one in enumerate(sessions):
        assert torch.allclose(pool.kv(one), kv(n), atol=1e-5)
        assert torch.equal(pool.kv(one)[:, :, :, 32:], kv(n)[:, :, :, 32:]), "the tail is exact"


def test_equal_sessions_share_all_pages_and_keep_their_norms() -> None:
    pool = pool_of()
    sessions = [pool.add("a", k * kv(0)) for k in (1.0, 2.0, 3.0)]
    before = pool.nbytes(sessions)
    assert pool.fuse(sessions, [0.99, 0.99]) == 2 * 2 * 2 and pool.held == 4
    assert before - pool.nbytes(sessions) == 8 * pool.block_bytes
    assert all(pool.slab.holders(int(block)) == 3 for block in sessions[0].tables.flatten())
    for k, one in zip((1.0, 2.0, 3.0), sessions, strict=True):
        assert torch.allclose(pool.kv(one), k * kv(0), atol=1e-4), "each block keeps its norm"


def test_a_page_is_free_when_the_last_session_gives_it_back() -> None:
    pool = pool_of()
    first, second = (pool.add("a", kv(0)) for _ in range(2))
    pool.fuse([first, second], [0.99, 0.99])
    pool.release(first)
    pool.release(first)
    assert pool.held == 4 and torch.allclose(pool.kv(second), kv(0), atol=1e-5)
    pool.release(second)
    assert pool.held == 0


def test_chunks_of_a_session_fuse_and_other_sessions_do_not() -> None:
    pool = pool_of(rotary=None)
    half = kv(0, 32)
    sessions = [pool.add("a", torch.cat([half, half], 3)) for _ in range(2)]
    assert pool.fuse(sessions, [0.99, 0.99], chunks=2) == 2 * 2 * 2
    assert pool.held == 8, "each session has one half left"
    assert torch.allclose(pool.kv(sessions[1]), torch.cat([half, half], 3), atol=1e-5)


def test_tenants_are_never_mixed() -> None:
    pool = pool_of()
    with pytest.raises(UsageError, match="tenants"):
        pool.fuse([pool.add("a", kv(0)), pool.add("b", kv(0))], ALWAYS)
    assert pool.held == 8


def test_what_does_not_fit_is_refused_and_takes_nothing() -> None:
    pool = pool_of(BLOCK * 3)
    one = pool.add("a", kv(0))
    with pytest.raises(PoolFull):
        pool.add("a", kv(1))
    assert pool.held == 4 and torch.allclose(pool.kv(one), kv(0), atol=1e-5)
    with pytest.raises(UsageError, match="layers"):
        pool.add("a", kv(0)[:1])
    with pytest.raises(UsageError, match="threshold"):
        pool.fuse([one], [0.9])


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

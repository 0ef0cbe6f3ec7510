"""FusedPool: KV comes back, pages are counted, each block keeps its norm, and tenants are never mixed."""

import pytest
import torch

from pltz.experiments.joint.fused_pool import BLOCK, FusedPool
from pltz.experiments.joint.similarity import Similarity
from pltz.kv.errors import PoolFull
from pltz.kv.port.rotary import Rotary
from pltz.plt_codec.errors import UsageError

ROTARY = Rotary(torch.tensor([1.0, 0.1], dtype=torch.float64))
NEVER, ALWAYS = [2.0, 2.0], [-2.0, -2.0]


def kv(seed: int, tokens: int = 40) -> torch.Tensor:
    return torch.randn(2, 2, 2, tokens, 8, generator=torch.Generator().manual_seed(seed))


def pool_of(tokens: int = 256, rotary: Rotary | None = ROTARY, **given: object) -> FusedPool:
    return FusedPool(2, 2, 8, tokens, rotary, dtype=torch.float32, **given)  # type: ignore[arg-type]


def test_equal_sessions_share_all_pages_and_keep_their_norms() -> None:
    pool = pool_of()
    sessions = [pool.add("a", k * kv(0)) for k in (1.0, 2.0, 3.0)]
    before = pool.nbytes(sessions)
    assert pool.fuse(sessions, [0.99, 0.99]) == 2 * 2 * 2 and pool.held == 4
    assert before - pool.nbytes(sessions) == 8 * pool.block_bytes
    assert all(pool.slab.holders(int(block)) == 3 for block in sessions[0].tables.flatten())
    for k, one in zip((1.0, 2.0, 3.0), sessions, strict=True):
        assert torch.allclose(pool.kv(one), k * kv(0), atol=1e-4), "each block keeps its norm"


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


# ---- similarity: the Poisson estimate agrees with Gaussian cosines, and thresholds let through the share asked for


@pytest.fixture
def similarity() -> Similarity:
    noise = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0)).double()
    return Similarity([0.3 + 0.1 * noise[0], 0.8 + 0.02 * noise[1]])


def test_estimates_agree_with_gaussian_cosines(similarity: Similarity) -> None:
    counted = similarity.above([0.5, 0.84])
    for expected in (similarity.gaussian([0.5, 0.84]), similarity.kernel([0.5, 0.84])):
        assert expected == pytest.approx(counted, rel=0.3)

"""The start of a narrower student keeps what the table of a wider one says (training/nets/narrow.py)."""

from pathlib import Path

import numpy as np
import pytest

from pltz.plt_codec.errors import UsageError
from pltz.training.nets import checkpoint, narrow
from pltz.training.nets.checkpoint import NetConfig, unit

TINY = NetConfig(vocab=256, d=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=32, block=128, memory=64)


def a_table(rank: int) -> np.ndarray:
    """Return rows (256, 48) float32 that lie in `rank` directions."""
    random = np.random.default_rng(3)
    return (random.standard_normal((256, rank)) @ random.standard_normal((rank, 48))).astype(np.float32)


def test_a_table_of_few_directions_keeps_its_angles() -> None:
    table = a_table(16)
    whole, short = unit(table), narrow.projected(table, 16)
    assert short.shape == (256, 16) and short.dtype == np.float32
    np.testing.assert_allclose(short @ short.T / 16, whole @ whole.T / 48, atol=1e-5)


def test_the_net_has_the_table_and_random_layers() -> None:
    table = a_table(16)
    one, other = narrow.narrow(table, TINY, 1), narrow.narrow(table, TINY, 2)
    rows = unit(one.floats()["embed"])
    assert np.abs(rows - narrow.projected(table, 16)).max() < 0.02  # the step of int8
    name = "blocks.0.up.weight"
    assert (one.matrices[name].weights != other.matrices[name].weights).any()
    again = narrow.narrow(table, TINY, 1)
    assert all((again.matrices[k].weights == m.weights).all() for k, m in one.matrices.items())


def test_the_command_writes_a_net_that_can_be_read(tmp_path: Path) -> None:
    sizes = ["d=32", "layers=1", "heads=1", "kv_heads=1", "hidden=64", "block=2048", "memory=512", "seed=3"]
    narrow.main(["mini", str(tmp_path / "start"), *sizes])
    config = checkpoint.read(tmp_path / "start").config
    assert (config.d, config.layers, config.block, config.vocab) == (32, 1, 2048, 16384)
    for wrong in (["mini", str(tmp_path / "start")], ["mini", str(tmp_path / "x"), "d=x"], ["mini"]):
        with pytest.raises(UsageError):
            narrow.main(wrong)

"""The average of snapshots is that of their real numbers, rounded anew (training/run/snapshots.py)."""

from pathlib import Path

import numpy as np
import pytest

from pltz.plt_codec.errors import UsageError
from pltz.training.nets import checkpoint
from pltz.training.nets.checkpoint import NetConfig
from pltz.training.run.snapshots import main, mean
from tests.training.nets.test_average import TINY, a_net


def saved(folder: Path, seed: int, config: NetConfig = TINY) -> Path:
    folder.mkdir()
    checkpoint.write(a_net(seed, config), folder)
    return folder


def test_the_average_lies_between_and_is_rounded_by_its_own_scales(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "one", 1), saved(tmp_path / "other", 2)
    main([str(tmp_path / "out"), f"{one}=0.25", f"{other}=0.75"])
    a, b, c = (checkpoint.read(path).floats() for path in (one, other, tmp_path / "out"))
    for name, value in c.items():
        exact = 0.25 * a[name] + 0.75 * b[name]
        step = (0.25 * np.abs(a[name]).max() + 0.75 * np.abs(b[name]).max()) / 127  # of the widest row
        assert np.abs(value - exact).max() <= 0.51 * step


def test_other_shapes_and_shares_are_refused(tmp_path: Path) -> None:
    import dataclasses

    one, wide = saved(tmp_path / "one", 1), saved(tmp_path / "wide", 2, dataclasses.replace(TINY, hidden=96))
    with pytest.raises(UsageError, match="one shape"):
        mean({one: 0.5, wide: 0.5}, tmp_path / "out")
    with pytest.raises(UsageError, match="sum to 1"):
        mean({one: 0.5}, tmp_path / "out")
    with pytest.raises(UsageError, match="FOLDER=SHARE"):
        main([str(tmp_path / "out"), "one"])

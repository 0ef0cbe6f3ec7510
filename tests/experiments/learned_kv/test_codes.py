"""Codes of low rank: the budget that layers share, what they decode, and what training gains."""

import numpy as np
import torch
from numpy.typing import NDArray

from pltz.experiments.learned_kv.codes import Codes
from pltz.experiments.learned_kv.course import Course
from pltz.experiments.learned_kv.frozen_target import FrozenTarget

Rows = NDArray[np.int32]


def test_training_by_kl_lowers_it_and_ends_with_whole_ranks(frozen: FrozenTarget, rows: Rows) -> None:
    ids = torch.from_numpy(rows.astype(np.int64))
    exact = frozen.exact(ids[:, :64])
    codes = Codes(frozen, 4)
    codes.solve(frozen, rows, 8)
    before = frozen.loss(exact, codes(exact), ids[:, 64:])
    assert codes.train_on(frozen, rows, Course(8, 64, 8, steps=40), by_kl=True) == 40
    assert codes.temperature is None and int(codes.whole_ranks().sum()) == codes.total
    assert frozen.loss(exact, codes(exact), ids[:, 64:]) < before

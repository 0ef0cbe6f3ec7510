"""Codes of low rank: the budget that layers share, what they decode, and what training gains."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pltz.experiments.learned_kv.codes import Codes
from pltz.experiments.learned_kv.course import Course
from pltz.experiments.learned_kv.frozen_target import FrozenTarget

Rows = NDArray[np.int32]


def test_ranks_share_the_budget_and_none_is_above_the_width(frozen: FrozenTarget) -> None:
    codes = Codes(frozen, 2)
    assert codes.whole_ranks().tolist() == [16] * 6 and codes.bits == 8
    with torch.no_grad():
        codes.share.copy_(torch.tensor([5.0, 0.0, 0.1, 0.2, 0.3, 0.4]))
    ranks = codes.whole_ranks()
    assert int(ranks.sum()) == codes.total == 96
    assert int(ranks[0]) == 32 and int(ranks.max()) == 32
    assert torch.isclose(codes.ranks().sum(), torch.tensor(96.0))


def test_without_a_ratio_all_is_kept(frozen: FrozenTarget, rows: Rows) -> None:
    codes = Codes(frozen, 1)
    codes.solve(frozen, rows, 8)
    exact = frozen.exact(torch.from_numpy(rows[:2].astype(np.int64)))
    assert torch.allclose(codes(exact), exact, atol=1e-3)


def test_training_by_kl_lowers_it_and_ends_with_whole_ranks(frozen: FrozenTarget, rows: Rows) -> None:
    ids = torch.from_numpy(rows.astype(np.int64))
    exact = frozen.exact(ids[:, :64])
    codes = Codes(frozen, 4)
    codes.solve(frozen, rows, 8)
    before = frozen.loss(exact, codes(exact), ids[:, 64:])
    assert codes.train_on(frozen, rows, Course(8, 64, 8, steps=40), by_kl=True) == 40
    assert codes.temperature is None and int(codes.whole_ranks().sum()) == codes.total
    assert frozen.loss(exact, codes(exact), ids[:, 64:]) < before

"""The decoder of tokens to KV: what is exact, what training gains, what a size costs, and what is refused."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pltz.experiments.learned_kv.course import SOLVED, Course, batches, centres_of, regression, scale_of, train
from pltz.experiments.learned_kv.frozen_target import FrozenTarget
from pltz.experiments.learned_kv.network import Decoder, Size

Rows = NDArray[np.int32]
COPIES = Size("copies", 0, 2, 64, 4, 64)


def ids_of(rows: Rows) -> torch.Tensor:
    return torch.from_numpy(rows.astype(np.int64))


def test_a_copy_of_all_layers_is_exact_once_its_readers_are_solved(frozen: FrozenTarget, rows: Rows) -> None:
    decoder, ids = Decoder(frozen, COPIES), ids_of(rows)
    exact = frozen.exact(ids)
    scale = scale_of(exact)
    assert regression(decoder(ids), exact, scale) > 0.5
    decoder.solve_readers(iter([(ids, exact)]))
    assert regression(decoder(ids), exact, scale) < 1e-4


@pytest.mark.parametrize("experts", [1, 2])
def test_training_lowers_error_and_kl(frozen: FrozenTarget, rows: Rows, experts: int) -> None:
    size = Size("narrow", 0, 1, 16, 1, 32, experts)
    centres = centres_of(frozen, rows, experts) if experts > 1 else None
    torch.manual_seed(0)
    decoder = Decoder(frozen, size, centres)
    ids = ids_of(rows)
    exact = frozen.exact(ids)
    scale = scale_of(exact)
    feed = batches(rows, 8, frozen.device, seed=1)
    decoder.solve_readers((one, frozen.exact(one)) for one in [next(feed) for _ in range(SOLVED)])
    before = regression(decoder(ids), exact, scale)
    kl = frozen.loss(exact[:, :64], decoder(ids[:, :64]), ids[:, 64:])
    told = train(decoder, frozen, rows, Course(8, 64, 8, steps=30))
    assert told["steps"] == 30 and told["tokens"] == 30 * 8 * 72
    assert regression(decoder(ids), exact, scale) < before
    assert frozen.loss(exact[:, :64], decoder(ids[:, :64]), ids[:, 64:]) < kl

"""The decoder of tokens to KV: what is exact, what training gains, what a size costs, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pltz.experiments.learned_kv import __main__ as commands
from pltz.experiments.learned_kv.codes import Codes
from pltz.experiments.learned_kv.course import SOLVED, Course, batches, centres_of, regression, scale_of, train
from pltz.experiments.learned_kv.frozen_target import SINKS, ChangedForm, FrozenTarget
from pltz.experiments.learned_kv.network import Decoder, Size
from pltz.kv.calibrate.measure import compare

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
    decoder, ids = Decoder(frozen, size, centres), ids_of(rows)
    exact = frozen.exact(ids)
    scale, feed = scale_of(exact), batches(rows, 8, frozen.device, seed=1)
    decoder.solve_readers((one, frozen.exact(one)) for one in [next(feed) for _ in range(SOLVED)])
    before = regression(decoder(ids), exact, scale)
    kl = frozen.loss(exact[:, :64], decoder(ids[:, :64]), ids[:, 64:])
    told = train(decoder, frozen, rows, Course(8, 64, 8, steps=30))
    assert told["steps"] == 30 and told["tokens"] == 30 * 8 * 72 and regression(decoder(ids), exact, scale) < before
    assert frozen.loss(exact[:, :64], decoder(ids[:, :64]), ids[:, 64:]) < kl


# ---- Measure decoders and codes on networks whose answer is known, and run both commands from end to end


WHOLE = Size("whole", 2, 0, 64, 4, 0)


def test_a_form_that_changes_nothing_loses_nothing(frozen: FrozenTarget, rows: Rows) -> None:
    form = ChangedForm("same", frozen, lambda ids, exact: exact, 4.0)
    zero = ChangedForm("zero", frozen, lambda ids, exact: torch.zeros_like(exact), 0.0)
    forms = [("same", form), ("zero", zero)]
    same, lost = (one.row() for one in compare(frozen.target, rows[:2], 64, forms, control=False))
    assert same["kl"] < 1e-6 and same["top1"] == 1 and same["bits"] == (4 * 60 + 16 * SINKS) / 64
    assert lost["kl"] > 0.01 and lost["bits"] == 0


def test_both_commands(frozen: FrozenTarget, deep_llama: Path, rows: Rows, tmp_path: Path) -> None:
    file, partial = tmp_path / "rows.npz", tmp_path / "partial.json"
    np.savez(file, train=rows, test=rows[:4])
    given: dict[str, Any] = {"model": str(deep_llama), "file": file, "device": "cpu", "batch": 4, "seconds": 10}
    given |= {"test_rows": 2, "partial": partial, "steps": 4, "short": 48, "new": 8, "context": 64}
    told = commands.decoders(**given, sizes=[WHOLE, Size("narrow", 0, 1, 16, 1, 32)])
    whole, narrow = told["decoders"]
    assert whole["loss"]["kl"] < 1e-6 < narrow["loss"]["kl"]
    assert whole["trained"]["steps"] == 0 and narrow["trained"]["steps"] == 4
    assert 0 < narrow["share"] < whole["share"] < 1 and narrow["s"] > 0
    assert json.loads(partial.read_text()) == json.loads(json.dumps(told))
    assert told["ends"][0]["kl"] < narrow["loss"]["kl"] < told["ends"][1]["kl"]
    told = commands.codes(**given, ratios=[4])
    assert [one["steps"] for one in told["codes"]] == [0, 0, 4, 4, 4]
    assert told["codes"][0]["name"] == "principal directions, even"
    assert all(sum(map(sum, one["ranks"])) == 48 and one["loss"]["bits"] < 5 for one in told["codes"])
    assert {one["form"] for one in told["forms"]} == {"q8", "q4"}


# ---- Codes of low rank: the budget that layers share, what they decode, and what training gains


def test_training_by_kl_lowers_it_and_ends_with_whole_ranks(frozen: FrozenTarget, rows: Rows) -> None:
    ids = torch.from_numpy(rows.astype(np.int64))
    exact, codes = frozen.exact(ids[:, :64]), Codes(frozen, 4)
    codes.solve(frozen, rows, 8)
    before = frozen.loss(exact, codes(exact), ids[:, 64:])
    assert codes.train_on(frozen, rows, Course(8, 64, 8, steps=40), by_kl=True) == 40
    assert codes.temperature is None and int(codes.whole_ranks().sum()) == codes.total
    assert frozen.loss(exact, codes(exact), ids[:, 64:]) < before

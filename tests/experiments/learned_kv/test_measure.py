"""Measure decoders and codes on networks whose answer is known, and run both commands from end to end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pltz.experiments.learned_kv import __main__ as commands
from pltz.experiments.learned_kv.frozen_target import SINKS, ChangedForm, FrozenTarget
from pltz.experiments.learned_kv.network import Size
from pltz.kv.calibrate.measure import compare

Rows = NDArray[np.int32]
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

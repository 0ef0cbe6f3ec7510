"""bench thaw: every way is measured and checked, and the figures follow from each other."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pltz.archive.maintenance import join
from pltz.experiments.thaw import command as thaw
from pltz.kv.thaw.thawed import Thawed
from pltz.plt_codec.errors import ModelError
from tests.cli.commands import Run, ok

WORDS = ("--tokens", 60, "--rounds", 2, "--together", "1,3", "--turns", "1,5", "--threads", 1)


@pytest.mark.parametrize("shape", ["embedded", "llama-tiny"])
def test_figures_follow_from_each_other(run: Run, tiny: Path, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "FEW", 0)
    *table, last = ok(run("thaw", *WORDS, "--shape", shape)).stdout.splitlines()
    found = json.loads(last)
    rows = {row["way"]: row for row in found["rows"]}
    assert len(rows) == 10 and next(iter(rows)) == "prefill"
    for row in rows.values():
        assert row["ms"] == min(row["all_ms"]) and len(row["all_ms"]) == 2
    assert found["thaw_over_prefill"] == rows["thaw"]["over_prefill"] and 0 < rows["thaw"]["stored_bytes"] < 500
    numbers = 60 * 2 * 2 * 2
    wide = 8 * 4 if shape == "embedded" else 16 * 2
    assert rows["host memory"]["stored_bytes"] == rows["safetensors on the disk"]["stored_bytes"] == numbers * wide
    for stages in ("stages_ms", "fast_stages_ms"):
        assert {"read", "lookup", "decode", "prefill", "insert"} < found[stages].keys()
    assert [row["sessions"] for row in found["together"]] == [1, 3]
    grown = {(row["turns_are"], row["layout"], row["turns"], row["records"]) for row in found["turns"]}
    assert len(grown) == len(found["turns"]) and all(0 < row["stored_bytes"] < 900 for row in found["turns"])
    for layout in ("default", "fast"):
        assert {("apart", layout, 1, 1), ("apart", layout, 5, 5), ("joined", layout, 5, 2)} < grown
    checked = found["checked"]
    assert checked["thaws"] == 3 * 6 + 3 * (1 + 3) + 3 * len(grown) and max(checked["kv"], checked["logits"]) < 0.06
    assert shape != "embedded" or checked["same_next"] == checked["thaws"]
    assert any(line.startswith("safetensors on the disk") for line in table)


def test_a_thaw_that_went_wrong_is_no_figure() -> None:
    ids, logits = np.arange(3), torch.tensor([0.0, 1.0])
    cache: Any = SimpleNamespace(layers=[SimpleNamespace(keys=torch.ones(1), values=torch.ones(1))])
    other: Any = SimpleNamespace(layers=[SimpleNamespace(keys=torch.ones(1), values=torch.zeros(1))])

    def checked(cache_: Any, ids_: Any, logits_: Any) -> thaw.Checked:
        bench: Any = SimpleNamespace(checked=thaw.Checked(0.1))
        thaw.ThawBench.check(bench, Thawed(cache_, ids_, logits_, {}), ids, (cache, logits))
        found: thaw.Checked = bench.checked
        return found

    good = checked(cache, ids, logits)
    good.refuse()
    assert (good.thaws, good.kv, good.same_next) == (1, 0.0, 1)
    with pytest.raises(ModelError, match="no time of this run is valid"):
        checked(cache, ids + 1, logits)
    for wrong in ((other, ids, logits), (cache, ids, logits.flip(0)), (cache, ids, logits * float("nan"))):
        with pytest.raises(ModelError, match="float noise"):
            checked(*wrong).refuse()

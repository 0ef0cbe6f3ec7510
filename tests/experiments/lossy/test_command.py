"""bench lossy: bits, bytes and drift of every way, beside q4."""

from __future__ import annotations

import json
from collections.abc import Callable

from click.testing import Result

from pltz.experiments.lossy.command import NAMES, as_text
from pltz.experiments.lossy.replacement import WAYS


def test_the_command_measures_every_way(run: Callable[..., Result]) -> None:
    done = run("lossy", "--rows", "2", "--context", "64", "--new", "8", "--bits", "9", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    found = {one["way"]: one for one in result["settings"]}
    assert tuple(found) == NAMES == tuple(WAYS)
    assert all(one["replaced"] > 0 and one["kl"] > result["q4"]["kl"] for one in found.values())
    assert found["if-shorter"]["bits"] < 0 and found["if-shorter"]["replaced"] <= found["at-once"]["replaced"]
    assert "if-shorter" in as_text(result)

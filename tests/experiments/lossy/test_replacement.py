"""replacement: only rare tokens give way, and the third way never makes a row longer."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from click.testing import Result
from numpy.typing import NDArray

from pltz.experiments.lossy.command import NAMES, as_text
from pltz.experiments.lossy.replacement import WAYS, at_once, code_lengths, if_shorter
from pltz.models.target.target import Target
from tests.cli.commands import ok

TEXT = "The lamp has two switches: zebra and Vladivostok. The first one dims the lamp, and the second turns it off."


@pytest.fixture(scope="module")
def ids(target: Target) -> NDArray[np.int32]:
    return np.asarray(target.tokenize(TEXT), np.int32)


def test_if_shorter_never_gets_longer(target: Target, ids: NDArray[np.int32]) -> None:
    found = if_shorter(target, ids, 10)
    before, after = (float(code_lengths(target, one[None])[0].sum()) for one in (ids, found))
    assert (found != ids).any() and after < before
    assert after <= float(code_lengths(target, at_once(target, ids, 10)[None])[0].sum())


def test_the_command_measures_every_way(run: Callable[..., Result]) -> None:
    done = ok(run("lossy", "--rows", "2", "--context", "64", "--new", "8", "--bits", "9", "--json"))
    result = json.loads(done.stdout)
    found = {one["way"]: one for one in result["settings"]}
    assert tuple(found) == NAMES == tuple(WAYS)
    assert all(one["replaced"] > 0 and one["kl"] > result["q4"]["kl"] for one in found.values())
    assert found["if-shorter"]["bits"] < 0 and found["if-shorter"]["replaced"] <= found["at-once"]["replaced"]
    assert "if-shorter" in as_text(result)

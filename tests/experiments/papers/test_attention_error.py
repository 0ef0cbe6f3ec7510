"""attention_error: the bounds of theorems 9 and 19 hold where the steps are fine."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.experiments.papers import attention_error
from pltz.models.target.target import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load("mini-llama", dtype="float32")


def test_the_bound_of_theorem_19_holds_for_fine_steps(target: Target) -> None:
    found = attention_error.drift(target, np.arange(300, 500))
    assert found["bits"]["8"]["most"] <= 1 and found["bits"]["8"]["above"] == 0
    assert found["bits"]["2"]["rms"] > found["bits"]["4"]["rms"] > found["bits"]["8"]["rms"]
    assert 0.5 < found["per_bit"] < 1.5
    moved = attention_error.materialised(target, [np.arange(300, 340), np.arange(340, 400)])
    assert moved["turn"] <= moved["bound"] and moved["prefill"] < 1e-3
    assert attention_error.fusion_bound(target, np.arange(300, 500), 1.0) == 0

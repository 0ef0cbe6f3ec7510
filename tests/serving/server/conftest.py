"""Fixtures of the server's tests."""

from typing import Any

import pytest

from pltz.models.target.target import Target


@pytest.fixture
def says(target: Target, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes the model say a text next, and then end."""
    left: list[int] = []

    def choose(logits: Any, turns: Any) -> list[int]:
        return [left.pop(0) if left else min(target.eos_ids) for _ in turns]

    monkeypatch.setattr("pltz.serving.server.scheduler.choose", choose)
    return lambda text: left.extend(target.tokenize(text))

"""A text that begins on small KV goes on over the exact KV, token by token what the exact KV would write from there."""

from __future__ import annotations

from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from pltz.cli.bench.kv.takeover import takeovers
from pltz.kv.port.codec import RAW, CompactForm, Span
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load("mini-llama", "cpu", "float32")


ROW = np.random.default_rng(3).integers(300, 9000, 41).astype(np.int32)


class Broken(CompactForm):
    """A form that gives back noise, or refuses."""

    name, exact, receipt = "broken", False, None

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses

    def size(self, kv: torch.Tensor) -> int:
        return 0

    def encode(self, kv: torch.Tensor, span: Span) -> Any:
        if self.refuses:
            raise UsageError("not this one")
        return {"kv": kv}

    def decode(self, parts: Any, span: Span) -> torch.Tensor:
        torch.manual_seed(0)
        return 3 * torch.randn_like(parts["kv"])

    def check(self, parts: Any, tokens: int) -> None: ...


def test_exact_kv_writes_the_exact_text_and_noise_departs(target: Target) -> None:
    codecs: Any = [("raw", RAW), ("noise", Broken()), ("none", Broken(refuses=True))]
    found = takeovers(target, ROW, 40, codecs, 12)
    assert set(found) == {"raw", "noise"}
    assert found["raw"].departs is None and found["raw"].departs_small is None
    assert found["noise"].departs == found["noise"].departs_small == 0, "the first token is written on the small form"


def test_what_is_written_after_the_takeover_is_what_exact_kv_says(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The takeover comes after the first token, so only that one can be wrong by the small form itself."""
    real = Target.prefill
    there = Event()

    def prefill(self: Target, *args: Any, **more: Any) -> Any:
        try:
            return real(self, *args, **more)
        finally:
            there.set()

    monkeypatch.setattr(Target, "prefill", prefill)
    submit: Any = __import__("concurrent.futures", fromlist=["x"]).ThreadPoolExecutor.submit

    def patient(self: Any, work: Any) -> Any:
        future = submit(self, work)
        assert there.wait(60)
        future.exception(60)
        return future

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", patient)
    codecs: Any = [("noise", Broken())]
    found = takeovers(target, ROW, 40, codecs, 12)["noise"]
    assert found.on_small == 1 and found.written == 12
    [first] = _texts(target, 1)
    assert found.text[0] != first
    assert found.text[1:] == _texts(target, 12, found.text[0])[1:]


def _texts(target: Target, count: int, first: int | None = None) -> list[int]:
    """Return ``count`` greedy ids over the exact KV, of which the first may be given."""
    ids = ROW.tolist()
    found = [] if first is None else [first]
    while len(found) < count:
        _, logits = target.prefill(np.array([*ids, *found]))
        found.append(int(logits.argmax()))
    return found

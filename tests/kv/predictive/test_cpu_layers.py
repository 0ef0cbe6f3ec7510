"""The layers on a CPU against torch: the same KV and the same integers, up to rounding, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pltz.kv.forms.q8 import at_zero, in_place
from pltz.kv.port.codec import Span
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive import cpu_layers
from pltz.kv.predictive.calibration import KVShape
from pltz.kv.predictive.cpu_layers import CpuLayers
from pltz.kv.predictive.layer import Layer, quantised, restored, rows
from pltz.plt_codec.errors import CorruptError, UsageError

pytestmark = pytest.mark.skipif(not CpuLayers.there(), reason="no C compiler at the installation")
CASES = {  # layers, heads, size of a head, hidden, rank (0: full), turned pairs, tokens, place of the first
    "as SmolLM2": (4, 3, 64, 96, 24, 32, 301, 7),
    "full rank": (4, 2, 16, 40, 0, 8, 130, 0),
    "one layer": (1, 1, 32, 32, 5, 16, 33, 3),
    "odd sizes, partial rotary": (3, 3, 20, 17, 7, 4, 150, 11),
    "one token": (3, 2, 16, 32, 9, 8, 1, 0),
    "no token": (3, 2, 16, 32, 9, 8, 0, 0),
}


class Case:
    """Random matrices of a shape, with tokens and their integers; ``dense``: the share of those that are not 0."""

    def __init__(self, name: str, dense: float = 0.1) -> None:
        layers, heads, dim, hidden, rank, half, tokens, start = CASES[name]
        self.shape = KVShape(layers, heads, dim, hidden)
        draw = torch.Generator().manual_seed(1)
        width = self.shape.width

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=draw)

        self.layers = []
        for n in range(layers):
            inputs = self.shape.inputs(n)
            reduced = (normal(inputs, rank) / inputs**0.5, normal(rank, width) / rank**0.5) if rank else ()
            predict = reduced or (normal(inputs, width) / inputs**0.5,)
            decode = torch.linalg.qr(normal(width, width))[0] * 1.3
            inverse = torch.linalg.inv(decode.double()).float()
            self.layers.append(Layer(predict, normal(width), inverse.contiguous(), decode.contiguous()))
        self.rotary = Rotary(torch.logspace(0, -3, half, dtype=torch.float64))
        self.span = Span(np.zeros(tokens, np.int32), start)
        self.embedded, self.step = normal(tokens, hidden), normal(tokens, 1).exp() * 0.3
        q = (normal(tokens, layers, width) * 9).round() * (torch.rand(tokens, layers, width, generator=draw) < dense)
        self.q = q.to(torch.int16).numpy()
        self.angles = self.rotary.angles(start, tokens, torch.device("cpu"))
        self.cpu = CpuLayers(self.layers, self.shape)

    def by_torch(self) -> torch.Tensor:
        still = torch.stack(restored(self.layers, self.q, self.embedded, self.step))
        still = still.unflatten(2, (2, self.shape.heads, self.shape.dim)).permute(0, 2, 3, 1, 4)
        return in_place(still, self.span, self.rotary)

    def by_c(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self.cpu.restore(self.q, self.embedded, self.step, self.angles, dtype)


@pytest.mark.parametrize("dense", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("widest", [64, 32, 16])
def test_kv_is_that_of_torch(name: str, dense: float, widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_layers, "WIDEST", widest)
    case = Case(name, dense)
    expected = case.by_torch()
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    assert torch.allclose(case.by_c(), expected, rtol=0, atol=1e-5 * largest)
    for dtype in (torch.bfloat16, torch.float16):
        found = case.by_c(dtype)
        assert found.dtype == dtype and torch.equal(found, case.by_c().to(dtype))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("widest", [64, 32, 16])
def test_integers_of_the_encoder_come_back(name: str, widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_layers, "WIDEST", widest)
    case = Case(name)
    kv = case.by_torch()
    kv += 0.3 * torch.randn(kv.shape, generator=torch.Generator().manual_seed(2))
    found = case.cpu.quantise(kv, case.embedded, case.step, case.angles)
    by_torch = quantised(case.layers, rows(at_zero(kv, case.span, case.rotary)), case.embedded, case.step)
    assert found.shape == by_torch.shape and found.dtype == np.int16
    assert (found != by_torch).sum() <= 2e-3 * found.size, "only ties differ"
    case.q = found
    far = (case.by_c() - kv).abs()
    assert not kv.numel() or (float(far.max()) < 30 * float(case.step.max()) and float((far > 0).float().mean()) > 0.9)


def test_kv_that_cannot_be_said_is_refused() -> None:
    case = Case("as SmolLM2")
    kv = case.by_c()
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = kv.clone()
        bad[2, 1, 1, 200, 5] = value
        with pytest.raises(UsageError, match="not finite"):
            case.cpu.quantise(bad, case.embedded, case.step, case.angles)
    far = kv.clone()
    far[1, 0, 0, 299, 3] = 1e7
    with pytest.raises(UsageError, match="further from their prediction"):
        case.cpu.quantise(far, case.embedded, case.step, case.angles)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_beyond_the_type_are_refused(dtype: torch.dtype) -> None:
    case = Case("odd sizes, partial rotary")
    case.step[140] = 3e38 if dtype != torch.float16 else 1e5
    with pytest.raises(CorruptError, match="not finite"):
        case.by_c(dtype)


def test_a_number_that_only_rounds_beyond_bfloat16_is_refused() -> None:
    case = Case("one token", 0.0)
    layer = case.layers[2]
    case.layers[2] = layer._replace(constant=torch.full_like(layer.constant, 0), predict=(
        layer.predict[0] * 0, layer.predict[1]), decode=torch.eye(64))  # fmt: skip
    case.cpu = CpuLayers(case.layers, case.shape)
    case.q[0, 2, 40], case.step[:] = 1, 3.4e38  # a value: no turn makes it smaller
    assert torch.isfinite(case.by_c()).all()
    with pytest.raises(CorruptError, match="not finite"):
        case.by_c(torch.bfloat16)


def test_what_does_not_fit_is_refused_before_it_is_read() -> None:
    layers: Any = pytest.importorskip("pltz.kv.predictive._layers")
    case = Case("as SmolLM2")
    kv, tokens = np.empty(4 * 6 * 64 * 301, np.float32), 301
    inputs = [part.numpy() for part in (case.embedded, case.step, *case.angles)]

    def run(**other: Any) -> int:
        given = {
            "matrices": case.cpu.matrices, "hidden": 96, "heads": 3, "dim": 64, "embedded": inputs[0],
            "step": inputs[1], "cos": inputs[2], "sin": inputs[3], "q": case.q, "kv": kv, "size": 4, "first": 0,
            "last": tokens, "widest": 64,
        } | other  # fmt: skip
        found: int = layers.restore(*given.values())
        return found

    assert run() == 0
    short: dict[str, Any] = {"hidden": 97, "heads": 2, "dim": 63, "size": 3, "first": -1, "last": 302}
    for name in ("embedded", "step", "cos", "sin", "q", "kv"):
        array = {"embedded": inputs[0], "step": inputs[1], "cos": inputs[2], "sin": inputs[3], "q": case.q, "kv": kv}
        short[name] = array[name].ravel()[:-1].copy()
    for name, value in short.items():
        with pytest.raises(ValueError, match="another shape"):
            run(**{name: value})
    for n, matrix in enumerate(case.cpu.matrices):
        cut = (*case.cpu.matrices[:n], matrix.ravel()[:-1].copy(), *case.cpu.matrices[n + 1 :])
        with pytest.raises(ValueError, match="another shape"):
            run(matrices=cut)
    with pytest.raises(ValueError, match="another shape"):
        run(matrices=case.cpu.matrices[:-1])
    for heads, dim in ((1 << 62, 64), (1 << 62, 1 << 62), (1 << 15, 1 << 15)):  # sanitizers see products of them
        with pytest.raises(ValueError, match="another shape"):
            run(heads=heads, dim=dim)
    with pytest.raises(TypeError):
        run(matrices=(None,) * 7)

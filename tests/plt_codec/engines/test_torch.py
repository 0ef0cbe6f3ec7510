"""The torch engine against the oracle, at ordinary and at extreme weights, and under settings of torch that round."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pltz.benchmarks.random_weights import random_weights
from pltz.plt_codec.engines.torch import EXACT, Memory, Product, TorchEngine
from pltz.plt_codec.errors import ModelError, UsageError
from pltz.plt_codec.lanes import TokenBlock
from pltz.plt_codec.weights import Weights
from tests.second_reader.model import Model

Ints = npt.NDArray[np.int64]


def test_saturated_and_equal_logits() -> None:
    """All-equal logits give equal frequencies up to one; a huge gap leaves one count to every other symbol."""
    weights = random_weights(1)
    engine, second = TorchEngine(weights), Model(weights.shape.to_dict(), dict(weights.tensors))
    for row in (np.zeros(128), np.eye(128)[7] * 10**6, np.arange(128) * 40, -(np.arange(128) ** 3)):
        logits = row.astype(np.int64)
        f = engine._frequencies(torch.from_numpy(logits[None]))[0].numpy()
        assert f.tolist() == np.diff(second._cumulative(logits)).tolist() and f.min() >= 1 and f.sum() == 1 << 24


def test_products_wider_than_float32_are_cut() -> None:
    """A row whose largest sum passes 2^24 is multiplied in pieces, and stays exact."""
    w = np.full((8, 2048), 127, np.int8)
    product = Product(w, np.full(8, 1 << 24, np.int32), 254, torch.device("cpu"))
    assert len(product.weights) > 1 and all(127 * 254 * c < EXACT for c in product.columns)
    a = torch.full((3, 2048), 254.0)
    a[1] = 1.0
    assert product(a)[:, 0].tolist() == [127 * 254 * 2048, 127 * 2048, 127 * 254 * 2048]


def test_precision_settings_change_nothing() -> None:
    weights = random_weights(2, block=64, memory=16)
    engine, rng = TorchEngine(weights), np.random.default_rng(0)
    blocks = [TokenBlock(0, n, lanes) for n, lanes in ((40, 1), (64, 4), (33, 16), (1, 1))]
    rows = [(b.inputs(rng.integers(0, 512, b.tokens), 0), b.targets()) for b in blocks]
    before = [engine.run(*row, Memory.empty(engine)) for row in rows]
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu"):
            after = [engine.run(*row, Memory.empty(engine)) for row in rows]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_unknown_device_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="device"):
        TorchEngine(random_weights(1), device="nonsense")
    with pytest.raises(UsageError, match="thread"):
        TorchEngine(random_weights(1), threads=0)


@pytest.mark.parametrize("name, change, message", [
    ("embed.w", lambda t: t.astype(np.int16), "expected int8"), ("layer.0.qkv.m", lambda t: -t, "negative"),
    ("class.w", lambda t: np.full_like(t, -128), "-127..127"), ("table.exp", lambda t: t[::-1].copy(), "table.exp"),
    ("table.cos", lambda t: t * 2, "table.cos"), ("member.b", lambda t: t + (1 << 25), "biases"),
    ("layer.1.down.w", None, "missing"),
])
def test_broken_tensors_are_refused(name: str, change: object, message: str) -> None:
    good = random_weights(1)
    tensors = dict(good.tensors)
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change(tensors[name])  # type: ignore[operator]
    with pytest.raises(ModelError, match=message):
        Weights(good.shape, tensors)

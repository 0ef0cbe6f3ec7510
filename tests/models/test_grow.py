"""A net made larger computes what it did."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from pltz.models.training import net as nets
from pltz.models.training import net_files
from pltz.models.training.export import export
from pltz.models.training.grow import grown, misfits
from pltz.models.training.net import Net
from pltz.models.training.net_files import Floats
from pltz.models.training.shape import NetConfig
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.errors import UsageError

SMALL = NetConfig(vocab=256, d=32, layers=3, heads=2, kv_heads=1, head_dim=16, hidden=48, block=64, memory=32)
GATED = dataclasses.replace(SMALL, gated=True)


def a_state(config: NetConfig) -> dict[str, Floats]:
    """Of a net that looks trained: biases and outputs are not small."""
    torch.manual_seed(7)
    net = Net(config)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * p.abs().mean().clamp(min=0.05))
    return {k: v.numpy() for k, v in nets.state(net).items()}


def logits(state: dict[str, Floats], config: NetConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Of both levels, for one row of random ids."""
    net = Net(config)
    net.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    torch.manual_seed(1)
    row = torch.randint(0, config.vocab, (1, 40))
    at = torch.arange(40)[None]
    with torch.no_grad():
        batch = {"doc": at * 0, "time": at, "position": at, "block_start": at * 0}
        x, table = net.body(row, at, nets.mask_of(batch, config.memory))
        x = x.flatten(0, 1)
        classes = net.class_logits(x)
        cls, order = torch.sort(classes.argmax(1))
        return net.levels(x, table, order, cls)


@pytest.mark.parametrize("config", [SMALL, GATED], ids=["contract 1", "contract 2"])
@pytest.mark.parametrize(
    "larger", [{"layers": 4}, {"layers": 7}, {"hidden": 80}, {"layers": 5, "hidden": 64}], ids=str
)
def test_a_grown_net_computes_what_it_did(config: NetConfig, larger: dict[str, Any]) -> None:
    state = a_state(config)
    new = dataclasses.replace(config, **larger)
    more = grown(state, config, new)
    assert {k: v.shape for k, v in more.items()} == new.tensors()
    for one, other in zip(logits(state, config), logits(more, new), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=2e-4)


@pytest.mark.parametrize("config", [SMALL, GATED], ids=["contract 1", "contract 2"])
def test_what_is_new_learns_from_the_first_step(config: NetConfig) -> None:
    new = dataclasses.replace(config, layers=4, hidden=64)
    net = Net(new)
    net.load_state_dict({k: torch.from_numpy(v) for k, v in grown(a_state(config), config, new).items()})
    at = torch.arange(40)[None]
    batch = {"doc": at * 0, "time": at, "position": at, "block_start": at * 0}
    row = torch.randint(0, config.vocab, (41,))
    x, table = net.body(row[None, :-1], at, nets.mask_of(batch, new.memory))
    sum(net.losses(x.flatten(0, 1), table, row[1:])).sum().backward()  # type: ignore[union-attr]
    new_layer = next(i for i in range(4) if not net.state_dict()[f"blocks.{i}.out.weight"].any())
    for name in (f"blocks.{new_layer}.out.weight", f"blocks.{new_layer}.down.weight"):
        grad = dict(net.named_parameters())[name].grad
        assert grad is not None and bool(grad.abs().sum() > 0)
    other = dict(net.named_parameters())[f"blocks.{0 if new_layer else 1}.down.weight"].grad
    assert other is not None and bool(other[:, 48:].abs().sum() > 0)


def test_a_grown_net_becomes_integers_that_compute_the_same() -> None:
    """Not one frequency changes: zeros add nothing in the integers either."""
    state = a_state(SMALL)
    new = dataclasses.replace(SMALL, layers=4, hidden=64)
    old_weights = export(net_files.rounded(state, SMALL))
    new_weights = export(net_files.rounded(grown(state, SMALL, new), new))
    ids = np.random.default_rng(3).integers(0, 256, 40)
    one, other = (TokenCoder(TorchEngine(w)).encode([ids])[0] for w in (old_weights, new_weights))
    assert one.data == other.data and one.ideal_bits == other.ideal_bits


@pytest.mark.parametrize(
    ("change", "words"),
    [({"layers": 2}, "layers = 3 or more"), ({"hidden": 32}, "hidden = 48 or more"), ({"d": 64}, "d = 32")],
    ids=str,
)
def test_a_net_does_not_shrink(change: dict[str, Any], words: str) -> None:
    smaller = dataclasses.replace(SMALL, **change)
    assert misfits(SMALL, smaller) == [words]
    with pytest.raises(UsageError, match=words):
        grown(a_state(SMALL), SMALL, smaller)
    assert not misfits(SMALL, dataclasses.replace(SMALL, layers=9, hidden=64, memory=16))

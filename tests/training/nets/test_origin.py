"""A net that starts from a bundle codes as the bundle does, a larger one too (training/nets/origin.py)."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pltz.datasets import sample_sessions
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.session.transcript import to_tokens
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.errors import UsageError
from pltz.training.data import dataloader
from pltz.training.nets import checkpoint, net as nets
from pltz.training.nets.checkpoint import Floats, NetConfig
from pltz.training.nets.export import export
from pltz.training.nets.net import A_SCALE, Net, built, mask_of, rounded_net
from pltz.training.nets.origin import Origin, grown, misfits

TINY = NetConfig(vocab=1024, d=32, layers=2, heads=2, kv_heads=1, head_dim=16, hidden=64, block=128, memory=64)


@pytest.fixture(params=[False, True], ids=["contract 1", "contract 2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, tiny_tokenizer_json: Callable[..., bytes]) -> Path:
    """A tiny bundle, of a net that is random in its head too, so that some tokens are likelier than others."""
    torch.manual_seed(1)
    net = Net(dataclasses.replace(TINY, gated=request.param))
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith(("classes", "class_shift", "bias")):
                p.normal_(0, 0.1)
        if request.param:  # whose head is fed integers
            net.classes.div_(A_SCALE)
            net.member_gain.sub_(math.log(A_SCALE))
    weights = export(rounded_net(net))
    write_bundle(tmp_path / "tiny", "tiny", weights, tiny_tokenizer_json(), b"words " * 50, {})
    return tmp_path / "tiny"


def bits(name: str | Path, tmp_path: Path, count: int) -> tuple[float, float]:
    """Return the ideal bits of sample sessions by a bundle's integers, and by the net to train on from it."""
    bundle, net_folder = Bundle.load(name), tmp_path / "net"
    tokens = [to_tokens(session, bundle.tokenizer) for session in sample_sessions()[:count]]
    net_folder.mkdir()
    Origin(str(name), "[student] start").write(net_folder)
    net, total = built(checkpoint.read(net_folder)), 0.0
    block = net.cfg.block
    for ids in tokens:
        part = dataloader.lay(np.asarray(ids, np.int64), block, lambda t: dataloader.few_lanes(t, block), 0)
        batch = {k: torch.from_numpy(part[i][None].astype(np.int32)) for i, k in enumerate(dataloader.KEYS)}
        with torch.no_grad():
            x, table = net.body(batch["input"], batch["position"], mask_of(batch, net.cfg.memory))
            first, second = net.losses(x.flatten(0, 1), table, batch["target"].flatten())
        total += float((first + second).double().sum()) / math.log(2)
    return sum(e.ideal_bits for e in bundle.coder(threads=1).encode(tokens)), total


def test_before_any_step_it_codes_as_the_bundle_does(folder: Path, tmp_path: Path) -> None:
    integers, floats = bits(folder, tmp_path, 3)
    assert floats == pytest.approx(integers, rel=0.01)


def test_another_shape_or_tokenizer_is_refused(folder: Path, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    origin = Origin(str(folder), "[student] start")
    wide = dataclasses.replace(origin.net.config, d=64, rope_base=5e5)
    with pytest.raises(UsageError, match=r"^\[student\] start: .*set d = 32, rope_base = 10000.0$"):
        origin.check_shape(wide)
    origin.check_tokenizer(tiny_tokenizer_json())
    with pytest.raises(UsageError, match=r"^\[student\] start: .* another tokenizer: use \[tokenizer\]"):
        origin.check_tokenizer(tiny_tokenizer_json(1152))
    with pytest.raises(UsageError, match="no bundle 'absent'"):
        Origin("absent", "")


SMALL = NetConfig(vocab=256, d=32, layers=3, heads=2, kv_heads=1, head_dim=16, hidden=48, block=64, memory=32)
GATED = dataclasses.replace(SMALL, gated=True)


def a_state(config: NetConfig) -> dict[str, Floats]:
    """Return a net that looks trained: biases and outputs are not small."""
    torch.manual_seed(7)
    net = Net(config)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * p.abs().mean().clamp(min=0.05))
    return {k: v.numpy() for k, v in nets.state(net).items()}


def logits(state: dict[str, Floats], config: NetConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of both levels, for one row of random ids."""
    net = Net(config)
    net.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    torch.manual_seed(1)
    row, at = torch.randint(0, config.vocab, (1, 40)), torch.arange(40)[None]
    with torch.no_grad():
        batch = {"doc": at * 0, "time": at, "position": at, "block_start": at * 0}
        x, table = net.body(row, at, nets.mask_of(batch, config.memory))
        x = x.flatten(0, 1)
        classes = net.class_logits(x)
        cls, order = torch.sort(classes.argmax(1))
        return net.levels(x, table, order, cls)


@pytest.mark.parametrize("config", [SMALL, GATED], ids=["contract 1", "contract 2"])
@pytest.mark.parametrize("larger", [{"layers": 4}, {"layers": 7}, {"hidden": 80}, {"layers": 5, "hidden": 64}], ids=str)
def test_a_grown_net_computes_what_it_did(config: NetConfig, larger: dict[str, Any]) -> None:
    state, new = a_state(config), dataclasses.replace(config, **larger)
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
    state, new = a_state(SMALL), dataclasses.replace(SMALL, layers=4, hidden=64)
    old_weights = export(checkpoint.rounded(state, SMALL))
    new_weights = export(checkpoint.rounded(grown(state, SMALL, new), new))
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

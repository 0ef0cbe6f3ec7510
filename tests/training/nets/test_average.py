"""The average of two nets takes each part in its share (training/nets/average.py)."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.plt_codec.errors import UsageError
from pltz.training.nets import average, checkpoint
from pltz.training.nets.average import PARTS, averaged, part_of, tempered
from pltz.training.nets.checkpoint import NetConfig, Rounded
from pltz.training.nets.export import export
from pltz.training.nets.net import Net, rounded_net
from pltz.training.nets.origin import Origin

TINY = NetConfig(vocab=1024, d=32, layers=3, heads=2, kv_heads=1, head_dim=16, hidden=64, block=128, memory=64)


def a_net(seed: int, config: NetConfig = TINY) -> Rounded:
    torch.manual_seed(seed)
    net = Net(config)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return rounded_net(net)


@pytest.mark.parametrize("gated", [False, True], ids=["contract 1", "contract 2"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_the_others_and_the_rest_stays(part: str, gated: bool) -> None:
    config = dataclasses.replace(TINY, gated=gated)
    one, other = a_net(1, config), a_net(2, config)
    found = averaged(one, other, {name: float(name == part) for name in PARTS})
    taken = {name for name in config.tensors() if part_of(name, config.layers) == part}
    assert taken
    for name in config.tensors():
        origin = other if name in taken else one
        if name in origin.rest:
            np.testing.assert_array_equal(found.rest[name], origin.rest[name])
        else:
            steps = found.matrices[name].weights.astype(int) - origin.matrices[name].weights
            assert np.abs(steps).max() <= 1 and np.mean(steps != 0) < 0.001, name


def test_the_shares_of_mini_make_a_bundle(tmp_path: Path, tiny_tokenizer_json: Callable[..., bytes]) -> None:
    one, other = a_net(1), a_net(2)
    write_bundle(tmp_path / "one", "one", export(one), tiny_tokenizer_json(), b"words " * 50, {})
    (tmp_path / "other").mkdir()
    checkpoint.write(other, tmp_path / "other")
    of_mini = (Path(average.__file__).parents[1] / "mini_average.toml").read_text("utf8")
    shares = tmp_path / "shares.toml"
    shares.write_text(of_mini + "\n[factors]\nattention = 0.97\n", "utf8")
    arguments = [str(tmp_path / "one"), str(tmp_path / "other"), str(shares), str(tmp_path / "made")]
    average.main(arguments)
    made, given = Bundle.load(tmp_path / "made"), Bundle.load(tmp_path / "one")
    assert made.tokenizer.json == given.tokenizer.json and made.zstd_dict == given.zstd_dict
    of, factors = average.read(shares)
    net = averaged(Origin(arguments[0], "ONE").net, other, of)
    cold, warm = export(net), Bundle.load(tmp_path / "made").weights
    assert (warm["layer.0.heat"] == np.round(cold["layer.0.heat"] * factors["attention"])).all()
    assert (warm["layer.0.up.w"] == cold["layer.0.up.w"]).all()
    with pytest.raises(UsageError, match="exists: choose another output"):
        average.main(arguments)


def test_what_cannot_be_averaged_is_refused(tmp_path: Path) -> None:
    one, half = a_net(1), dict.fromkeys(PARTS, 0.5)
    with pytest.raises(UsageError, match="nets of one shape"):
        averaged(one, a_net(1, dataclasses.replace(TINY, hidden=32)), half)
    with pytest.raises(UsageError, match=r"^\[shares\] head: expected a number from 0 to 1"):
        averaged(one, one, half | {"head": 1.5})
    with pytest.raises(UsageError, match=r"^\[shares\]: expected embedding, "):
        averaged(one, one, {"head": 0.5})
    with pytest.raises(UsageError, match=r"^\[factors\] tail: expected some of class, "):
        tempered(export(one), {"tail": 1.1})
    (tmp_path / "a.toml").write_text("[share]\nhead = 1\n")
    with pytest.raises(UsageError, match="and nothing else"):
        average.read(tmp_path / "a.toml")

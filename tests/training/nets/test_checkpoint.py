"""Rounded nets on disk have the tensors of their configuration, or are refused (training/nets/checkpoint.py)."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from pltz.plt_codec.errors import ModelError
from pltz.training.nets import checkpoint, net as nets
from pltz.training.nets.checkpoint import NetConfig
from pltz.training.nets.net import Net, rounded_net
from tests.watch import memory_below

TINY = NetConfig(vocab=256, d=32, layers=2, heads=2, kv_heads=1, head_dim=16, hidden=64, memory=64)
GATED = dataclasses.replace(TINY, gated=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint.write(rounded_net(Net(TINY)), tmp_path)
    return tmp_path


@pytest.mark.parametrize("config", [TINY, GATED])
def test_the_tensors_of_a_configuration_are_those_of_its_net(config: NetConfig, tmp_path: Path) -> None:
    net = Net(config)
    assert config.tensors() == {k: tuple(v.shape) for k, v in net.state_dict().items()}
    checkpoint.write(rounded_net(net), tmp_path)
    held = safetensors.numpy.load_file(tmp_path / checkpoint.NET)
    assert config.size() == sum(t.nbytes for t in held.values())
    assert NetConfig.read(json.loads((tmp_path / checkpoint.CONFIG).read_text())) == config


@pytest.mark.parametrize("change, message", [
    ({"layers": 10**9}, "layers must be"), ({"d": 10**6}, "d must be"), ({"d": 0}, "d must be"),
    ({"d": True}, "d must be"), ({"hidden": "64"}, "hidden must be"), ({"vocab": 300}, "do not divide"),
    ({"kv_heads": 3}, "do not divide"), ({"rope_base": float("nan")}, "rope_base must be"),
    ({"residual_max": -1.0}, "residual_max must be"), ({"gated": 1}, "gated must be true or false"),
    ({"more": 1}, "other keys"), ({"layers": 3}, r"blocks\.2"), ({"layers": 1}, r"blocks\.1"),
    ({"hidden": 8192}, r"blocks\.0\.down"), ({"gated": True}, "gate.weight|norm_in"),
])
def test_a_configuration_that_lies_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    tree = json.loads((folder / checkpoint.CONFIG).read_text())
    (folder / checkpoint.CONFIG).write_text(json.dumps({**tree, **change}))
    with memory_below(4 << 20), pytest.raises(ModelError, match=message):
        checkpoint.read(folder)


@pytest.mark.parametrize("name, value, message", [
    ("embed", None, "embed"), ("member_bias", np.zeros(255, np.float32), "member_bias"),
    ("classes", np.zeros((2, 32), np.float32), "classes"), ("extra", np.zeros(1, np.float32), "extra"),
])
def test_tensors_that_do_not_fit_are_refused(folder: Path, name: str, value: np.ndarray | None, message: str) -> None:
    tensors = safetensors.numpy.load_file(folder / checkpoint.NET)
    tensors.pop(name, None)
    if value is not None:
        tensors[name] = value
    safetensors.numpy.save_file(tensors, folder / checkpoint.NET)
    with pytest.raises(ModelError, match=message):
        checkpoint.read(folder)


def test_a_rounded_net_is_the_trained_one_and_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(3)
    for config in (TINY, dataclasses.replace(TINY, gated=True, step=0.28)):
        found = nets.rounded_net(Net(config))
        checkpoint.write(found, tmp_path)
        back = checkpoint.read(tmp_path)
        assert back.config == config and sorted(back.rest) == sorted(found.rest)
        for name, matrix in found.matrices.items():
            assert (back.matrices[name].weights == matrix.weights).all(), name
            assert (back.matrices[name].scale == matrix.scale).all(), name
        assert all(np.array_equal(back.rest[name], value) for name, value in found.rest.items())
        nets.built(back)

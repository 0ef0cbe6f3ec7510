"""A net that starts from a bundle codes as the bundle does, and what does not fit is refused by name (models/training/origin.py)."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pltz.datasets import sample_sessions
from pltz.models.bundle.bundle import Bundle, write_bundle
from pltz.models.bundle.tokenizer import BundleTokenizer
from pltz.models.session.transcript import to_tokens
from pltz.models.training import dataloader, net_files, records, settings, train
from pltz.models.training.assembly import _described
from pltz.models.training.export import export, restore
from pltz.models.training.net import A_SCALE, Net, built, mask_of, rounded_net
from pltz.models.training.origin import Origin
from pltz.models.training.shape import NetConfig
from pltz.plt_codec.errors import UsageError

TINY = NetConfig(
    vocab=1024, d=32, layers=2, heads=2, kv_heads=1, head_dim=16, hidden=64, block=128, memory=64
)


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
    """Ideal code length of the first sample sessions by a bundle's integers, and by the net that would be trained on from it."""
    bundle, net_folder = Bundle.load(name), tmp_path / "net"
    tokens = [to_tokens(session, bundle.tokenizer) for session in sample_sessions()[:count]]
    net_folder.mkdir()
    Origin(str(name), "[student] start").write(net_folder)
    net = built(net_files.read(net_folder))
    total = 0.0
    for ids in tokens:
        part = dataloader.lay(np.asarray(ids, np.int64), net.cfg.block, dataloader.default_lanes, 0)
        batch = {k: torch.from_numpy(part[i][None].astype(np.int32)) for i, k in enumerate(dataloader.KEYS)}
        with torch.no_grad():
            x, table = net.body(batch["input"], batch["position"], mask_of(batch, net.cfg.memory))
            first, second = net.losses(x.flatten(0, 1), table, batch["target"].flatten())
        total += float((first + second).double().sum()) / math.log(2)
    return sum(e.ideal_bits for e in bundle.coder(threads=1).encode(tokens)), total


def test_before_any_step_it_codes_as_the_bundle_does(folder: Path, tmp_path: Path) -> None:
    integers, floats = bits(folder, tmp_path, 3)
    assert floats == pytest.approx(integers, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count", "within"), [("mini", 8, 0.01), ("base", 3, 0.02)])
def test_before_any_step_it_codes_as_the_bundles_that_ship_do(
    name: str, count: int, within: float, tmp_path: Path
) -> None:
    """Over 30 layers of roundings a single session comes out up to 2 % longer or shorter, as chance has it. Half a minute for base."""
    integers, floats = bits(name, tmp_path, count)
    assert floats == pytest.approx(integers, rel=within)


def test_its_steps_are_those_of_the_weights(tiny_tokenizer: BundleTokenizer) -> None:
    """Weights whose smallest step was coarse stay on their grid; without one, a row reaches 127."""
    torch.manual_seed(2)
    for step in (0.0, 0.3):
        net = Net(dataclasses.replace(TINY, gated=True, d=128, hidden=256, step=step))
        first = rounded_net(net)
        again = restore(export(first))
        assert again.config.step == pytest.approx(step, rel=0.02)
        once_more = net_files.rounded(again.floats(), again.config)
        for name, rows in first.matrices.items():
            assert np.abs(rows.weights.astype(int) - once_more.matrices[name].weights).max() <= 1, name


def configuration(folder: Path, **student: Any) -> Path:
    """A file that starts from the bundle beside it and trains a step of next to no length."""
    plan = {"start": "tiny", "steps": 1, "rows": 1, "row": 128, "muon_rate": 0.0, "adam_rate": 0.0}
    plan |= {"relative_rate": 0.0, "weight_decay": 0.0, **student}
    lines = ["[data]", 'files = ["a"]', "[tokenizer]", 'kind = "bundle"', 'bundle = "tiny"', "[student]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in plan.items()]
    path = folder.parent / "tiny.toml"
    path.write_text("\n".join(lines))
    return path


def test_a_student_has_the_shape_of_what_it_starts_from(folder: Path) -> None:
    found = settings.load(configuration(folder, memory=32))
    wanted = dataclasses.replace(Origin(str(folder), "").net.config, memory=32)
    assert NetConfig.of(found.student, found.student, 1024) == wanted
    assert found.student.start == found.tokenizer.bundle == str(folder)
    Origin(str(folder), "").check_shape(wanted)


def test_another_shape_or_tokenizer_is_refused(
    folder: Path, tiny_tokenizer_json: Callable[..., bytes]
) -> None:
    origin = Origin(str(folder), "[student] start")
    wide = dataclasses.replace(origin.net.config, d=64, rope_base=5e5)
    with pytest.raises(UsageError, match=r"^\[student\] start: .*set d = 32, rope_base = 10000.0$"):
        origin.check_shape(wide)
    origin.check_tokenizer(tiny_tokenizer_json())
    with pytest.raises(UsageError, match=r"^\[student\] start: .* another tokenizer: use \[tokenizer\]"):
        origin.check_tokenizer(tiny_tokenizer_json(1152))
    with pytest.raises(UsageError, match="no bundle 'absent'"):
        Origin("absent", "")


def streams_in(folder: Path, tokenizer: BundleTokenizer) -> Path:
    """Streams of five sample sessions."""
    streams = folder / "streams"
    streams.mkdir()
    (streams / "tokenizer.json").write_bytes(tokenizer.json)
    out = records.Streams(streams, tokenizer)
    out.add("train", [records.record(s, "sample.jsonl") for s in sample_sessions()[:5]])
    out.finish()
    return streams


@pytest.mark.parametrize("given", ["bundle", "net"])
def test_training_elsewhere_starts_from_it(
    folder: Path, tmp_path: Path, tiny_tokenizer: BundleTokenizer, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """train.py: from the configuration's bundle, or from a net by its folder; a step of next to no length leaves the weights."""
    streams, run, net = streams_in(tmp_path, tiny_tokenizer), tmp_path / "run", tmp_path / "net"
    net.mkdir()
    Origin(str(folder), "").write(net)
    words = [str(configuration(folder)), "--streams", str(streams), "--out", str(run), "--gpus", "0"]
    monkeypatch.setattr(sys, "argv", ["train.py", *words, *(["--start", str(net)] if given == "net" else [])])
    train.main()
    assert len(list(run.glob("net-*"))) == (given == "bundle")
    weights, trained = Bundle.load(folder).weights, export(net_files.read(run))
    for name, tensor in weights.tensors.items():
        if name.endswith(".w") and name.startswith("layer."):
            assert np.abs(tensor.astype(int) - trained[name]).mean() < 2, name  # of another net: about 40


def test_a_teacher_in_floats_trains_and_teaches(
    tmp_path: Path, tiny_tokenizer: BundleTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """train.py --teach: a net with biases and without roundings goes on from its own, and a gated student of another shape learns from it."""
    streams, start = streams_in(tmp_path, tiny_tokenizer), tmp_path / "start"
    start.mkdir()
    torch.manual_seed(2)
    net_files.write(
        rounded_net(Net(dataclasses.replace(TINY, d=48, gated=True, bias=True, quant=False))), start
    )
    config = tmp_path / "taught.toml"
    config.write_text(
        'name = "taught"\n[data]\nfiles = ["chats.jsonl"]\ntext_share = 0.0\n'
        '[teacher]\nstart = "start"\nshare = 0.7\nsteps = 3\nrows = 1\nrelative_rate = 0.01\n'
        "[student]\nd = 32\nlayers = 1\nheads = 2\nkv_heads = 1\nhead_dim = 16\nhidden = 64\ngated = true\nblock = 128\nmemory = 64\n"
        "steps = 2\nrows = 2\nrow = 256\nwarmup = 1\n"
    )
    found = settings.load(config)
    assert found.teacher is not None
    assert (found.teacher.d, found.teacher.bias, found.teacher.quant) == (48, True, False)  # of its start
    assert _described(found)["teacher"]["start"] == "start"  # no folder of this machine in a card

    def call(*words: object) -> None:
        monkeypatch.setattr(
            sys, "argv", ["train.py", str(config), "--streams", str(streams), "--gpus", "0", *map(str, words)]
        )
        train.main()

    with pytest.raises(SystemExit):  # the teacher comes first
        call("--out", tmp_path / "run")
    call("--teach", "--out", tmp_path / "teacher")
    teacher = net_files.read(tmp_path / "teacher")
    assert json.loads((tmp_path / "teacher/fit.json").read_text())["tokens"] == 3 * 256  # one row a step
    assert teacher.config.bias and not teacher.config.quant
    assert np.abs(teacher.rest["blocks.0.qkv.bias"]).max() > 0  # zero at first
    call("--teacher", tmp_path / "teacher", "--out", tmp_path / "run")
    assert export(net_files.read(tmp_path / "run")).shape.d == 32


def test_a_student_has_no_biases(tmp_path: Path) -> None:
    from pltz.models.training.learning import Learning

    config = tmp_path / "biased.toml"
    config.write_text('[data]\nfiles = ["chats.jsonl"]\n[student]\ngated = true\nbias = true\nsteps = 2\n')
    context: Any = type("C", (), {"s": settings.load(config), "work": None, "say": None})()
    with pytest.raises(UsageError, match=r"^\[student\] bias, quant: what ships is integers"):
        Learning(context).check()

"""Training: checkpoints, processes, rates and refusals (training/run/trainer.py, schedule.py)."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pltz.plt_codec.errors import ModelError, UsageError
from pltz.training.data import dataloader
from pltz.training.data.dataloader import load_batches
from pltz.training.nets import checkpoint, net as nets
from pltz.training.nets.checkpoint import NetConfig
from pltz.training.nets.net import Net
from pltz.training.run import snapshot, trainer
from pltz.training.run.distributed import Ranks
from pltz.training.run.schedule import Schedule, clipped, optimisers
from pltz.training.run.trainer import Machine, TrainingJob

TINY = NetConfig(vocab=1024, d=32, layers=1, heads=2, kv_heads=1, head_dim=16, hidden=64, memory=64)
SAMPLING: dict[str, Any] = {"block": 4096, "memory": 64, "power": 0.85, "most": 2.0, "text_share": 0.0}


def no_say(line: str) -> None:
    """Drop a line of the log."""


HERE = Machine("cpu", no_say)


def a_job(streams: Path, start: Path | None = None, **changes: Any) -> TrainingJob:
    given = {"steps": 6, "rows": 1, "row": 128, "decay": 1.0, "weight_decay": 0.0, **changes}
    return TrainingJob(TINY, Schedule(**given), SAMPLING, 1, streams, start)


def test_a_net_learns_and_a_checkpoint_goes_on(streams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "REPORT_EVERY", 0.0)
    first = tmp_path / "first"
    first.mkdir()
    report = trainer.fit(a_job(streams, steps=40), first, HERE)
    assert report["steps"] == 40 and report["tokens"] == 40 * 128
    assert report["bits_per_token"] < 9.7  # 10 by chance

    class Stop(Exception):
        pass

    second, steps = tmp_path / "second", []
    second.mkdir()
    one = trainer.Trainer._one

    def counted(self: Any, batch: Any) -> Any:
        steps.append(self.step)
        if len(steps) == 6:
            raise Stop
        return one(self, batch)

    monkeypatch.setattr(trainer.Trainer, "_one", counted)
    monkeypatch.setattr(trainer, "CHECKPOINT_EVERY", 0.0)
    monkeypatch.setattr(trainer, "CHECKPOINT_SHARE", 0)
    with pytest.raises(Stop):
        trainer.fit(a_job(streams, steps=12), second, HERE)
    report = trainer.fit(a_job(streams, steps=12), second, HERE)
    assert steps == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11] and report["steps"] == 12
    assert trainer.fit(a_job(streams, steps=12), second, HERE) == report and len(steps) == 13  # nothing is left


def test_a_run_that_stops_goes_on_elsewhere(streams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops at its deadline after three steps of six, in files of at most PART bytes, and they are copied."""
    monkeypatch.setattr(snapshot, "PART", 1 << 16)
    nets_of, steps, one = {}, [], trainer.Trainer._one
    for name in ("whole", "here"):
        (tmp_path / name).mkdir()

    def counted(self: Any, batch: Any) -> Any:
        steps.append(self.step)
        if len(steps) == 3:
            self.deadline = 0.0
        return one(self, batch)

    trainer.fit(a_job(streams), tmp_path / "whole", HERE)
    monkeypatch.setattr(trainer.Trainer, "_one", counted)
    with pytest.raises(trainer.Stopped, match="after step 3"):
        trainer.fit(a_job(streams), tmp_path / "here", Machine("cpu", no_say, deadline=1e300))
    parts = [path.stat().st_size for path in (tmp_path / "here" / "resume-000000003").iterdir()]
    assert len(parts) > 3 and max(parts) == 1 << 16
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    trainer.fit(a_job(streams), tmp_path / "there", HERE)
    assert steps == [0, 1, 2, 3, 4, 5]
    for name in ("whole", "there"):
        nets_of[name] = (tmp_path / name / checkpoint.NET).read_bytes()
    assert nets_of["whole"] == nets_of["there"]


@pytest.mark.slow
def test_two_processes_take_one_step_on_the_rows_of_both(streams: Path, tmp_path: Path) -> None:
    """Both end with the weights that one process makes of the mean of both losses; neither's rows alone give it."""
    start, folder = tmp_path / "start", tmp_path / "two"
    start.mkdir()
    folder.mkdir()
    torch.manual_seed(5)
    checkpoint.write(nets.rounded_net(Net(TINY)), start)
    job = a_job(streams, start, steps=1, warmup=1)
    report = trainer.fit(job, folder, Machine("cpu", no_say, 2))
    assert report["steps"] == 1 and report["tokens"] == 2 * 128
    state = snapshot.load(folder, "cpu")
    assert state is not None
    found = state["net"]

    def stepped(numbers: list[int]) -> dict[str, torch.Tensor]:
        net = nets.built(checkpoint.read(start))
        made = optimisers(net, job.schedule, fused=False)
        options = {**job.sampling, "row": job.schedule.row}
        for number in numbers:
            batch = next(load_batches(streams, options, 1, job.seed, Ranks(number, 2, "cpu")))
            loss, _ = trainer.Objective(net, None, 0.0).losses(batch, nets.mask_of(batch, TINY.memory), ())
            (loss / len(numbers)).backward()
        torch.nn.utils.clip_grad_norm_(clipped(net), 1.0)
        for one in made:
            one.step()
        return nets.state(net)

    def apart(other: dict[str, torch.Tensor]) -> float:
        return max(float((found[name] - value).abs().max()) for name, value in other.items())

    assert apart(stepped([0, 1])) < 1e-5 and min(apart(stepped([0])), apart(stepped([1]))) > 1e-3


def test_training_that_cannot_go_on_says_so(streams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "REPORT_EVERY", 0.0)
    snapshot.save(tmp_path, 3, {"net": {}})
    with pytest.raises(ModelError, match="another shape"):
        trainer.fit(a_job(streams), tmp_path, HERE)
    (tmp_path / "resume-000000003" / "000").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(ModelError, match="resume-000000003 is damaged"):
        trainer.fit(a_job(streams), tmp_path, HERE)
    snapshot.remove(tmp_path)
    assert not snapshot.saved(tmp_path)
    one = Net(TINY)
    with torch.no_grad():
        one.member_bias.fill_(torch.nan)
    start = tmp_path / "start"
    start.mkdir()
    checkpoint.write(nets.rounded_net(one), start)
    with pytest.raises(UsageError, match="rates"):
        trainer.fit(a_job(streams, start), tmp_path, HERE)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_attention_on_a_cpu_is_what_flex_attention_computes(streams: Path) -> None:
    from pltz.training.nets.net import block_mask

    torch.manual_seed(0)
    net = Net(TINY)
    sampler = dataloader.Sampler(streams, row=256, seed=0, **SAMPLING)
    batch = {k: torch.from_numpy(v) for k, v in sampler.rows(1).items()}
    with torch.no_grad():
        plain, _ = net.body(batch["input"], batch["position"], nets.mask_of(batch, TINY.memory))
        flexed, _ = net.body(batch["input"], batch["position"], block_mask(batch, TINY.memory))
    kept = batch["target"] >= 0
    assert torch.allclose(plain[kept], flexed[kept], atol=0.02)

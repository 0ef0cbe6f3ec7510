"""Training of a target like the one that ships: from what the preparation writes to a folder that loads."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pltz.models.target.kv_size import cache_bytes
from pltz.models.target.target import Target
from pltz.models.training import train_target

VOCAB = 384


def test_training_makes_a_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_tokenizer_json: Callable[..., bytes]
) -> None:
    """A second of training on a repeating stream, from the files the preparation writes to a target that thaws."""
    data = tmp_path / "data"
    data.mkdir()
    session = np.array([2, 40, 41, 42, 3, 43, 44, 45], "<u2")
    for name, repeats in (("train", 400), ("val", 30)):
        np.tile(session, repeats).tofile(data / f"{name}.bin")
    np.save(data / "train.offsets.npy", np.arange(0, 401 * 8, 8))
    (tmp_path / "bundle.json").write_bytes(tiny_tokenizer_json(VOCAB))
    shape = "--hidden 32 --intermediate 64 --layers 1 --positions 256 --length 32 --long-length 64 --batch-tokens 256"
    files = f"{data} --out {tmp_path / 'out'} --tokenizer {tmp_path / 'bundle.json'}"
    command = f"{files} {shape} --vocab {VOCAB} --device cpu --rate 1e-2 --log-every 0.5"
    for seconds in ("1.5", "6", "24"):  # a busy machine makes few steps in a second
        train_target.main([*command.split(), "--seconds", seconds])
        assert "tokens/s" in capsys.readouterr().out
        record = json.loads((tmp_path / "out" / "training.json").read_text())
        if record["val_loss"] < 3.0:
            break
    assert record["val_loss"] < 3.0  # 5.95 at the start
    assert str(tmp_path) not in (tmp_path / "out" / "training.json").read_text()
    target = Target.load(tmp_path / "out")
    assert target.model.dtype == torch.bfloat16
    assert target.eos_ids == frozenset(range(12))
    assert target.max_positions == 256
    cache, _ = target.prefill(session)
    assert cache_bytes(cache) == target.kv_bytes(8)


@pytest.mark.parametrize("wrong", ["--vocab 40000", "--length 9000", "--seconds 0", "--seconds nan", ""])
def test_training_refuses_a_wrong_call(wrong: str, tmp_path: Path) -> None:
    np.zeros(100, "<u2").tofile(tmp_path / "train.bin")
    np.save(tmp_path / "train.offsets.npy", np.array([0, 100]))
    with pytest.raises(SystemExit):
        train_target.main([str(tmp_path), "--out", str(tmp_path / "out"), *wrong.split()])

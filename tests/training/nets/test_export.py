"""Export, restore and the layout of training rows agree with the codec (nets/export.py, data/dataloader.py)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pltz.plt_codec.engines.torch import Memory, TorchEngine
from pltz.plt_codec.lanes import Layout, TokenBlock
from pltz.plt_codec.weights import Weights
from pltz.training.data import dataloader
from pltz.training.nets.checkpoint import NetConfig
from pltz.training.nets.export import export, restore
from pltz.training.nets.net import Net, block_mask, rounded_net, visible

SMALL = NetConfig(vocab=512, d=64, layers=2, heads=4, kv_heads=2, head_dim=16, hidden=128, memory=16, block=64)

LAYOUT = Layout(4, SMALL.block // 4)


def small_net() -> Net:
    torch.manual_seed(1)
    net = Net(SMALL)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith(("classes", "class_shift", "bias")):
                p.normal_(0, 0.1)
    return net


def exported(net: Net) -> Weights:
    return export(rounded_net(net))


def rows(tokens: np.ndarray) -> dict[str, torch.Tensor]:
    part = dataloader.lay(tokens, SMALL.block, lambda t: min(t, LAYOUT.lanes), 0)
    return {k: torch.from_numpy(part[i][None].astype(np.int32)) for i, k in enumerate(dataloader.KEYS)}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_the_integers_code_as_well_as_the_floats() -> None:
    """The exported model's code length is the trained one's, block after block, in lanes."""
    net, tokens = small_net(), np.random.default_rng(0).integers(32, 512, 150)
    batch = rows(tokens)
    with torch.no_grad():
        x, table = net.body(batch["input"], batch["position"], block_mask(batch, SMALL.memory))
        keep = batch["target"] >= 0
        first, second = net.losses(x[keep], table, batch["target"][keep].long())
    engine, bits = TorchEngine(exported(net)), 0.0
    memory = Memory.empty(engine)
    for block in LAYOUT.blocks(150):
        part = tokens[block.start : block.start + block.tokens]
        inputs = block.inputs(part, int(tokens[block.start - 1]) if block.start else 0)
        residual = engine.run(inputs, block.start + block.targets(), memory)
        memory = memory.after(block, SMALL.memory)
        at = np.flatnonzero(block.predicting().reshape(-1))
        ids = part[block.targets().reshape(-1)[at]]
        row = np.arange(len(ids))
        classes = engine.class_frequencies(residual[at])[row, ids // 128]
        members = engine.member_frequencies(residual[at], ids // 128)[row, ids % 128]
        bits += float((48 - np.log2(classes) - np.log2(members)).sum())
    floats = float((first + second).sum()) / np.log(2)
    assert abs(bits - floats) < 0.01 * floats


def test_restore_undoes_export() -> None:
    weights = exported(small_net())
    again = export(restore(weights))
    for name, tensor in weights.tensors.items():
        difference = np.abs(tensor.astype(np.int64) - again[name].astype(np.int64))
        scale = 0.005 if name in ("embed.m", "member.m") else 0.0001  # rounded rows are brought to unit length anew
        assert (difference <= 1 + np.abs(tensor.astype(np.int64)) * scale).all(), name


def test_training_rows_are_laid_out_as_the_codec_does() -> None:
    tokens = np.arange(32, 32 + 100)
    batch = rows(tokens)
    at = 0
    for block in LAYOUT.blocks(100):
        n = block.steps * block.lanes
        part = tokens[block.start : block.start + block.tokens]
        inputs = block.inputs(part, int(tokens[block.start - 1]) if block.start else 0).reshape(-1)
        assert batch["input"][0, at : at + n].tolist() == inputs.tolist()
        assert batch["position"][0, at : at + n].tolist() == (block.start + block.targets()).reshape(-1).tolist()
        target = np.where(block.predicting(), part[np.minimum(block.targets(), len(part) - 1)], -1)
        assert batch["target"][0, at : at + n].tolist() == target.reshape(-1).tolist()
        at += n
    assert at == batch["input"].shape[1]


def test_the_mask_is_the_codecs() -> None:
    """What a training position sees, spelt out against the rule of NUMERICS.md."""
    tokens = np.arange(32, 32 + 80)
    batch = rows(tokens)
    mod, n = visible(batch, SMALL.memory), batch["input"].shape[1]
    blocks: list[tuple[int, int, int, TokenBlock]] = []
    for number, block in enumerate(LAYOUT.blocks(80)):
        for s in range(block.steps):
            blocks += [(number, s, int(p), block) for p in block.start + block.lane_starts() + s]
    zero = torch.zeros((), dtype=torch.long)
    for q in range(0, n, 7):
        for k in range(n):
            (bq, sq, _, block), (bk, sk, pk, _) = blocks[q], blocks[k]
            want = (bq == bk and sk <= sq) or (bk == bq - 1 and pk >= block.start - SMALL.memory)
            assert bool(mod(zero, zero, torch.tensor(q), torch.tensor(k))) == want


def test_no_source_gets_more_than_its_cap() -> None:
    share = np.array([0.9, 0.07, 0.02, 0.01])
    weight = dataloader.capped(share**0.3 / (share**0.3).sum(), share, 2.0)
    assert abs(weight.sum() - 1) < 1e-9 and (weight <= 2.0 * share + 1e-6).all() and weight[0] < share[0]


def sampler_of(folder: Path, lengths: dict[str, list[int]], **options: Any) -> dataloader.Sampler:
    """Of sessions whose tokens all are 32 and their source's number."""
    every = [(n, number) for number, name in enumerate(lengths) for n in lengths[name]]
    np.concatenate([np.full(n, 32 + number, np.uint16) for n, number in every]).tofile(folder / "train.bin")
    np.save(folder / "train.offsets.npy", np.cumsum([0, *(n for n, _ in every)]))
    np.save(folder / "train.source.npy", np.array([number for _, number in every], np.uint8))
    (folder / "sources.json").write_text(json.dumps({name: i for i, name in enumerate(lengths)}))
    given = {"row": 512, "block": 256, "power": 1.0, "text_share": 0.2, "seed": 1, **options}
    return dataloader.Sampler(folder, **given)


def drawn(sampler: dataloader.Sampler, rows: int = 400) -> np.ndarray:
    """Share of the tokens in rows, by source."""
    target = sampler.rows(rows)["target"]
    return np.asarray(np.bincount(target[target >= 0] - 32) / (target >= 0).sum())


def test_a_source_is_drawn_as_often_as_its_weight_says(tmp_path: Path) -> None:
    lengths = {"a": [60] * 100, "b": [60] * 100, "text:a": [60] * 100, "text:b": [60] * 100}
    found = drawn(sampler_of(tmp_path, lengths, weights={"b": 3.0, "text:a": 0.5}))
    assert np.abs(found - [0.2, 0.6, 0.2 / 3, 0.4 / 3]).max() < 0.03


def test_blocks_are_in_the_default_layout_as_often_as_asked(tmp_path: Path) -> None:
    for share, other in ((0.0, 0.0), (1.0, 0.75)):  # of 1, 2, 4 and 8 lanes one is the default
        sampler = sampler_of(tmp_path, {"a": [60]}, layouts=share)
        found = np.mean([sampler.lanes(200) != 1 for _ in range(2000)])
        assert abs(found - other) < 0.05

"""Any two files that changed places: each open gives its own, a miss or a named error, never another's KV."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pltz.kv.calibrate.fitting import laplace
from pltz.kv.forms.q8 import Q8Codec
from pltz.kv.memory.memory_file import MemoryFolder, Remembered
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.port.codec import RAW, KVCodec
from pltz.kv.predictive.calibration import Calibration, KVShape, expected
from pltz.kv.store.disk_tier import DiskTier
from pltz.kv.store.kv_block import KVBlock
from pltz.kv.store.tier import StoredBlock
from pltz.plt_codec.errors import PltzError
from pltz.plt_codec.weights import Array
from tests.kv.pool.pages import form, random_kv, rotary

A, B, ROOM = b"a" * 16, b"b" * 16, 1 << 30


def swaps(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Let each two files under a folder, locks too, change places, and put everything back afterwards."""
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    for one, other in combinations(before, 2):
        one.write_bytes(before[other])
        other.write_bytes(before[one])
        yield one, other
        for path, data in before.items():
            path.write_bytes(data)


def private(folder: Path) -> bool:
    """Return whether all folders and files below are their owner's alone."""
    return not any(stat.S_IMODE(path.lstat().st_mode) & 0o077 for path in [folder, *folder.rglob("*")])


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_warm_files(tmp_path: Path) -> None:
    codecs: list[KVCodec] = [RAW, Q8Codec(rotary(16))]
    folder = tmp_path / "new" / "warm"
    expected = dict[tuple[bytes, bytes, str], torch.Tensor]()
    places = [(s, g, c) for s in (A, B) for g in (A[:10], B[:10]) for c in codecs]
    for number, (space, segment, codec) in enumerate(places):
        tier = DiskTier(folder, ROOM, codec)
        ids = np.full(4, number, np.int32)
        block = KVBlock.raw(random_kv(4, seed=number), ids, ids, 0)
        assert tier.write(space, segment, StoredBlock(block, A[:10], 0))
        expected[space, segment, codec.name] = block.recode(codec).kv
    assert private(tmp_path / "new")
    for one, other in swaps(folder):
        tier = DiskTier(folder, ROOM)
        for space, segment, codec in places:
            found = tier.read(space, segment, [codec])
            sound = tier.path(space, segment, codec.name) not in (one, other)
            assert (found is not None) == sound
            assert found is None or torch.equal(found.block.kv, expected[space, segment, codec.name])


def kept(pool: BlockPool, seed: int) -> Remembered:
    ids = np.arange(seed, seed + 32, dtype=np.int32)
    session = PackedSession.of(random_kv(32, seed=seed), pool, keep=10)
    return Remembered(f"text {seed}", ids, np.zeros(32, np.int32), session)


def test_memories_of_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = form("q4")
    assert pages.centre is not None
    targets: list[Any] = [SimpleNamespace(fingerprint=name, max_positions=None) for name in (A, B)]
    forms = {A: pages, B: replace(pages, centre=pages.centre + 1)}
    monkeypatch.setattr(PageFormat, "of", lambda target, kind: forms[target.fingerprint])
    folder = tmp_path / "new" / "agents"
    expected = dict[tuple[bytes, str], torch.Tensor]()
    for n, target in enumerate(targets):
        own = MemoryFolder.form(folder, target, "q4")
        for m, agent in enumerate(("ann", "bob")):
            memory = kept(BlockPool(own, 64), 2 * n + m)
            MemoryFolder(folder, target, own).save(agent, memory)
            expected[target.fingerprint, agent] = memory.session.kv()
    assert private(tmp_path / "new")
    for pair in swaps(folder):
        served = 0
        for target in targets:
            for agent in ("ann", "bob"):
                try:
                    own = MemoryFolder.form(folder, target, "q4")
                    found = MemoryFolder(folder, target, own).load(agent, BlockPool(own, 64))
                except PltzError:
                    continue
                assert found is not None, "a file that is there is no absent one"
                assert torch.equal(found.session.kv(), expected[target.fingerprint, agent]), pair
                served += 1
        locks = sum(path.suffix == ".lock" for path in pair)
        assert served == 4 if locks == 2 else served < 4


def calibration(target: bytes, constant: float) -> Calibration:
    """Return one of the smallest shape that there is."""
    shape = KVShape(1, 1, 2, 2)
    freq, mean = laplace()
    given: dict[str, Array] = {"freq": freq, "mean": mean, "basis": np.eye(4, dtype=np.int8)[None]}
    types = {"I8": np.int8, "I16": np.int16, "U16": np.uint16, "F32": np.float32}
    tensors: dict[str, Array] = {
        name: given.get(name, np.full(size, constant if kind == "F32" else 0, types[kind]))
        for name, (kind, size) in expected(shape, [0]).items()
    }
    return Calibration(target, shape, tensors)


def test_calibrations(tmp_path: Path) -> None:
    made = [calibration(target, constant) for target in (A, B) for constant in (1.0, 2.0)]
    paths = [one.save(tmp_path) for one in made]
    chosen = made[0].save(tmp_path / "mine.safetensors")
    assert private(paths[0]) and Calibration.load(chosen, A).digest == made[0].digest
    for pair in swaps(tmp_path):
        for path, one in zip(paths, made, strict=True):
            if path in pair and {path.name, *(p.name for p in pair)} != {paths[0].name, chosen.name}:
                with pytest.raises(PltzError, match="another calibration"):
                    Calibration.load(path, one.target)
            else:
                assert Calibration.load(path, one.target).digest == one.digest

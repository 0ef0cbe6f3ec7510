"""Any two files that changed places: each open gives its own, a miss or a named error, never another's KV."""

import os
import stat
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pltz.kv.calibrate.fitting import laplace
from pltz.kv.memory.agent_memory import AgentMemory
from pltz.kv.memory.remembered import Remembered
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.predictive.calibration import Calibration, KVShape, expected
from pltz.kv.store.kv_folder import KVFolder
from pltz.kv.store.store import ANY, KVStore
from pltz.plt_codec.errors import PltzError
from pltz.plt_codec.weights import Array
from tests.kv.pool.pages import form, random_kv

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


def cut(kv: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    return kv[:, :, :, start:stop]


def private(folder: Path) -> bool:
    """Return whether all folders and files below are their owner's alone."""
    return not any(stat.S_IMODE(path.lstat().st_mode) & 0o077 for path in [folder, *folder.rglob("*")])


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_runs_of_blocks(tmp_path: Path) -> None:
    """Swap files of two targets, two tenants and two kinds of pages, in one folder."""
    folder, kinds = tmp_path / "new" / "kv", ("raw", "q8")
    ids = list(range(32))

    def opened(space: bytes, kind: str) -> KVStore:
        pages = form(kind)
        return KVStore(pages, None, KVFolder(folder, space[:15] + kind[:1].encode(), ROOM))

    expected = dict[tuple[bytes, str, str], torch.Tensor]()
    for number, (space, kind, tenant) in enumerate((s, k, t) for s in (A, B) for k in kinds for t in ("acme", "bolt")):
        store, kv = opened(space, kind), random_kv(32, seed=number)
        store.keep(tenant, ids, partial(cut, kv))
        store.close()
        found = store.read(tenant, [*ids, 1], torch.device("cpu"), bound=ANY)
        expected[space, kind, tenant] = torch.cat(found.pieces, 3)
        assert expected[space, kind, tenant].shape[3] == 32
    assert private(tmp_path / "new")
    for pair in swaps(folder):
        served = 0
        for (space, kind, tenant), kv in expected.items():
            found = opened(space, kind).read(tenant, [*ids, 1], torch.device("cpu"), bound=ANY)
            assert not found.tokens or torch.equal(torch.cat(found.pieces, 3), kv), pair
            served += bool(found.tokens)
        assert served >= len(expected) - 2 and (served < len(expected) or any(p.name == "lock" for p in pair))


def test_memories_of_agents(tmp_path: Path) -> None:
    targets: list[Any] = [SimpleNamespace(fingerprint=name, max_positions=None) for name in (A, B)]
    pages, folder = form("q4"), tmp_path / "new" / "agents"

    def opened(target: Any) -> AgentMemory:
        memory = AgentMemory.__new__(AgentMemory)
        store = KVStore(pages, BlockPool(pages, 64), KVFolder(folder, target.fingerprint, ROOM))
        memory.target, memory.store, memory.pool, memory.folder = target, store, store._pool(), store.folder
        memory._agents, memory._locks, memory.save_each = OrderedDict(), {}, True
        return memory

    expected = dict[tuple[bytes, str], torch.Tensor]()
    for n, target in enumerate(targets):
        memory = opened(target)
        for m, agent in enumerate(("ann", "bob")):
            seed = 2 * n + m
            ids = np.arange(seed, seed + 32, dtype=np.int32)
            session = PackedSession.of(random_kv(32, seed=seed), memory.pool, keep=10)
            memory._agents[agent] = Remembered(f"text {seed}", ids, np.zeros(32, np.int32), session)
            expected[target.fingerprint, agent] = session.kv()
        memory.close()
    assert private(tmp_path / "new")
    for pair in swaps(folder):
        for target in targets:
            for agent in ("ann", "bob"):
                memory = opened(target)
                try:
                    found = memory._recall(agent)
                    assert found is not None, "a file that is there is no absent one"
                    kv, wanted = found.return_to(memory.store, agent).kv(), expected[target.fingerprint, agent]
                    assert torch.equal(kv, wanted[:, :, :, : kv.shape[3]]), pair
                except PltzError:
                    continue
                finally:
                    for name in list(memory._locks):
                        memory._let_others(name)


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

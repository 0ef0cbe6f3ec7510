"""Golden memories and shadows are read, and written again byte for byte; damaged and later ones are refused."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pltz.experiments.three_tiers.block_metadata import MetadataTable, PrefixPins
from pltz.experiments.three_tiers.shadow import MANIFEST, SEGMENT, Shadow
from pltz.kv.memory.checked_file import FileKind
from pltz.kv.memory.memory_file import CENTRE, MEMORY, MemoryFolder
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.prefix_tree import PrefixTree
from pltz.plt_codec.errors import CorruptError, VersionError
from tests.loaded import module_at

FOLDER = Path(__file__).parents[2] / "golden" / "memory"
FILES = FOLDER / f"version-{MEMORY.version}"
NAMES = sorted(str(path.relative_to(FILES)) for path in FILES.rglob("*.safetensors"))


def maker() -> ModuleType:
    """make.py beside the files."""
    return module_at(FOLDER / "make.py")


def kind_of(name: str) -> tuple[FileKind, tuple[str, ...]]:
    """Return the format of a golden file, and its tensors."""
    rows = ("kv",) if b'"scale"' not in (FILES / name).read_bytes() else ("kv", "scale")
    if name.startswith("agents"):
        return (CENTRE, ("centre",)) if "centre" in name else (MEMORY, ("ids", "ends", "text", "exact", *rows))
    return (MANIFEST, ("state",)) if "manifest" in name else (SEGMENT, ("names", "parents", "counts", *rows))


def test_the_same_bytes_are_written_again(tmp_path: Path) -> None:
    maker().write(tmp_path)
    written = [path for path in tmp_path.rglob("*.safetensors")]
    assert len(NAMES) == 7 and sorted(str(path.relative_to(tmp_path)) for path in written) == NAMES
    for name in NAMES:
        assert (tmp_path / name).read_bytes() == (FILES / name).read_bytes(), name


@pytest.mark.parametrize("kind", ["raw", "q8", "q4"])
def test_golden_memories_are_read(kind: str) -> None:
    make = maker()
    pages = make.form(kind)
    pool = BlockPool(pages, 64)
    folder = MemoryFolder(FILES / "agents", make.TARGET, pages)
    assert list(folder.agents()) == [make.AGENT]
    found, kept = folder.load(make.AGENT, pool), make.remembered(BlockPool(pages, 64))
    assert found is not None and found.text == make.TEXT and found.ids.tolist() == make.IDS
    assert found.ends.tolist() == kept.ends.tolist()
    assert torch.equal(found.session.exact, kept.session.exact)
    rows = pool.device.read(found.session.blocks, 0, 16)
    for name, (wide, dtype) in pages.types.items():
        assert torch.equal(rows[name], make.counted((1, 16, 1, wide), dtype)), name


def test_a_golden_shadow_is_recovered(tmp_path: Path) -> None:
    make = maker()
    shutil.copytree(FILES / "shadow", tmp_path / "shadow")
    tree = PrefixTree(BlockPool(make.form("q4"), 64, host_tokens=64))
    table, pins = MetadataTable(tree), PrefixPins(tree)
    shadow = Shadow(tmp_path / "shadow", make.TARGET.fingerprint, table, pins)
    assert shadow.recover() == 2 and shadow.stats.missed == 0
    shadow.close()
    names = tree.names(make.TENANT, range(32))
    assert pins.pins == {names[0]: 1}
    assert [(table.blocks[name].source, table.blocks[name].created) for name in names] == [("rules", 1.5)] * 2
    found = tree.match(make.TENANT, [*range(32), 0])
    assert found is not None and found.tokens == 32
    rows = found.pool.device.read(found.blocks, 0, 32)
    for name, (wide, dtype) in found.pool.form.types.items():
        assert torch.equal(rows[name], make.counted((1, 32, 1, wide), dtype)), name


def anything(meta: object, shapes: object) -> None:
    """Take any shapes."""


class Saved:
    """A folder with the memory of one agent, in Q4 pages."""

    def __init__(self, path: Path) -> None:
        self.make = maker()
        self.pages = self.make.form("q4")
        self.folder, self.agent = MemoryFolder(path, self.make.TARGET, self.pages), self.make.AGENT
        self.memory = self.make.remembered(BlockPool(self.pages, 64))
        self.folder.save(self.agent, self.memory)
        self.path = self.folder.path(self.agent)

    def load(self, tokens: int = 64) -> object:
        return self.folder.load(self.agent, BlockPool(self.pages, tokens))


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_later_ones_are_refused(name: str, tmp_path: Path) -> None:
    kind, tensors = kind_of(name)
    found = kind.read(FILES / name, tensors, anything)
    assert found is not None
    maker().later(kind).write(tmp_path / "file.safetensors", *found)
    with pytest.raises(VersionError, match="use a newer pltz"):
        kind.read(tmp_path / "file.safetensors", tensors, anything)


@pytest.mark.parametrize(
    "name, tensor, why",
    [
        ("ends", torch.tensor([0, 2**31 - 1, -5, *[5] * 19], dtype=torch.int32), "not ascending"),
        ("ends", torch.tensor([0] * 21 + [22], dtype=torch.int32), "beyond the text"),
        ("ids", torch.tensor([-1] * 22, dtype=torch.int32), "ids below 0"),
        ("text", torch.zeros(6, dtype=torch.int32), "not bytes"),
        ("exact", torch.full((1, 2, 1, 10, 8), float("nan")), "NaN or infinity"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(name: str, tensor: torch.Tensor, why: str, saved: Saved) -> None:
    found = MEMORY.read(saved.path, ("ids", "ends", "text", "exact", *saved.pages.types), anything)
    assert found is not None
    MEMORY.write(saved.path, found[0], found[1] | {name: tensor})
    with pytest.raises(CorruptError, match=why):
        saved.load()


def sparse(path: Path, shapes: Mapping[str, list[int]]) -> None:
    """Let the header of a file, and its length, claim other shapes of some tensors."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    at = 0
    for name, entry in header.items():
        if name != "__metadata__":
            begin, stop = entry["data_offsets"]
            each = (stop - begin) // math.prod(entry["shape"])
            entry["shape"] = shapes.get(name, entry["shape"])
            entry["data_offsets"] = [at, at := at + each * math.prod(entry["shape"])]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + at)


@pytest.mark.parametrize(
    "shapes",
    [
        {"ids": [1 << 34], "ends": [1 << 34], "exact": [1, 2, 1, (1 << 34) - 12, 8]},
        {"ids": [1 << 36]},
        {"text": [1 << 40]},
        {"exact": [1, 2, 1, 1 << 34, 8]},
        {"kv": [1, 1 << 36, 1, 8]},
    ],
)
def test_a_sparse_memory_that_no_target_can_have_is_refused_unread(
    shapes: dict[str, list[int]], saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse(saved.path, shapes)
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("read"))
    with pytest.raises(CorruptError, match="forget the agent"):
        saved.load()

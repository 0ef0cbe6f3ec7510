"""Write the golden files of the memory of agents and of a shadow; a folder that exists is never written again.

    python tests/golden/memory/make.py

The contents are fixed numbers, so no rounding of a machine is in them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

import numpy as np
import torch

from pltz.experiments.three_tiers.block_metadata import MetadataTable, PrefixPins, PromptSection
from pltz.experiments.three_tiers.shadow import MANIFEST, SEGMENT, Shadow
from pltz.kv.memory.checked_file import FileKind
from pltz.kv.memory.memory_file import CENTRE, MEMORY, MemoryFolder, Remembered
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.packed_session import PackedSession
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.pool.prefix_tree import PrefixTree
from pltz.plt_codec.identity import SIZE
from tests.kv.pool.pages import rotary

TARGET: Any = SimpleNamespace(fingerprint=bytes(range(SIZE)), max_positions=None)
AGENT, TEXT, TENANT = "ann", "To be, or not to be?\n", "acme"
IDS = list(range(40, 62))
FORMATS = {"memory": MEMORY, "centre": CENTRE, "segment": SEGMENT, "manifest": MANIFEST}


def counted(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of small whole numbers, each exact in every type."""
    count = int(np.prod(shape))
    return (torch.arange(count) * 7 % 100).to(dtype).reshape(shape)


def form(kind: str) -> PageFormat:
    """Return pages of one layer and one head of 8, with a fixed centre."""
    centre = None if kind == "raw" else counted((1, 2, 1, 8), torch.float32) / 4
    return PageFormat(kind, 1, 1, 8, torch.float32, rotary(4), centre)


def session(pool: BlockPool, tokens: int, tail: int) -> PackedSession:
    """Return a session of fixed rows: ``tokens`` in pages, ``tail`` exact behind them."""
    pages = pool.form
    exact = counted((1, 2, 1, min(pages.sinks, tokens) + tail, 8), torch.float32)
    made = PackedSession(pool, pool.device.allocate(-(-tokens // pool.block)), tokens, exact)
    rows = {name: counted((1, tokens, 1, wide), dtype) for name, (wide, dtype) in pages.types.items()}
    pool.device.write(made.blocks, 0, rows)
    return made


def remembered(pool: BlockPool) -> Remembered:
    """Return the memory of the agent: 16 tokens in pages, 5 behind them, and one id without KV."""
    ends = np.minimum(np.arange(len(IDS)), len(TEXT)).astype(np.int32)
    ends[3] = -1
    return Remembered(TEXT, np.array(IDS, np.int32), ends, session(pool, 16, 5))


def write(folder: Path) -> None:
    """Write all files into a folder: a memory per kind of pages, and a shadow."""
    for kind in ("raw", "q8", "q4"):
        pages = form(kind)
        files = MemoryFolder(folder / "agents", TARGET, pages)
        files.save(AGENT, remembered(BlockPool(pages, 64)))
        if pages.centre is not None:
            facts = {"target": TARGET.fingerprint.hex()}
            CENTRE.write(files.folder / "centre.safetensors", facts, {"centre": pages.centre})
    pool = BlockPool(form("q4"), 64, host_tokens=64)
    tree = PrefixTree(pool)
    table = MetadataTable(tree, clock=lambda: 1.5)
    pins = PrefixPins(tree)
    ids = list(range(32))
    kept = session(pool, 32, 0)
    tree.insert(TENANT, ids, kept)
    kept.release()
    tree.move(table.describe(TENANT, ids, [PromptSection("rules", 0, 20, 0.75)]), to_host=True)
    pins.pin(TENANT, ids[:16])
    shadow = Shadow(folder / "shadow", TARGET.fingerprint, table, pins)
    shadow.write()
    shadow.close()


def later(kind: FileKind) -> FileKind:
    """Return the next version of a format."""
    return FileKind(kind.name, kind.version + 1, kind.fields)


def main() -> None:
    """See the head of this file."""
    folder = HERE / f"version-{MEMORY.version}"
    if folder.exists():
        raise SystemExit(f"{folder.name} exists: golden files are not refreshed")
    write(folder)
    for lock in folder.rglob("*lock"):
        lock.unlink()
    print(json.dumps({"files": sum(path.is_file() for path in folder.rglob("*"))}))


if __name__ == "__main__":
    main()

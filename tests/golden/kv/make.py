"""Write the golden files of KV: runs of blocks, a centre, and memories of an agent. One that exists stays as it is.

    python tests/golden/kv/make.py

The contents are fixed numbers, so no rounding of a machine is in them.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

import numpy as np
import torch

from pltz.kv.memory.remembered import Remembered, Tail
from pltz.kv.pool.block_pool import BlockPool
from pltz.kv.pool.page_format import PageFormat
from pltz.kv.pool.row_form import RowForm
from pltz.kv.store.kv_file import VERSION, KVFile
from pltz.kv.store.kv_folder import KVFolder
from pltz.kv.store.store import KVStore, centred, space_of
from pltz.kv.store.trie import names_of, root_of
from pltz.plt_codec.identity import SIZE
from tests.kv.pool.pages import rotary

TARGET = bytes(range(SIZE))
AGENT, TEXT, TENANT = "ann", "To be, or not to be?\n", "acme"
IDS = list(range(40, 62))


def counted(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of small whole numbers, each exact in every type."""
    count = int(np.prod(shape))
    return (torch.arange(count) * 7 % 100).to(dtype).reshape(shape)


def form(kind: str) -> PageFormat:
    """Return pages of one layer and one head of 8, with a fixed centre."""
    centre = None if kind == "raw" else counted((1, 2, 1, 8), torch.float32) / 4
    return PageFormat(kind, 1, 1, 8, torch.float32, rotary(4), centre)


def rows(pages: PageFormat, tokens: int) -> dict[str, torch.Tensor]:
    """Return fixed rows."""
    return {name: counted((1, tokens, 1, wide), dtype) for name, (wide, dtype) in pages.types.items()}


def remembered(pages: PageFormat, folder: KVFolder) -> KVFile:
    """Return the memory of the agent: 18 tokens in pages, 3 behind them, and one id without KV."""
    ends = np.minimum(np.arange(len(IDS)), len(TEXT)).astype(np.int32)
    ends[3] = -1
    exact = counted((1, 2, 1, pages.sinks + 3, 8), torch.float32)
    memory = Remembered(TEXT, np.array(IDS, np.int32), ends, tail=Tail(18, rows(pages, 2), exact))
    return memory.to_file(KVStore(pages, BlockPool(pages, 16), folder), AGENT)


def write(place: Path) -> None:
    """Write all files into a folder: for each kind of pages a run of two blocks, a memory, and the centre."""
    for kind in ("raw", "q8", "q4"):
        pages = form(kind)
        folder = KVFolder(place, space_of(TARGET, pages), 1 << 20)
        centred(folder, pages)
        folder.put(remembered(pages, folder))
        ids, root = np.arange(32, dtype=np.int32), root_of(TENANT)
        parts = RowForm.parts(rows(pages, 32), counted((1, 2, 1, pages.sinks, 8), torch.float32))
        head = {"ids": torch.from_numpy(ids)}
        name = names_of(root, ids, 16)[-1]
        folder.write(KVFile(RowForm(pages).name, folder.space, name, head, parts, root, root))


def main() -> None:
    """See the head of this file."""
    folder = HERE / f"version-{VERSION}"
    if folder.exists():
        raise SystemExit(f"{folder.name} exists: golden files are not refreshed")
    write(folder)
    (folder / "lock").unlink()


if __name__ == "__main__":
    main()

"""Make the golden indexes beside this file: `python -m tests.golden.indexes.make`.

They are of the versions that are written now, over `PACKS`, and have `entries()`. Those of older versions were made by
the code of their time, and are never rewritten.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pltz.archive.format import index_file
from pltz.archive.format.index_file import BY_ADDRESS, BY_BLOCK, RANGED, Entries, MemoryIndex, build

HERE = Path(__file__).parent
PACKS = {bytes([n]) * 16: 1 << 24 for n in range(3)}
COUNTS = 9000, 500, 7  # entries of each section
BOUNDS = {BY_BLOCK: RANGED, BY_ADDRESS: 0}  # bytes from which an index is large


def entries() -> MemoryIndex:
    """Return random keys, a third of each section in each pack, in blocks of some records."""
    memory = MemoryIndex()
    for n, (pack, size) in enumerate(PACKS.items()):
        sections = dict[int, Entries]()
        for section, count in enumerate(COUNTS):
            dice = np.random.default_rng([n, section])
            keys = dice.integers(0, 1 << 36, count // 3, np.uint64)
            sections[section] = Entries(keys, dice.integers(0, 200, count // 3, np.uint64) * np.uint64(50_000))
        memory.add_pack(pack, size, sections)
    return memory


if __name__ == "__main__":
    for version, bound in BOUNDS.items():
        index_file.RANGED = bound
        path = HERE / f"version-{version}.index"
        if not path.exists():
            path.write_bytes(build([entries()], PACKS))

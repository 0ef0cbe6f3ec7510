"""Make the golden index beside this file: `python -m tests.golden.indexes.make`.

It is of the version that is written now, over `PACKS`, and has `entries()`.
"""

from pathlib import Path

import numpy as np

from pltz.archive.format.index_file import VERSION, Entries, MemoryIndex, build

HERE = Path(__file__).parent
PACKS = {bytes([n]) * 16: 1 << 24 for n in range(3)}
COUNTS = 9000, 500, 7  # entries of each section


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
    path = HERE / f"version-{VERSION}.index"
    if not path.exists():
        path.write_bytes(build([entries()], PACKS))

"""Overhead: at most 23 bytes per session of one new segment, beside bitstring and name, 11 of them in packs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pltz.archive.format.ids import Tokens
from pltz.coding.codecs.codec import Coded, Plain
from tests.archive.kit import NewSession, SegmentCodec, TowerArchive

SESSIONS = 20_000
BITSTRING = 200  # bytes: a mean chat


class StoredCodec(SegmentCodec):
    """A codec of one byte per token, so that a bitstring has a known size."""

    mode, method, fast, reach, bundle_id, tokenizer = 0, 0, False, 0, b"b" * 16, b"t" * 16

    def encode(self, batch: Sequence[Plain]) -> list[bytes]:
        return [np.asarray(p.tokens, np.uint8).tobytes() for p in batch]

    def decode(self, batch: Sequence[Coded]) -> list[Tokens]:
        return [np.frombuffer(c.data, np.uint8).astype(np.int64) for c in batch]


def test_overhead_a_session(tmp_path: Path) -> None:
    archive = TowerArchive.create(tmp_path / "cold", [StoredCodec()])
    dice = np.random.default_rng(0)
    prompts = [dice.integers(0, 256, 300) for _ in range(5)]
    names = [f"s{n}" for n in range(SESSIONS)]
    for begin in range(0, SESSIONS, 10_000):
        archive.put([
            NewSession(n, [prompts[i % 5], dice.integers(0, 256, BITSTRING)], tenant="acme", shared=1)
            for i, n in enumerate(names[begin : begin + 10_000])
        ])
    archive.write_index()
    stat = archive.stat()
    content = SESSIONS * BITSTRING + sum(len(p) for p in prompts) + sum(map(len, names))
    packs, index = (stat.pack_bytes - content) / SESSIONS, stat.index_bytes / SESSIONS
    print(f"overhead a session: packs {packs:.2f}, index {index:.2f}, together {packs + index:.2f} bytes")
    assert packs <= 11 and index <= 11.8 and packs + index <= 23

"""The writer's choice among the ways to store a session."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pltz.archive.codecs.codec import BytesCodec, Plain
from pltz.archive.tower_archive import TowerArchive
from pltz.archive.writing.new_session import NewSession

TEXT = np.frombuffer(bytes(range(32, 127)) * 40, np.uint8)  # 3800 bytes


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of bytes that each call of `BytesCodec.encode` is given."""
    counts: list[int] = []
    encode = BytesCodec.encode

    def count(self: BytesCodec, batch: Sequence[Plain]) -> list[bytes]:
        counts.append(sum(len(plain.tokens) for plain in batch))
        return encode(self, batch)

    monkeypatch.setattr(BytesCodec, "encode", count)
    return counts


def ways(plain: np.ndarray, *segments: np.ndarray) -> NewSession:
    """Return a session in two ways: segments of the first codec, or plain bytes."""
    return NewSession("a", segments, codec=0, otherwise=[NewSession("a", [plain], codec=1)])


def test_plain_bytes_are_not_coded_again_for_a_short_turn(archive: TowerArchive, coded: list[int]) -> None:
    archive.codecs.append(BytesCodec())
    first = np.random.default_rng(1).integers(0, 9000, 4)
    assert archive.put([ways(TEXT, first)])[0].codec == 0 and coded.pop() == len(TEXT), "no segment is stored yet"
    turn = np.full(3, 7)
    receipt = archive.put([ways(TEXT, first, turn)])[0]
    assert (receipt.codec, receipt.new, coded) == (0, 1, [])


def test_plain_bytes_are_coded_where_they_may_win(archive: TowerArchive, coded: list[int]) -> None:
    archive.codecs.append(BytesCodec())
    first = np.arange(4)
    archive.put([NewSession("a", [first])])
    long = np.random.default_rng(1).integers(0, 1 << 20, 4000)
    receipt = archive.put([ways(TEXT, first, long)])[0]
    assert coded and receipt.codec == 1, "the other way is shorter, and taken"

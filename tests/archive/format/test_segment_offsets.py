"""Segment offsets: ids by their offsets, compared with a dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.archive.format.segment_offsets import BLOCK, SegmentOffsets
from pltz.plt_codec.errors import CorruptError


@pytest.mark.parametrize("runs", [[1] * 40, [BLOCK + 5, 3], [BLOCK, BLOCK, 1], [700] * 60])
def test_what_stands_where(runs: list[int]) -> None:
    dice = np.random.default_rng(len(runs))
    places, known, at = SegmentOffsets(), dict[int, bytes](), 300
    for run in runs:
        offsets = at + np.cumsum(dice.integers(1, 90, run))
        ids = dice.integers(0, 256, (run, 16), np.uint8)
        places.add(offsets, ids)
        known |= zip(offsets.tolist(), map(bytes, ids), strict=True)
        at = int(offsets[-1])
    chosen = dice.permutation(list(known))[:500]
    assert [bytes(i) for i in places.find(chosen)] == [known[n] for n in chosen.tolist()]
    for absent in (0, 299, at + 1, min(set(range(300, at)) - set(known))):
        with pytest.raises(CorruptError):
            places.find(np.array([chosen[0], absent]))
    for cut in (at, int(np.median(chosen)), 0):
        places.cut(cut)
        kept = [n for n in known if n < cut]
        assert len(places.find(np.array(kept, np.int64))) == len(kept)
        with pytest.raises(CorruptError):
            places.find(np.array([n for n in known if n >= cut][:1]))
    places.add(np.array([7]), np.full((1, 16), 9, np.uint8))
    assert places.find(np.array([7])).tolist() == [[9] * 16]


def test_none() -> None:
    assert SegmentOffsets().find(np.zeros(0, np.int64)).shape == (0, 16)
    with pytest.raises(CorruptError):
        SegmentOffsets().find(np.array([5]))

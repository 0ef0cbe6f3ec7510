"""Segment offsets: ids of the segments of one pack by offset, for records that name their parent by distance.

    places.add(offsets, ids)       as a scan goes on, in order
    places.find(offsets) -> ids    CorruptError where no segment begins

Stored as columns of 20 bytes per segment, fewer than the shortest segment takes in its pack. A dictionary
took ten times as much.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pltz.archive.format.ids import SIZE
from pltz.plt_codec.errors import CorruptError

BLOCK = 1 << 14  # segments per block

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


class SegmentOffsets:
    """The segments of a pack found so far.

    ``offsets`` are (N,) and ascend within a call and from call to call; ``ids`` are (N, 16).
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[npt.NDArray[np.uint32], Bytes]] = []
        self._firsts: list[int] = []  # first offset of each block
        self._used = BLOCK  # used rows of the last block

    def add(self, offsets: Ints, ids: Bytes) -> None:
        """Add segments that come after all those added before."""
        while len(offsets):
            if self._used == BLOCK:
                self._blocks.append((np.empty(BLOCK, np.uint32), np.empty((BLOCK, SIZE), np.uint8)))
                self._firsts.append(int(offsets[0]))
                self._used = 0
            count = min(BLOCK - self._used, len(offsets))
            part = slice(self._used, self._used + count)
            known, names = self._blocks[-1]
            known[part], names[part] = offsets[:count], ids[:count]
            self._used += count
            offsets, ids = offsets[count:], ids[count:]

    def cut(self, offset: int) -> None:
        """Remove the segments at ``offset`` or later."""
        while self._firsts and self._firsts[-1] >= offset:
            del self._firsts[-1], self._blocks[-1]
            self._used = BLOCK
        if self._blocks:
            self._used = int(np.searchsorted(self._blocks[-1][0][: self._used], offset))

    def find(self, offsets: Ints) -> Bytes:
        """Return the ids, (N, 16), of the segments at (N,) offsets in any order.

        Raises CorruptError where no segment begins at an offset.
        """
        found = np.zeros((len(offsets), SIZE), np.uint8)
        blocks = np.searchsorted(self._firsts, offsets, side="right") - 1
        for number in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == number)
            used = self._used if number == len(self._blocks) - 1 else BLOCK
            known, ids = self._blocks[number] if number >= 0 else (np.zeros(0, np.uint32), found)
            at = np.searchsorted(known[:used], offsets[rows])
            if number < 0 or (at == used).any() or (known[at] != offsets[rows]).any():
                raise CorruptError("a record continues what is no segment: damaged")
            found[rows] = ids[at]
        return found

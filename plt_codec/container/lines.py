"""The checks of the stored bytes, which sessions share: rows and columns of a grid.

Spec: FORMAT.md, "Lines". Each session lies in one row of neighbours and one column spread over the file, and is
sound if either holds. Half a byte per session is enough to find damaged sessions without decoding.

A check is a sum of weighted crc32s. So a line with one damaged session tells what its crc32 was, which settles
the other line of that session too. By such steps scattered damage is told from sound sessions.

>>> grid = Grid(100)
>>> grid.width, grid.lines, list(grid.row(99)), list(grid.column(99))
(10, 10, [90, 91, 92, 93, 94, 95, 96, 97, 98, 99], [9, 19, 29, 39, 49, 59, 69, 79, 89, 99])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LARGEST_WIDTH = 16  # sessions in a row
FEWEST_SHARED = 9  # sessions; fewer have a check each
MODULUS = 1 << 32

U32 = npt.NDArray[np.uint32]


class Grid:
    """The grid of N sessions.

    ``width``: sessions in a row or column at most. ``lines``: number of rows, and of columns.
    """

    def __init__(self, sessions: int) -> None:
        self._sessions = sessions
        self.width = min(math.isqrt(sessions), LARGEST_WIDTH) if sessions >= FEWEST_SHARED else 1
        self.lines = -(-sessions // self.width)

    @property
    def checks(self) -> int:
        """Return the number of checks: rows, and columns where they are not the same."""
        return self.lines * (2 if self.width > 1 else 1)

    def row(self, session: int) -> range:
        """Return the sessions in the row of a session."""
        start = session // self.width * self.width
        return range(start, min(start + self.width, self._sessions))

    def column(self, session: int) -> range:
        """Return the sessions in the column of a session."""
        return range(session % self.lines, self._sessions, self.lines)

    def encode(self, frame_crcs: U32) -> U32:
        """Return the checks of all rows, then those of all columns.

        Args:
            frame_crcs: (N,) the crc32 of each frame.
        """
        table = np.zeros(self.lines * self.width, np.uint32)
        table[: self._sessions] = frame_crcs
        weights = 2 * np.arange(self.width, dtype=np.uint32) + 1
        rows: U32 = (table.reshape(self.lines, self.width) * weights).sum(axis=1, dtype=np.uint32)
        if self.width == 1:
            return rows
        columns = (table.reshape(self.width, self.lines) * weights[:, None]).sum(axis=0, dtype=np.uint32)
        return np.concatenate([rows, columns])

    def damaged(self, frame_crcs: U32, checks: U32) -> list[int]:
        """Return the sessions that no line proves sound, in order.

        Args:
            frame_crcs: (N,) the crc32 of each frame as it is now.
            checks: those that were stored.
        """
        errors: list[int] = (checks - self.encode(frame_crcs)).tolist()  # of each line, modulo 2^32
        if self.width == 1:
            return [session for session, error in enumerate(errors) if error]
        # a session is suspect where both of its lines are wrong
        wrong = {line for line, error in enumerate(errors) if error}
        suspects = [i for line in wrong if line < self.lines for i in self.row(line * self.width)]
        suspects = [i for i in suspects if self.lines + i % self.lines in wrong]
        # a line with one unsettled session tells that session's error, which settles other lines
        left: dict[int, set[int]] = {}  # sessions of each line that are not settled
        for session in suspects:
            for line in self._places(session):
                left.setdefault(line, set()).add(session)
        sound, work = set(), suspects.copy()
        while work:
            session = work.pop()
            places = self._places(session)
            if any(session not in left[line] for line in places):
                continue
            error = _error([(errors[line], weight, len(left[line])) for line, weight in places.items()])
            if error is None:
                continue
            if not error:
                sound.add(session)
            for line, weight in places.items():
                errors[line] = (errors[line] - error * weight) % MODULUS
                left[line].discard(session)
                work.extend(left[line])
        return sorted(set(suspects) - sound)

    def _places(self, session: int) -> dict[int, int]:
        """Return the lines of a session, row and column, each with the weight of the session in it."""
        row, column = session // self.width, self.lines + session % self.lines
        return {row: 2 * (session % self.width) + 1, column: 2 * (session // self.lines) + 1}


def _error(lines: list[tuple[int, int, int]]) -> int | None:
    """Return by how much the crc32 of a session differs from what it was; None where its lines do not tell.

    Args:
        lines: for row and column, the error of the line, the session's weight, and the sessions not settled.
    """
    told = [error * pow(weight, -1, MODULUS) % MODULUS for error, weight, _ in lines]
    if told[0] == told[1] or 0 in told:
        return min(told)  # both lines blame this session, or one of them holds
    alone = [error for error, (_, _, left) in zip(told, lines, strict=True) if left == 1]
    return alone[0] if alone else None


def line_check(frame_crcs: Sequence[int]) -> int:
    """Return the check of a line from the crc32 of each of its frames, in order."""
    return sum((2 * place + 1) * crc for place, crc in enumerate(frame_crcs)) % MODULUS

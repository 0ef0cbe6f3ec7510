"""The index of a container: checks, kinds, contexts, counts and lengths of N sessions in less than four bytes each.

Spec: FORMAT.md, "Index". The parts are the shared checks of the stored bytes (lines.py), a byte of content check
per session, one check of all contents, and the coded columns (columns.py).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.container import columns
from pltz.plt_codec.container.lines import Grid
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

CONTENTS = 4  # bytes of the check of all contents


@dataclass(frozen=True, slots=True)
class Index:
    """The index of N sessions, N at least 1.

    Args:
        sizes: (N,) ``count << 3 | kind`` of each session.
        lengths: (N,) bytes of each frame.
        contexts: (N,) number of the session whose tokens are the context of each, or `columns.NO_CONTEXT`.
        checks: (N,) low byte of each content check.
        contents: `contents_check` of all content checks.
        lines: checks of the rows and columns of the grid.
    """

    sizes: U32
    lengths: U32
    contexts: I64
    checks: U8
    contents: int
    lines: U32

    def encode(self) -> bytes:
        """Return the bytes of the index."""
        return (
            write_varint(len(self.sizes))
            + self.lines.astype("<u4").tobytes()
            + self.checks.tobytes()
            + self.contents.to_bytes(CONTENTS, "little")
            + columns.encode(self.sizes, self.lengths, self.contexts)
        )

    @classmethod
    def decode(cls, data: bytes) -> Index:
        """Undo `encode`. Work and memory are bounded by the index itself, which has a byte per session.

        Raises:
            CorruptError: these bytes are no index.
        """
        sessions, offset = read_varint(data, 0)
        if not sessions:
            raise CorruptError("an index of no sessions must be empty: the file is damaged")
        shared = Grid(sessions).checks
        contents_at = offset + 4 * shared + sessions
        if len(data) < contents_at + CONTENTS:
            raise CorruptError(f"an index of {len(data)} bytes cannot hold {sessions} sessions: the file is damaged")
        lines = np.frombuffer(data, "<u4", shared, offset)
        checks = np.frombuffer(data, np.uint8, sessions, offset + 4 * shared)
        contents = int.from_bytes(data[contents_at : contents_at + CONTENTS], "little")
        sizes, lengths, contexts = columns.decode(data[contents_at + CONTENTS :], sessions)
        return cls(sizes, lengths, contexts, checks, contents, lines)


def contents_check(checks: U32) -> int:
    """Return the one check of all content checks (N,)."""
    return zlib.crc32(checks.astype("<u4").tobytes())

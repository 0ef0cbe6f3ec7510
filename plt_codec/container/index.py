"""The index of a container: how its frames are coded and where its blocks are. Spec: FORMAT.md, "Index".

    >>> from pltz.plt_codec.container.frame import Kind
    >>> index = Index([FrameCoding(Kind.CHAT)], [BlockPlace(128, 400, 20_000)], 7)
    >>> len(index.encode()), Index.decode(index.encode()) == index
    (13, True)
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.container.block import CHECK, MAX_BODY, MAX_HEAD, PREFIX
from pltz.plt_codec.container.block_columns import ROWS
from pltz.plt_codec.container.frame import FrameCoding
from pltz.plt_codec.container.session_block import LEAST_HEAD
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

CONTENTS = 4  # bytes of the check of all contents
MAX_CODINGS = 4096

U32 = npt.NDArray[np.uint32]


class BlockPlace(NamedTuple):
    """A block in the index: its sessions, and the bytes of its head and of its body."""

    sessions: int
    head: int
    body: int


@dataclass(frozen=True, slots=True)
class Index:
    """The index of a file with sessions.

    Args:
        codings: those of its frames, None for one of a newer version.
        blocks: all blocks, in order.
        contents: `contents_check` of all content checks.
    """

    codings: Sequence[FrameCoding | None]
    blocks: Sequence[BlockPlace]
    contents: int

    def encode(self) -> bytes:
        """Return the bytes of the index. Raises UsageError where a coding has fields that do not go together."""
        out = [self.contents.to_bytes(CONTENTS, "little"), write_varint(len(self.codings))]
        out += [coding.encode() for coding in self.codings if coding]
        for sessions, head, body in self.blocks:
            out += [bytes([sessions]), write_varint(head), write_varint(body)]
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> Index:
        """Undo `encode`. A block of n sessions has a head of more than n bytes, so memory is bounded by the file.

        Raises:
            CorruptError: these bytes are no index.
        """
        if len(data) <= CONTENTS:
            raise CorruptError(f"an index of {len(data)} bytes is too short: the file is damaged")
        number, at = read_varint(data, CONTENTS)
        if not 0 < number <= MAX_CODINGS:
            raise CorruptError(f"an index of {number} codings, expected 1 to {MAX_CODINGS}: the file is damaged")
        codings = []
        for _ in range(number):
            end = at + 1 + data[at] if at < len(data) else at + 1
            if end > len(data):
                raise CorruptError("the index ends in its codings: the file is damaged")
            codings.append(FrameCoding.decode(data[at + 1 : end]))
            at = end
        blocks = []
        while at < len(data):
            sessions = data[at]
            head, at = read_varint(data, at + 1)
            body, at = read_varint(data, at)
            least, most = sessions + LEAST_HEAD, PREFIX + MAX_HEAD + CHECK
            if not (0 < sessions <= ROWS and least <= head <= most and body <= MAX_BODY):
                raise CorruptError(
                    f"the index has a block of {sessions} sessions with a head of {head} bytes and a body of {body}: "
                    "the file is damaged"
                )
            blocks.append(BlockPlace(sessions, head, body))
        if not blocks:
            raise CorruptError("an index without blocks must be empty: the file is damaged")
        return cls(codings, blocks, int.from_bytes(data[:CONTENTS], "little"))


def contents_check(checks: U32) -> int:
    """Return the one check of all content checks (N,)."""
    return zlib.crc32(checks.astype("<u4").tobytes())

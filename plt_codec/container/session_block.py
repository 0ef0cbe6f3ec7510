"""A block of a `.pltz` file: the frames of up to 128 sessions. Spec: FORMAT.md, "Block" and "Sessions".

`block.py` does what blocks of files and of packs have in common. A file has three columns of its own: which coding each
session has, whether its bitstring has copies, and how far back its context is. Its parts are the content checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pltz.plt_codec.container.block import (
    CHECK,
    CONTEXT,
    COPIED,
    COUNT,
    FIXED,
    MARK,
    MAX_BITSTRING,
    SIZE,
    STEP,
    BlockHead,
    encode_block,
    wrong,
)
from pltz.plt_codec.container.frame import MAX_COUNT, FrameCoding, Method
from pltz.plt_codec.errors import VersionError

FILE_COLUMNS = sum(1 << column for column in (CONTEXT, COUNT, SIZE, COPIED, STEP))
LEAST_HEAD = MARK + 2 + FIXED + CHECK  # bytes beside one per session


class StoredFrame(NamedTuple):
    """A frame as a block has it.

    Attributes:
        coding: number of its coding in the index.
        units: its count of tokens or bytes.
        check: low byte of its content check.
        bitstring: patch, copies and coded bytes.
        copied: whether it has copies.
        step: how many sessions back its context is, 0 without one.
    """

    coding: int
    units: int
    check: int
    bitstring: bytes
    copied: bool
    step: int


def encode(frames: Sequence[StoredFrame], salt: bytes, offset: int) -> list[bytes]:
    """Return the bytes of a block: its head, then the parts of its body. Arguments as of `encode_block`."""
    codings, counts, checks, bitstrings, copied, steps = zip(*frames, strict=True)
    columns = {CONTEXT: codings, COUNT: counts, COPIED: list(map(int, copied)), STEP: steps}
    head, check, *body = encode_block(columns, [bytes(checks)], bitstrings, salt, offset)
    return [head + check, *body]


@dataclass(slots=True)
class SessionBlock(BlockHead):
    """The head of a block of a file, checked. ``first``: number of its first session."""

    first: int = 0

    @classmethod
    def of(
        cls, data: bytes, offset: int, salt: bytes, first: int, codings: Sequence[FrameCoding | None]
    ) -> SessionBlock:
        """Return the block with this head, at byte ``offset`` of its file.

        ``codings``: those of the file, None for one of a newer version.

        Raises:
            CorruptError: the head is damaged or breaks a rule.
            VersionError: a newer version wrote it.
        """
        found = cls.read(data, offset, salt, FILE_COLUMNS)
        found.first = first
        found.ends_with(found.parts + found.count)
        columns = found.columns
        if columns[COPIED].high > 1:
            raise VersionError(f"the block at byte {offset} has copies as a newer version does: use a newer pltz")
        if columns[CONTEXT].high >= len(codings):
            raise wrong(offset, f"names a coding that is not among the {len(codings)} of the file")
        if columns[COUNT].high > MAX_COUNT or columns[SIZE].high > MAX_BITSTRING:
            raise wrong(offset, "has a count or a size over its limit")
        for row, (coding, count, size, copied, step) in enumerate(found.rows()):
            known = codings[coding]
            if known is None:
                continue
            if not known.fits(count, size) or (not known.has_tokens and size > count):
                raise wrong(offset, f"claims {count} tokens or bytes in {size}")
            if (copied and known.method is not Method.MODEL) or (step and not known.has_tokens):
                raise wrong(offset, "has copies or a context where its coding has none")
            if step > first + row:
                raise wrong(offset, "has a context before the first session")
        return found

    def rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield number of the coding, count, size, copied and step of each session."""
        return zip(*(self.columns[n].list(self.count) for n in (CONTEXT, COUNT, SIZE, COPIED, STEP)), strict=True)

    def check_of(self, row: int) -> int:
        """Return the low byte of a session's content check."""
        return self.data[self.parts + row]

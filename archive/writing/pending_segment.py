"""PendingSegment: a segment that a put names, codes and writes.

    tokens, the segment above --> id --> bitstring, mode --> Row
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any, cast

import numpy as np

from pltz.archive.catalog.chain import NOTHING
from pltz.archive.format.context import Context
from pltz.archive.format.ids import NO_SEGMENT, Tokens
from pltz.archive.format.record import Record
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec, as_bytes, ways_of
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.codecs.modes import ALONE, CODING, TOWER
from pltz.coding.log.above import REACH, Above
from pltz.coding.log.recall import Recalled, Source

Row = tuple[Context, Record]  # a record to put, with its context


class PendingSegment:
    """A segment of the batch: its place and tokens, then its name, then its bitstring.

    Attributes:
        tokens: token ids, (T,).
        up: the segment above, None for a root.
        context: the context it is stored under, one object for all segments that share it.
        mode: how ``data`` is coded.
        digest: 32 bytes; the first 10 are in its ``id``.
        coded: whether ``data`` is its bitstring already.
        part: of a codec that carries, what a segment below is coded after, once one asked.
        stored: of a codec that carries, bitstring and mode where it is stored and vouches for its tokens.
        recalled: of a log, what is left of it without the passages that it recalls; None: all.
        source: of a log, what it recalls them from.
    """

    __slots__ = (
        "codec", "coded", "context", "data", "depth", "digest", "id", "mode", "part", "recalled",
        "source", "stored", "tokens", "up",
    )  # fmt: skip

    def __init__(self, context: Context, codec: SegmentCodec, up: PendingSegment | None, tokens: Tokens):
        self.context, self.mode = context, ALONE
        self.depth: int = up.depth + 1 if up else 0
        self.codec, self.up, self.tokens = codec, up, tokens
        self.id = self.digest = self.data = b""
        self.coded = False
        self.part: Above | None = None
        self.stored: tuple[bytes, int] | None = None
        self.recalled: Recalled | None = None
        self.source: Source | None = None

    @property
    def parent(self) -> bytes:
        """Return the id of the segment above, NO_SEGMENT for a root."""
        return self.up.id if self.up else NO_SEGMENT

    def ancestors(self) -> Iterator[PendingSegment]:
        """Yield the segments above it, from its parent up."""
        at = self.up
        while at is not None:
            yield at
            at = at.up

    def above(self, reach: int) -> Tokens:
        """Return the last ``reach`` tokens above it, (m,), m at most ``reach``."""
        if self.up is None or reach <= 0:
            return NOTHING
        parts: list[Tokens] = []
        for segment in self.ancestors():
            if reach <= 0:
                break
            parts.append(segment.tokens[-reach:])
            reach -= len(parts[-1])
        return np.concatenate(parts[::-1])

    @property
    def reached(self) -> int:
        """Return the number of tokens above it that its codec reaches."""
        found, reach, at = 0, self.codec.reach, self.up
        while at is not None and found < reach:
            found += len(at.tokens)
            at = at.up
        return min(found, reach)

    @property
    def followed(self) -> int:
        """Return the bytes of the segments above that it is coded after, of a codec that carries."""
        size = 0
        for segment in reversed([*self.ancestors()]):
            size = len(segment.tokens) + (size if size <= REACH else 0)
        return size if size <= REACH else 0

    def ways(self) -> list[tuple[int, Plain]]:
        """Return the modes in which it is tried, each with what is to be encoded."""
        if not self.codec.carries:
            above = self.above(self.codec.reach) if len(self.tokens) else NOTHING
            return [(mode, Plain(self.tokens, context)) for mode, context in ways_of(self.codec, above)]
        up = self._part_above() if len(self.tokens) else None
        up = up if up and self._are_alike(up.parts()) else None
        return [(TOWER if up else ALONE, Plain(self.tokens, NOTHING, up=up, recalled=self.recalled))]

    def _are_alike(self, parts: list[Above]) -> bool:
        """Return whether segments above that are stored leave what these parts of them do: else it is coded alone."""
        for s in reversed([*self.ancestors()]):
            bits, mode = s.stored or (s.data, s.mode)
            if s.part in parts and bits:
                below = s.part.up is not None
                if below != bool(mode & TOWER) or not cast("LogCodec", self.codec).makes(s.part, bits):
                    return False
        return True

    def coded_by(self, codec: SegmentCodec, mode: int, data: bytes, tokens: int) -> Coded:
        """Return what a codec decodes to it: a bitstring of so many tokens that a record of this mode has."""
        below = mode & TOWER
        above = self.above(codec.reach) if below else NOTHING
        up = self._part_above() if below and codec.carries else None
        return Coded(data, tokens, above, mode & CODING, up=up, source=self.source)

    def _part_above(self) -> Above | None:
        """Return what it is coded after, of a codec that carries."""
        left = list(takewhile(lambda s: s.part is None, self.ancestors()))
        above = left[-1].up if left else self.up
        part = above.part if above else None
        for segment in reversed(left):
            if len(segment.tokens):
                recalled = segment.recalled
                if segment.stored:
                    recalled = cast("LogCodec", self.codec).recalled(segment.stored[0], segment.tokens)
                own = recalled.own if recalled else as_bytes(segment.tokens)
                part = segment.part = Above.of(own, part and part.to_follow, len(segment.tokens))
        return part and part.to_follow

    def take(self, data: bytes, mode: int) -> None:
        """Take a bitstring that was coded in a mode."""
        self.data, self.mode, self.coded = data, mode, True

    def row(self, **of_session: Any) -> Row:
        """Return the row that puts the segment. ``of_session``: fields of a session that it is the last segment of."""
        up = self.up
        record = Record(
            0,
            up.id if up else NO_SEGMENT,
            id=self.id,
            tokens=len(self.tokens),
            bitstring=self.data,
            mode=self.mode,
            **of_session,
        )
        return self.context, record

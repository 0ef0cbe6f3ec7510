"""Record columns: many records at once, field by field as arrays. Spec: FORMAT.md, "Record".

    bytes, offsets of records --decode--> columns --records--> records          inverse: `record_layout.py`

This does for thousands of records what `record.py` does for one. A put reads back that many, and handling
every field in Python took longer than the disk. Damage is found here, not explained: `record.decode` says
which record and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from pltz.archive.format.ids import NONE, SIZE
from pltz.archive.format.prefix_crc import checks
from pltz.archive.format.record import (
    CHECK,
    FORGET,
    LEAST_VEIL,
    MARK,
    MAX_NAME,
    MAX_RECORD,
    MAX_TAGS,
    MAX_VEIL,
    NUMBERED,
    PARENT_BACK,
    PARENT_INLINE,
    PARENT_MASK,
    PARENT_SHIFT,
    PARENT_TABLE,
    RESIDUE,
    SEGMENT,
    SESSION,
    TAGS,
    TIME,
    TOKENS_PER_BYTE,
    Mark,
    Place,
    Record,
)
from pltz.archive.format.segment_offsets import SegmentOffsets
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.limits import MAX_TOKENS as SESSION_TOKENS
from pltz.plt_codec.varint import MAX_BYTES, MAX_VALUE

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """Fields of records, (N,) each, as stored in the bytes that they were decoded from.

    Absent fields are 0.
    """

    flags: Ints
    context: Ints
    how: Ints  # PARENT_*
    reference: Ints  # number in the table, or bytes back
    parent: Bytes  # (N, 16), where it is written inline
    id: Bytes  # (N, 16), id of the segment, or of a mark's version
    tokens: Ints  # or the counter of a mark
    title: Ints  # offset of the name or the veil
    title_size: Ints
    version: Ints
    delta: Ints  # seconds after the pack's time
    tags: Ints  # offset of the tags
    tags_size: Ints
    bits: Ints  # offset of the bitstring, or of a mark's verb
    end: Ints  # offset of the end of the bitstring

    def _has(self, flag: int) -> Bools:
        has: Bools = self.flags & (MARK | flag) == flag
        return has

    @property
    def mark(self) -> Bools:
        """Return (N,) whether each record is a mark."""
        return self._has(MARK)

    @property
    def segment(self) -> Bools:
        """Return (N,) whether each record has a segment."""
        return self._has(SEGMENT)

    @property
    def session(self) -> Bools:
        """Return (N,) whether each record has a session."""
        return self._has(SESSION)

    def records(self, data: bytes, begins: Ints, place: Place, seen: SegmentOffsets) -> list[Record]:
        """Return the records.

        ``begins``: (N,) offsets of the records in ``data``, which lies at ``place``; ``seen``: earlier
        segments of the pack, to which these are added. Raises CorruptError where a parent is not among them
        or a name is not UTF-8.
        """
        ids: list[bytes | None] = list(_split(self.id))
        for row in np.flatnonzero(~self.segment).tolist():
            ids[row] = None
        offsets = begins + place.offset
        seen.add(offsets[self.segment], self.id[self.segment])
        parents = self._parents(offsets, place, seen)
        session, sealed = self.session, np.isin(self.context, [*place.sealed])
        titles = [data[a:b] for a, b in _spans(self.title, self.title_size)]
        veiled = (session & sealed).tolist()
        try:
            names = [
                (None if not s else "" if v else title.decode())
                for s, v, title in zip(session.tolist(), veiled, titles, strict=True)
            ]
        except UnicodeDecodeError as exc:
            raise CorruptError("the name of a session is not UTF-8: damaged") from exc
        veils = [b""] * len(ids)
        if any(veiled):
            veils = [title if v else b"" for v, title in zip(veiled, titles, strict=True)]
        tags = [b""] * len(ids)
        if self.tags_size.any():
            tags = [data[a:b] for a, b in _spans(self.tags, self.tags_size)]
        bits = [data[a:b] for a, b in zip(self.bits.tolist(), self.end.tolist(), strict=True)]
        numbers = np.where(self.flags & NUMBERED, self.version, 1).tolist()
        times = np.where(session, place.base + self.delta, 0).tolist()
        columns = (
            self.context.tolist(),
            parents,
            ids,
            self.tokens.tolist(),
            bits,
            names,
            numbers,
            times,
            tags,
        )
        rows = list(map(partial(tuple.__new__, Record), zip(*columns, [None] * len(ids), veils, strict=True)))
        for row in np.flatnonzero(self.mark).tolist():
            mark = Mark(self.id[row].tobytes(), int(self.tokens[row]), bits[row][0])
            rows[row] = Record(int(self.context[row]), mark=mark)
        return rows

    def _parents(self, offsets: Ints, place: Place, seen: SegmentOffsets) -> list[bytes]:
        table = [*place.parents, NONE]
        number = np.where(self.how == PARENT_TABLE, self.reference, len(table) - 1)
        parents = [table[n] for n in number.tolist()]
        for row in np.flatnonzero(self.how == PARENT_INLINE).tolist():
            parents[row] = self.parent[row].tobytes()
        back = np.flatnonzero(self.how == PARENT_BACK)
        for row, parent in zip(
            back.tolist(), _split(seen.find((offsets - self.reference)[back])), strict=True
        ):
            parents[row] = parent
        return parents


def decode(data: bytes | memoryview, begins: Ints, end: int, place: Place) -> Columns:
    """Return the fields of the records that begin at ``begins``, (N,), and fill ``data`` up to ``end``.

    ``data`` lies at ``place`` in its pack. Checksums are not checked. Raises CorruptError where anything else
    breaks a rule of `record.decode`.
    """
    pen = _Reader(np.frombuffer(data, np.uint8), begins.copy())
    marks, flags = pen.byte(), pen.byte()
    body = pen.varint()
    ends = pen.at + body
    pen.want((marks == place.mark) & (body <= MAX_RECORD))
    pen.want(ends + CHECK == np.append(begins[1:], end))
    mark, segment, session = (flags & bit > 0 for bit in (MARK, SEGMENT, SESSION))
    pen.want(np.where(mark, flags == MARK, segment | session & (flags != 0)))
    pen.want(session | (flags & (TIME | NUMBERED | TAGS) == 0))
    context = pen.varint()
    pen.want(context < place.contexts)
    how = (flags & PARENT_MASK) >> PARENT_SHIFT
    refers = (how == PARENT_TABLE) | (how == PARENT_BACK)
    reference = pen.varint(refers)
    pen.want((how != PARENT_TABLE) | (reference < len(place.parents)))
    pen.want((how != PARENT_BACK) | (reference > 0))
    parent = pen.block(how == PARENT_INLINE)
    identity = pen.block(segment | mark)
    tokens = pen.varint(segment | mark)
    title, title_size = pen.span(session)
    version = pen.varint(flags & NUMBERED > 0)
    delta = pen.varint(flags & TIME > 0)
    tags, tags_size = pen.span(flags & TAGS > 0)
    sealed = session & np.isin(context, [*place.sealed])
    pen.want(title_size <= np.where(sealed, MAX_VEIL, MAX_NAME))
    pen.want(~sealed | (title_size >= LEAST_VEIL) & (tags_size == 0))
    pen.want(tags_size <= MAX_TAGS)
    bits = pen.at.copy()
    pen.want(bits <= ends)
    pen.want(np.where(mark, bits + 1 == ends, tokens_fit(tokens, ends - bits)))
    pen.want(segment | mark | (bits == ends))
    pen.want(~mark | (pen.byte() <= FORGET))
    pen.close()
    return Columns(
        flags, context, how, reference, parent, identity, tokens,
        title, title_size, version, delta, tags, tags_size, bits, ends,
    )  # fmt: skip


def read(data: bytes, begins: Ints, place: Place, seen: SegmentOffsets) -> list[Record]:
    """Return the sound records that begin at ``begins``, (N,), and fill ``data``. Raises CorruptError.

    ``seen``: as in `Columns.records`.
    """
    found = decode(data, begins, len(data), place)
    sums = checks(data, begins, np.append(begins[1:], len(data)), place.seed, place.offset)
    if (sums != RESIDUE).any():
        raise CorruptError("some record does not match its checksum: damaged")
    return found.records(data, begins, place, seen)


class _Reader:
    """Reads one field of all records at a time. ``at``: (N,) offsets of the next fields.

    Reads beyond the data give arbitrary values. They are refused later, since no record may exceed its end.
    """

    def __init__(self, data: Bytes, at: Ints):
        self.data, self.at, self._right = data, at, True
        padded = data if len(data) >= SIZE else np.zeros(SIZE, np.uint8)
        self._blocks = np.lib.stride_tricks.sliding_window_view(padded, SIZE)

    def want(self, right: Bools) -> None:
        """Note whether a condition holds for all records."""
        self._right = self._right and bool(right.all())

    def close(self) -> None:
        """Raise CorruptError where a condition did not hold."""
        if not self._right:
            raise CorruptError("some record is damaged, or of a newer version")

    def byte(self) -> Ints:
        """Return the next byte of each record, (N,)."""
        found = self._at(self.at)
        self.at += 1
        return found

    def varint(self, which: Bools | None = None) -> Ints:
        """Return numbers, (N,); 0 without advancing where ``which`` is False."""
        byte = self._at(self.at)
        if which is None:
            self.at += 1
        else:
            byte *= which
            self.at += which
        value, rows, step = byte & 0x7F, np.flatnonzero(byte > 0x7F), 0
        while len(rows):  # most numbers have one byte
            step += 1
            byte = self._at(self.at[rows])
            value[rows] |= (byte & 0x7F) << 7 * step
            self.at[rows] += 1
            self.want(byte > 0)
            rows = rows[byte > 0x7F]
            self._right = self._right and step < MAX_BYTES - (len(rows) > 0)
            if not self._right:
                break
        self.want(value <= MAX_VALUE)
        return value

    def block(self, which: Bools) -> Bytes:
        """Return (N, 16) bytes; zeros without advancing where ``which`` is False."""
        out = np.zeros((len(self.at), SIZE), np.uint8)
        rows = np.flatnonzero(which)
        if len(rows):
            out[rows] = self._blocks[np.minimum(self.at[rows], len(self._blocks) - 1)]
            self.at[rows] += SIZE
        return out

    def span(self, which: Bools) -> tuple[Ints, Ints]:
        """Return the offset, (N,), and size, (N,), of a field that follows its size."""
        size = self.varint(which)
        begin = self.at.copy()
        self.at += size
        return begin, size

    def _at(self, at: Ints) -> Ints:
        return np.take(self.data, at, mode="clip").astype(np.int64)


def tokens_fit(tokens: Ints, sizes: Ints) -> Bools:
    """Return (N,) whether bitstrings of (N,) bytes may hold (N,) tokens."""
    return (tokens >= 0) & (tokens <= np.minimum(SESSION_TOKENS, TOKENS_PER_BYTE * (sizes + 1)))


def _split(blocks: Bytes) -> list[bytes]:
    data = blocks.tobytes()
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


def _spans(begins: Ints, sizes: Ints) -> Iterable[tuple[int, int]]:
    return zip(begins.tolist(), (begins + sizes).tolist(), strict=True)

"""Record batch: thousands of records at once, to bytes and back, field by field as arrays. Spec: FORMAT.md, "Record".

    records --lay_out--> RecordLayout: widths, offsets --write--> bytes
    bytes, offsets of records --decode--> RecordColumns --records--> records

This does for a whole commit what `record.py` does for one record. Handling every field in Python took longer
than the disk. Damage is found here, not explained: `record.decode` says which record and why.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.archive.format.ids import NONE, SIZE, many
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
    NEIGHBOUR,
    NUMBERED,
    PARENT_BACK,
    PARENT_INLINE,
    PARENT_MASK,
    PARENT_NONE,
    PARENT_SHIFT,
    PARENT_TABLE,
    RESIDUE,
    SEGMENT,
    SESSION,
    TAGS,
    TIME,
    TOKENS_PER_BYTE,
    Mark,
    Record,
    RecordPlace,
)
from pltz.archive.format.segment_offsets import SegmentOffsets
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from pltz.plt_codec.limits import MAX_TOKENS as SESSION_TOKENS
from pltz.plt_codec.varint import MAX_BYTES, MAX_VALUE

HOW = 34  # bits of a reference; its kind (PARENT_*) is above them

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


# ---- records -> bytes


def lay_out(rows: Sequence[Record], table: Mapping[bytes, int], place: RecordPlace) -> RecordLayout:
    """Return the layout of these records, at least one, the first at ``place``.

    ``table``: parents in the pack's table and their numbers there. Other parents are named by the distance to
    their record where that comes before, else by their id.

    Raises ContentError where a field exceeds its limit, UsageError where fields contradict each other.
    """
    marks = np.array([r.mark is not None for r in rows])
    plain = [_as_segment(r) for r in rows] if marks.any() else rows
    contexts, parents, ids, tokens, bits, names, numbers, times, tags, _, veils, neighbours = zip(*plain, strict=True)
    titles = [b"" if n is None else v or n.encode() for n, v in zip(names, veils, strict=True)]
    fields = _FieldSizes(
        marks,
        np.array([i is not None for i in ids]),
        np.array([n is not None for n in names]),
        np.array([bool(v) for v in veils]),
        np.array([n != NONE for n in neighbours]),
        *(np.array(column, np.int64) for column in (contexts, tokens, numbers, times)),
        *(np.fromiter(map(len, column), np.int64, len(rows)) for column in (titles, tags, bits)),
    )
    fields.check(place.base)
    pieces = parents, neighbours, [i or b"" for i in ids], titles, tags, bits
    targets = [None if m else i for i, m in zip(ids, marks.tolist(), strict=True)]  # a mark is never a parent
    return RecordLayout(fields, pieces, *_references(parents, targets, table), place)


def _as_segment(record: Record) -> Record:
    """Return a mark's fields in place of the corresponding ones of a segment: version id, counter, verb."""
    if (mark := record.mark) is None:
        return record
    return Record(record.context, NONE, mark.version, mark.counter, bytes([mark.verb]))


@dataclass(frozen=True)
class _FieldSizes:
    """Presence, numbers and sizes of the fields of records, (N,) each."""

    mark: Bools
    segment: Bools  # also True for a mark
    session: Bools
    sealed: Bools
    neighbour: Bools
    context: Ints
    tokens: Ints
    version: Ints
    time: Ints
    title: Ints  # bytes of the name or the veil
    tags: Ints  # bytes
    bits: Ints  # bytes

    def check(self, base: int) -> None:
        """Check limits and consistency. Raises ContentError, UsageError."""
        if (self.neighbour & (self.mark | ~self.segment)).any():
            raise UsageError("only a segment has a neighbour")
        if (~self.segment & ((self.bits > 0) | ~self.session)).any():
            raise UsageError("a record without a segment holds a session and no bitstring")
        wrong = np.flatnonzero(~self.mark & ~tokens_fit(self.tokens, self.bits))
        for at in wrong[:1].tolist():
            raise ContentError(
                f"{self.tokens[at]} tokens in {self.bits[at]} bytes are over the format's limit"
            )
        _limit(np.where(self.sealed, 0, self.title), MAX_NAME, "name of a session")
        _limit(np.where(self.sealed, self.title, 0), MAX_VEIL, "sealed name of a session")
        _limit(self.tags, MAX_TAGS, "JSON of the tags")
        delta = np.where(self.session, self.time - base, 0)
        if ((delta < 0) | (delta > MAX_VALUE)).any():
            raise UsageError("the time of a version lies before its pack's, or a century after")
        if (np.where(self.mark, self.tokens, self.version) > MAX_VALUE).any():
            raise ContentError(f"versions and marks are counted up to {MAX_VALUE}")


def _limit(sizes: Ints, most: int, what: str) -> None:
    if (size := int(sizes.max())) > most:
        raise ContentError(f"the {what} has {size} bytes, at most {most} are allowed")


def _references(
    parents: Sequence[bytes], ids: Sequence[bytes | None], table: Mapping[bytes, int]
) -> tuple[Ints, Ints]:
    """Return the kind of each parent's reference, (N,), and its number, (N,).

    The number is that in the table, or that of the parent's record.
    """
    first = dict(zip(reversed(ids), range(len(ids) - 1, -1, -1), strict=True))
    known = {p: PARENT_BACK << HOW | first[p] if p in first else PARENT_INLINE << HOW for p in {*parents}}
    known |= {p: PARENT_TABLE << HOW | table[p] for p in known.keys() & table.keys()}
    known[NONE] = PARENT_NONE << HOW
    codes = np.fromiter(map(known.__getitem__, parents), np.int64, len(parents))
    how, reference = codes >> HOW, codes & (1 << HOW) - 1
    how[(how == PARENT_BACK) & (reference >= np.arange(len(how)))] = PARENT_INLINE
    return how, reference


class RecordLayout:
    """The place of every field of every record.

    ``size``: bytes of all records. Widths are in bytes; the width of an absent field is 0.
    """

    def __init__(
        self,
        fields: _FieldSizes,
        pieces: tuple[Sequence[bytes], ...],
        how: Ints,
        reference: Ints,
        place: RecordPlace,
    ):
        f = self.fields = fields
        self.pieces, self.place, self.how = pieces, place, how
        self.delta = np.where(f.session, f.time - place.base, 0)
        self.flags = (
            np.where(f.mark, MARK, SEGMENT * f.segment)
            | SESSION * f.session
            | NEIGHBOUR * f.neighbour
            | how << PARENT_SHIFT
            | TIME * (self.delta > 0)
            | NUMBERED * (f.session & (f.version != 1))
            | TAGS * (f.tags > 0)
        )
        self.title_width = _widths(f.title, f.session)
        self.number_width = _widths(f.version, self.flags & NUMBERED > 0)
        self.time_width = _widths(self.delta, self.delta > 0)
        self.tags_width = _widths(f.tags, f.tags > 0)
        self.tokens_width = _widths(f.tokens, f.segment)
        self.body = (
            _widths(f.context) + SIZE * (how == PARENT_INLINE) + SIZE * f.segment + f.title + f.tags + f.bits
        )
        self.body += SIZE * f.neighbour
        self.body += (
            self.title_width + self.number_width + self.time_width + self.tags_width + self.tokens_width
        )
        self.reference, self.reference_width = reference, _widths(reference, how == PARENT_TABLE)
        self._measure_back()
        self.body += self.reference_width
        _limit(self.body, MAX_RECORD, "rest of a record")
        self.ends = np.cumsum(_whole(self.body))
        self.size = int(self.ends[-1])

    def _measure_back(self) -> None:
        """Compute the distances to parents in this pack, in order.

        The width of one distance moves all records after it.
        """
        rows = np.flatnonzero(self.how == PARENT_BACK).tolist()
        body = self.body + self.reference_width
        begins = (np.cumsum(_whole(body)) - _whole(body)).tolist()
        grown = [0]  # bytes taken by the distances of the rows so far
        for n, row in enumerate(rows):
            parent = int(self.reference[row])
            distance = begins[row] + grown[n] - begins[parent] - grown[bisect_left(rows, parent)]
            width, size = _width(distance), int(body[row])
            self.reference[row], self.reference_width[row] = distance, width
            grown.append(grown[n] + width + _width(size + width) - _width(size))

    def write(self, out: memoryview) -> None:
        """Write all records into ``out``, which has exactly ``size`` bytes."""
        f, (parents, neighbours, ids, titles, tags, bits) = self.fields, self.pieces
        begins = self.ends - _whole(self.body)
        pen = _FieldWriter(out, begins.copy())
        pen.byte(np.full(len(begins), self.place.mark, np.uint8))
        pen.byte(self.flags)
        pen.varints(self.body, _widths(self.body))
        pen.varints(f.context, _widths(f.context))
        pen.varints(self.reference, self.reference_width)
        pen.pieces(parents, SIZE * (self.how == PARENT_INLINE))
        pen.pieces(neighbours, SIZE * f.neighbour)
        pen.pieces(ids, SIZE * f.segment)
        pen.varints(f.tokens, self.tokens_width)
        pen.varints(f.title, self.title_width)
        pen.pieces(titles, f.title)
        pen.varints(f.version, self.number_width)
        pen.varints(self.delta, self.time_width)
        pen.varints(f.tags, self.tags_width)
        pen.pieces(tags, f.tags)
        pen.pieces(bits, f.bits)
        sums = checks(out, begins, self.ends - CHECK, self.place.seed, self.place.offset)
        for byte in range(CHECK):
            pen.byte(sums >> 8 * byte & 0xFF)


class _FieldWriter:
    """Writes one field of all records at a time. ``at``: (N,) offsets of the next fields."""

    def __init__(self, out: memoryview, at: Ints):
        self._view, self._out, self.at = out, np.frombuffer(out, np.uint8), at

    def byte(self, values: npt.NDArray[np.integer[Any]]) -> None:
        """Write one byte per record, (N,)."""
        self._out[self.at] = values
        self.at += 1

    def varints(self, values: Ints, widths: Ints) -> None:
        """Write numbers, (N,), of these widths, (N,); none where the width is 0."""
        for step in range(int(widths.max())):
            rows = np.flatnonzero(widths > step)
            more = (widths[rows] > step + 1).astype(np.int64)
            self._out[self.at[rows] + step] = values[rows] >> 7 * step & 0x7F | more << 7
        self.at += widths

    def pieces(self, pieces: Sequence[bytes], sizes: Ints) -> None:
        """Write one piece per record, of these sizes, (N,); none where the size is 0."""
        if many is not None:
            many.place(self._view, self.at, sizes, pieces)
        else:
            rows = np.flatnonzero(sizes)
            spans = zip(self.at[rows].tolist(), (self.at + sizes)[rows].tolist(), strict=True)
            for row, (begin, end) in zip(rows.tolist(), spans, strict=True):
                self._view[begin:end] = pieces[row]
        self.at += sizes


def _whole(body: Ints) -> Ints:
    """Return the bytes of records, (N,), from the bytes between size and checksum."""
    return 2 + _widths(body) + body + CHECK


def _widths(values: Ints, which: Bools | None = None) -> Ints:
    """Return the bytes of varints, (N,); 0 where ``which`` is False."""
    widths = np.ones(len(values), np.int64)
    for step in range(1, MAX_BYTES):
        widths += values >> 7 * step > 0
    return widths if which is None else widths * which


def _width(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


# ---- bytes -> records


@dataclass(frozen=True)
class RecordColumns:
    """Fields of records, (N,) each, as stored in the bytes that they were decoded from.

    Absent fields are 0.
    """

    flags: Ints
    context: Ints
    how: Ints  # PARENT_*
    reference: Ints  # number in the table, or bytes back
    parent: Bytes  # (N, 16), where it is written inline
    neighbour: Bytes  # (N, 16), zeros where there is none
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
        has: Bools = (self.flags & flag > 0) & (self.flags != MARK)
        return has

    @property
    def mark(self) -> Bools:
        """Return (N,) whether each record is a mark."""
        mark: Bools = self.flags == MARK
        return mark

    @property
    def segment(self) -> Bools:
        """Return (N,) whether each record has a segment."""
        return self._has(SEGMENT)

    @property
    def session(self) -> Bools:
        """Return (N,) whether each record has a session."""
        return self._has(SESSION)

    def records(self, data: bytes, begins: Ints, place: RecordPlace, seen: SegmentOffsets) -> list[Record]:
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
        marks = [None] * len(ids)
        whole = zip(*columns, marks, veils, _split(self.neighbour), strict=True)
        rows = list(map(partial(tuple.__new__, Record), whole))
        for row in np.flatnonzero(self.mark).tolist():
            mark = Mark(self.id[row].tobytes(), int(self.tokens[row]), bits[row][0])
            rows[row] = Record(int(self.context[row]), mark=mark)
        return rows

    def _parents(self, offsets: Ints, place: RecordPlace, seen: SegmentOffsets) -> list[bytes]:
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


def decode(data: bytes | memoryview, begins: Ints, end: int, place: RecordPlace) -> RecordColumns:
    """Return the fields of the records that begin at ``begins``, (N,), and fill ``data`` up to ``end``.

    ``data`` lies at ``place`` in its pack. Checksums are not checked. Raises CorruptError where anything else
    breaks a rule of `record.decode`.
    """
    pen = _FieldReader(np.frombuffer(data, np.uint8), begins.copy())
    marks, flags = pen.byte(), pen.byte()
    body = pen.varint()
    ends = pen.at + body
    pen.want((marks == place.mark) & (body <= MAX_RECORD))
    pen.want(ends + CHECK == np.append(begins[1:], end))
    mark, segment, session = flags == MARK, flags & SEGMENT > 0, flags & SESSION > 0
    close = flags & (NEIGHBOUR | SEGMENT) == NEIGHBOUR | SEGMENT
    pen.want(mark | segment | session & (flags & NEIGHBOUR == 0))
    pen.want(session | (flags & (TIME | NUMBERED | TAGS) == 0))
    context = pen.varint()
    pen.want(context < place.contexts)
    how = (flags & PARENT_MASK) >> PARENT_SHIFT
    refers = (how == PARENT_TABLE) | (how == PARENT_BACK)
    reference = pen.varint(refers)
    pen.want((how != PARENT_TABLE) | (reference < len(place.parents)))
    pen.want((how != PARENT_BACK) | (reference > 0))
    parent = pen.block(how == PARENT_INLINE)
    neighbour = pen.block(close)
    pen.want(~close | neighbour.any(1))
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
    return RecordColumns(
        flags, context, how, reference, parent, neighbour, identity, tokens,
        title, title_size, version, delta, tags, tags_size, bits, ends,
    )  # fmt: skip


def read(data: bytes, begins: Ints, place: RecordPlace, seen: SegmentOffsets) -> list[Record]:
    """Return the sound records that begin at ``begins``, (N,), and fill ``data``. Raises CorruptError.

    ``seen``: as in `RecordColumns.records`.
    """
    found = decode(data, begins, len(data), place)
    sums = checks(data, begins, np.append(begins[1:], len(data)), place.seed, place.offset)
    if (sums != RESIDUE).any():
        raise CorruptError("some record does not match its checksum: damaged")
    return found.records(data, begins, place, seen)


class _FieldReader:
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

"""Layout: the place of every field of thousands of records, and their bytes. Spec: FORMAT.md, "Record".

    records --lay_out--> widths, offsets --write--> bytes          inverse: `record_columns.py`

A put lays out a whole commit as arrays, field by field. Handling every field in Python took longer than the
disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.archive.format.ids import NONE, SIZE, many
from pltz.archive.format.prefix_crc import checks
from pltz.archive.format.record import (
    CHECK,
    MARK,
    MAX_NAME,
    MAX_RECORD,
    MAX_TAGS,
    MAX_VEIL,
    NUMBERED,
    PARENT_BACK,
    PARENT_INLINE,
    PARENT_NONE,
    PARENT_SHIFT,
    PARENT_TABLE,
    SEGMENT,
    SESSION,
    TAGS,
    TIME,
    Place,
    Record,
)
from pltz.archive.format.record_columns import Bools, Ints, tokens_fit
from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.varint import MAX_BYTES, MAX_VALUE

HOW = 34  # bits of a reference; its kind (PARENT_*) is above them


def lay_out(rows: Sequence[Record], table: Mapping[bytes, int], place: Place) -> Layout:
    """Return the layout of these records, at least one, the first at ``place``.

    ``table``: parents in the pack's table and their numbers there. Other parents are named by the distance to
    their record where that comes before, else by their id.

    Raises ContentError where a field exceeds its limit, UsageError where fields contradict each other.
    """
    marks = np.array([r.mark is not None for r in rows])
    plain = [_as_segment(r) for r in rows] if marks.any() else rows
    contexts, parents, ids, tokens, bits, names, numbers, times, tags, _, veils = zip(*plain, strict=True)
    titles = [b"" if n is None else v or n.encode() for n, v in zip(names, veils, strict=True)]
    fields = _Fields(
        marks,
        np.array([i is not None for i in ids]),
        np.array([n is not None for n in names]),
        np.array([bool(v) for v in veils]),
        *(np.array(column, np.int64) for column in (contexts, tokens, numbers, times)),
        *(np.fromiter(map(len, column), np.int64, len(rows)) for column in (titles, tags, bits)),
    )
    fields.check(place.base)
    pieces = parents, [i or b"" for i in ids], titles, tags, bits
    targets = [None if m else i for i, m in zip(ids, marks.tolist(), strict=True)]  # a mark is never a parent
    return Layout(fields, pieces, *_references(parents, targets, table), place)


def _as_segment(record: Record) -> Record:
    """Return a mark's fields in place of the corresponding ones of a segment: version id, counter, verb."""
    if (mark := record.mark) is None:
        return record
    return Record(record.context, NONE, mark.version, mark.counter, bytes([mark.verb]))


@dataclass(frozen=True)
class _Fields:
    """Presence, numbers and sizes of the fields of records, (N,) each."""

    mark: Bools
    segment: Bools  # also True for a mark
    session: Bools
    sealed: Bools
    context: Ints
    tokens: Ints
    version: Ints
    time: Ints
    title: Ints  # bytes of the name or the veil
    tags: Ints  # bytes
    bits: Ints  # bytes

    def check(self, base: int) -> None:
        """Check limits and consistency. Raises ContentError, UsageError."""
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


class Layout:
    """The place of every field of every record.

    ``size``: bytes of all records. Widths are in bytes; the width of an absent field is 0.
    """

    def __init__(
        self,
        fields: _Fields,
        pieces: tuple[Sequence[bytes], ...],
        how: Ints,
        reference: Ints,
        place: Place,
    ):
        f = self.fields = fields
        self.pieces, self.place, self.how = pieces, place, how
        self.delta = np.where(f.session, f.time - place.base, 0)
        self.flags = (
            np.where(f.mark, MARK, SEGMENT * f.segment)
            | SESSION * f.session
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
        f, (parents, ids, titles, tags, bits) = self.fields, self.pieces
        begins = self.ends - _whole(self.body)
        pen = _Pen(out, begins.copy())
        pen.byte(np.full(len(begins), self.place.mark, np.uint8))
        pen.byte(self.flags)
        pen.varints(self.body, _widths(self.body))
        pen.varints(f.context, _widths(f.context))
        pen.varints(self.reference, self.reference_width)
        pen.pieces(parents, SIZE * (self.how == PARENT_INLINE))
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


class _Pen:
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

"""Columns: many records at once, field by field as arrays. Spec: FORMAT.md, "Record".

    records --lay_out, write--> bytes        bytes, where records begin --decode--> columns --records--> records

What `record.py` says of one record is said here of some thousand: a put lays out and reads back that many, and Python for every field of
every record took longer than the disk. Damage is found here, not explained: `record.decode` says which record and why.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.archive.identity import MAX_TOKENS, NONE, SIZE
from pltz.archive.record import (
    CHECK,
    FORGET,
    LABELS,
    LEAST_VEIL,
    MARK,
    MAX_LABELS,
    MAX_NAME,
    MAX_RECORD,
    MAX_VEIL,
    NUMBER,
    PARENT_BACK,
    PARENT_INLINE,
    PARENT_MASK,
    PARENT_NONE,
    PARENT_SHIFT,
    PARENT_TABLE,
    RESIDUE,
    SEGMENT,
    SESSION,
    TIME,
    TOKENS_PER_BYTE,
    Mark,
    Place,
    Record,
)
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from pltz.plt_codec.varint import MAX_BYTES, MAX_VALUE

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HOW = 34  # bits of a reference; how it is meant stands above them


# ---- records to bytes


def lay_out(rows: Sequence[Record], table: Mapping[bytes, int], place: Place) -> Layout:
    """Where everything of these records goes, at least one, the first at ``place``.

    ``table``: parents that stand in the pack's table, and their numbers there. Others are named by the distance to their record where that
    comes before, else by their id.
    Raises ContentError where a field is over its limit, UsageError where fields contradict each other.
    """
    marks = np.array([r.mark is not None for r in rows])
    plain = [_as_segment(r) for r in rows] if marks.any() else rows
    contexts, parents, ids, tokens, bits, names, numbers, times, labels, _, veils = zip(*plain, strict=True)
    tags = [b"" if n is None else v or n.encode() for n, v in zip(names, veils, strict=True)]
    fields = _Fields(
        marks,
        np.array([i is not None for i in ids]),
        np.array([n is not None for n in names]),
        np.array([bool(v) for v in veils]),
        *(np.array(column, np.int64) for column in (contexts, tokens, numbers, times)),
        *(np.fromiter(map(len, column), np.int64, len(rows)) for column in (tags, labels, bits)),
    )
    fields.check(place.base)
    pieces = parents, [i or b"" for i in ids], tags, labels, bits
    targets = [None if m else i for i, m in zip(ids, marks.tolist(), strict=True)]  # a mark is no parent
    return Layout(fields, pieces, *_references(parents, targets, table), place)


def _as_segment(record: Record) -> Record:
    """A mark's fields, where a segment has the like: version id, counter, verb."""
    if (mark := record.mark) is None:
        return record
    return Record(record.context, NONE, mark.version, mark.counter, bytes([mark.verb]))


@dataclass(frozen=True)
class _Fields:
    """(N,) each: what records have, and numbers and sizes of it."""

    mark: Bools
    segment: Bools  # of a mark, too
    session: Bools
    sealed: Bools
    context: Ints
    tokens: Ints
    number: Ints
    time: Ints
    tag: Ints  # bytes of the name, or of the veil
    labels: Ints  # bytes
    bits: Ints  # bytes

    def check(self, base: int) -> None:
        """Raises ContentError, UsageError."""
        if (~self.segment & ((self.bits > 0) | ~self.session)).any():
            raise UsageError("a record without a segment holds a session and no bitstring")
        wrong = np.flatnonzero(~self.mark & ~tokens_fit(self.tokens, self.bits))
        for at in wrong[:1].tolist():
            raise ContentError(
                f"{self.tokens[at]} tokens in {self.bits[at]} bytes are over the format's limit"
            )
        _limit(np.where(self.sealed, 0, self.tag), MAX_NAME, "name of a session")
        _limit(np.where(self.sealed, self.tag, 0), MAX_VEIL, "sealed name of a session")
        _limit(self.labels, MAX_LABELS, "JSON of the labels")
        delta = np.where(self.session, self.time - base, 0)
        if ((delta < 0) | (delta > MAX_VALUE)).any():
            raise UsageError("the time of a version lies before its pack's, or a century after")
        if (np.where(self.mark, self.tokens, self.number) > MAX_VALUE).any():
            raise ContentError(f"versions and marks are counted up to {MAX_VALUE}")


def tokens_fit(tokens: Ints, sizes: Ints) -> Bools:
    """(N,) whether bitstrings of so many bytes may claim so many tokens."""
    return (tokens >= 0) & (tokens <= np.minimum(MAX_TOKENS, TOKENS_PER_BYTE * (sizes + 1)))


def _limit(sizes: Ints, most: int, what: str) -> None:
    if (size := int(sizes.max())) > most:
        raise ContentError(f"the {what} has {size} bytes, at most {most} are allowed")


def _references(
    parents: Sequence[bytes], ids: Sequence[bytes | None], table: Mapping[bytes, int]
) -> tuple[Ints, Ints]:
    """(N,) how each parent is named, and its number in the table or the number of its record."""
    first = dict(zip(reversed(ids), range(len(ids) - 1, -1, -1), strict=True))
    known = {p: PARENT_BACK << HOW | first[p] if p in first else PARENT_INLINE << HOW for p in {*parents}}
    known |= {p: PARENT_TABLE << HOW | table[p] for p in known.keys() & table.keys()}
    known[NONE] = PARENT_NONE << HOW
    codes = np.fromiter(map(known.__getitem__, parents), np.int64, len(parents))
    how, reference = codes >> HOW, codes & (1 << HOW) - 1
    how[(how == PARENT_BACK) & (reference >= np.arange(len(how)))] = PARENT_INLINE
    return how, reference


class Layout:
    """Where every field of every record goes. ``size``: bytes of all. Widths are bytes; that of a field that is not there is 0."""

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
            | NUMBER * (f.session & (f.number != 1))
            | LABELS * (f.labels > 0)
        )
        self.tag_width = _widths(f.tag, f.session)
        self.number_width = _widths(f.number, self.flags & NUMBER > 0)
        self.time_width = _widths(self.delta, self.delta > 0)
        self.labels_width = _widths(f.labels, f.labels > 0)
        self.tokens_width = _widths(f.tokens, f.segment)
        self.body = (
            _widths(f.context) + SIZE * (how == PARENT_INLINE) + SIZE * f.segment + f.tag + f.labels + f.bits
        )
        self.body += (
            self.tag_width + self.number_width + self.time_width + self.labels_width + self.tokens_width
        )
        self.reference, self.reference_width = reference, _widths(reference, how == PARENT_TABLE)
        self._measure_back()
        self.body += self.reference_width
        _limit(self.body, MAX_RECORD, "rest of a record")
        self.ends = np.cumsum(_whole(self.body))
        self.size = int(self.ends[-1])

    def _measure_back(self) -> None:
        """Distances to parents in this pack, in order: how wide one is moves all that come after."""
        rows = np.flatnonzero(self.how == PARENT_BACK).tolist()
        body = self.body + self.reference_width
        begins = (np.cumsum(_whole(body)) - _whole(body)).tolist()
        grown = [0]  # bytes that the distances of the first so many rows took
        for n, row in enumerate(rows):
            parent = int(self.reference[row])
            distance = begins[row] + grown[n] - begins[parent] - grown[bisect_left(rows, parent)]
            width, size = _width(distance), int(body[row])
            self.reference[row], self.reference_width[row] = distance, width
            grown.append(grown[n] + width + _width(size + width) - _width(size))

    def write(self, out: memoryview) -> None:
        """All records, into as many bytes as they need."""
        f, (parents, ids, tags, labels, bits) = self.fields, self.pieces
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
        pen.varints(f.tag, self.tag_width)
        pen.pieces(tags, f.tag)
        pen.varints(f.number, self.number_width)
        pen.varints(self.delta, self.time_width)
        pen.varints(f.labels, self.labels_width)
        pen.pieces(labels, f.labels)
        pen.pieces(bits, f.bits)
        checks = _checks(out, begins, self.ends - CHECK, self.place)
        for byte in range(CHECK):
            pen.byte(checks >> 8 * byte & 0xFF)


class _Pen:
    """Writes a field of all records at a time; ``at``: (N,) how far each is written."""

    def __init__(self, out: memoryview, at: Ints):
        self._view, self._out, self.at = out, np.frombuffer(out, np.uint8), at

    def byte(self, values: npt.NDArray[np.integer[Any]]) -> None:
        self._out[self.at] = values
        self.at += 1

    def varints(self, values: Ints, widths: Ints) -> None:
        for step in range(int(widths.max())):
            rows = np.flatnonzero(widths > step)
            more = (widths[rows] > step + 1).astype(np.int64)
            self._out[self.at[rows] + step] = values[rows] >> 7 * step & 0x7F | more << 7
        self.at += widths

    def pieces(self, pieces: Sequence[bytes], sizes: Ints) -> None:
        view, rows = self._view, np.flatnonzero(sizes)
        for row, begin, end in zip(
            rows.tolist(), self.at[rows].tolist(), (self.at + sizes)[rows].tolist(), strict=True
        ):
            view[begin:end] = pieces[row]
        self.at += sizes


# ---- bytes to records


@dataclass(frozen=True)
class Columns:
    """Fields of records, (N,) each, as they lie in the bytes that they were decoded from. What a record does not have is 0."""

    flags: Ints
    context: Ints
    how: Ints  # PARENT_*
    reference: Ints  # number in the table, or bytes back
    parent: Bytes  # (N, 16), where it is written out
    id: Bytes  # (N, 16), of the segment; of a mark the version's
    tokens: Ints  # of a mark: its counter
    tag: Ints  # where the name or the veil begins
    tag_size: Ints
    number: Ints
    delta: Ints  # seconds after the pack's time
    labels: Ints  # where they begin
    labels_size: Ints
    bits: Ints  # where the bitstring begins; of a mark its verb
    end: Ints  # behind it

    def _has(self, flag: int) -> Bools:
        has: Bools = self.flags & (MARK | flag) == flag
        return has

    @property
    def mark(self) -> Bools:
        return self._has(MARK)

    @property
    def segment(self) -> Bools:
        return self._has(SEGMENT)

    @property
    def session(self) -> Bools:
        return self._has(SESSION)

    def records(self, data: bytes, begins: Ints, place: Place, seen: dict[int, bytes]) -> list[Record]:
        """The records. ``begins``: where they begin in ``data``, which lies at ``place``; ``seen``: id by offset in the pack, of segments
        before them; they are added.

        Raises CorruptError where a parent is not among them, or a name is not UTF-8.
        """
        ids: list[bytes | None] = list(_split(self.id))
        for row in np.flatnonzero(~self.segment).tolist():
            ids[row] = None
        offsets = begins + place.offset
        seen |= {at: i for at, i in zip(offsets.tolist(), ids, strict=True) if i is not None}
        parents = self._parents(offsets, place, seen)
        session, sealed = self.session, np.isin(self.context, [*place.sealed])
        tags = [data[a:b] for a, b in _spans(self.tag, self.tag_size)]
        veiled = (session & sealed).tolist()
        try:
            names = [
                (None if not s else "" if v else tag.decode())
                for s, v, tag in zip(session.tolist(), veiled, tags, strict=True)
            ]
        except UnicodeDecodeError as exc:
            raise CorruptError("the name of a session is not UTF-8: damaged") from exc
        veils = [tag if v else b"" for v, tag in zip(veiled, tags, strict=True)]
        labels = [data[a:b] for a, b in _spans(self.labels, self.labels_size)]
        bits = [data[a:b] for a, b in zip(self.bits.tolist(), self.end.tolist(), strict=True)]
        numbers = np.where(self.flags & NUMBER, self.number, 1).tolist()
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
            labels,
        )
        rows = list(map(partial(tuple.__new__, Record), zip(*columns, [None] * len(ids), veils, strict=True)))
        for row in np.flatnonzero(self.mark).tolist():
            mark = Mark(self.id[row].tobytes(), int(self.tokens[row]), bits[row][0])
            rows[row] = Record(int(self.context[row]), mark=mark)
        return rows

    def _parents(self, offsets: Ints, place: Place, seen: Mapping[int, bytes]) -> list[bytes]:
        table = [*place.parents, NONE]
        number = np.where(self.how == PARENT_TABLE, self.reference, len(table) - 1)
        parents = [table[n] for n in number.tolist()]
        for row in np.flatnonzero(self.how == PARENT_INLINE).tolist():
            parents[row] = self.parent[row].tobytes()
        back = np.flatnonzero(self.how == PARENT_BACK)
        for row, at in zip(back.tolist(), (offsets - self.reference)[back].tolist(), strict=True):
            if at not in seen:
                raise CorruptError("a record continues what is no segment: damaged")
            parents[row] = seen[at]
        return parents


def decode(data: bytes | memoryview, begins: Ints, end: int, place: Place) -> Columns:
    """Fields of the records that begin at ``begins`` in ``data`` and fill it up to ``end``. ``data`` lies at ``place`` in its pack.

    Checksums are not looked at. Raises CorruptError where anything else is not as `record.decode` wants it.
    """
    pen = _Reader(np.frombuffer(data, np.uint8), begins.copy())
    marks, flags = pen.byte(), pen.byte()
    body = pen.varint()
    ends = pen.at + body
    pen.want((marks == place.mark) & (body <= MAX_RECORD))
    pen.want(ends + CHECK == np.append(begins[1:], end))
    mark, segment, session = (flags & bit > 0 for bit in (MARK, SEGMENT, SESSION))
    pen.want(np.where(mark, flags == MARK, segment | session & (flags != 0)))
    pen.want(session | (flags & (TIME | NUMBER | LABELS) == 0))
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
    tag, tag_size = pen.span(session)
    number = pen.varint(flags & NUMBER > 0)
    delta = pen.varint(flags & TIME > 0)
    labels, labels_size = pen.span(flags & LABELS > 0)
    sealed = session & np.isin(context, [*place.sealed])
    pen.want(tag_size <= np.where(sealed, MAX_VEIL, MAX_NAME))
    pen.want(~sealed | (tag_size >= LEAST_VEIL) & (labels_size == 0))
    pen.want(labels_size <= MAX_LABELS)
    bits = pen.at.copy()
    pen.want(bits <= ends)
    pen.want(np.where(mark, bits + 1 == ends, tokens_fit(tokens, ends - bits)))
    pen.want(segment | mark | (bits == ends))
    pen.want(~mark | (pen.byte() <= FORGET))
    pen.close()
    return Columns(
        flags, context, how, reference, parent, identity, tokens, tag, tag_size, number, delta, labels, labels_size, bits, ends
    )  # fmt: skip


def read(data: bytes, begins: Ints, place: Place, seen: dict[int, bytes]) -> list[Record]:
    """The records that begin at ``begins`` and fill ``data``, all of them sound. ``seen``: see `Columns.records`. Raises CorruptError."""
    found = decode(data, begins, len(data), place)
    if (_checks(data, begins, np.append(begins[1:], len(data)), place) != RESIDUE).any():
        raise CorruptError("some record does not match its checksum: damaged")
    return found.records(data, begins, place, seen)


class _Reader:
    """Reads a field of all records at a time; ``at``: (N,) how far each is read. What is behind the data reads as something, and is refused
    in the end, when no record may reach over its end."""

    def __init__(self, data: Bytes, at: Ints):
        self.data, self.at, self._right = data, at, True
        padded = data if len(data) >= SIZE else np.zeros(SIZE, np.uint8)
        self._blocks = np.lib.stride_tricks.sliding_window_view(padded, SIZE)

    def want(self, right: Bools) -> None:
        self._right = self._right and bool(right.all())

    def close(self) -> None:
        """Raises CorruptError where anything that was wanted is not so."""
        if not self._right:
            raise CorruptError("some record is damaged, or of a newer version")

    def byte(self) -> Ints:
        found = self._at(self.at)
        self.at += 1
        return found

    def varint(self, which: Bools | None = None) -> Ints:
        """(N,) numbers; 0, and no step forward, where not ``which``."""
        byte = self._at(self.at)
        if which is None:
            self.at += 1
        else:
            byte *= which
            self.at += which
        value, rows, step = byte & 0x7F, np.flatnonzero(byte > 0x7F), 0
        while len(rows):  # most have one byte
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
        """(N, 16) bytes; zeros, and no step forward, where not ``which``."""
        out = np.zeros((len(self.at), SIZE), np.uint8)
        rows = np.flatnonzero(which)
        if len(rows):
            out[rows] = self._blocks[np.minimum(self.at[rows], len(self._blocks) - 1)]
            self.at[rows] += SIZE
        return out

    def span(self, which: Bools) -> tuple[Ints, Ints]:
        """Where a field begins that stands after its size, and the size."""
        size = self.varint(which)
        begin = self.at.copy()
        self.at += size
        return begin, size

    def _at(self, at: Ints) -> Ints:
        return np.take(self.data, at, mode="clip").astype(np.int64)


# ---- both


def _checks(data: bytes | memoryview, begins: Ints, ends: Ints, place: Place) -> Ints:
    """(N,) crc32 of salt, place and bytes of each."""
    view = memoryview(data)
    seeds = _seeds(place.seed, begins + place.offset)
    spans = zip(begins.tolist(), ends.tolist(), seeds.tolist(), strict=True)
    return np.array([zlib.crc32(view[a:b], seed) for a, b, seed in spans], np.int64)


def _seeds(seed: int, offsets: Ints) -> Ints:
    """(N,) crc32 of what has ``seed`` and then of each offset as u64."""
    state = np.full(len(offsets), seed ^ 0xFFFFFFFF, np.int64)
    for byte in range(8):
        state = _crc_table()[(state ^ offsets >> 8 * byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


@cache
def _crc_table() -> Ints:
    return np.array([zlib.crc32(bytes([n]), 0xFFFFFFFF) ^ 0xFFFFFFFF for n in range(256)], np.int64)


def _whole(body: Ints) -> Ints:
    """Bytes of records, of which so many stand between size and checksum."""
    return 2 + _widths(body) + body + CHECK


def _widths(values: Ints, which: Bools | None = None) -> Ints:
    """Bytes of varints; 0 where not ``which``."""
    widths = np.ones(len(values), np.int64)
    for step in range(1, MAX_BYTES):
        widths += values >> 7 * step > 0
    return widths if which is None else widths * which


def _width(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _split(blocks: Bytes) -> list[bytes]:
    data = blocks.tobytes()
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


def _spans(begins: Ints, sizes: Ints) -> Iterable[tuple[int, int]]:
    return zip(begins.tolist(), (begins + sizes).tolist(), strict=True)

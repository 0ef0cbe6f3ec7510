"""A block of a pack: up to 128 records, whose ids and names stand in its head. Spec: FORMAT.md, "Block".

    records --encode--> head: mark, sizes, columns, ids, names, checks | body: bitstrings
    head --Block.of--> fields of all its records; with the bytes of a piece of the body, records

`plt_codec/container/block.py` does what blocks of packs and of `.pltz` files have in common: columns, pieces, checks.
Here is what only records have: references to segments, names, times, parts and marks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from pltz.archive.format.ids import NO_SEGMENT, SEGMENT_SIZE
from pltz.archive.format.record import (
    FORGET,
    LEAST_VEIL,
    MAX_ABOUT,
    MAX_NAME,
    MAX_TIME,
    MAX_VEIL,
    RUN,
    TICK_BITS,
    Mark,
    Record,
    tokens_fit,
)
from pltz.plt_codec.container.block import (
    BODY,
    CONTEXT,
    COUNT,
    MAX_BITSTRING,
    ROWS,
    SIZE,
    BlockHead,
    BlockPart,
    Column,
    encode_block,
    wrong,
)
from pltz.plt_codec.container.frame import CODING
from pltz.plt_codec.errors import ContentError, UsageError, VersionError
from pltz.plt_codec.identity import SIZE as ID_SIZE
from pltz.plt_codec.limits import MAX_DENSITY, MAX_TOKENS as SESSION_TOKENS
from pltz.plt_codec.varint import MAX_VALUE

TEXT = 1 << 16  # bytes of names and what is beside them from which a block ends
UNIT = 8  # bytes of a session's key in front of its sealed name

# kinds of records
SEGMENT, SESSION, BOTH, VERSION_MARK = 1, 2, 3, 4
# kinds of references to a segment
ABSENT, TABLE, BACK, INLINE = 0, 1, 2, 3
# columns that only packs have; the others are in plt_codec/container
KIND, PARENT_KIND, PARENT, NAME, SECONDS, APART, ABOUT, MODE, TICKS, LATER, PART = 0, 2, 3, *range(6, 14)
PACK_COLUMNS = (1 << PART + 1) - 1  # a bit for each that a block of a pack may have
TICKS_MASK = (1 << TICK_BITS) - 1


@dataclass(frozen=True, slots=True)
class PackFields:
    """The fields of a pack that its blocks depend on.

    Attributes:
        salt: 8 random bytes.
        moment: moment from which those of versions are counted, ticks since 1970.
        contexts: number of contexts in its table.
        parents: ids of the segments in its table.
        sealed: numbers of the contexts with encryption.
    """

    salt: bytes
    moment: int = 0
    contexts: int = 1
    parents: Sequence[bytes] = ()
    sealed: frozenset[int] = frozenset()


# ---- records -> bytes


def split(rows: Sequence[Record]) -> list[slice]:
    """Return the rows of each block, in order."""
    parts, begin, body, text = list[slice](), 0, 0, 0
    for row, r in enumerate(rows):
        body += len(r.bitstring)
        text += len(r.veil) + len(r.about) + 3 * len(r.name or "")
        if row + 1 - begin == ROWS or body >= BODY or text >= TEXT:
            parts.append(slice(begin, row + 1))
            begin, body, text = row + 1, 0, 0
    return [*parts, slice(begin, len(rows))] if begin < len(rows) else parts


def outside(rows: Sequence[Record], parts: Iterable[slice]) -> Counter[bytes]:
    """Count how often records of blocks name segments that are no earlier record of their block."""
    named = Counter[bytes]()
    for part in parts:
        there: set[bytes | None] = {NO_SEGMENT}
        for r in rows[part]:
            if r.parent not in there:
                named[r.parent] += 1
            there.add(r.id)
    return named


def encode(rows: Sequence[Record], table: Mapping[bytes, int], offset: int, fields: PackFields) -> list[bytes]:
    """Return the bytes of a block in parts: head, then bitstrings.

    ``rows``: 1 to `ROWS` records; ``table``: segments in the pack's table and their numbers there; ``offset``: byte
    offset of the block in its pack.

    Raises ContentError where a field exceeds its limit, UsageError where fields contradict each other.
    """
    # the fields of all rows, one sequence per field
    contexts, parents, ids, tokens, bits, names, moments, times, abouts, marks, veils, keys, modes = zip(
        *rows, strict=True
    )
    titles = [v if v else (n or "").encode() for n, v in zip(names, veils, strict=True)]
    sizes = list(map(len, bits))
    kinds = [
        VERSION_MARK if m else (i is not None) * SEGMENT + (n is not None) * SESSION
        for m, i, n in zip(marks, ids, names, strict=True)
    ]
    _check(rows, kinds, sizes, titles, fields)
    # a segment is named by its number in the pack's table, or by the row before that has it
    first: dict[bytes, int] = {}
    for row in range(len(rows) - 1, -1, -1):
        if (name := ids[row]) is not None:
            first[name] = row
    above = _references(parents, first, table)
    # numbers become columns
    since = [m - fields.moment if k & SESSION else 0 for m, k in zip(moments, kinds, strict=True)]
    apart = [(m >> TICK_BITS) - t if k & SESSION else 0 for m, t, k in zip(moments, times, kinds, strict=True)]
    columns: dict[int, Sequence[int]] = {
        KIND: kinds,
        CONTEXT: contexts,
        PARENT_KIND: [how for how, _ in above],
        PARENT: [number for _, number in above],
        COUNT: tokens,
        NAME: list(map(len, titles)),
        SECONDS: [passed >> TICK_BITS for passed in since],
        APART: [abs(seconds) & MAX_VALUE for seconds in apart],
        ABOUT: list(map(len, abouts)),
        TICKS: [passed & TICKS_MASK for passed in since],
        LATER: [abs(seconds) >> 32 << 1 | (seconds < 0) for seconds in apart],
        PART: keys,
        MODE: modes,
    }
    if any(marks):
        columns[COUNT] = [m.counter if m else t for m, t in zip(marks, tokens, strict=True)]
        columns[MODE] = [m.verb if m else mode for m, mode in zip(marks, modes, strict=True)]
    # behind the columns stand ids, names, and what is beside them
    parts = [
        *(name for name in ids if name is not None),
        *(m.version for m in marks if m),
        *(p for p, (how, _) in zip(parents, above, strict=True) if how == INLINE),
        *titles,
        *abouts,
    ]
    return encode_block(columns, parts, bits, fields.salt, offset)


def _check(
    rows: Sequence[Record], kinds: Sequence[int], sizes: Sequence[int], titles: Sequence[bytes], fields: PackFields
) -> None:
    """Check limits and consistency. Raises ContentError, UsageError."""
    for r, kind, size, title in zip(rows, kinds, sizes, titles, strict=True):
        if kind == VERSION_MARK:
            assert r.mark
            # a mark stands alone
            if r.mark.counter > MAX_VALUE:
                raise ContentError(f"marks are counted up to {MAX_VALUE}")
            if any((size, title, r.about, r.parent != NO_SEGMENT, r.id, r.tokens, r.part, r.mode)):
                raise UsageError("a mark holds nothing else")
            continue
        # a segment, or a session without one
        if not kind & SEGMENT and (size or r.tokens or r.mode or not kind):
            raise UsageError("a record without a segment holds a session and no bitstring")
        if not tokens_fit(r.tokens, size):
            raise ContentError(f"{r.tokens} tokens in {size} bytes are over the format's limit")
        for name in (r.id, r.parent):
            if name is not None and len(name) != SEGMENT_SIZE:
                raise UsageError(f"expected a segment id of {SEGMENT_SIZE} bytes, found {name.hex()}")
        if size > MAX_BITSTRING:
            raise ContentError(f"a bitstring has {size} bytes, at most {MAX_BITSTRING} are allowed")
        if not kind & SESSION:
            if title or r.about or r.part:
                raise UsageError("a record without a session has a name, tags or a part")
            continue
        # a session has a name and a time
        what, most = ("sealed name of a session", MAX_VEIL) if r.veil else ("name of a session", MAX_NAME)
        _limit(title, most, what)
        _limit(r.about, MAX_ABOUT, "part, title and tags")
        if not 0 <= r.moment - fields.moment >> TICK_BITS <= MAX_VALUE:
            raise UsageError("a version was put before its pack's moment, or a century after")
        if not 0 <= r.time < MAX_TIME:
            raise UsageError(f"expected a time in seconds since 1970, below 2^40, got {r.time}")


def _limit(data: bytes, most: int, what: str) -> None:
    if len(data) > most:
        raise ContentError(f"the {what} has {len(data)} bytes, at most {most} are allowed")


def _references(
    named: Sequence[bytes], first: Mapping[bytes, int], table: Mapping[bytes, int]
) -> list[tuple[int, int]]:
    """Return kind and number of the reference to each named segment.

    ``first``: first row of each segment in the block.
    """
    found: list[tuple[int, int]] = []
    for row, name in enumerate(named):
        if name == NO_SEGMENT:
            found.append((ABSENT, 0))
        elif (number := table.get(name)) is not None:
            found.append((TABLE, number))
        elif (at := first.get(name, row)) < row:
            found.append((BACK, row - at))
        else:
            found.append((INLINE, 0))
    return found


# ---- bytes -> records


@dataclass(slots=True)
class Block(BlockHead):
    """The head of a block of a pack, checked."""

    fields: PackFields = PackFields(b"")
    _versions: int = 0  # offsets of the parts of the head; segment ids begin at `parts`
    _parents: int = 0
    _names: int = 0
    _about: int = 0
    _name_sizes: Sequence[int] = ()

    @classmethod
    def of(cls, data: bytes | memoryview, offset: int, fields: PackFields) -> Block:
        """Return the block whose head ``data`` begins with, at byte ``offset`` of its pack.

        Raises CorruptError where the head is damaged or breaks a rule, VersionError where a newer version wrote it.
        """
        found = cls.read(data, offset, fields.salt, PACK_COLUMNS)
        found.fields = fields
        _check_rules(found, found.columns)
        _place_parts(found, found.columns)
        return found

    # ---- all records

    def records(self, body: bytes | memoryview) -> list[Record]:
        """Return all records. ``body``: the bitstrings, sound (see `damaged`). Raises CorruptError."""
        return self._records(body)

    def heads(self) -> list[Record]:
        """Return all records without their bitstrings. Raises CorruptError."""
        return self._records(None)

    def _records(self, body: bytes | memoryview | None) -> list[Record]:
        lists, titles = self.lists(), self._titles()
        bits = [b""] * self.count
        if body is not None:
            bits = [bytes(body[a:b]) for a, b in pairwise(accumulate(lists[SIZE], initial=0))]
        kinds, contexts = lists[KIND], lists[CONTEXT]
        if sealed := self.fields.sealed:
            veils = [t if c in sealed else b"" for t, c in zip(titles, contexts, strict=True)]
            titles = [b"" if c in sealed else t for t, c in zip(titles, contexts, strict=True)]
        names = [_text(t, self.offset) if k in (SESSION, BOTH) else None for t, k in zip(titles, kinds, strict=True)]
        ends = list(accumulate(lists[ABOUT], initial=self._about))
        moments, times = self._moments(lists)
        rows = zip(
            contexts,
            self.parents(),
            self.ids(),
            lists[COUNT],
            bits,
            names,
            moments,
            times,
            [self.data[a:b] for a, b in pairwise(ends)],
            [None] * self.count,
            veils if sealed else [b""] * self.count,
            lists[PART],
            lists[MODE],
            strict=True,
        )
        found = [Record._make(row) for row in rows]
        if self._parents > self._versions:
            marks = [row for row, kind in enumerate(kinds) if kind == VERSION_MARK]
            for row, version in zip(marks, self.versions(), strict=True):
                found[row] = Record(contexts[row], mark=Mark(version, lists[COUNT][row], lists[MODE][row]))
        return found

    def record(self, row: int, piece: BlockPart | None = None, data: bytes | memoryview = b"") -> Record:
        """Return one record, without its bitstring where no piece is given.

        ``piece``: the piece that has its bitstring; ``data``: its bytes, sound. Raises CorruptError.
        """
        values, bits = self.values(row), self.bitstring(row, piece, data) if piece else b""
        moment, time, about = 0, 0, b""
        kind, context = values[KIND], values[CONTEXT]
        if kind == VERSION_MARK:
            number = self.columns[KIND].list(self.count)[:row].count(VERSION_MARK)
            return Record(context, mark=Mark(self.versions()[number], values[COUNT], values[MODE]))
        if session := bool(kind & SESSION):
            moment = self.fields.moment + (values[SECONDS] << TICK_BITS | values[TICKS])
            time = _time(moment, values[APART], values[LATER])
        if values[ABOUT]:
            at = self._about + sum(self.columns[ABOUT].list(self.count)[:row])
            about = self.data[at : at + values[ABOUT]]
        title, sealed = self._title(row), context in self.fields.sealed
        return Record(
            context,
            self._parent(row, values[PARENT_KIND], values[PARENT]),
            self._id(row) if kind & SEGMENT else None,
            values[COUNT],
            bits,
            None if not session else "" if sealed else _text(title, self.offset),
            moment,
            time,
            about,
            None,
            title if sealed else b"",
            values[PART],
            values[MODE],
        )

    # ---- columns

    def _moments(self, lists: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Return when each version was put, in ticks since 1970, and its time, in seconds; zeros without a session.

        ``lists``: the values of each column.
        """
        base, passed = self.fields.moment, zip(lists[SECONDS], lists[TICKS], lists[KIND], strict=True)
        moments = [base + (s << TICK_BITS | t) if k & SESSION else 0 for s, t, k in passed]
        apart = zip(moments, lists[APART], lists[LATER], strict=True)
        return moments, [_time(*row) for row in apart]

    def segment_ids(self) -> npt.NDArray[np.uint8]:
        """Return (N, 10) the ids of the segments, in the order of their records."""
        return np.frombuffer(self.data[self.parts : self._versions], np.uint8).reshape(-1, SEGMENT_SIZE)

    def ids(self) -> list[bytes | None]:
        """Return the id of each record's segment, None where it has none."""
        data = self.data
        found = [data[at : at + SEGMENT_SIZE] for at in range(self.parts, self._versions, SEGMENT_SIZE)]
        if len(found) == self.count:
            return [*found]
        left = iter(found)
        return [next(left) if k != VERSION_MARK and k & SEGMENT else None for k in self.columns[KIND].list(self.count)]

    def sessions(self, domains: Sequence[bytes]) -> int:
        """Return the number of sessions that its records are versions of. ``domains``: id of each context's domain."""
        numbers, kinds = self.columns[CONTEXT].list(self.count), self.columns[KIND].list(self.count)
        rows = zip(numbers, self._titles(), kinds, strict=True)
        sealed = self.fields.sealed
        return len({t[:UNIT] if c in sealed else (domains[c], t) for c, t, k in rows if k in (SESSION, BOTH)})

    def versions(self) -> list[bytes]:
        """Return the version ids of the marks."""
        return [self.data[at : at + ID_SIZE] for at in range(self._versions, self._parents, ID_SIZE)]

    def rows_of(self, segment: bytes) -> list[int]:
        """Return the rows with a segment of this id."""
        found: list[int] = []
        at = self.data.find(segment, self.parts, self._versions)
        while at >= 0:
            number, rest = divmod(at - self.parts, SEGMENT_SIZE)
            if not rest:
                found.append(number)
            at = self.data.find(segment, at + 1, self._versions)
        if found and (self._versions - self.parts) != SEGMENT_SIZE * self.count:
            rows = [row for row, k in enumerate(self.columns[KIND].list(self.count)) if k in (SEGMENT, BOTH)]
            return [rows[number] for number in found]
        return found

    def rows_named(self, name: bytes) -> list[int]:
        """Return the rows of sessions whose stored name begins with ``name``, of a byte at least."""
        if self.data.find(name, self._names, self._about) < 0:
            return []
        return [row for row, title in enumerate(self._titles()) if title.startswith(name)]  # only sessions have one

    def parents(self) -> list[bytes]:
        """Return the segment that each record names as its parent; NO_SEGMENT where it names none."""
        how, numbers = self.columns[PARENT_KIND], self.columns[PARENT]
        if how.many is None and how.low == ABSENT:
            return [NO_SEGMENT] * self.count
        table = self.fields.parents
        if how.many is None and how.low == TABLE:
            return [table[number] for number in numbers.list(self.count)]
        at, ids, found = self._parents, self.ids(), []
        for row, (kind, number) in enumerate(zip(how.list(self.count), numbers.list(self.count), strict=True)):
            if kind == ABSENT:
                found.append(NO_SEGMENT)
            elif kind == TABLE:
                found.append(table[number])
            elif kind == BACK:
                found.append(ids[row - number] or NO_SEGMENT)
            else:
                found.append(self.data[at : at + SEGMENT_SIZE])
                at += SEGMENT_SIZE
        return found

    def elsewhere(self) -> list[bytes]:
        """Return the segments that records name and that are no earlier record of this block, each once."""
        how, numbers = self.columns[PARENT_KIND], self.columns[PARENT]
        if how.many is None and how.low == TABLE:
            return [self.fields.parents[n] for n in set(numbers.list(self.count))]
        kinds = zip(self.parents(), how.list(self.count), strict=True)
        return list({parent for parent, kind in kinds if kind in (TABLE, INLINE)})

    def _parent(self, row: int, kind: int, number: int) -> bytes:
        """Return the segment that a reference of this kind and number names in a row."""
        if kind == ABSENT:
            return NO_SEGMENT
        if kind == TABLE:
            return self.fields.parents[number]
        if kind == BACK:
            return self._id(row - number)
        at = self._parents + SEGMENT_SIZE * self.columns[PARENT_KIND].list(self.count)[:row].count(INLINE)
        return self.data[at : at + SEGMENT_SIZE]

    def _id(self, row: int) -> bytes:
        number = row
        if self._versions - self.parts != SEGMENT_SIZE * self.count:
            kinds = self.columns[KIND].list(self.count)[:row]
            number = kinds.count(SEGMENT) + kinds.count(BOTH)
        at = self.parts + SEGMENT_SIZE * number
        return self.data[at : at + SEGMENT_SIZE]

    def _title(self, row: int) -> bytes:
        at = self._names + sum(self._name_sizes[:row])
        return self.data[at : at + self._name_sizes[row]]

    def _titles(self) -> list[bytes]:
        ends = list(accumulate(self._name_sizes, initial=self._names))
        return [self.data[a:b] for a, b in pairwise(ends)]


def _time(moment: int, apart: int, later: int) -> int:
    """Return the time of a version in seconds: its moment, in ticks, and how far that is from it."""
    apart |= later >> 1 << 32
    return (moment >> TICK_BITS) + (apart if later & 1 else -apart)


def _place_parts(block: Block, columns: list[Column]) -> None:
    """Compute where the parts of a head begin. Raises CorruptError where they do not fill it."""
    count = block.count
    kinds = columns[KIND]
    if kinds.many is None:
        marks = count * (kinds.low == VERSION_MARK)
        segments = count * (kinds.low in (SEGMENT, BOTH))
    else:
        marks = kinds.many.count(VERSION_MARK)
        segments = kinds.many.count(SEGMENT) + kinds.many.count(BOTH)
    block._versions = block.parts + SEGMENT_SIZE * segments
    block._parents = block._versions + ID_SIZE * marks
    block._names = block._parents + SEGMENT_SIZE * columns[PARENT_KIND].times(INLINE, count)
    block._name_sizes = columns[NAME].list(count)
    block._about = block._names + columns[NAME].total
    block.ends_with(block._about + columns[ABOUT].total)


def _check_rules(block: Block, columns: list[Column]) -> None:
    """Check the rules of FORMAT.md for all records. Raises CorruptError, VersionError."""
    offset, fields, count = block.offset, block.fields, block.count
    kinds = columns[KIND]
    # numbers that a newer version may use
    if kinds.high > VERSION_MARK or (not kinds.low and 0 in kinds.list(count)):
        raise VersionError(f"the block at byte {offset} has a record of an unknown kind: use a newer pltz")
    if columns[MODE].high > FORGET:
        modes = zip(columns[MODE].list(count), kinds.list(count), strict=True)
        if any(mode > (FORGET if kind == VERSION_MARK else RUN | CODING) for mode, kind in modes):
            raise VersionError(f"the block at byte {offset} has a mark or mode of a newer version: use a newer pltz")
    # numbers that no version may use
    if columns[CONTEXT].high > fields.contexts - 1:
        raise wrong(offset, f"names a context that is not among the {fields.contexts} of the table")
    if columns[NAME].high > MAX_VEIL or columns[ABOUT].high > MAX_ABOUT or columns[SIZE].high > MAX_BITSTRING:
        raise wrong(offset, "has a field over its limit")
    if any(columns[number].high > most for number, most in _MOST):
        raise wrong(offset, "has a number over its limit")
    # a record has only the fields of its kind; where all are alike and of both, no row is looked at
    if kinds.many is not None or kinds.low != BOTH:
        each = bytes(kinds.list(count))
        for having, numbers in _HAVING:
            filled = [columns[n] for n in numbers if columns[n].high]
            if filled and each.translate(None, having):
                others = [row for row, kind in enumerate(each) if kind not in having]
                if any(column[row] for column in filled for row in others):
                    raise wrong(offset, "has a field that its kind of record has not")
    _check_references(block, columns[PARENT_KIND], columns[PARENT])
    if columns[APART].high > fields.moment >> TICK_BITS or columns[LATER].high > 1:
        times = block._moments(block.lists())[1]
        if min(times) < 0 or max(times) >= MAX_TIME:
            raise wrong(offset, "has a version of a time that cannot be")
    # what a bitstring may hold, and row by row only where the column as a whole is in doubt
    sizes, tokens = columns[SIZE], columns[COUNT]
    if tokens.high > MAX_DENSITY * (sizes.low + 1) or tokens.high > SESSION_TOKENS:
        rows = zip(tokens.list(count), sizes.list(count), kinds.list(count), strict=True)
        if any(kind != VERSION_MARK and not tokens_fit(number, size) for number, size, kind in rows):
            raise wrong(offset, "claims more tokens than its bytes can hold")
    # a sealed name is a box, any other has a limit
    if columns[NAME].high > MAX_NAME or fields.sealed:
        fields_of = (columns[column].list(count) for column in (CONTEXT, KIND, NAME, ABOUT))
        for context, kind, name, about in zip(*fields_of, strict=True):
            sealed = context in fields.sealed and kind in (SESSION, BOTH)
            if sealed and (name < LEAST_VEIL or about):
                raise wrong(offset, "has a sealed name that is none")
            if not sealed and name > MAX_NAME:
                raise wrong(offset, "has a name over the limit")


_MOST = (  # columns, and the largest number of each
    *((column, MAX_VALUE) for column in (SECONDS, APART, COUNT, PART)),
    (TICKS, TICKS_MASK),
    (LATER, MAX_TIME >> 32 << 1 | 1),
)
_SEGMENTS, _SESSIONS = bytes([SEGMENT, BOTH]), bytes([SESSION, BOTH])
_HAVING = (  # kinds of records, and the columns that only they have
    (bytes([SEGMENT, SESSION, BOTH]), (PARENT_KIND, PARENT)),
    (bytes([SEGMENT, BOTH, VERSION_MARK]), (COUNT, MODE)),
    (_SEGMENTS, (SIZE,)),
    (_SESSIONS, (NAME, SECONDS, APART, ABOUT, TICKS, LATER, PART)),
)


def _check_references(block: Block, how: Column, numbers: Column) -> None:
    """Check that references name entries of the table or earlier segments of the block. Raises CorruptError."""
    table, offset = len(block.fields.parents), block.offset
    if how.high > INLINE:
        raise wrong(offset, "has a reference of an unknown kind")
    if how.many is None and how.low in (ABSENT, TABLE, INLINE):
        if numbers.high > (table - 1 if how.low == TABLE else 0):
            raise wrong(offset, "names a segment that is not in the table")
        return
    kinds, ways = block.columns[KIND], how.list(block.count)
    if BACK not in ways and numbers.high < table and not any(numbers[r] for r, way in enumerate(ways) if way != TABLE):
        return
    for row, (kind, number) in enumerate(zip(ways, numbers.list(block.count), strict=True)):
        if kind == BACK:
            if not 0 < number <= row or kinds[row - number] not in _SEGMENTS:
                raise wrong(offset, "names a record that is no earlier segment")
        elif number >= table if kind == TABLE else number:
            raise wrong(offset, "names a segment that is not in the table")


def _text(data: bytes, offset: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise wrong(offset, "has a name that is not UTF-8") from exc

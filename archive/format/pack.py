"""A pack: a write-once file of records, laid out in memory and parsed back before it is written.

Spec: FORMAT.md, "Pack".

    header | table | record | record | ... | table | header | footer

`Builder` collects the records of a commit and lays them out. `Pack` reads single records by offset, or all of
them. It finds its way past damage by the records' marks and checks. Header and table are stored twice; either
copy is enough.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from pltz.archive.errors import ForeignPack
from pltz.archive.format import record as records
from pltz.archive.format import record_batch
from pltz.archive.format.buffered_reader import BufferedReader
from pltz.archive.format.byte_source import PIECE, Reader, exactly, pieces
from pltz.archive.format.context import Context, read_context
from pltz.archive.format.ids import NONE, SIZE, digest, digest_of
from pltz.archive.format.prefix_crc import PrefixCrcs
from pltz.archive.format.record import PARENT_BACK, Record, RecordPlace, StoredRecord
from pltz.archive.format.record_batch import lay_out
from pltz.archive.format.segment_offsets import SegmentOffsets
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, VersionError
from pltz.plt_codec.varint import read_varint, write_varint

MAGIC, END = b"PLTp", b"pTLP"
VERSION = 2
HEADER = struct.Struct(
    "<4sBBHQQ16s16sII"
)  # magic, version, flags, reserved, epoch, time, salt, archive, table size, crc32
FOOTER = struct.Struct("<IQ16sI4s")  # records, their bytes, digest, crc32, end mark
COUNTS = struct.Struct("<IQ")  # the part of the footer that the digest covers
PERSON = b"pltz pack"
TARGET_SIZE = 64 << 20  # bytes at which a pack is closed
MAX_SIZE = 1 << 30
MAX_TABLE = 8 << 20
MAX_TIME = (1 << 62) - 1  # seconds since 1970
MAX_CONTEXTS, MAX_PARENTS = 4096, 65536
MANY_CHILDREN = 9  # from here 16 bytes in the table are fewer than the distances back to the parent
MAX_RECORDS = 1 << 22  # per pack; new packs have at most 2^20: `Builder.fill` counts 64 bytes for each
RUN = 1024  # records read as one batch
FIRST_READ = 2048  # bytes of the first read of a record
# bytes searched at once after damage, doubled from the first value up to the second
FIRST_SEARCH, MOST_SEARCH = 256, 1 << 20


@dataclass(frozen=True, slots=True)
class PackHead:
    """Header and table of a pack."""

    epoch: int
    time: int  # seconds
    salt: bytes
    archive: bytes  # id of the archive that the pack was written for
    contexts: list[Context]
    parents: list[bytes]
    size: int  # bytes of header and table
    sealed: frozenset[int]  # numbers of the contexts with encryption

    def place(self, offset: int) -> RecordPlace:
        """Return the place of a record at ``offset``."""
        return RecordPlace(self.salt, offset, self.time, len(self.contexts), self.parents, self.sealed)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a pack that are no sound record."""

    offset: int
    size: int
    why: str


class Builder:
    """Collects records and lays them out as one pack.

    >>> b = Builder(epoch=0, time=7, salt=bytes(16))
    >>> n = b.context(Context(0, NONE, "acme", NONE, NONE, 1))
    >>> data = b.add(Record(n, name="empty", time=7)).finish()
    >>> len(data)
    358
    """

    def __init__(self, epoch: int, time: int, salt: bytes, archive: bytes = NONE):
        self.epoch, self.time, self.salt, self.archive = epoch, time, salt, archive
        self.size = 0  # approximate bytes
        self._contexts: dict[Context, int] = {}
        self.records: list[Record] = []  # records added so far, in order

    def context(self, context: Context) -> int:
        """Return the number of a context in the table. Raises ContentError where the table is full."""
        number = self._contexts.setdefault(context, len(self._contexts))
        if number >= MAX_CONTEXTS:
            raise ContentError(f"more than {MAX_CONTEXTS} contexts in a pack")
        return number

    @property
    def full(self) -> bool:
        """Return whether the pack should be closed before more is added."""
        return self.size >= TARGET_SIZE or len(self._contexts) >= MAX_CONTEXTS - 8

    def add(self, record: Record) -> Builder:
        """Add a record whose context is a number that `context` returned. Parents come first."""
        self.records.append(record)
        return self

    def fill(self, contexts: Sequence[Context], records: Sequence[Record]) -> int:
        """Add records until the pack is full and return their number. Raises ContentError."""
        known: dict[int, int] = {}  # by object, so that an equal context is hashed only once
        begin = len(self.records)
        for context, record in zip(contexts, records, strict=True):
            number = known.get(id(context))
            if number is None:
                if self.full:
                    break
                number = known[id(context)] = self.context(context)
            self.records.append(record if number == record.context else record._replace(context=number))
            self.size += len(record.bitstring) + len(record.name or "") * 2 + len(record.tags) + 64
            if self.size >= TARGET_SIZE:
                break
        return len(self.records) - begin

    def finish(self) -> bytes:
        """Return the pack.

        Raises ContentError where a field or the pack exceeds a limit, UsageError for inconsistent fields.
        """
        out = self.lay_out()
        return sealed(out, digest_before(out))

    def lay_out(self) -> BytesIO:
        """Return the pack without its digest, which `sealed` adds.

        Raises ContentError, UsageError as `finish`.
        """
        outside = self._parents_in_table()
        table = self._table(list(outside))
        header = HEADER.pack(
            MAGIC, VERSION, 0, 0, self.epoch, self.time, self.salt, self.archive, len(table), 0
        )[:-4]
        header += zlib.crc32(table, zlib.crc32(header)).to_bytes(4, "little")
        head = header + table
        place = RecordPlace(self.salt, len(head), self.time, len(self._contexts))
        layout = lay_out(self.records, outside, place) if self.records else None
        size = layout.size if layout else 0
        if size > MAX_SIZE - (16 << 20):
            raise ContentError(f"the records of one pack are over {MAX_SIZE} bytes")
        out = BytesIO(bytes(2 * len(head) + size + FOOTER.size))
        with (
            out.getbuffer() as whole
        ):  # one buffer: allocating fresh memory costs more than filling it
            whole[: len(head)] = head
            if layout:
                layout.write(whole[len(head) : len(head) + size])
            whole[len(head) + size :] = table + header + bytes(FOOTER.size)
            COUNTS.pack_into(whole, len(whole) - FOOTER.size, len(self.records), size)
        return out

    def _parents_in_table(self) -> dict[bytes, int]:
        """Return parents in other packs and parents with many children, numbered for the table.

        Parents beyond the table's limit are written inline.
        """
        ids, parents = [r.id for r in self.records], [r.parent for r in self.records]
        place = dict(zip(reversed(ids), range(len(ids) - 1, -1, -1), strict=True))
        child = dict(zip(reversed(parents), range(len(ids) - 1, -1, -1), strict=True))
        children = Counter(parents)
        outside = [
            p for p, many in children.items() if many >= MANY_CHILDREN or place.get(p, len(ids)) >= child[p]
        ]
        return {p: number for number, p in enumerate([p for p in outside if p != NONE][:MAX_PARENTS])}

    def _table(self, parents: list[bytes]) -> bytes:
        contexts = [c.encode() for c in self._contexts]
        return b"".join([write_varint(len(contexts)), *contexts, write_varint(len(parents)), *parents])


def digest_before(out: BytesIO) -> bytes:
    """Return the digest of a pack that was laid out. Takes long and releases the GIL."""
    with out.getbuffer() as whole:
        return digest(PERSON, whole[: COUNTS.size - FOOTER.size])


def sealed(out: BytesIO, digest: bytes) -> bytes:
    """Return a laid-out pack with its digest."""
    with out.getbuffer() as whole:
        foot = bytes(whole[-FOOTER.size :][: COUNTS.size]) + digest
        whole[-FOOTER.size :] = foot + zlib.crc32(foot).to_bytes(4, "little") + END
    return out.getvalue()


class Pack:
    """A pack opened for reading.

    Args:
        read: returns at most `size` bytes at `offset`.
        size: bytes of the file.
        at_once: bytes per read of data that is only hashed.
        archive: id of the archive that the pack must belong to; None allows any.

    Raises:
        VersionError: the pack is newer.
        CorruptError: both copies of the header are damaged.
        ForeignPack: the pack belongs to another archive.
    """

    def __init__(self, read: Reader, size: int, at_once: int = PIECE, archive: bytes | None = None):
        self.read, self.size, self._at_once = read, size, at_once
        self.damaged_copies: list[str] = []
        self.head = self._open()
        if archive not in (None, self.head.archive):
            raise ForeignPack(
                f"a pack of archive {self.head.archive.hex()}; this is archive {archive.hex() if archive else ''}: "
                "pltz archive repair moves it to damaged/"
            )
        self.begin = self.head.size
        self.end = size - FOOTER.size - self.head.size
        if self.end < self.begin:
            raise CorruptError(f"a pack of {size} bytes has no room for its two tables: it was cut off")

    @classmethod
    def of(cls, data: bytes | memoryview, archive: bytes | None = None) -> Pack:
        """Return a pack in memory. Raises the errors of the constructor."""
        view = memoryview(data)
        return cls(lambda offset, size: view[offset : offset + size], len(view), max(1, len(view)), archive)

    def record(self, offset: int) -> Record:
        """Return the record at ``offset`` with its parent looked up. Raises CorruptError, VersionError."""
        raw = self.raw(offset)
        return raw.record if raw.how != PARENT_BACK else self._with_parent(raw)

    def raw(self, offset: int) -> StoredRecord:
        """Return the record at ``offset`` as stored. Raises CorruptError, VersionError."""
        if not self.begin <= offset < self.end:
            raise CorruptError(f"no record can be at byte {offset} of a pack of {self.size}")
        data = self.read(offset, min(FIRST_READ, self.end - offset))
        if len(data) > records.HEAD_MOST and data[0] == self.head.salt[0]:
            span = records.span(data, 0)
            if len(data) < span <= self.end - offset:
                data = self.read(offset, span)
        return records.decode(data, 0, self.head.place(offset))

    def _with_parent(self, raw: StoredRecord) -> Record:
        parent = self.raw(raw.reference).record.id
        if parent is None:
            raise CorruptError(
                f"the record at byte {raw.reference} is no segment, as its child says: damaged"
            )
        return raw.record._replace(parent=parent)

    def scan(self) -> Iterator[tuple[int, Record] | Damage]:
        """Yield all records in order as (offset, record), and the damaged ranges between them.

        A record whose parent is in damaged bytes counts as damage itself, because nothing else names its
        parent. Bytes behind record MAX_RECORDS are not read. Memory: `buffered_reader.AT_HAND` or the largest
        record, and 20 bytes per segment. Raises VersionError.
        """
        for run in self.runs():
            if isinstance(run, Damage):
                yield run
            else:
                yield from zip(*run, strict=True)

    def runs(self) -> Iterator[tuple[list[int], list[Record]] | Damage]:
        """Yield records as `scan` does, many at once: their offsets and the records.

        Records that do not read as a run are read one by one.
        """
        data = BufferedReader(self.read, self.begin, self.end)
        sums, seen = PrefixCrcs(data), SegmentOffsets()
        at = count = 0
        while at < len(data):
            if count >= MAX_RECORDS:
                yield Damage(self.begin + at, len(data) - at, f"more than {MAX_RECORDS} records in a pack")
                return
            begins, end = _chain(data.at_hand(at))
            if not begins:
                begins, end = _chain(data.move(at))
            if not begins:  # search the buffer before reading more: large claims must not cause many reads
                end = len(data.at_hand(at))
            rows = self._read(data, at, begins, end, seen)
            if rows:
                yield [self.begin + at + begin for begin in begins], rows
                at, count = at + end, count + len(rows)
            else:
                for after, item in self._one_by_one(data, sums, at, at + end, seen):
                    at, count = after, count + 1
                    yield item

    def _read(self, data: BufferedReader, at: int, begins: list[int], end: int, seen: SegmentOffsets) -> list[Record]:
        """Return the records at ``begins``, counted from ``at``; none where any of them is damaged."""
        if not begins:
            return []
        try:
            place = self.head.place(self.begin + at)
            return record_batch.read(bytes(data[at : at + end]), np.array(begins), place, seen)
        except FormatError:
            seen.cut(self.begin + at)
            return []

    def _one_by_one(
        self, data: BufferedReader, sums: PrefixCrcs, at: int, end: int, seen: SegmentOffsets
    ) -> Iterator[tuple[int, Damage | tuple[list[int], list[Record]]]]:
        """Yield each record or damaged range that begins before ``end``, after the offset of its end."""
        place = self.head.place(self.begin)
        while at < end:
            place.offset = offset = self.begin + at
            try:
                r, how, reference, size = records.decode(data, at, place, sums)
            except VersionError:
                raise
            except FormatError as exc:
                after = self._resynchronise(data, sums, at + 1)
                yield after, Damage(offset, after - at, str(exc))
                at = after
                continue
            at += size
            if r.id is not None:
                seen.add(np.array([offset]), np.frombuffer(r.id, np.uint8).reshape(1, SIZE))
            if how == PARENT_BACK:
                try:
                    r = r._replace(parent=seen.find(np.array([reference])).tobytes())
                except CorruptError:
                    yield at, Damage(offset, size, f"the parent of the record at byte {offset} is damaged")
                    continue
            yield at, ([offset], [r])

    def _resynchronise(self, data: BufferedReader, sums: PrefixCrcs, at: int) -> int:
        """Return the offset of the next record, or the end."""
        place = self.head.place(self.begin)
        for found in _places_of(self.head.salt[:1], data, at):
            place.offset = self.begin + found
            try:
                records.decode(data, found, place, sums)
                return found
            except VersionError:
                return found
            except FormatError:
                continue
        return len(data)

    def count(self) -> int:
        """Return the number of records in the footer. Raises CorruptError."""
        data = self.read(self.size - FOOTER.size, FOOTER.size)
        if len(data) < FOOTER.size:
            raise CorruptError("the pack was cut off")
        count, _, _, check, end = FOOTER.unpack(data)
        if check != zlib.crc32(data[:-8]) or end != END:
            raise CorruptError("the footer of the pack is damaged")
        return int(count)

    def verify(self) -> bytes:
        """Check the pack as `seal` does and that every record is there; return its name.

        Raises CorruptError.
        """
        name, count = self.seal()
        found = sum(1 for item in self.scan() if not isinstance(item, Damage))
        if found != count:
            raise CorruptError(f"expected {count} records in the pack, found {found}")
        return name

    def seal(self) -> tuple[bytes, int]:
        """Check both copies, the footer and the digest. Raises CorruptError.

        Together they prove that no byte has changed. Returns the digest, which is the pack's name, and the
        number of its records.
        """
        if self.damaged_copies:
            raise CorruptError(f"the {' and the '.join(self.damaged_copies)} of the pack is damaged")
        at = self.size - FOOTER.size
        footer = exactly(self.read, at, FOOTER.size)
        count, size, wanted, check, end = FOOTER.unpack(footer)
        if check != zlib.crc32(footer[:-8]) or end != END or size != self.end - self.begin:
            raise CorruptError("the footer of the pack is damaged")
        if digest_of(PERSON, pieces(self.read, 0, at + 12, self._at_once)) != wanted:
            raise CorruptError("some byte of the pack is not what was written")
        if exactly(self.read, 0, HEADER.size) != exactly(self.read, at - HEADER.size, HEADER.size):
            raise CorruptError("the two headers of the pack differ")
        return bytes(wanted), count

    def _open(self) -> PackHead:
        """Read header and table from the front, or from the back where the front is damaged."""
        if not 2 * HEADER.size + FOOTER.size < self.size <= MAX_SIZE:
            raise CorruptError(f"a pack cannot have {self.size} bytes: it was cut off")
        found: PackHead | None = None
        failures: list[FormatError] = []
        for name, at, table_before in (
            ("header", 0, False),
            ("second header", self.size - FOOTER.size - HEADER.size, True),
        ):
            try:
                found = found or self._head(at, table_before)
                if table_before:
                    self._head(at, table_before)
            except FormatError as exc:
                failures.append(exc)
                self.damaged_copies.append(name)
        if found is None:
            newer = [f for f in failures if isinstance(f, VersionError)]
            raise (
                newer[0]
                if len(newer) == 2
                else CorruptError(f"both headers of a pack are damaged: {failures[0]}")
            )
        return found

    def _head(self, at: int, table_before: bool) -> PackHead:
        header = bytes(self.read(at, HEADER.size))
        if len(header) < HEADER.size:
            raise CorruptError("the pack ends in its header: it was cut off")
        magic, version, flags, reserved, epoch, time, salt, archive, table_size, check = HEADER.unpack(header)
        if magic != MAGIC:
            raise CorruptError(f"expected a pack to start with {MAGIC!r}, found {magic!r}")
        if table_size > min(MAX_TABLE, (self.size - FOOTER.size) // 2 - HEADER.size):  # it is stored twice
            raise CorruptError(f"a table of {table_size} bytes does not fit the pack: damaged")
        table = bytes(self.read(at - table_size if table_before else at + HEADER.size, table_size))
        if check != zlib.crc32(table, zlib.crc32(header[:-4])):
            raise CorruptError("the header of the pack does not match its checksum: damaged")
        if version != VERSION or flags or reserved:
            raise VersionError(f"the pack is of version {version}, flags {flags}: use a newer pltz")
        if time > MAX_TIME:
            raise CorruptError(f"the pack is of second {time}: damaged")
        contexts, parents = _read_table(table)
        sealed = frozenset(n for n, c in enumerate(contexts) if c.cipher)
        return PackHead(epoch, time, salt, archive, contexts, parents, HEADER.size + table_size, sealed)


def _chain(data: memoryview) -> tuple[list[int], int]:
    """Return the offsets of up to `RUN` records, by their sizes, and the end of the last.

    Only the sizes are checked: the records must fit.
    """
    begins: list[int] = []
    end = 0
    while end < len(data) and len(begins) < RUN:
        try:
            size = records.span(data, end)
        except FormatError:
            break
        if end + size > len(data):
            break
        begins.append(end)
        end += size
    return begins, max(end, 1)


def _places_of(mark: bytes, data: BufferedReader, at: int) -> Iterator[int]:
    """Yield the offsets of a byte from ``at`` on."""
    size = FIRST_SEARCH
    while at < len(data):
        piece = bytes(data[at : at + size])
        found = piece.find(mark)
        while found >= 0:
            yield at + found
            found = piece.find(mark, found + 1)
        at, size = at + size, min(2 * size, MOST_SEARCH)


def _read_table(table: bytes) -> tuple[list[Context], list[bytes]]:
    count, at = read_varint(table, 0)
    if count > MAX_CONTEXTS:
        raise CorruptError(f"{count} contexts in a pack, at most {MAX_CONTEXTS} are allowed")
    contexts = []
    for _ in range(count):
        context, at = read_context(table, at)
        contexts.append(context)
    count, at = read_varint(table, at)
    if count > MAX_PARENTS or at + count * SIZE != len(table):
        raise CorruptError(f"{count} parents do not fill the table of the pack: damaged")
    return contexts, [table[i : i + SIZE] for i in range(at, len(table), SIZE)]

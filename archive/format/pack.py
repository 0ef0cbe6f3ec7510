"""A pack: a write-once file of records, laid out in memory and parsed back before it is written.

Spec: FORMAT.md, "Pack".

    header | table | block | block | ... | table | header | footer

A pack of at most `COPIED` bytes has header and table once: its parity is a copy of it.

`Builder` collects the records of a commit and lays them out in blocks. `Pack` reads single records by block and row,
or all of them. It finds its way past damage by the blocks' marks and checks. Header and table are stored twice,
and either copy is enough.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple

from pltz.archive.errors import ForeignPack, MisplacedPack
from pltz.archive.format.block import Block, PackFields, encode, outside, split
from pltz.archive.format.byte_source import Reader, exactly, pieces
from pltz.archive.format.ids import SEGMENT_SIZE
from pltz.archive.format.parity import COPIED
from pltz.archive.format.record import MAX_MOMENT, Context, Record, read_context
from pltz.plt_codec.container.block import CHECK, MARK, MAX_HEAD, PREFIX, head_size
from pltz.plt_codec.errors import ContentError, CorruptError, FormatError, VersionError
from pltz.plt_codec.identity import NONE, SIZE, digest, digest_of
from pltz.plt_codec.varint import read_varint, write_varint
from pltz.plt_codec.versions import Readers

MAGIC = b"PLTp"
VERSION = 1
HEADER = struct.Struct("<4sBQ8s16sII")  # magic, version, moment, salt, archive, table size, crc32
FOOTER = struct.Struct("<I16sI")  # records, digest, crc32
COUNT = struct.Struct("<I")  # the part of the footer that the digest covers
SALT = 8  # bytes
PERSON = b"pltz pack"
TARGET_SIZE = 64 << 20  # bytes at which a pack is closed
MAX_SIZE = 1 << 30
MAX_TABLE = 8 << 20
MAX_CONTEXTS, MAX_PARENTS = 4096, 65536
NAMED_OFTEN = 3  # from here an id in both tables takes fewer bytes than in each block that names it
MAX_RECORDS = 1 << 22  # per pack; new packs have at most 2^20: `Builder.fill` counts 64 bytes for each
FRONT = 4096  # bytes of the first read of a pack: its header, and the table where it is short
FIRST_READ = 8192  # bytes of the first read of a block
AHEAD = 1 << 16  # bytes of the first read of a block whose records are wanted: one read in place of two
# bytes searched at once after damage, doubled from the first value up to the second
FIRST_SEARCH, MOST_SEARCH = 256, 1 << 20
CLAIMED = 64  # bytes of heads that are looked for behind damage, per byte of the pack
MOST_HEAD = PREFIX + MAX_HEAD + CHECK  # bytes of the head of a block
AT_HAND = 4 << 20  # bytes of a pack in memory while it is read from end to end


@dataclass(frozen=True, slots=True)
class PackHead:
    """Header and table of a pack."""

    moment: int  # ticks since 1970
    salt: bytes
    archive: bytes  # id of the archive that the pack was written for
    contexts: list[Context]
    parents: list[bytes]
    size: int  # bytes of header and table
    sealed: frozenset[int]  # numbers of the contexts with encryption

    @property
    def fields(self) -> PackFields:
        """Return the fields that its blocks depend on."""
        return PackFields(self.salt, self.moment, len(self.contexts), self.parents, self.sealed)


class PackFooter(NamedTuple):
    """The footer of a pack: the number of its records, and its name, which is the digest of its bytes."""

    records: int
    name: bytes


class RecordPlace(NamedTuple):
    """The place of a record in its pack: byte offset of its block, and its row there."""

    offset: int
    row: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a pack that are no sound record, or the bitstrings of some.

    ``rows``: the records whose bitstrings these are, with their rows in the block at ``block`` and without their
    bitstrings. None where heads of blocks are damaged, so that any record may have been there.
    """

    offset: int
    size: int
    why: str
    rows: Sequence[tuple[int, Record]] | None = None
    block: int = 0  # byte offset


class Builder:
    """Collects records and lays them out as one pack.

    >>> b = Builder(moment=7 << 20, salt=bytes(8))
    >>> n = b.context(Context(0, NONE, "acme", NONE, NONE))
    >>> data = b.add(Record(n, name="empty", moment=7 << 20, time=7)).finish()
    >>> len(data)
    127
    """

    def __init__(self, moment: int, salt: bytes, archive: bytes = NONE):
        self.moment, self.salt, self.archive = moment, salt, archive
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
            self.size += len(record.bitstring) + len(record.name or "") * 2 + len(record.about) + 64
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
        """Return the pack without its digest, which `sealed` adds. Raises ContentError, UsageError as `finish`."""
        parts = split(self.records)
        named = outside(self.records, parts)
        often = [segment for segment, times in named.items() if times >= NAMED_OFTEN][:MAX_PARENTS]
        numbers = {segment: number for number, segment in enumerate(often)}
        table = self._table(often)
        header = HEADER.pack(MAGIC, VERSION, self.moment, self.salt, self.archive, len(table), 0)[:-4]
        header += zlib.crc32(table, zlib.crc32(header)).to_bytes(4, "little")
        fields = PackFields(self.salt, self.moment, len(self._contexts))
        out = BytesIO()
        out.write(header + table)
        begin = out.tell()
        for part in parts:
            out.writelines(encode(self.records[part], numbers, out.tell(), fields))
        if out.tell() - begin > MAX_SIZE - (16 << 20):
            raise ContentError(f"the records of one pack are over {MAX_SIZE} bytes")
        if out.tell() + FOOTER.size > COPIED:
            out.write(table + header)
        out.write(COUNT.pack(len(self.records)).ljust(FOOTER.size, b"\0"))
        return out

    def _table(self, parents: list[bytes]) -> bytes:
        contexts = [c.encode() for c in self._contexts]
        return b"".join([write_varint(len(contexts)), *contexts, write_varint(len(parents)), *parents])


def digest_before(out: BytesIO) -> bytes:
    """Return the digest of a pack that was laid out. Takes long and releases the GIL."""
    with out.getbuffer() as whole:
        return digest(PERSON, whole[: COUNT.size - FOOTER.size])


def sealed(out: BytesIO, digest: bytes) -> bytes:
    """Return a laid-out pack with its digest."""
    with out.getbuffer() as whole:
        foot = bytes(whole[-FOOTER.size :][: COUNT.size]) + digest
        whole[-FOOTER.size :] = foot + zlib.crc32(foot).to_bytes(4, "little")
    return out.getvalue()


def name_in(data: bytes) -> bytes:
    """Return the digest in the footer of a pack."""
    return data[COUNT.size - FOOTER.size : COUNT.size - FOOTER.size + SIZE]


class Pack:
    """A pack opened for reading.

    Args:
        read: returns at most `size` bytes at `offset`.
        size: bytes of the file.
        archive: id of the archive that the pack must belong to; None allows any.
        name: of the pack, by which its footer is checked; None allows any. Where the footer is damaged, ``nameless``
            says why: these may be the bytes of another pack.
        both: read the second copy of the header too, where the first is sound: it costs a read.

    Raises:
        VersionError: the pack is newer.
        CorruptError: both copies of the header are damaged.
        MisplacedPack: these are the bytes of another pack of this archive, or not as many as it has.
        ForeignPack: the pack belongs to another archive.
    """

    def __init__(
        self,
        read: Reader,
        size: int,
        archive: bytes | None = None,
        name: bytes | None = None,
        *,
        both: bool = True,
    ):
        self.read, self.size, self._twice = read, size, size > COPIED
        self._held: memoryview | None = None  # all bytes, where they are in memory
        self.damaged_copies: list[str] = []
        self.head = self._open(both)
        if archive not in (None, self.head.archive):
            raise ForeignPack(
                f"a pack of archive {self.head.archive.hex()}; this is archive {archive.hex() if archive else ''}: "
                "pltz archive repair moves it to damaged/"
            )
        self.begin = self.head.size
        self.end = size - FOOTER.size - self.head.size * self._twice
        self.fields = self.head.fields
        if self.end < self.begin:
            raise CorruptError(f"a pack of {size} bytes has no room for its tables: it was cut off")
        self.nameless = self._check_name(name) if name is not None else ""

    @classmethod
    def of(cls, data: bytes | memoryview, archive: bytes | None = None) -> Pack:
        """Return a pack in memory. Raises the errors of the constructor."""
        view = memoryview(data)
        pack = cls(lambda offset, size: view[offset : offset + size], len(view), archive)
        pack._held = view
        return pack

    def block(self, offset: int, *, ahead: int = FIRST_READ) -> Block:
        """Return the block at ``offset``, whose head is sound. Raises CorruptError, VersionError.

        ``ahead``: bytes to read at once, for callers that want records of the block.
        """
        if not self.begin <= offset < self.end:
            raise CorruptError(f"no block can be at byte {offset} of a pack of {self.size}")
        try:
            data = self.read(offset, min(ahead, self.end - offset))
        except FormatError:  # a bad sector behind the head is no damage of the head
            data = self.read(offset, min(PREFIX, self.end - offset))
        size = head_size(data, self.fields.salt)
        if len(data) < size <= self.end - offset:
            data = self.read(offset, size)
        block = Block.of(data, offset, self.fields)
        block.ahead = memoryview(data)[size:]
        return block

    def of_block(self, block: Block, row: int) -> Record:
        """Return a record of a block. Raises CorruptError where its bitstring is damaged."""
        if not 0 <= row < block.count:
            raise CorruptError(f"the block at byte {block.offset} has no record {row}: damaged")
        if (piece := block.piece(row)) is None:
            return block.record(row)
        at = block.offset + block.size + piece.begin
        data = block.ahead[piece.begin : piece.end]
        if len(data) < piece.end - piece.begin:
            data = exactly(self.read, at, piece.end - piece.begin)
        if not block.sound(piece, data):
            raise CorruptError(f"the bitstrings at byte {at} do not match their checksum: damaged")
        return block.record(row, piece, data)

    def scan(self) -> Iterator[tuple[RecordPlace, Record] | Damage]:
        """Yield all records in order with their places, and the damaged ranges between them.

        Bytes behind record MAX_RECORDS are not read. Memory: `AT_HAND` or the largest block. Raises VersionError.
        """
        for item in self.blocks():
            if isinstance(item, Damage):
                yield item
                continue
            block, rows = item
            for row, record in rows:
                yield RecordPlace(block.offset, row), record

    def blocks(self, *, bodies: bool = True) -> Iterator[tuple[Block, list[tuple[int, Record]]] | Damage]:
        """Yield each block with its sound records and their rows, and damaged ranges.

        Without ``bodies`` the records come without their bitstrings, which are not read. Raises VersionError.
        """
        data = BufferedReader(self.read, self.begin, self.end, self._held)
        left = CLAIMED * len(data)
        at = count = 0
        while at < len(data):
            if count >= MAX_RECORDS:
                yield Damage(self.begin + at, len(data) - at, f"more than {MAX_RECORDS} records in a pack")
                return
            front = data.front(at, MOST_HEAD) if bodies else b""
            try:
                block = Block.of(front, self.begin + at, self.fields) if bodies else self.block(self.begin + at)
                body = front[block.size : block.size + block.body]
                if bodies and len(body) < block.body:
                    body = data[at + block.size : at + block.size + block.body]
                bad = block.damaged(body) if bodies else []
                rows = list(enumerate(block.records(body) if bodies else block.heads()))
            except VersionError:
                raise
            except FormatError as exc:
                after, left = self._resynchronise(data, at + 1, left)
                yield Damage(self.begin + at, after - at, str(exc))
                at = after
                continue
            # of a block whose head is sound, damage costs the records of a piece of the body
            hurt = [(row, r, piece) for row, r in rows if (piece := block.piece(row)) in bad] if bad else []
            if bad:
                rows = [(row, record) for row, record in rows if block.piece(row) not in bad]
            yield block, rows
            for piece in bad:
                why = f"the bitstrings of {piece.last - piece.first} records do not match their checksum"
                heads = [(row, r._replace(bitstring=b"")) for row, r, its in hurt if its == piece]
                begin = block.offset + block.size + piece.begin
                yield Damage(begin, piece.end - piece.begin, why, heads, block.offset)
            at, count = at + block.size + block.body, count + block.count

    def _resynchronise(self, data: BufferedReader, at: int, left: int) -> tuple[int, int]:
        """Return the offset of the next block, or the end, and the bytes that later claims to be a head may have.

        ``left``: those bytes so far. Where claims have had more, they are crafted, and nothing behind is looked for.
        """
        for found in _places_of(self.fields.salt[:MARK], data, at):
            try:
                size = head_size(data[found : found + PREFIX], self.fields.salt)
                left -= size
                if left < 0:
                    break
                Block.of(data[found : found + size], self.begin + found, self.fields)
                return found, left
            except VersionError:
                return found, left
            except FormatError:
                continue
        return len(data), left

    def count(self) -> int:
        """Return the number of records in the footer. Raises CorruptError."""
        return self.footer().records

    def _check_name(self, name: bytes) -> str:
        """Return why nothing tells whether this is the pack of a name, empty where it is. Raises MisplacedPack."""
        try:
            data = self.read(self.size - FOOTER.size, FOOTER.size + 1)
            found = len(data) - FOOTER.size
            if not found and (own := self._footer(data).name) != name:
                raise MisplacedPack(f"these are the bytes of pack {own.hex()}: run pltz archive repair")
        except MisplacedPack:
            raise
        except CorruptError as exc:
            return str(exc)
        if found:
            more = "more" if found > 0 else "fewer"
            raise MisplacedPack(f"expected a pack of {self.size} bytes, found {more}: run pltz archive repair")
        return ""

    def footer(self) -> PackFooter:
        """Return what the footer says. Raises CorruptError."""
        return self._footer(exactly(self.read, self.size - FOOTER.size, FOOTER.size))

    def _footer(self, data: bytes | memoryview) -> PackFooter:
        records, name, check = FOOTER.unpack(data)
        if check != zlib.crc32(data[:-4]):
            raise CorruptError("the footer of the pack is damaged")
        return PackFooter(records, bytes(name))

    def verify(self) -> bytes:
        """Check the pack as `seal` does and that every record is there; return its name. Raises CorruptError."""
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
        at, (count, wanted) = self.size - FOOTER.size, self.footer()
        if digest_of(PERSON, pieces(self.read, 0, at + COUNT.size)) != wanted:
            raise CorruptError("some byte of the pack is not what was written")
        if self._twice and exactly(self.read, 0, HEADER.size) != exactly(self.read, at - HEADER.size, HEADER.size):
            raise CorruptError("the two headers of the pack differ")
        return wanted, count

    def _open(self, both: bool) -> PackHead:
        """Read header and table from the front, or from the back where the front is damaged."""
        if not (1 + self._twice) * HEADER.size + FOOTER.size < self.size <= MAX_SIZE:
            raise CorruptError(f"a pack cannot have {self.size} bytes: it was cut off")
        if not self._twice:
            return self._head(0, False)[0]
        found: PackHead | None = None
        failures: list[FormatError] = []
        end = self.size - FOOTER.size
        copy = b""
        try:
            found, copy = self._head(0, False)
        except FormatError as exc:
            failures.append(exc)
            self.damaged_copies.append("header")
        try:
            if found and (not both or self.read(end - found.size, found.size) == copy):
                return found
            second, _ = self._head(end - HEADER.size, True)
            if found:  # each is whole, and they differ: nobody here writes such a pack
                self.damaged_copies.append("second header")
            found = found or second
        except FormatError as exc:
            failures.append(exc)
            self.damaged_copies.append("second header")
        if found is None:
            newer = [f for f in failures if isinstance(f, VersionError)]
            raise (newer[0] if len(newer) == 2 else CorruptError(f"both headers of a pack are damaged: {failures[0]}"))
        return found

    def _head(self, at: int, table_before: bool) -> tuple[PackHead, bytes]:
        """Return one copy of header and table, and the bytes of the second copy. Raises CorruptError, VersionError."""
        try:
            front = bytes(self.read(at, HEADER.size if table_before else min(FRONT, self.size)))
        except FormatError:  # a bad sector behind the header is no damage of the header
            front = bytes(self.read(at, HEADER.size))
        header, table = front[: HEADER.size], front[HEADER.size :]
        if len(header) < HEADER.size:
            raise CorruptError("the pack ends in its header: it was cut off")
        magic, version, moment, salt, archive, table_size, check = HEADER.unpack(header)
        if magic != MAGIC:
            raise CorruptError(f"expected a pack to start with {MAGIC!r}, found {magic!r}")
        if table_size > min(MAX_TABLE, (self.size - FOOTER.size) // (1 + self._twice) - HEADER.size):
            raise CorruptError(f"a table of {table_size} bytes does not fit the pack: damaged")
        if len(table) < table_size:
            table = bytes(self.read(at - table_size if table_before else at + HEADER.size, table_size))
        table = table[:table_size]
        if check != zlib.crc32(table, zlib.crc32(header[:-4])):
            raise CorruptError("the header of the pack does not match its checksum: damaged")
        read_table = VERSIONS[version]
        if moment >= MAX_MOMENT:
            raise CorruptError(f"the pack is of tick {moment}: damaged")
        contexts, parents = read_table(table)
        sealed = frozenset(n for n, c in enumerate(contexts) if c.cipher)
        head = PackHead(moment, salt, archive, contexts, parents, HEADER.size + table_size, sealed)
        return head, table + header


class BufferedReader:
    """A range of a file that reads like a buffer, of which only a part is in memory.

    ``held``: the whole file, where that is in memory. ``data[a:b]`` is taken from the buffered bytes where it lies in
    them, and is read separately elsewhere. It raises CorruptError where the file was cut off.
    """

    def __init__(self, read: Reader, begin: int, end: int, held: memoryview | None):
        self._read, self._begin, self._size = read, begin, end - begin
        self._at, self._data = 0, memoryview(b"") if held is None else held[begin:end]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> memoryview:
        begin, end, _ = part.indices(self._size)
        if self._at <= begin and end <= self._at + len(self._data):
            return self._data[begin - self._at : max(begin, end) - self._at]
        return memoryview(exactly(self._read, self._begin + begin, max(0, end - begin)))

    def front(self, at: int, least: int) -> memoryview:
        """Return the bytes from ``at`` on that are in memory: ``least`` or more, where there are so many.

        Others are read, at most `AT_HAND`. Raises CorruptError where the file was cut off.
        """
        if at < self._at or len(self._data) - (at - self._at) < min(least, self._size - at):
            self._at, self._data = at, memoryview(b"")
            self._data = self[at : at + AT_HAND]
        return self._data[at - self._at :]


def _places_of(mark: bytes, data: BufferedReader, at: int) -> Iterator[int]:
    """Yield the offsets of a mark from ``at`` on."""
    size = FIRST_SEARCH
    while at < len(data):
        piece = bytes(data[at : at + size + len(mark) - 1])
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
    if count > MAX_PARENTS or at + count * SEGMENT_SIZE != len(table):
        raise CorruptError(f"{count} segments do not fill the table of the pack: damaged")
    return contexts, [table[i : i + SEGMENT_SIZE] for i in range(at, len(table), SEGMENT_SIZE)]


VERSIONS = Readers("the pack", {VERSION: _read_table})

"""Segment: one file of the journal, with entries in checksummed frames.

Spec: FORMAT.md, "Segment" and "Done".

    name = Name(owner, 0)
    data = name.head() + name.frames(at=40, bodies=[b"..."])
    for piece in scan(name, data, 0): ...              # EntryFrame or Gap, for any bytes

`scan` takes any bytes: truncated, flipped, hostile. It yields the sound frames and the gaps between them. Its
work is bounded by the size of the file.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pltz.plt_codec import SIZE, Readers, VersionError
from pltz.serving.eviction.journal.entry import MAX_BODY

MAGIC, VERSION = b"pltzjrnl", 1
HEAD = struct.Struct(f"<8sHHI{SIZE}s")
HEAD_SIZE = HEAD.size + 8
ENTRIES, BATCHES = 0, 1  # kinds of bodies: evicted sessions, batches of a live store
MARK = b"entr"
FRAME = struct.Struct("<4sI8s")
PLACE = struct.Struct(f"<{SIZE}sIQ")
ROW = struct.Struct("<Q8s")
DONE = 2 * ROW.size  # bytes of a `.done`
DELETED = (1 << 64) - 1  # the offset in the `.done` of a segment that a worker deletes
ALIGN = 8
WORK = 4  # bytes hashed at most in search of frames, as a multiple of the file's
CHUNK = 1 << 17  # words examined together
# bytes hashed at a time without releasing the GIL; most bytes hashed that way, 0.3 ms
KEPT, HELD = 2047, 1 << 18
LOOK = 64  # bytes hashed for which one look at a place counts
NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{8})\.journal")


@dataclass(frozen=True, order=True)
class Name:
    """The name of a segment, which its checksums bind."""

    owner: bytes
    number: int

    @classmethod
    def parse(cls, file: str) -> Name | None:
        """Return the segment of a file name, or None for any other file."""
        found = NAME.fullmatch(file)
        return cls(bytes.fromhex(found[1]), int(found[2], 16)) if found else None

    def __str__(self) -> str:
        return f"{self.owner.hex()}-{self.number:08x}"

    @property
    def journal(self) -> str:
        """Return the name of the segment's file."""
        return f"{self}.journal"

    @property
    def done(self) -> str:
        """Return the name of the file that says how far it is archived."""
        return f"{self}.done"

    @property
    def after(self) -> Name:
        """Return the name of the owner's next segment."""
        return Name(self.owner, self.number + 1)

    @property
    def lost(self) -> str:
        """Return the name of the file that says that the segment disappeared."""
        return f"{self}.lost"

    def aside(self, offset: int, why: str) -> str:
        """Return the file name for bytes laid aside from an offset. ``why``: "refused" or "damaged"."""
        return f"{self}-{offset:016x}.{why}"

    def head(self, kind: int = ENTRIES) -> bytes:
        """Return the first HEAD_SIZE bytes of the file."""
        head = HEAD.pack(MAGIC, VERSION, kind, self.number, self.owner)
        return head + _hash(head)

    def frames(self, at: int, bodies: Sequence[bytes]) -> bytes:
        """Return the frames of bodies, the first at offset ``at``."""
        parts: list[bytes] = []
        for body in bodies:
            parts.append(FRAME.pack(MARK, len(body), self._check(at, body)) + body + bytes(-len(body) % ALIGN))
            at += len(parts[-1])
        return b"".join(parts)

    def row(self, offset: int) -> bytes:
        """Return a row of `.done`."""
        return ROW.pack(offset, _hash(PLACE.pack(self.owner, self.number, offset)))

    def marks(self, before: int, offset: int) -> bytes:
        """Return the bytes of `.done`: the mark that held until now, then the new one."""
        return (self.row(before) if before else bytes(ROW.size)) + self.row(offset)

    def done_of(self, rows: bytes) -> int:
        """Return the offset up to which the segment is archived. ``rows``: the bytes of its `.done`."""
        offsets = (ROW.unpack_from(rows, at)[0] for at in range(0, len(rows) - ROW.size + 1, ROW.size))
        return max((o for n, o in enumerate(offsets) if rows[ROW.size * n :][: ROW.size] == self.row(o)), default=0)

    def _check(self, at: int, body: bytes | memoryview) -> bytes:
        return _hash(PLACE.pack(self.owner, self.number, at), len(body).to_bytes(4, "little"), body)


@dataclass(frozen=True)
class EntryFrame:
    """A sound frame: its start and end in the file, and its body."""

    start: int
    end: int
    body: bytes


@dataclass(frozen=True)
class Gap:
    """Bytes that are no frames. ``last``: nothing follows them, so they may be an interrupted write."""

    start: int
    end: int
    last: bool


def scan(name: Name, data: bytes | memoryview, start: int, kind: int = ENTRIES) -> Iterator[EntryFrame | Gap]:
    """Yield the frames and gaps of a segment from ``start`` on, in order.

    Raises VersionError for a newer one, or one with bodies of another kind.
    """
    if start < HEAD_SIZE:
        if data[:8] == MAGIC and data[HEAD.size : HEAD_SIZE] == _hash(data[: HEAD.size]):
            _ = VERSIONS[int.from_bytes(data[8:10], "little")]  # all that are read have the same frames
            if (found := int.from_bytes(data[10:12], "little")) != kind:
                raise VersionError(f"{name.journal} has bodies of kind {found}, not {kind}: it is another's journal")
        elif len(data) > HEAD_SIZE:
            yield Gap(0, HEAD_SIZE, False)
        elif len(data):
            yield Gap(0, len(data), True)
        start = HEAD_SIZE
    marks: npt.NDArray[np.int64] | None = None
    work = WORK * len(data)
    at = gap = start
    while at < len(data):
        frame, cost = _frame(name, data, at, work)
        work -= cost
        if frame is None:
            marks = _marks(data) if marks is None else marks
            place = int(np.searchsorted(marks, at, "right"))
            at = int(marks[place]) if work > 0 and place < len(marks) else len(data)
            continue
        if gap < at:
            yield Gap(gap, at, False)
        yield frame
        at = gap = frame.end
    if gap < len(data):
        yield Gap(gap, len(data), True)


def _frame(name: Name, data: bytes | memoryview, at: int, work: int) -> tuple[EntryFrame | None, int]:
    """Return the frame at an offset, or None where none is sound, and the cost in bytes hashed."""
    if len(data) - at < FRAME.size or data[at : at + 4] != MARK:
        return None, LOOK
    _, size, check = FRAME.unpack_from(data, at)
    body = at + FRAME.size
    end = body + size + -size % ALIGN
    if size > MAX_BODY or end > len(data) or size > work or any(data[body + size : end]):
        return None, LOOK
    if check != name._check(at, data[body : body + size]):
        return None, LOOK + size
    return EntryFrame(at, end, bytes(data[body : body + size])), 0


VERSIONS = Readers("the journal", {VERSION: _frame})


def _marks(data: bytes | memoryview) -> npt.NDArray[np.int64]:
    """Return the offsets at which a frame may begin, (n,) int64, ascending."""
    words = np.frombuffer(data, "<u8", len(data) // ALIGN)
    mark = int.from_bytes(MARK, "little")
    found = [at + np.flatnonzero(words[at : at + CHUNK] & 0xFFFFFFFF == mark) for at in range(0, len(words), CHUNK)]
    return np.concatenate([np.zeros(0, np.int64), *found]) * ALIGN


def _hash(*parts: bytes | memoryview) -> bytes:
    """Return the 8-byte checksum of the parts.

    hashlib releases the GIL for more than 2047 bytes. Beside a serving loop it takes up to 5 ms per entry to
    get it back. So parts that are hashed in less time than that are hashed in pieces.
    """
    state = hashlib.blake2b(digest_size=8, person=b"pltz journal")
    for part in parts:
        step = KEPT if len(part) <= HELD else len(part)
        whole = memoryview(part)
        for at in range(0, len(part), step):
            state.update(whole[at : at + step])
    return state.digest()

"""Segment: one file of the journal, entries in checksummed frames. Spec: FORMAT.md, "Segment" and "Done".

    name = Name(owner, 0)
    data = name.head() + name.frames(at=40, bodies=[b"..."])
    for piece in scan(name, data, 0): ...              # Frame or Gap, whatever the bytes are

`scan` takes any bytes: truncated, flipped, hostile. It gives the frames that hold and says what lies between them; its work is bounded by
the size of the file.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pltz.archive.eviction.journal.entry import MAX_BODY
from pltz.archive.format.ids import SIZE
from pltz.plt_codec.errors import VersionError

MAGIC, VERSION = b"pltzjrnl", 1
HEAD = struct.Struct(f"<8sHHI{SIZE}s")
HEAD_SIZE = HEAD.size + 8
MARK = b"entr"
FRAME = struct.Struct("<4sI8s")
PLACE = struct.Struct(f"<{SIZE}sIQ")
ROW = struct.Struct("<Q8s")
DONE = 2 * ROW.size  # bytes of a `.done`
ALIGN = 8
WORK = 4  # times the file's bytes are hashed at most, looking for frames
CHUNK = 1 << 17  # words looked at together
KEPT, HELD = 2047, 1 << 18  # bytes hashed at a time while the interpreter is kept; bytes hashed so, 0.3 ms
LOOK = 64  # bytes hashed, that a look at a place counts as
NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{8})\.journal")


@dataclass(frozen=True, order=True)
class Name:
    """What a segment is called, which its checksums bind."""

    owner: bytes
    number: int

    @classmethod
    def parse(cls, file: str) -> Name | None:
        """The segment of that file name; None for any other file."""
        found = NAME.fullmatch(file)
        return cls(bytes.fromhex(found[1]), int(found[2], 16)) if found else None

    def __str__(self) -> str:
        return f"{self.owner.hex()}-{self.number:08x}"

    @property
    def journal(self) -> str:
        return f"{self}.journal"

    @property
    def done(self) -> str:
        return f"{self}.done"

    def aside(self, offset: int, why: str) -> str:
        """File for what lies at an offset and cannot go to the archive; ``why``: "refused" or "damaged"."""
        return f"{self}-{offset:016x}.{why}"

    def head(self) -> bytes:
        """The first HEAD_SIZE bytes of the file."""
        head = HEAD.pack(MAGIC, VERSION, 0, self.number, self.owner)
        return head + _hash(head)

    def frames(self, at: int, bodies: Sequence[bytes]) -> bytes:
        """Frames of bodies, the first at offset ``at``."""
        parts: list[bytes] = []
        for body in bodies:
            parts.append(
                FRAME.pack(MARK, len(body), self._check(at, body)) + body + bytes(-len(body) % ALIGN)
            )
            at += len(parts[-1])
        return b"".join(parts)

    def row(self, offset: int) -> bytes:
        """A row of `.done`."""
        return ROW.pack(offset, _hash(PLACE.pack(self.owner, self.number, offset)))

    def marks(self, before: int, offset: int) -> bytes:
        """Return the bytes of `.done`: the mark that held until now, then the new one."""
        return (self.row(before) if before else bytes(ROW.size)) + self.row(offset)

    def done_of(self, rows: bytes) -> int:
        """The offset up to which the segment is archived, by the bytes of its `.done`."""
        offsets = (ROW.unpack_from(rows, at)[0] for at in range(0, len(rows) - ROW.size + 1, ROW.size))
        return max(
            (o for n, o in enumerate(offsets) if rows[ROW.size * n :][: ROW.size] == self.row(o)), default=0
        )

    def _check(self, at: int, body: bytes | memoryview) -> bytes:
        return _hash(PLACE.pack(self.owner, self.number, at), len(body).to_bytes(4, "little"), body)


@dataclass(frozen=True)
class Frame:
    """A frame that holds: where it begins and ends in the file, and its body."""

    start: int
    end: int
    body: bytes


@dataclass(frozen=True)
class Gap:
    """Bytes that are no frames. ``last``: nothing follows them, so they may be a write that was cut off."""

    start: int
    end: int
    last: bool


def scan(name: Name, data: bytes | memoryview, start: int) -> Iterator[Frame | Gap]:
    """What a segment holds from ``start`` on, in order. Raises VersionError for a newer one."""
    if start < HEAD_SIZE:
        if data[:8] == MAGIC and data[HEAD.size : HEAD_SIZE] == _hash(data[: HEAD.size]):
            if int.from_bytes(data[8:10], "little") != VERSION:
                raise VersionError(f"{name.journal} is a journal of a newer version: use a newer pltz")
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


def _frame(name: Name, data: bytes | memoryview, at: int, work: int) -> tuple[Frame | None, int]:
    """The frame at an offset, None where none holds; and what looking cost, in bytes hashed."""
    if len(data) - at < FRAME.size or data[at : at + 4] != MARK:
        return None, LOOK
    _, size, check = FRAME.unpack_from(data, at)
    body = at + FRAME.size
    end = body + size + -size % ALIGN
    if size > MAX_BODY or end > len(data) or size > work or any(data[body + size : end]):
        return None, LOOK
    if check != name._check(at, data[body : body + size]):
        return None, LOOK + size
    return Frame(at, end, bytes(data[body : body + size])), 0


def _marks(data: bytes | memoryview) -> npt.NDArray[np.int64]:
    """Offsets at which a frame may begin, ascending."""
    words = np.frombuffer(data, "<u8", len(data) // ALIGN)
    mark = int.from_bytes(MARK, "little")
    found = [
        at + np.flatnonzero(words[at : at + CHUNK] & 0xFFFFFFFF == mark) for at in range(0, len(words), CHUNK)
    ]
    return np.concatenate([np.zeros(0, np.int64), *found]) * ALIGN


def _hash(*parts: bytes | memoryview) -> bytes:
    """hashlib lets go of the interpreter for more than 2047 bytes, and beside a serving loop it takes up to 5 ms to have it back, an entry. So what takes
    less than that is hashed in pieces."""
    state = hashlib.blake2b(digest_size=8, person=b"pltz journal")
    for part in parts:
        step = KEPT if len(part) <= HELD else len(part)
        whole = memoryview(part)
        for at in range(0, len(part), step):
            state.update(whole[at : at + step])
    return state.digest()

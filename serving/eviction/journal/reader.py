"""Backlog: the reading side of the eviction journal. Spec: FORMAT.md, "Write order", 3 to 7.

    backlog = JournalReader(disk, locks)
    backlog.note_lost()                                         # segments that are gone, and were not deleted here
    for segment in backlog.segments():
        for frame, entry in backlog.read(segment): ...          # in order
        backlog.mark(segment, frame.end)                        # archived up to here
        backlog.finish(segment)                                 # deleted, unless its owner still appends

Segments of living processes are read as far as they are written. Those of dead ones are adopted. One worker
at a time, the holder of `worker.lock`, marks and deletes.

A full disk stops none of this. A mark goes into room that the segment reserved. Where even that fails, as on
a copy-on-write file system, the worker remembers it. After a kill it archives the same entries again, which
changes nothing. Only bytes laid aside need room: their segment waits (``stuck``), the others go on.

Absence is no proof of deletion here either. A worker says in `.done` that it deletes a segment, before it does. A
`.done` that does not say so and has no segment, and a number without both between two others, are a loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from pltz.archive import Disk, is_full, reason
from pltz.plt_codec import CorruptError, VersionError
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.eviction.journal.lock import Locks
from pltz.serving.eviction.journal.segment import DELETED, ENTRIES, HEAD_SIZE, EntryFrame, Gap, Name, scan

MAX_DONE = 1 << 12  # bytes of a .done that are read
MOST_GONE = 1000  # missing numbers between two segments that are told
OWNER_LOCK = re.compile(r"[0-9a-f]{32}\.lock")
TEMPORARY = re.compile(r"[0-9a-f]{32}\.tmp")  # of `Tokenizers.keep`


@dataclass
class JournalSegment:
    """A segment as it was found.

    ``closed``: its owner no longer appends. ``done``: the offset up to which it is archived. ``damage``:
    bytes that are no frames, found by `JournalReader.read`. ``aside``: number of bytes laid aside. ``newer``: why a
    segment of a newer version is left alone. ``stuck``: which bytes must be laid aside and find no room, so
    that the segment is neither marked nor deleted.
    """

    name: Name
    size: int
    closed: bool
    done: int
    damage: list[Gap] = field(default_factory=list)
    aside: int = 0
    newer: str = ""
    stuck: str = ""


def is_of_journal(file: str) -> bool:
    """Return whether a file of this name belongs to a journal: a segment, a lock, or one that stands beside them.

    >>> [is_of_journal(name) for name in ("0" * 32 + "-00000000.journal", "0" * 32 + ".lock", "notes.txt")]
    [True, True, False]
    """
    return re.match(r"[0-9a-f]{32}[-.]", file) is not None or file == "worker.lock"


@dataclass(frozen=True)
class Status:
    """The contents of a journal directory.

    ``waiting``: bytes not archived yet. ``living``: processes that write to it. ``refused``, ``damaged``:
    files laid aside. ``lost``: segments that are gone although no worker deleted them.
    """

    segments: int
    bytes: int
    waiting: int
    living: int
    refused: list[str]
    damaged: list[str]
    lost: list[str]


class JournalReader:
    """The part of a journal that is not archived yet (see the top of this file). ``kind``: of its bodies."""

    def __init__(self, disk: Disk, locks: Locks, kind: int = ENTRIES) -> None:
        self.disk, self.locks, self.kind = disk, locks, kind
        self._remembered: dict[Name, int] = {}  # marks that found no room

    def segments(self) -> list[JournalSegment]:
        """Return the segments, those of each owner in order. Raises OSError."""
        files = dict(self.disk.names(""))
        names = sorted(name for file in files if (name := Name.parse(file)))
        last = {name.owner: name for name in names}
        living = {owner for owner in last if self._locked(f"{owner.hex()}.lock", files)}
        found = []
        for name in names:
            closed = name.owner not in living or name != last[name.owner]
            done = max(self._done(name) if name.done in files else 0, self._remembered.get(name, 0))
            size = files[name.journal]
            found.append(JournalSegment(name, size, closed, size if done == DELETED else done))
        return found

    def read(self, segment: JournalSegment) -> Iterator[tuple[EntryFrame, JournalEntry]]:
        """Yield the entries that are not archived yet, in order. Raises OSError.

        A sound frame whose body is no entry counts as damage.
        """
        for frame in self.frames(segment):
            try:
                entry = JournalEntry.decode(frame.body)
            except CorruptError:
                segment.damage.append(Gap(frame.start, frame.end, False))
                continue
            yield frame, entry

    def frames(self, segment: JournalSegment) -> Iterator[EntryFrame]:
        """Yield the sound frames that are not archived yet, in order. Raises OSError."""
        try:
            data = self.disk.view(segment.name.journal)
        except FileNotFoundError:  # another worker was here
            return
        segment.size = len(data)
        segment.damage = []
        try:
            start = segment.done if segment.done <= len(data) else 0
            for piece in scan(segment.name, data, start, self.kind):
                if isinstance(piece, EntryFrame):
                    yield piece
                elif not piece.last or segment.closed:
                    segment.damage.append(piece)
        except VersionError as exc:
            segment.newer = str(exc)

    def mark(self, segment: JournalSegment, offset: int) -> None:
        """Record that everything up to ``offset`` is archived: durably, or on a full disk for the life of
        this object.

        Damage before it is laid aside first. Where that finds no room, nothing is marked. Raises OSError.
        """
        if offset <= segment.done or not self._lay_aside(segment, offset):
            return
        try:
            self._write_done(segment, offset)
        except OSError as exc:
            if not is_full(exc):
                raise
            self._remembered[segment.name] = offset
        segment.done = offset

    def refuse(self, segment: JournalSegment, frame: EntryFrame) -> bool:
        """Lay an entry aside that the archive refuses, durably.

        Returns False where there is no room. Raises OSError.
        """
        file, data = (segment.name.aside(frame.start, "refused"), segment.name.frames(frame.start, [frame.body]))
        return self._aside(segment, file, data)

    def finish(self, segment: JournalSegment) -> bool:
        """Delete an archived segment, after its damaged bytes were laid aside. Raises OSError.

        Call it only after all entries that `read` yielded were marked. Returns False where the segment is
        still written to, or stuck.
        """
        if not segment.closed or segment.newer or not self._lay_aside(segment, segment.size):
            return False
        name = segment.name
        between = self._below(name)
        if not self._mark_deleted(segment):
            if between:
                return False  # without a mark its number would be missing between two others
            self._unlink(name.done)  # nor may a `.done` without the mark outlive its segment
            self.disk.sync_directory("")
        self._unlink(name.journal)
        if not between:  # else `.done` says what became of the number
            self._unlink(name.done)
        self.disk.sync_directory("")
        self._remembered.pop(name, None)
        return True

    def _below(self, name: Name) -> bool:
        """Return whether the owner has an earlier segment."""
        earlier = (Name.parse(file) for file, _ in self.disk.names(""))
        return any(one.owner == name.owner and one.number < name.number for one in earlier if one)

    def _mark_deleted(self, segment: JournalSegment) -> bool:
        """Say durably that a segment is about to be deleted. Returns False where there is no room. Raises OSError."""
        try:
            self._write_done(segment, DELETED)
        except OSError as exc:
            if not is_full(exc):
                raise
            return False
        return True

    def _write_done(self, segment: JournalSegment, offset: int) -> None:
        """Write a mark durably. Raises OSError."""
        name, rows = segment.name, segment.name.marks(segment.done, offset)
        try:
            self.disk.overwrite(name.done, rows)
        except FileNotFoundError:
            self.disk.sync_directory("")  # a `.done` never lasts longer than its segment's name
            self.disk.write_new(name.done, rows)
        self.disk.sync_file(name.done)

    def note_lost(self) -> int:
        """Note segments that are gone although no worker deleted them, each in a `.lost` file of its own.

        Returns how many were not noted before. Call it before others are deleted: a number is missing between two.
        Raises OSError.
        """
        return sum(map(self._note_lost, self._gone()))

    def tidy(self) -> None:
        """Remove files that owners left beside their segments. Raises OSError."""
        files = dict(self.disk.names(""))
        segments = {name for file in files if (name := Name.parse(file))}
        owners = {name.owner.hex() for name in segments}
        first = {name.owner: name for name in sorted(segments, reverse=True)}
        for file in files:
            stem, _, kind = file.rpartition(".")
            if kind == "done" and (name := Name.parse(f"{stem}.journal")) and name not in segments:
                explained = name.lost in files or self._done(name) == DELETED
                if explained and name < first.get(name.owner, name.after):
                    self._unlink(file)  # else it says what became of a number between two segments
            if TEMPORARY.fullmatch(file) and (lock := self.locks.take(f"{stem}.lock")):
                self._unlink(file)
                self._unlink(f"{stem}.lock")
                lock.free()
            if OWNER_LOCK.fullmatch(file) and stem not in owners and (lock := self.locks.take(file)):
                self._unlink(file)
                lock.free()

    def _gone(self) -> list[Name]:
        """Return the segments that are gone although no worker deleted them, and that no file notes. Raises OSError.

        The directory is read twice, since owners and a worker change it meanwhile.
        """
        return sorted(self._gone_now() & self._gone_now())

    def _gone_now(self) -> set[Name]:
        files = [file for file, _ in self.disk.names("")]
        there, done, noted = (_of_kind(files, kind) for kind in ("journal", "done", "lost"))
        gone = {name for name in done - there if self._done(name) != DELETED}
        for one, following in pairwise(sorted(there | done)):
            if one.owner == following.owner:
                last = min(following.number, one.number + 1 + MOST_GONE)
                gone |= {Name(one.owner, number) for number in range(one.number + 1, last)}
        return gone - noted

    def _note_lost(self, name: Name) -> bool:
        """Write the file that says that a segment is gone. Returns False where there is no room. Raises OSError."""
        try:
            with suppress(FileExistsError):
                self.disk.write_new(name.lost, b"")
            self.disk.sync_file(name.lost)
            self.disk.sync_directory("")
        except OSError as exc:
            if not is_full(exc):
                raise
        return True

    def status(self) -> Status:
        """Return the contents of the directory without reading entries. Raises OSError."""
        found = self.segments()
        files = dict(sorted(self.disk.names("")))
        waiting = sum(max(0, s.size - max(s.done, HEAD_SIZE)) for s in found)
        living = [file for file in files if OWNER_LOCK.fullmatch(file) and self._locked(file, files)]
        return Status(
            len(found),
            sum(s.size for s in found),
            waiting,
            len(living),
            [file for file in files if file.endswith(".refused")],
            [file for file in files if file.endswith(".damaged")],
            sorted([file for file in files if file.endswith(".lost")] + [name.lost for name in self._gone()]),
        )

    def _done(self, name: Name) -> int:
        try:
            return name.done_of(self.disk.read(name.done, 0, MAX_DONE))
        except FileNotFoundError:  # another worker was here
            return 0

    def _locked(self, file: str, files: Mapping[str, int]) -> bool:
        """Return whether a living process holds a lock."""
        if file not in files:
            return False
        lock = self.locks.take(file)
        if lock:
            lock.free()
        return lock is None

    def _lay_aside(self, segment: JournalSegment, offset: int) -> bool:
        """Copy damaged bytes before an offset to files of their own.

        Returns False where the segment is stuck.
        """
        for gap in [gap for gap in segment.damage if gap.end <= offset]:
            data = self.disk.read(segment.name.journal, gap.start, gap.end - gap.start)
            if not self._aside(segment, segment.name.aside(gap.start, "damaged"), data):
                return False
            segment.damage.remove(gap)
            segment.aside += len(data)
        return not segment.stuck

    def _aside(self, segment: JournalSegment, file: str, data: bytes) -> bool:
        """Write bytes that are laid aside, durably.

        Returns False where there is no room: the segment is stuck.
        """
        try:
            try:
                self.disk.write_new(file, data)
            except FileExistsError:  # left by a worker that was killed here
                if bytes(self.disk.view(file)) != data:
                    self.disk.unlink(file)
                    self.disk.write_new(file, data)
            self.disk.sync_file(file)
        except OSError as exc:
            if not is_full(exc):
                raise
            with suppress(OSError):
                self.disk.unlink(file)
            segment.stuck = (
                f"{segment.name.journal} is archived but for {len(data)} bytes that have to be laid aside as {file}: "
                f"{reason(exc)}. Free so many bytes on its disk"
            )
            return False
        self.disk.sync_directory("")
        return True

    def _unlink(self, file: str) -> None:
        try:
            self.disk.unlink(file)
        except FileNotFoundError:
            pass


def _of_kind(files: Iterable[str], kind: str) -> set[Name]:
    """Return the segments that a file of a kind is there for: "journal", "done" or "lost"."""
    stems = (file.removesuffix(kind) for file in files if file.endswith(f".{kind}"))
    return {name for stem in stems if (name := Name.parse(f"{stem}journal"))}

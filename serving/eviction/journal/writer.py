"""Journal: the writing side of the eviction journal.

Entries are durable when `append` returns. Spec: FORMAT.md, "Write order".

    journal = Journal(disk, locks)
    journal.append([entry.encode()])          # written, synced

One owner, one thread. A failed write or sync ends the segment, because its contents are unknown. The next
`append` begins a new one. So the caller keeps entries that were not acknowledged and appends them again.

A failure also gives the segments up: the owner's lock is freed, so a worker may archive and delete all of
them. That is how a full disk or quota drains. The journal goes on under the next owner's name, whose segments
sort after the old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pltz.archive import Disk, StoreError
from pltz.serving.eviction.journal.lock import Lock, Locks, draw, follow
from pltz.serving.eviction.journal.segment import DONE, ENTRIES, HEAD_SIZE, Name

SEGMENT = 64 << 20  # bytes before a new one is begun


class Journal:
    """An open journal of one owner (see the top of this file).

    Args:
        segment: bytes after which a new segment is begun.
        quota: bytes that all journal files of the directory may take together, None for no limit but the disk.
        kind: of the bodies.

    Raises StoreError where the directory cannot be made or locked.
    """

    def __init__(
        self, disk: Disk, locks: Locks, *, segment: int = SEGMENT, quota: int | None = None, kind: int = ENTRIES
    ) -> None:
        self.disk, self.locks, self.segment, self.quota, self.kind = disk, locks, segment, quota, kind
        self._lock: Lock | None
        try:
            disk.make_directory("")
            self.owner, self._lock = draw(disk, locks)
        except OSError as exc:
            raise _named(exc) from exc
        self.owners = {self.owner}  # under which this journal wrote
        self._number = 0  # of the owner's next segment
        self._begun = False  # whether this owner has any
        self._open: Name | None = None
        self._size = 0  # bytes of the open segment

    @property
    def place(self) -> tuple[Name, int] | None:
        """Return the open segment and its end in bytes, or None where none is open."""
        return (self._open, self._size) if self._open else None

    def append(self, bodies: Sequence[bytes]) -> tuple[Name, int]:
        """Write entries and sync them. Returns the segment and the offset at which the last one ends.

        Raises StoreError: none of the entries may be relied on, and the segment takes no more.
        """
        if self._open and self._size >= self.segment:
            self._open = None
        name, self._open = self._open, None  # a segment that fails now is not continued
        try:
            self._check_quota(sum(map(len, bodies)))
            if self._lock is None:
                self._follow()
            name, size = self._go_on(name, bodies) if name else self._begin(bodies)
        except OSError as exc:
            self._give_up()
            raise _named(exc) from exc
        except StoreError:
            self._give_up()
            raise
        self._open, self._size = name, size
        return name, size

    def leave(self) -> None:
        """Leave what was written to a worker, which may delete it. The next `append` is of a new owner."""
        self._open = None
        self._give_up()

    def close(self) -> None:
        """Release the directory: entries not archived yet are left to other processes."""
        self._open = None
        if self._lock:
            self._lock.free()

    def _give_up(self) -> None:
        """Leave this owner's segments to a worker.

        An owner without segments stays, since its lock blocks no worker.
        """
        if self._begun and self._lock:
            self._lock.free()
            self._lock = None

    def _follow(self) -> None:
        self.owner, self._lock = follow(self.owner, self.locks)
        self.owners.add(self.owner)
        self._number, self._begun = 0, False

    def _begin(self, bodies: Sequence[bytes]) -> tuple[Name, int]:
        name = Name(self.owner, self._number)
        # A name is never used again: a worker may remember how far it archived a file of that name.
        self._number += 1
        data = name.head(self.kind) + name.frames(HEAD_SIZE, bodies)
        try:
            self.disk.write_new(name.journal, data)
        except OSError:
            self._drop(name)
            raise
        self._begun = True
        self.disk.sync_file(name.journal)
        self.disk.sync_directory("")  # a `.done` never lasts longer than its segment's name
        with suppress(FileExistsError):  # a worker was faster
            self.disk.write_new(name.done, bytes(DONE))
        self.disk.sync_file(name.done)
        self.disk.sync_directory("")
        return name, len(data)

    def _go_on(self, name: Name, bodies: Sequence[bytes]) -> tuple[Name, int]:
        data = name.frames(self._size, bodies)
        try:
            self.disk.append(name.journal, data)
        except OSError:  # half a frame would have to be laid aside, and there may be no room for that
            with suppress(OSError):
                self.disk.truncate(name.journal, self._size)
            raise
        self.disk.sync_file(name.journal)
        return name, self._size + len(data)

    def _check_quota(self, size: int) -> None:
        if self.quota is None:
            return
        held = sum(found for file, found in self.disk.names("") if Name.parse(file))
        if held + size > self.quota:
            raise StoreError(
                f"the journal holds {held} bytes, and its quota is {self.quota}: the archive does not keep up"
            )

    def _drop(self, name: Name) -> None:
        """Remove a segment of which nothing was acknowledged, so that such segments fill no disk."""
        with suppress(OSError):
            self.disk.unlink(name.journal)


def _named(exc: OSError) -> StoreError:
    return StoreError(
        f"the journal cannot be written: {exc.strerror or exc}. What was reported durable is safe; "
        "free space on its disk, or "
        f"let a worker drain it (pltz hook drain)"
    )

"""Journal: the writing side of the eviction journal. Entries are durable when `append` returns. Spec: FORMAT.md, "Write order".

    journal = Journal(disk, locks)
    journal.append([entry.encode()])          # written, synced

One owner, one thread. A failed write or sync ends the segment, for nobody knows what it holds: the next `append` begins a new one. So the
caller keeps what was not acknowledged and appends it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pltz.archive.errors import StoreError
from pltz.archive.hooks.lock import Locks, draw
from pltz.archive.hooks.segment import HEAD_SIZE, Name
from pltz.archive.io import Disk

SEGMENT = 64 << 20  # bytes, before a new one is begun


class Journal:
    """See the head of this file.

    Args:
        quota: bytes that all journal files of the directory may take together, None for what the disk holds.

    Raises OSError where the directory cannot be made.
    """

    def __init__(self, disk: Disk, locks: Locks, *, segment: int = SEGMENT, quota: int | None = None) -> None:
        self.disk, self.segment, self.quota = disk, segment, quota
        disk.make_directory("")
        self.owner, self._lock = draw(disk, locks)
        self._number = 0  # of the next segment
        self._open: Name | None = None
        self._size = 0  # bytes of the open segment

    @property
    def place(self) -> tuple[Name, int] | None:
        """The open segment and its end; None where none is open."""
        return (self._open, self._size) if self._open else None

    def append(self, bodies: Sequence[bytes]) -> tuple[Name, int]:
        """Write entries and sync them; where the last one ends.

        Raises StoreError: nothing of it may be relied on, and the segment takes no more.
        """
        self._check_quota(sum(map(len, bodies)))
        if self._open and self._size >= self.segment:
            self._open = None
        name, self._open = self._open, None  # what fails now is not gone on with
        try:
            name, size = self._go_on(name, bodies) if name else self._begin(bodies)
        except OSError as exc:
            raise StoreError(f"the journal cannot be written: {exc.strerror or exc}") from exc
        self._open, self._size = name, size
        return name, size

    def close(self) -> None:
        """Let go of the directory: what is not archived is for others now."""
        self._open = None
        self._lock.free()

    def _begin(self, bodies: Sequence[bytes]) -> tuple[Name, int]:
        name = Name(self.owner, self._number)
        self._number += 1
        data = name.head() + name.frames(HEAD_SIZE, bodies)
        try:
            self.disk.write_new(name.journal, data)
        except OSError:
            self._drop(name)
            raise
        self.disk.sync_file(name.journal)
        self.disk.sync_directory("")
        return name, len(data)

    def _go_on(self, name: Name, bodies: Sequence[bytes]) -> tuple[Name, int]:
        data = name.frames(self._size, bodies)
        self.disk.append(name.journal, data)
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
        """A segment of which nothing was acknowledged, so that a full disk is not filled with them."""
        try:
            self.disk.unlink(name.journal)
        except OSError:
            pass

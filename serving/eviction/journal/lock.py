"""Lock: ownership of a file in the journal directory.

It uses flock, so a lock ends with its process, however it dies.

    lock = FileLocks("/run/journal").take("worker.lock")      # None: another process has it
    lock.free()

The holder of a lock may unlink its file. So `take` checks that the locked file is still the one of that name.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from pltz.archive import Disk, StoreError
from pltz.plt_codec import SIZE

TRIES = 16


class Lock(Protocol):
    """A lock that is held."""

    def free(self) -> None:
        """Release it."""


class Locks(Protocol):
    """Locks by name."""

    def take(self, name: str) -> Lock | None:
        """Return the lock, or None where another process has it. Never waits. Raises OSError."""


def draw(disk: Disk, locks: Locks) -> tuple[bytes, Lock]:
    """Return a new owner name of 16 random bytes, locked.

    A worker that tidies up may hold a new lock for a moment. Another name is drawn then. Raises StoreError
    where nothing can be locked, and OSError.
    """
    for _ in range(TRIES):
        owner = disk.random(SIZE)
        if lock := locks.take(f"{owner.hex()}.lock"):
            return owner, lock
    raise StoreError("every lock of the journal directory is taken: its file system does not lock")


def follow(owner: bytes, locks: Locks) -> tuple[bytes, Lock]:
    """Return the first free name after ``owner``, locked. Its segments sort after those of ``owner``.

    Raises StoreError where nothing can be locked, and OSError.
    """
    for step in range(1, TRIES + 1):
        name = ((int.from_bytes(owner) + step) % (1 << 8 * SIZE)).to_bytes(SIZE)
        if lock := locks.take(f"{name.hex()}.lock"):
            return name, lock
    raise StoreError("every lock of the journal directory is taken: its file system does not lock")


class FileLocks:
    """Locks on files of a directory."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def take(self, name: str) -> FileLock | None:
        """Take a lock as in `Locks.take`. A missing file is created."""
        path = self.root / name
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is(handle, path):
                    return FileLock(handle)
            except BlockingIOError:
                os.close(handle)
                return None
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)


class FileLock:
    """A file that is open and locked."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def free(self) -> None:
        """Release it. A second call does nothing."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _is(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one of that name."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (found.st_ino, found.st_dev) == (mine.st_ino, mine.st_dev)

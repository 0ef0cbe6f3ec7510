"""The disk interface: every system call, clock reading and random byte of the archive goes through a `Disk`.

`Disk` is the short list of calls that a directory store needs, each as small as the operating system's. So a
simulated disk can stop between any two of them and lose unsynced data (`SimDisk` in tests/archive). `OsDisk` is
the real one. `store.py` builds whole objects on top; nothing else in the archive touches a file.

The interface has calls rather than objects because the state after a crash is decided between write, sync,
link and directory sync. A higher interface would hide the very order that has to be proved.

Paths are relative to the root of the archive, with "/"; "" is the root itself. Calls raise OSError as the
system does, and `store.py` turns it into named errors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from pltz.archive.format.byte_source import File

AT_ONCE = 1 << 17  # bytes that are read without asking for the size of the file


class OsFile:
    """A file of the operating system. Raises OSError."""

    def __init__(self, path: str | os.PathLike[str]):
        self._handle = -1
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._handle).st_size

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def read(self, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes at ``offset``. Raises OSError."""
        pieces: list[bytes] = []
        size = min(size, self.size - offset)  # allocate no more than exists
        while size > 0 and (piece := os.pread(self._handle, min(size, 1 << 30), offset)):
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Stamp(NamedTuple):
    """The bytes of a file, the time of its last write, and what tells it from another of its name."""

    size: int
    changed: int
    number: int


class Disk(Protocol):
    """System calls under one root directory, a clock and a source of randomness."""

    def make_directory(self, path: str) -> None:
        """Create a directory and missing parents; an existing one is fine.

        Durable after `sync_directory` of the parent; the root ("") after its own.
        """

    def write_new(self, path: str, data: bytes) -> None:
        """Create a file that must not exist and write it. Nothing is durable yet."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Overwrite the bytes of an existing file in place. Nothing is durable yet."""

    def append(self, path: str, data: bytes) -> None:
        """Write after the last byte of an existing file. Nothing is durable yet."""

    def truncate(self, path: str, size: int) -> None:
        """Truncate a file to ``size`` bytes, which frees space and needs none. Nothing is durable yet."""

    def sync_file(self, path: str) -> None:
        """Make a file's bytes durable."""

    def sync_files(self, paths: Sequence[str]) -> None:
        """Make the bytes of several files durable, side by side."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises FileExistsError if the name is taken."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, which another file may have: that is replaced at once, and never half."""

    def unlink(self, path: str) -> None:
        """Remove a name."""

    def sync_directory(self, path: str) -> None:
        """Make a directory's names durable."""

    def names(self, path: str) -> list[tuple[str, int]]:
        """Return the files in a directory with their sizes in bytes, in any order."""

    def changed(self, path: str) -> int:
        """Return the time of the last write to a file, in seconds since 1970 by the file system's clock."""

    def stamp(self, path: str) -> Stamp:
        """Return what changes where a file is written, cut off or replaced."""

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Return at most ``size`` bytes at ``offset``; fewer at the end of the file."""

    def view(self, path: str) -> memoryview:
        """Return the whole file. Stays valid after an unlink."""

    def open(self, path: str) -> File:
        """Return a file to read ranges of."""

    def room(self) -> tuple[int, int]:
        """Return the bytes that the disk has left for this user, and those that it has in all."""

    def now(self) -> int:
        """Return the seconds since 1970. The clock may go backwards; only times shown to people depend on it."""

    def ticks(self) -> int:
        """Return the time since 1970, in units of 2^-20 seconds."""

    def random(self, size: int) -> bytes:
        """Return unpredictable bytes."""

    def sleep(self, seconds: float) -> None:
        """Wait so long."""


def now() -> int:
    """Return the seconds since 1970."""
    return int(time.time())


def ticks() -> int:
    """Return the time since 1970, in units of 2^-20 seconds."""
    return (time.time_ns() << 20) // 1_000_000_000


class OsDisk:
    """The disk of the operating system, under one root.

    >>> OsDisk("/tmp").random(4) == OsDisk("/tmp").random(4)
    False
    """

    def __init__(self, root: str | os.PathLike[str]):
        self.root = Path(root)
        self._root = os.fspath(self.root)
        # parent folders whose entry for the root, or for a folder above it, may not be durable
        self._above: list[Path] = []

    def make_directory(self, path: str) -> None:
        new = [folder for folder in self.root.absolute().parents if not folder.exists()]
        (self.root / path).mkdir(parents=True, exist_ok=True)
        if not path:
            self._above = [self.root.absolute().parent, *(folder.parent for folder in new)]

    def write_new(self, path: str, data: bytes) -> None:
        with (self.root / path).open("xb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) or 0 :]

    def overwrite(self, path: str, data: bytes) -> None:
        with (self.root / path).open("r+b", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) or 0 :]

    def append(self, path: str, data: bytes) -> None:
        handle = os.open(self.root / path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        with open(handle, "ab", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) or 0 :]

    def truncate(self, path: str, size: int) -> None:
        os.truncate(self.root / path, size)

    def sync_file(self, path: str) -> None:
        self._sync(path, os.O_RDWR)

    def sync_files(self, paths: Sequence[str]) -> None:
        with ThreadPoolExecutor() as pool:  # a file system commits all that wait for it at once
            synced = list[Callable[[], object]]()
            for path in paths:
                try:
                    synced.append(pool.submit(self.sync_file, path).result)
                except RuntimeError:  # the interpreter shuts down, or has too many threads
                    synced.append(partial(self.sync_file, path))
            for done in synced:
                done()

    def link(self, source: str, target: str) -> None:
        os.link(self.root / source, self.root / target)

    def rename(self, source: str, target: str) -> None:
        os.replace(self.root / source, self.root / target)

    def unlink(self, path: str) -> None:
        (self.root / path).unlink()

    def sync_directory(self, path: str) -> None:
        self._sync(path, os.O_RDONLY)
        if not path:
            for folder in self._above:
                with suppress(PermissionError):  # only root may sync a folder that cannot be listed
                    self._sync(str(folder), os.O_RDONLY)

    def names(self, path: str) -> list[tuple[str, int]]:
        found = []
        with os.scandir(self.root / path) as entries:
            for entry in entries:
                try:
                    if entry.is_file(follow_symlinks=False):
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
                except FileNotFoundError:  # deleted while listing
                    continue
        return found

    def changed(self, path: str) -> int:
        return int((self.root / path).stat().st_mtime)

    def stamp(self, path: str) -> Stamp:
        found = os.stat(f"{self._root}/{path}")
        return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)

    def read(self, path: str, offset: int, size: int) -> bytes:
        if 0 < size <= AT_ONCE and offset >= 0:
            handle = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(handle, size, offset)
            finally:
                os.close(handle)
            if len(data) in (0, size):
                return data
        return self.open(path).read(offset, size)

    def view(self, path: str) -> memoryview:
        file = self.open(path)
        return memoryview(file.read(0, file.size))

    def open(self, path: str) -> OsFile:
        return OsFile(f"{self._root}/{path}")  # a `Path` takes longer than the file to open

    def room(self) -> tuple[int, int]:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    now = staticmethod(now)
    ticks = staticmethod(ticks)
    random = staticmethod(os.urandom)
    sleep = staticmethod(time.sleep)

    def _sync(self, path: str, flags: int) -> None:
        handle = os.open(self.root / path, flags | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

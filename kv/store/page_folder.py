"""PageFolder: pages of KV as files with a checksum, for engines that page their own KV. Spec: FORMAT.md, "Pages".

    write: count the bytes in the ledger and make name.random.part, under a lock -> rename     all or nothing
    read:  header, every field of it -> the caller's own memory -> checksum                or a miss

A page is as opaque to this folder as it is to the engine that keeps it: so many bytes, under a name of 32 bytes. What
is read is what was written, or nothing. Any number of processes may share a folder: the ledger holds the bytes that
all files take, so they keep one budget together. No condition of the disk raises an error here. A page can be computed
again, so damage, a full disk and a missing file are all a miss.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from pltz.kv.store.warm_file import opened
from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import SIZE

MAGIC = b"pltzpg\x00\x01"  # the last two bytes: the version
NAME = 32  # bytes of a page's name
HEADER = len(MAGIC) + NAME + 8 + 16  # magic, name, bytes of the page, checksum
LEFT = 3600.0  # seconds after which a .part file is one that a kill left
KEPT = 7 / 8  # of the budget, after an eviction
SPACE = re.compile(rf"[0-9a-f]{{{2 * SIZE}}}")
SHELF = re.compile(r"[0-9a-f]{2}")
FILE = re.compile(rf"[0-9a-f]{{{2 * NAME}}}(\.page|\.[0-9a-f]{{8}}\.part)")


class _Found(NamedTuple):
    """A file of the folder. ``used``: seconds since 1970."""

    used: float
    path: Path
    size: int


class PageFolder:
    """Pages of one space in a folder that other spaces and processes may share.

    ``damaged``, ``failed``, ``written``, ``evicted``: counts of this process. ``failed``: calls that the machine
    refused.

    Args:
        folder: of all spaces; made where it is missing.
        space: 16 bytes: everything that two pages of one name must have in common.
        budget: bytes that the files of all spaces may take.

    Raises UsageError where the folder cannot be made, and for a space or a budget that cannot be.
    """

    def __init__(self, folder: str | os.PathLike[str], space: bytes, budget: int) -> None:
        if len(space) != SIZE or budget < 0:
            raise UsageError(f"expected a space of {SIZE} bytes and a budget from 0 up, got {len(space)} and {budget}")
        self.folder, self.space, self.budget = Path(folder), space, budget
        self.damaged = self.failed = self.written = self.evicted = 0
        try:
            (self.folder / space.hex()).mkdir(parents=True, exist_ok=True)
            os.close(self._ledger(os.O_CREAT))
        except OSError as exc:
            raise UsageError(f"cannot keep pages in {self.folder}: {exc.strerror or exc}; name another folder") from exc

    def has(self, name: bytes) -> bool:
        """Return whether a page is there. Its bytes are checked by `read`."""
        path = self._path(name)
        try:
            return S_ISREG(path.lstat().st_mode)
        except OSError:
            return False

    def read(self, name: bytes, into: Sequence[memoryview]) -> bool:
        """Fill memory with a page. False: it is missing, damaged or of another size, and the memory is not to be used.

        Args:
            name: of the page, 32 bytes.
            into: writable bytes, in the order in which the page was written.
        """
        path = self._path(name)
        try:
            handle = opened(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            self.failed += 1
            return False
        try:
            sound = _fill(handle, name, into)
            with suppress(OSError):
                os.utime(handle)
        except OSError as exc:
            self.failed += 1
            if exc.errno == errno.EIO:  # else it would be offered, and fail, again and again
                self._remove(path)
            return False
        finally:
            os.close(handle)
        if not sound:
            self.damaged += 1
            self._remove(path)
        return sound

    def write(self, name: bytes, pieces: Sequence[memoryview]) -> bool:
        """Write a page unless it is there. Returns False where there is no room, or the disk fails.

        Args:
            name: of the page, 32 bytes.
            pieces: its bytes.
        """
        path = self._path(name)
        part = path.with_name(f"{name.hex()}.{os.urandom(4).hex()}.part")
        try:
            with suppress(FileNotFoundError):
                known = S_ISREG(path.lstat().st_mode)
                if known:
                    os.utime(path, follow_symlinks=False)
                return known
            path.parent.mkdir(exist_ok=True)
            if not self._begin(part, HEADER + sum(piece.nbytes for piece in pieces)):
                return False
            try:
                _write(part, name, pieces)
                part.replace(path)
            except BaseException:
                self._remove(part)
                raise
        except OSError:
            self.failed += 1
            return False
        self.written += 1
        return True

    def discard(self, name: bytes) -> None:
        """Remove a page."""
        self._remove(self._path(name))

    def clear(self) -> None:
        """Remove the pages of this space."""
        with suppress(OSError):
            for found in list(_files_in(self.folder / self.space.hex())):
                self._remove(found.path)

    def usage(self) -> tuple[int, int]:
        """Return the bytes and the number of the files of all spaces, (0, 0) where they cannot be counted now."""
        try:
            sizes = [found.size for found in self._files()]
        except OSError:
            return 0, 0
        return sum(sizes), len(sizes)

    def _path(self, name: bytes) -> Path:
        """Return where a page is or would be. Raises UsageError for a bad name."""
        if len(name) != NAME:
            raise UsageError(f"expected a name of {NAME} bytes, got {len(name)}")
        text = name.hex()
        return self.folder / self.space.hex() / text[:2] / f"{text}.page"

    def _remove(self, path: Path) -> None:
        with suppress(OSError), self._locked() as ledger:
            size = path.lstat().st_size
            path.unlink()
            total = _total(ledger)
            if total is not None:
                _set_total(ledger, max(0, total - size))

    def _begin(self, part: Path, size: int) -> bool:
        """Make a file of its full size and count it, after an eviction where one is due. False: it does not fit.

        Raises OSError.
        """
        with self._locked() as ledger:
            total = _total(ledger)
            if total is None:  # new, or damaged
                total = sum(found.size for found in self._files())
            if size > self.budget:
                return False
            if total + size > self.budget:
                total = self._evict(int(self.budget * KEPT) - size)
            fits = total + size <= self.budget
            _set_total(ledger, total + size if fits else total)  # counted first: a kill then costs room, not the budget
            if fits:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                handle = os.open(part, flags, 0o600)
                try:
                    os.truncate(handle, size)
                finally:
                    os.close(handle)
            return fits

    def _evict(self, goal: int) -> int:
        """Remove the files that were used longest ago, until ``goal`` bytes are left. Returns the bytes left.

        Raises OSError where the files cannot be counted: a count that lacks some would break the budget.
        """
        files = sorted(self._files())
        left = sum(found.size for found in files)
        old = time.time() - LEFT
        for found in files:
            if left <= max(0, goal):
                break
            if found.path.suffix == ".page" or found.used < old:
                with suppress(OSError):
                    found.path.unlink()
                    left -= found.size
                    self.evicted += 1
        return left

    def _files(self) -> Iterator[_Found]:
        """Yield the files of all spaces. Raises OSError."""
        for space in _entries(self.folder):
            if SPACE.fullmatch(space.name) and space.is_dir(follow_symlinks=False):
                yield from _files_in(Path(space.path))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        handle = self._ledger()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def _ledger(self, more: int = 0) -> int:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | more
        return os.open(self.folder / "ledger", flags, 0o666)


def _fill(handle: int, name: bytes, into: Sequence[memoryview]) -> bool:
    """Read a page into memory. Returns whether all of it is as it was written. Raises OSError."""
    import xxhash

    size = sum(piece.nbytes for piece in into)
    header = os.pread(handle, HEADER, 0)
    beginning = MAGIC + name + size.to_bytes(8, "little")
    if header[:-16] != beginning or os.fstat(handle).st_size != HEADER + size:
        return False
    state = xxhash.xxh3_128(beginning)
    at = HEADER
    for piece in into:
        left = piece.cast("B")
        while left:
            count = os.preadv(handle, [left], at)
            if not count:
                return False
            left, at = left[count:], at + count
        state.update(piece)
    return state.digest() == header[-16:]


def _write(part: Path, name: bytes, pieces: Sequence[memoryview]) -> None:
    """Write a page. It is not forced to the disk: after a power cut the checksum tells. Raises OSError."""
    import xxhash

    beginning = MAGIC + name + sum(piece.nbytes for piece in pieces).to_bytes(8, "little")
    state = xxhash.xxh3_128(beginning)
    for piece in pieces:
        state.update(piece)
    handle = os.open(part, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for piece in (memoryview(beginning), memoryview(state.digest()), *pieces):
            left = piece.cast("B")
            while left:
                count = os.write(handle, left)
                if not count:
                    raise OSError(errno.ENOSPC, "nothing was written", str(part))
                left = left[count:]
    finally:
        os.close(handle)


def _files_in(space: Path) -> Iterator[_Found]:
    """Yield the files of one space. Raises OSError."""
    for shelf in _entries(space):
        if not SHELF.fullmatch(shelf.name) or not shelf.is_dir(follow_symlinks=False):
            continue
        for file in _entries(Path(shelf.path)):
            if FILE.fullmatch(file.name):
                with suppress(OSError):
                    stat = file.stat(follow_symlinks=False)
                    if S_ISREG(stat.st_mode):
                        yield _Found(stat.st_mtime, Path(file.path), stat.st_size)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds: nothing if it is gone or of another user. Raises OSError for other failures."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as found:
        return list(found)
    return []


def _total(ledger: int) -> int | None:
    """Return the bytes that the ledger counts, None where it is not sound."""
    found = os.pread(ledger, 16, 0)
    first = int.from_bytes(found[:8], "little")
    return first if len(found) == 16 and first ^ int.from_bytes(found[8:], "little") == (1 << 64) - 1 else None


def _set_total(ledger: int, total: int) -> None:
    os.pwrite(ledger, total.to_bytes(8, "little") + (total ^ ((1 << 64) - 1)).to_bytes(8, "little"), 0)

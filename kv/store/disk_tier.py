"""DiskTier: blocks as files on local disk, shared by any number of processes. Spec: FORMAT.md.

    write: count it in under the lock -> DIR/space/segment.form.random.part -> rename    all or nothing
    read:  check every field -> tensors, at once -> chunks, each checked, by threads       or a miss

A block is handed out before all of it was read, so that its first layers are decoded meanwhile (`warm_file.py`). A
file evicted during use is read to its end. No condition of the disk raises an error here. KV can be recomputed from
tokens, so damage, a full disk and a missing file are all a miss.

The lock file is a ledger of the bytes of all files, so the folder is listed when it is full, and not at each write.
The tier counts, reads and removes regular files with names of its own only, and follows no symbolic link below its
folder. A writer holds a lock on its `.part` file, so what a killed one left is known at once.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from threading import Lock

from pltz.archive import NO_SEGMENT
from pltz.kv.errors import WarmFileError
from pltz.kv.port.codec import RAW, KVCodec
from pltz.kv.port.private_file import opened, private_folder
from pltz.kv.store import warm_file
from pltz.kv.store.tier import FormStats, StoredBlock, TierStats
from pltz.kv.store.warm_file import MAX_HEADER, WarmFile
from pltz.plt_codec import MAX_POSITION, SIZE, PltzError, UsageError

log = logging.getLogger("pltz.kv")

THREADS = 4  # that read files
UNDER_WAY = 16  # files that may be read by them at once; one more is read by its caller
KEPT = 7 / 8  # of the budget, after an eviction: room for the next writes
FORM = re.compile(r"[a-z0-9-]{1,64}")
SPACE = re.compile(rf"[0-9a-f]{{{2 * SIZE}}}")  # name of a folder
FILE = re.compile(rf"([0-9a-f]{{{2 * len(NO_SEGMENT)}}})\.([a-z0-9-]{{1,64}})\.(safetensors|[0-9a-f]{{8}}\.part)")


@dataclass
class _File:
    """A file of a tier. ``segment``: in hexadecimal. ``whole``: not being written, and not left by a kill."""

    path: Path
    segment: str
    form: str
    whole: bool
    size: int
    used: float

    @property
    def key(self) -> str:
        """Return space and segment in hexadecimal."""
        return self.path.parent.name + self.segment


class DiskTier:
    """A folder of warm files, in the form of one codec; blocks that are not exact keep their own.

    ``budget``: bytes that all files together may take. ``pin``: read into page-locked memory. ``damaged``,
    ``written``, ``evicted``, ``failed``: counts of this process. ``failed`` counts reads and writes that the machine
    refused.

    Raises UsageError where the folder cannot be made, and for a budget below zero.
    """

    name = "disk"

    def __init__(
        self, folder: str | os.PathLike[str], budget: int, codec: KVCodec = RAW, *, pin: bool = False
    ) -> None:
        if budget < 0:
            raise UsageError(f"expected a budget in bytes from 0 up, got {budget}")
        self.folder, self.budget, self.codec, self.pin = Path(folder).resolve(), budget, codec, pin
        self.path(bytes(SIZE), NO_SEGMENT, codec.name)  # a bad name is refused now
        self.damaged = self.written = self.evicted = self.failed = 0
        self._counted: dict[str, int] = {}  # ids of files, which never change
        self._lock = Lock()  # over counts and threads
        self._under_way = 0
        self._threads: ThreadPoolExecutor | None = None
        try:
            private_folder(self.folder)
            os.close(self._ledger(os.O_CREAT))
        except OSError as exc:
            raise UsageError(f"cannot keep warm files in {self.folder}: {exc.strerror or exc}") from exc

    def path(self, space: bytes, segment: bytes, form: str = RAW.name) -> Path:
        """Return where the file of a segment in a form is or would be. Raises UsageError for a bad name."""
        if not FORM.fullmatch(form):
            raise UsageError(f"expected a form of letters a to z, digits and hyphens, got {form!r}")
        return self.folder / space.hex() / f"{segment.hex()}.{form}.safetensors"

    def usage(self) -> tuple[int, int]:
        """Return the bytes and the number of all files, of any process.

        Returns (0, 0) where the folder cannot be read.
        """
        try:
            with self._locked():
                sizes = [file.size for file in self._files()]
        except OSError:
            return 0, 0
        return sum(sizes), len(sizes)

    def stats(self) -> TierStats:
        """Return bytes, number and ids of all files, by form too, and how many this process found damaged."""
        found = TierStats(self.codec.name, self.budget, damaged=self.damaged, failed=self.failed)
        try:
            with self._locked():
                files = list(self._files())
        except OSError:
            return found
        counted: dict[str, int] = {}
        for file in files:
            tokens = 0
            if file.whole:
                key = f"{file.key} {file.form} {file.size}"
                tokens = counted[key] = self._counted.get(key) or _tokens_of(file.path)
                found.forms.setdefault(file.form, FormStats()).add(file.size, tokens)
            found.enter(file.size, tokens)
        self._counted = counted
        return found

    def read(self, space: bytes, segment: bytes, codecs: Sequence[KVCodec] = (RAW,)) -> StoredBlock | None:
        """Return the segment's block, or None. Its parts may still arrive (`SharedTier.read`).

        None means that the file is missing in every form of ``codecs``, unavailable now, or damaged. A damaged
        file is removed, also where the damage is found later.
        """
        for codec in codecs:
            if (stored := self._read(space, segment, codec)) is not None:
                return stored
        return None

    def _read(self, space: bytes, segment: bytes, codec: KVCodec) -> StoredBlock | None:
        path = self.path(space, segment, codec.name)

        told = False

        def failed(failure: Exception, stat: os.stat_result) -> None:
            nonlocal told
            told = True
            self._failed(path, failure, stat)

        def ended() -> None:
            with self._lock:
                self._under_way -= 1

        with self._lock:
            self._under_way += 1
            self._threads = self._threads or ThreadPoolExecutor(THREADS, "pltz-read")
            threads = self._threads if self._under_way <= UNDER_WAY else None
        try:
            stored = warm_file.read(
                path, space, segment, codec, pin=self.pin, threads=threads, failed=failed, ended=ended
            )
        except (PltzError, OSError, RuntimeError, MemoryError) as exc:
            if not told and not isinstance(exc, FileNotFoundError | NotADirectoryError):
                self._failed(path, exc)
            return None
        with suppress(OSError):
            os.utime(path, follow_symlinks=False)
        return stored

    def _failed(self, path: Path, failure: Exception, stat: os.stat_result | None = None) -> None:
        """Count a failure, and remove a damaged file, unless another took its place. ``stat``: of the damaged one."""
        damaged = not isinstance(failure, OSError | MemoryError)  # too many open files: the file may be sound
        if damaged:
            with self._lock:
                self.damaged += 1
            log.warning("removed a damaged warm file, its KV is computed again: %s: %s", path, failure)
            self._remove(path, stat)
        else:
            self._refused("cannot read", path, failure)

    def _refused(self, what: str, path: Path, failure: Exception) -> None:
        """Count what the machine refused, and log it the first time, the second, the fourth, the eighth, ..."""
        with self._lock:
            self.failed += 1
            count = self.failed
        if not count & count - 1:
            log.warning("%s the warm file %s (failure %d of this process): %s", what, path, count, failure)

    def _remove(self, path: Path, stat: os.stat_result | None = None) -> None:
        """Remove a file if it is there, and count it out. ``stat``: of the one that is meant, if not of any."""
        with suppress(OSError), self._locked() as ledger:
            there = path.lstat()
            if stat is None or there.st_ino == stat.st_ino:
                path.unlink()
                _count(ledger, -there.st_size)

    def write(
        self,
        space: bytes,
        segment: bytes,
        stored: StoredBlock,
        in_use: frozenset[bytes] = frozenset(),
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Write a file unless it exists.

        Returns False if there is no room, the disk fails, the form cannot hold the block, or it was discarded
        during the write. ``in_use`` and ``wanted``: as in `SharedTier.write`.
        """
        form = self.codec.name if stored.block.codec.exact else stored.block.codec.name
        path = self.path(space, segment, form)
        try:
            path.parent.mkdir(0o700, exist_ok=True)
            if not S_ISDIR(path.parent.lstat().st_mode):  # a link that somebody made
                return False
            with suppress(FileNotFoundError):
                known = S_ISREG(path.lstat().st_mode)
                if known:
                    os.utime(path, follow_symlinks=False)
                return known
            file = WarmFile(space, segment, stored, stored.block.recode(self.codec))
            begun = self._begin(path, file.size, in_use)
            if begun is None:
                return False
            part, handle = begun
            try:
                file.fill(handle)
                # Under the lock, `usage` sees the file under one name, and `discard` under one or the other.
                with self._locked() as ledger:
                    if not (wanted() and part.exists()):
                        return False
                    with suppress(FileNotFoundError):  # an equal one, of another process
                        _count(ledger, -path.lstat().st_size)
                    part.replace(path)
            finally:
                os.close(handle)
                if part.exists():
                    self._remove(part)
        except PltzError as exc:  # the form cannot hold the block
            log.info("the form %s does not hold %s: %s", form, path, exc)
            return False
        except (OSError, RuntimeError, MemoryError) as exc:  # the disk, or no memory to bring KV to the host
            self._refused("cannot write", path, exc)
            return False
        self.written += 1
        return True

    def discard(self, space: bytes, segment: bytes) -> None:
        """Remove a segment's files of all forms and any unfinished write of them, by any process.

        Raises WarmFileError where that is not possible.
        """
        folder = self.folder / space.hex()
        try:
            with self._locked() as ledger:
                for file in list(self._files_in(folder)):
                    if file.segment == segment.hex():
                        file.path.unlink(missing_ok=True)
                        _count(ledger, -file.size)
        except FileNotFoundError:  # no folder, no file
            return
        except OSError as exc:
            raise WarmFileError(
                f"cannot remove the warm files {folder / segment.hex()}.*: {exc.strerror or exc}. "
                "Make the folder writable, then discard the segment again"
            ) from exc

    def clear(self) -> None:
        """Remove all files."""
        with suppress(OSError), self._locked() as ledger:
            for file in list(self._files()):
                with suppress(OSError):
                    file.path.unlink()
                    _count(ledger, -file.size)

    def _begin(self, path: Path, size: int, in_use: frozenset[bytes]) -> tuple[Path, int] | None:
        """Reserve ``size`` bytes in a `.part` file, after an eviction where one is due. Returns it, and its handle.

        Returns None, and evicts nothing, where what must be kept leaves no room.
        """
        with self._locked() as ledger:
            total = _total(ledger)
            if total is None or total + size > self.budget:
                total = self._evict(size, in_use)
            fits = total + size <= self.budget
            _set_total(ledger, total + size * fits)  # counted first: a kill then costs room, not the budget
            if not fits:
                return None
            part = path.with_name(f"{path.stem}.{os.urandom(4).hex()}.part")
            handle = opened(part, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.truncate(handle, size)
            except BaseException:
                os.close(handle)
                part.unlink()
                raise
            return part, handle

    def _evict(self, size: int, in_use: frozenset[bytes]) -> int:
        """Make room for ``size`` bytes, and for the next writes, unless it is there. Returns the bytes of all files."""
        files = sorted(self._files(), key=lambda f: (f.used, f.path))
        total = sum(file.size for file in files)
        kept = {key.hex() for key in in_use}
        leaving = [file for file in files if not file.whole and _is_left(file.path)]
        leaving += [file for file in files if file.whole and file.key not in kept]
        goal = self.budget if total + size <= self.budget else KEPT * self.budget
        if total - sum(file.size for file in leaving) + size > self.budget:
            return total
        for file in leaving:
            if total + size <= goal:
                break
            with suppress(OSError):
                file.path.unlink()
                total -= file.size
                self.evicted += 1
        return total

    def _files(self) -> Iterator[_File]:
        """Yield the files of the tier, of all processes. Raises OSError where the folder cannot be read."""
        for space in os.scandir(self.folder):
            if SPACE.fullmatch(space.name):
                with suppress(OSError):
                    yield from self._files_in(Path(space.path))

    def _files_in(self, space: Path) -> Iterator[_File]:
        """Yield the files of one space. Raises OSError where it cannot be read."""
        if not S_ISDIR(space.lstat().st_mode):
            return
        for file in os.scandir(space):
            if (name := FILE.fullmatch(file.name)) is not None:
                with suppress(OSError):
                    stat = file.stat(follow_symlinks=False)
                    if S_ISREG(stat.st_mode):
                        segment, form, end = name.groups()
                        yield _File(Path(file.path), segment, form, end == "safetensors", stat.st_size, stat.st_mtime)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock of all processes. Yields a handle of the ledger."""
        handle = self._ledger()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def _ledger(self, more: int = 0) -> int:
        return opened(self.folder / "lock", os.O_RDWR | more)


def _total(ledger: int) -> int | None:
    """Return the bytes that the ledger counts, None where it is new or not sound."""
    data = os.pread(ledger, 16, 0)
    total = int.from_bytes(data[:8], "little")
    return total if len(data) == 16 and total ^ int.from_bytes(data[8:], "little") == (1 << 64) - 1 else None


def _set_total(ledger: int, total: int) -> None:
    os.pwrite(ledger, total.to_bytes(8, "little") + (total ^ ((1 << 64) - 1)).to_bytes(8, "little"), 0)


def _count(ledger: int, more: int) -> None:
    """Count bytes in, or out where they are below 0."""
    if (total := _total(ledger)) is not None:
        _set_total(ledger, max(0, total + more))


def _is_left(part: Path) -> bool:
    """Return whether a killed process left a `.part` file: its writer holds a lock on it."""
    try:
        handle = opened(part)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _tokens_of(path: Path) -> int:
    """Return the number of ids that a file says it has, 0 where that cannot be read. For statistics only."""
    try:
        with os.fdopen(opened(path), "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            count = json.loads(file.read(min(size, MAX_HEADER)))["ids"]["shape"][0]
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return 0
    return count if type(count) is int and 0 <= count <= MAX_POSITION else 0

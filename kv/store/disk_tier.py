"""DiskTier: blocks as files on local disk, shared by any number of processes. Spec: FORMAT.md.

    write: reserve room under the lock -> DIR/space/segment.form.random.part -> rename    all or nothing
    read:  check every field -> tensors, at once -> chunks, each checked, by threads       or a miss

A block is handed out before all of it was read, so that its first layers are decoded meanwhile (`warm_file.py`). A
file evicted during use is read to its end. No condition of the disk raises an error here. KV can be recomputed from
tokens, so damage, a full disk and a missing file are all a miss.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from pltz.kv.errors import WarmFileError
from pltz.kv.port.codec import RAW, KVCodec
from pltz.kv.store import warm_file
from pltz.kv.store.tier import FormStats, StoredBlock, TierStats
from pltz.kv.store.warm_file import MAX_HEADER, WarmFile
from pltz.plt_codec.errors import PltzError, UsageError
from pltz.plt_codec.identity import MAX_POSITION, SIZE

STALE = 3600  # seconds after which remains of a killed process are removed
THREADS = 4  # that read files
UNDER_WAY = 16  # files that may be read by them at once; one more is read by its caller
FORM = re.compile(r"[a-z0-9-]{1,64}")


@dataclass
class _File:
    path: Path
    size: int
    used: float

    @property
    def key(self) -> str:
        """Return space and segment in hexadecimal."""
        return self.path.parent.name + self.path.name.partition(".")[0]

    @property
    def left(self) -> bool:
        """Return whether a killed process left it: hours old, or hours ahead of a clock that was set back."""
        return self.path.suffix == ".part" and abs(time.time() - self.used) > STALE


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
        self.folder, self.budget, self.codec, self.pin = Path(folder), budget, codec, pin
        self.path(bytes(SIZE), bytes(SIZE), codec.name)  # a bad name is refused now
        self.damaged = self.written = self.evicted = self.failed = 0
        self._counted: dict[str, int] = {}  # ids of files, which never change
        self._lock = Lock()  # over counts and threads
        self._under_way = 0
        self._threads: ThreadPoolExecutor | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "lock").touch()
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
            _, form, *rest = file.path.name.split(".")
            whole = rest == ["safetensors"]
            tokens = 0
            if whole:
                key = f"{file.key} {form} {file.size}"
                tokens = counted[key] = self._counted.get(key) or _tokens_of(file.path)
                found.forms.setdefault(form, FormStats()).add(file.size, tokens)
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
            os.utime(path)
        return stored

    def _failed(self, path: Path, failure: Exception, stat: os.stat_result | None = None) -> None:
        """Count a failure, and remove a damaged file, unless another took its place. ``stat``: of the damaged one."""
        damaged = not isinstance(failure, OSError | MemoryError)  # too many open files: the file may be sound
        with self._lock:
            self.damaged += damaged
            self.failed += not damaged
        if damaged:
            with suppress(OSError):
                if stat is None or path.stat().st_ino == stat.st_ino:
                    path.unlink()

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
            if path.exists():
                os.utime(path)
                return True
            file = WarmFile(space, segment, stored, stored.block.recode(self.codec))
            part = self._begin(path, file.size, in_use)
            if part is None:
                return False
            try:
                file.fill(part)
                # Under the lock, `usage` sees the file under one name, and `discard` under one or the other.
                with self._locked():
                    if not (wanted() and part.exists()):
                        return False
                    part.replace(path)
            finally:
                with suppress(OSError):
                    part.unlink()
        except (PltzError, OSError, RuntimeError, MemoryError):  # the disk, or no memory to bring KV to the host
            self.failed += 1
            return False
        self.written += 1
        return True

    def discard(self, space: bytes, segment: bytes) -> None:
        """Remove a segment's files of all forms and any unfinished write of them, by any process.

        Raises WarmFileError where that is not possible.
        """
        folder = self.folder / space.hex()
        try:
            with self._locked():
                for path in folder.glob(f"{segment.hex()}.*"):
                    path.unlink(missing_ok=True)
        except FileNotFoundError:  # no folder, no file
            return
        except OSError as exc:
            raise WarmFileError(
                f"cannot remove the warm files {folder / segment.hex()}.*: {exc.strerror or exc}. "
                "Make the folder writable, then discard the segment again"
            ) from exc

    def clear(self) -> None:
        """Remove all files."""
        with suppress(OSError), self._locked():
            for file in self._files():
                with suppress(OSError):
                    file.path.unlink()

    def _begin(self, path: Path, size: int, in_use: frozenset[bytes]) -> Path | None:
        """Evict until ``size`` bytes have room, and reserve them.

        Returns None where all that remains must be kept.
        """
        with self._locked():
            files = sorted(self._files(), key=lambda f: (not f.left, f.used, f.path))
            free = self.budget - sum(file.size for file in files)
            kept = {key.hex() for key in in_use}
            for file in files:
                if free >= size:
                    break
                if file.left or (file.path.suffix != ".part" and file.key not in kept):
                    with suppress(OSError):
                        file.path.unlink()
                        free += file.size
                        self.evicted += 1
            if free < size:
                return None
            part = path.with_name(f"{path.stem}.{os.urandom(4).hex()}.part")
            part.parent.mkdir(exist_ok=True)
            with part.open("xb") as empty:
                empty.truncate(size)
            return part

    def _files(self) -> Iterator[_File]:
        for space in [p for p in self.folder.iterdir() if len(p.name) == 2 * SIZE]:
            with suppress(OSError):
                for file in os.scandir(space):
                    if file.name.endswith((".safetensors", ".part")):
                        with suppress(OSError):
                            stat = file.stat(follow_symlinks=False)
                            yield _File(Path(file.path), stat.st_size, stat.st_mtime)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _tokens_of(path: Path) -> int:
    """Return the number of ids that a file says it has, 0 where that cannot be read. For statistics only."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            count = json.loads(file.read(min(size, MAX_HEADER)))["ids"]["shape"][0]
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return 0
    return count if type(count) is int and 0 <= count <= MAX_POSITION else 0

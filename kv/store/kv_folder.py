"""KVFolder: runs of blocks as files on local disk, shared by any number of processes. Spec: FORMAT.md.

    write: count it in under the lock -> DIR/space/name.form.random.part -> rename    all or nothing
    look:  every file tells the names of its blocks; files of other processes are found as the folder changes
    read:  header and head, at once -> chunks, each checked, by threads               or a miss

A run is handed out before all of it was read, so that its first layers are decoded meanwhile (`kv_file.py`). A file
evicted during use is read to its end. No condition of the disk raises an error where KV is kept: it can be recomputed
from tokens, so damage, a full disk and a missing file are all a miss. What must stay (`put`) is synced, never evicted,
and its failures are told.

The lock file is a ledger of the bytes of all files, so the folder is listed when it is full, and not at each write.
Regular files with names of the format's own are counted, read and removed only, and no symbolic link below the folder
is followed. Of a sealed archive files are encrypted (`file_keys.py`), and what does not open is not there. A writer
holds a lock on its `.part` file, so what a killed one left is known at once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from threading import Lock
from typing import TYPE_CHECKING

from pltz.kv.errors import ForeignFile, MemoryFailed, WarmFileError
from pltz.kv.port.private_file import opened, private_folder
from pltz.kv.store import kv_file
from pltz.kv.store.file_keys import CLEAR, SALT, Clear, FileKeys, Sealed
from pltz.kv.store.kv_file import KVFile, KVFileWriter
from pltz.kv.store.trie import Rank, names_of, root_of
from pltz.plt_codec import SIZE, CorruptError, PltzError, UsageError, VersionError

if TYPE_CHECKING:
    from pltz.archive import Archive

log = logging.getLogger("pltz.kv")

THREADS = 4  # that read files
UNDER_WAY = 16  # files that may be read by them at once; one more is read by its caller
KEPT = 7 / 8  # of the budget, after an eviction: room for the next writes
FORM = re.compile(r"[a-z0-9-]{1,64}")
SPACE = re.compile(rf"[0-9a-f]{{{2 * SIZE}}}")  # name of a folder
FILE = re.compile(r"([0-9a-f]{64})\.([a-z0-9-]{1,64})\.(safetensors|[0-9a-f]{8}\.part)")
IDS, WHOLE, AGENT, CENTRE = "ids", "whole", "agent", "centre"  # forms of files that are no runs of blocks
LASTING = (AGENT, CENTRE)  # that no eviction takes


@dataclass(frozen=True)
class _File:
    """A file of any space. ``whole``: not being written, and not left by a kill."""

    path: Path
    name: bytes
    form: str
    whole: bool
    size: int
    used: float


@dataclass(frozen=True, eq=False)
class BlockRun:
    """Blocks that follow each other, in one file. ``names``: of all of them. ``first``: blocks before the run.

    ``above``: the name before them."""

    path: Path
    form: str
    tenant: bytes
    names: list[bytes]
    first: int
    above: bytes

    def follows(self, names: Sequence[bytes], at: int) -> int:
        """Return how many of ``names`` from place ``at`` the run has."""
        own = self.names[at - self.first :] if at >= self.first else []
        count = 0
        while count < min(len(own), len(names) - at) and own[count] == names[at + count]:
            count += 1
        return count


class KVFolder:
    """The files of one target's KV in a folder, which other targets may use too.

    ``space``: names target and pages, 16 bytes. ``budget``: bytes that all files together may take. ``block``: ids of a
    block. ``rank``: of the last block of a run; those of a lower rank are evicted first. None: those used last stay.
    ``pin``: read into page-locked memory. ``damaged``, ``written``, ``evicted``, ``failed``: counts of this process.
    ``keys``: of the sealed archive that the files are of, None for none. ``changes``: of these keys so far.

    Raises UsageError where the folder cannot be made, and for a budget that is not above zero.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        space: bytes,
        budget: int,
        *,
        block: int = 16,
        rank: Rank | None = None,
        pin: bool = False,
    ) -> None:
        if budget <= 0:
            raise UsageError(f"expected a budget of the folder in bytes, above 0, got {budget}")
        self.root, self.space, self.budget, self.block, self.rank, self.pin = (
            Path(folder).resolve(), space, budget, block, rank, pin,
        )  # fmt: skip
        self.folder = self.root / space.hex()
        self.damaged = self.written = self.evicted = self.failed = self.changes = 0
        self.keys: FileKeys | None = None
        self._archive: bytes | None = None  # id of the sealed one, b"" for open ones
        self._runs: dict[Path, BlockRun | None] = {}  # None: a file that is no run
        self._at: dict[bytes, list[BlockRun]] = {}  # by the names of their blocks
        self._seen = 0  # time of the folder's change when it was listed last
        self._lock = Lock()  # over counts, threads and runs
        self._under_way = 0
        self._foreign: dict[bytes, set[Path]] = {}  # files of no key at hand, by the owners that they name
        self._threads: ThreadPoolExecutor | None = None
        try:
            private_folder(self.folder)
            if not S_ISDIR(self.folder.lstat().st_mode):
                raise OSError(0, "a link")
            os.close(self._ledger(os.O_CREAT))
        except OSError as exc:
            raise UsageError(f"cannot keep KV in {self.root}: {exc.strerror or exc}") from exc

    def admit(self, archive: Archive, tenants: Iterable[str] = ()) -> bool:
        """Take the newest keys that an archive has of tenants, in its thread. Returns whether any is another.

        Files of a sealed archive are encrypted from now on, those of an open one are not. Raises UsageError where the
        files are not of this sealed archive.
        """
        settings = archive.parts.settings
        own = settings.archive if settings.sealed else b""
        if self._archive not in (None, own):
            raise UsageError("this store keeps the KV of another archive, and one of them is sealed: open one for each")
        self._archive = own
        if own and self.keys is None:
            self.keys = FileKeys(archive)
        changed = {} if self.keys is None else self.keys.found(archive, tenants)
        if self.keys is None or not changed:
            return False
        self.changes += 1  # first: nothing that was read before is written by another key
        self.keys.take(changed)
        with self._lock:  # what was there opens no more, and what did not open may
            paths = [path for path, run in self._runs.items() if run is not None and run.tenant in changed]
            paths += [path for owner in changed for path in self._foreign.pop(owner, ())]
        for path in paths:
            self._forget(path)
        self._seen = 0
        self.look()
        return True

    def owner(self, tenant: str) -> bytes:
        """Return what stands for a tenant in its files."""
        return root_of(tenant) if self.keys is None else self.keys.owner(tenant)

    def path(self, name: bytes, form: str, owner: bytes = b"") -> Path:
        """Return where a file is or would be. Raises UsageError for a bad name."""
        if not FORM.fullmatch(form) or len(name) != 32:
            raise UsageError(f"expected a name of 32 bytes, and a form of letters a to z, digits and hyphens: {form!r}")
        if self.keys is not None and form not in LASTING:
            name = self.keys.name(owner, name)
        return self.folder / f"{name.hex()}.{form}.safetensors"

    # ---- looking

    def find(self, names: Sequence[bytes], at: int, forms: Sequence[str]) -> tuple[BlockRun, int] | None:
        """Return the run that has block ``at`` of a prefix, in the first of some forms, and how many it has of it."""
        self.look()
        with self._lock:
            runs = [run for run in self._at.get(names[at], ()) if run.form in forms]
        found = [(forms.index(run.form), -run.follows(names, at), run) for run in runs]
        if not found:
            return None
        _, count, run = min(found, key=lambda one: one[:2])
        return run, -count

    def has(self, name: bytes, forms: Collection[str]) -> bool:
        """Return whether some file has a block in one of some forms, as far as is known."""
        with self._lock:
            return any(run.form in forms for run in self._at.get(name, ()))

    def look(self) -> None:
        """List the folder where it changed since: other processes write and remove files."""
        try:
            changed = self.folder.stat().st_mtime_ns
            if changed == self._seen:
                return
            there = {file.path for file in self._files_in(self.folder) if file.whole}
        except OSError:
            return
        with self._lock:
            known = set(self._runs)
        for path in known - there:
            self._forget(path)
        for path in there - known:
            self._learn(path)
        self._seen = changed

    def _learn(self, path: Path) -> None:
        match = FILE.fullmatch(path.name)
        run = None
        if match is not None and match[2] not in (IDS, WHOLE, *LASTING):
            try:
                file = kv_file.peek(path, self.keys)
                ids = file.head["ids"].numpy().reshape(-1)
                names = names_of(file.parent, ids, self.block)
                if not names or self.path(names[-1], match[2], file.tenant) != path or file.start % self.block:
                    raise CorruptError("not the blocks that its name says")
                run = BlockRun(path, match[2], file.tenant, names, file.start // self.block, file.parent)
            except ForeignFile as exc:
                with self._lock:
                    if not self._foreign:
                        log.info("files of KV in %s are not used: %s", self.folder, exc)
                    self._foreign.setdefault(exc.owner, set()).add(path)
            except (PltzError, KeyError) as exc:
                self._broke(path, exc)
                return
            except (OSError, MemoryError):
                return
        with self._lock:
            if path in self._runs:  # another thread was first
                return
            self._runs[path] = run
            if run is not None:
                for name in run.names:
                    self._at.setdefault(name, []).append(run)

    def _forget(self, path: Path) -> None:
        with self._lock:
            run = self._runs.pop(path, None)
            for paths in self._foreign.values():
                paths.discard(path)
            for name in () if run is None else run.names:
                left = [one for one in self._at[name] if one is not run]
                if left:
                    self._at[name] = left
                else:
                    del self._at[name]

    def leading(self, name: bytes) -> set[bytes]:
        """Return the names of the blocks in files that lead to a block, that included, as far as is known."""
        self.look()
        found, left = set[bytes](), {name}
        with self._lock:
            while left:
                runs = self._at.get(left.pop(), ())
                left |= {run.above for run in runs} - found
                found.update(*(run.names for run in runs))
        return found

    # ---- reading

    def read(self, name: bytes, form: str, owner: bytes = b"") -> KVFile | None:
        """Return a file, or None where it is missing, unavailable now, or damaged. Its parts may still arrive.

        A damaged file is removed, also where the damage is found later. ``owner``: whose it is, of a sealed archive.
        """
        path = self.path(name, form, owner)
        told = False

        def failed(failure: Exception, stat: os.stat_result) -> None:
            nonlocal told
            told = True
            self._broke(path, failure, stat)

        def ended() -> None:
            with self._lock:
                self._under_way -= 1

        with self._lock:
            self._under_way += 1
            self._threads = self._threads or ThreadPoolExecutor(THREADS, "pltz-read")
            threads = self._threads if self._under_way <= UNDER_WAY else None
        try:
            file = kv_file.read(path, self.keys, pin=self.pin, threads=threads, failed=failed, ended=ended)
            if file.space != self.space or path.name != f"{file.name.hex()}.{file.form}.safetensors":
                raise CorruptError("a file of another form, target or block")
        except (PltzError, OSError, RuntimeError, MemoryError) as exc:
            if not told and not isinstance(exc, FileNotFoundError | NotADirectoryError):
                self._broke(path, exc)
            return None
        with suppress(OSError):
            os.utime(path, follow_symlinks=False)
        return file

    def _broke(self, path: Path, failure: Exception, stat: os.stat_result | None = None) -> None:
        """Count a failure, and remove a damaged file, unless another took its place. ``stat``: of the damaged one."""
        if isinstance(failure, ForeignFile):
            return
        if isinstance(failure, OSError | MemoryError):  # too many open files: the file may be sound
            self._refused("cannot read", path, failure)
            return
        with self._lock:
            self.damaged += 1
            count = self.damaged
        if not count & count - 1:  # of a sealed archive there are many after an erasure
            log.warning("removed a damaged file of KV, which is computed again: %s (the %d.): %s", path, count, failure)
        with suppress(OSError):
            self._remove(path, stat)

    def forget(self, run: BlockRun) -> None:
        """Forget a run that could not be read now."""
        self._forget(run.path)

    def drop(self, run: BlockRun, why: Exception) -> None:
        """Remove a run whose parts its form refuses, or which is not what its name says."""
        self._broke(run.path, CorruptError(str(why)))

    def _refused(self, what: str, path: Path, failure: Exception) -> None:
        """Count what the machine refused, and log it the first time, the second, the fourth, the eighth, ..."""
        with self._lock:
            self.failed += 1
            count = self.failed
        if not count & count - 1:
            log.warning("%s the file of KV %s (failure %d of this process): %s", what, path, count, failure)

    def _remove(self, path: Path, stat: os.stat_result | None = None) -> None:
        """Remove a file if it is there, and count it out. ``stat``: of the one that is meant, if not of any."""
        self._forget(path)
        with suppress(FileNotFoundError), self._locked() as ledger:
            there = path.lstat()
            if stat is None or there.st_ino == stat.st_ino:
                path.unlink()
                _count(ledger, -there.st_size)

    # ---- writing

    def write(self, file: KVFile, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Write a file unless it exists. ``wanted``: called just before it can be found; if false, it is not kept.

        Returns False if there is no room, the disk fails, a file cannot hold it, or it is not wanted.
        """
        path = self.path(file.name, file.form, file.tenant)
        seal: Clear | Sealed | None = CLEAR
        if self.keys is not None:
            seal = self.keys.seal(file.tenant, os.urandom(SALT))
            file = replace(file, name=bytes.fromhex(path.name[:64]))
        try:
            if seal is None:
                raise ForeignFile(file.tenant)
            with suppress(FileNotFoundError):
                known = S_ISREG(path.lstat().st_mode)
                if known:
                    os.utime(path, follow_symlinks=False)
                return known
            if not self._write(path, KVFileWriter(file, seal), wanted, sync=False):
                return False
        except PltzError as exc:
            log.info("a file does not hold %s: %s", path, exc)
            return False
        except (OSError, RuntimeError, MemoryError) as exc:  # the disk, or no memory to bring KV to the host
            self._refused("cannot write", path, exc)
            return False
        self._learn(path)
        self.written += 1
        return True

    def put(self, file: KVFile) -> int:
        """Replace a file that must stay. It is on the disk then. Returns its bytes.

        Raises MemoryFailed where the disk takes it not; the file before is there then.
        """
        path, writer = self.path(file.name, file.form), KVFileWriter(file)
        try:
            if not self._write(path, writer, lambda: True, sync=True):
                raise MemoryFailed(f"no room for {path}: the folder's budget is {self.budget} bytes")
        except OSError as exc:
            raise MemoryFailed(f"cannot write {path} ({exc.strerror}): make room, or name another folder") from exc
        return writer.size

    def get(self, name: bytes, form: str) -> KVFile | None:
        """Return a file that must stay, None where there is none.

        Raises CorruptError and VersionError for a damaged or later one, MemoryFailed where the disk cannot read it now.
        """
        path = self.path(name, form)
        try:
            file = kv_file.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, MemoryError) as exc:
            raise MemoryFailed(f"cannot read {path} ({exc})") from exc
        except (CorruptError, VersionError) as exc:
            raise type(exc)(f"{path} is damaged or foreign: {exc}") from exc
        if (file.space, file.name, file.form) != (self.space, name, form):
            raise CorruptError(f"{path} is damaged or foreign: it is of another form, target or name")
        return file

    def lasting(self, form: str) -> Iterator[KVFile]:
        """Yield the fields of files that must stay, by their headers alone. Those that cannot be read are left out."""
        with suppress(OSError):
            for file in sorted(self._files_in(self.folder), key=lambda file: file.name):
                if file.whole and file.form == form:
                    with suppress(PltzError, OSError):
                        yield kv_file.peek(file.path)

    def paths(self, form: str) -> set[Path]:
        """Return the complete files of a form."""
        with suppress(OSError):
            return {file.path for file in self._files_in(self.folder) if file.whole and file.form == form}
        return set()

    def claim(self, name: bytes) -> int | None:
        """Return a handle that keeps a file that must stay to this process until it is closed, None if another has it.

        Raises MemoryFailed.
        """
        path = self.folder / f"{name.hex()}.lock"
        try:
            handle = opened(path, os.O_RDWR | os.O_CREAT)
        except OSError as exc:
            raise MemoryFailed(f"cannot open {path} ({exc.strerror})") from exc
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        return handle

    def remove(self, name: bytes, form: str, owner: bytes = b"") -> None:
        """Remove a file. Raises MemoryFailed where it is still there."""
        path = self.path(name, form, owner)
        try:
            self._remove(path)
        except OSError as exc:
            raise MemoryFailed(f"cannot remove {path} ({exc.strerror})") from exc

    def _write(self, path: Path, writer: KVFileWriter, wanted: Callable[[], bool], *, sync: bool) -> bool:
        begun = self._begin(path, writer.size)
        if begun is None:
            return False
        part, handle = begun
        try:
            writer.fill(handle)
            if sync:
                os.fsync(handle)
            # Under the lock, others see the file under one name, and `discard` under one or the other.
            with self._locked() as ledger:
                if not (wanted() and part.exists()):
                    return False
                with suppress(FileNotFoundError):  # an equal one of another process, or the one before
                    _count(ledger, -path.lstat().st_size)
                part.replace(path)
            if sync:
                _sync(path.parent)
        finally:
            os.close(handle)
            if part.exists():
                self._remove(part)
        return True

    # ---- removing

    def discard(self, names: Collection[bytes]) -> None:
        """Remove every file with one of these blocks, or named so, by any process, and those that may have one.

        These are unfinished runs, and those that could not be read now. Raises WarmFileError where it cannot.
        """
        self.look()
        with self._lock:
            paths = {run.path for name in names for run in self._at.get(name, ())}
            known = set(self._runs)

        def may_have(file: _File) -> bool:
            return file.form not in (IDS, WHOLE, *LASTING) and not (file.whole and file.path in known)

        stored = set(names) if self.keys is None else self.keys.all_names(names)
        self._remove_all(lambda file: file.path in paths or file.name in stored or may_have(file))

    def expire(self, before: float) -> None:
        """Remove what was used last before a time, in seconds since 1970, but nothing that must stay.

        Raises as `discard`.
        """
        self._remove_all(lambda file: file.form not in LASTING and file.used < before)

    def clear(self, tenant: bytes | None = None) -> None:
        """Remove all files of this target but those that must stay, or those of an `owner`. Raises as `discard`."""
        if tenant is None:
            self._remove_all(lambda file: file.form not in LASTING)
            return

        def theirs(file: _File) -> bool:
            try:
                return file.form not in LASTING and kv_file.owner_of(file.path, self.keys) == tenant
            except (PltzError, MemoryError):
                return file.form not in LASTING  # nobody can say whose it is

        self._remove_all(theirs)

    def _remove_all(self, chosen: Callable[[_File], bool]) -> None:
        try:
            with self._locked() as ledger:
                for file in [file for file in self._files_in(self.folder) if chosen(file)]:
                    file.path.unlink(missing_ok=True)
                    _count(ledger, -file.size)
                    self._forget(file.path)
        except OSError as exc:
            raise WarmFileError(
                f"cannot remove files of KV in {self.folder}: {exc.strerror or exc}. Make it writable, and try it again"
            ) from exc

    def _begin(self, path: Path, size: int) -> tuple[Path, int] | None:
        """Reserve ``size`` bytes in a `.part` file, after an eviction where one is due. Returns it, and its handle.

        Returns None, and evicts nothing, where what must be kept leaves no room.
        """
        with self._locked() as ledger:
            total = _total(ledger)
            if total is None or total + size > self.budget:
                total = self._evict(size)
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

    def _evict(self, size: int) -> int:
        """Make room for ``size`` bytes, and for the next writes, unless it is there. Returns the bytes of all files."""
        rank = self.rank or (lambda name: 0.0)
        runs = self._runs.copy()
        last = {path: run.names[-1] for path, run in runs.items() if run is not None}
        files = sorted(self._files(), key=lambda f: (rank(last.get(f.path, f.name)), f.used, f.path))
        total = sum(file.size for file in files)
        leaving = [file for file in files if not file.whole and _is_left(file.path)]
        leaving += [file for file in files if file.whole and file.form not in LASTING]
        goal = self.budget if total + size <= self.budget else KEPT * self.budget
        if total - sum(file.size for file in leaving) + size > self.budget:
            return total
        for file in leaving:
            if total + size <= goal:
                break
            with suppress(OSError):
                file.path.unlink()
                self._forget(file.path)
                total -= file.size
                self.evicted += 1
        return total

    def usage(self) -> tuple[int, int, int]:
        """Return bytes and number of all files, of any process and target, and the blocks of this target's runs."""
        try:
            with self._locked():
                sizes = [file.size for file in self._files()]
        except OSError:
            return 0, 0, 0
        self.look()
        with self._lock:
            return sum(sizes), len(sizes), len(self._at)

    def _files(self) -> Iterator[_File]:
        """Yield the files of all targets and processes. Raises OSError where the folder cannot be read."""
        for space in os.scandir(self.root):
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
                        last, form, end = name.groups()
                        whole = end == "safetensors"
                        yield _File(Path(file.path), bytes.fromhex(last), form, whole, stat.st_size, stat.st_mtime)

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
        return opened(self.root / "lock", os.O_RDWR | more)


def clear_all(
    folder: str | os.PathLike[str], tenants: Iterable[str] | None = None, archive: Archive | None = None
) -> None:
    """Remove the KV and tokens of tenants, all of None, of every target from a folder, as `KVFolder.clear` does.

    ``archive``: whose tenants they are. Where that is sealed, what tenants of these names have in the clear goes, too.
    Raises UsageError for what is no folder of KV, and WarmFileError.
    """
    root, tenants = Path(folder).resolve(), None if tenants is None else list(tenants)
    if not (root / "lock").is_file():
        raise UsageError(f"expected a folder of KV, found none at {root}")
    for space in root.iterdir():
        if SPACE.fullmatch(space.name) and S_ISDIR(space.lstat().st_mode):
            files = KVFolder(root, bytes.fromhex(space.name), 1)
            if archive is not None:
                files.admit(archive, tenants or ())
            owners = {None} if tenants is None else {of(tenant) for tenant in tenants for of in (root_of, files.owner)}
            for owner in owners:
                files.clear(owner)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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

"""Simulated disk: a disk in memory that loses unsynced changes, to prove the state after a crash.

`SimDisk` keeps the state that a running process sees, the durable state, and the list of changes between
them. Bytes of files are pending until `sync_file`, names until `sync_directory` of their folder. `crashes`
yields every state that a power cut may leave: every subset of the pending changes in every order that
matters. The unsynced bytes of each file are absent, half written, zeros, or whole. POSIX promises no more,
and file systems have been seen to do each of these.

    disk = SimDisk()
    disk.watch = lambda: check_all(disk.crashes())     # after every change
    create(DirectoryStore(disk), [codec]).writer.put(...)

Two more faults are simulated. `vanish` removes an object durably, as a failing disk or a wrong command does.
Names in `hidden` are omitted from listings although the files exist, as in a store with stale listings.

The clock stands still unless `clock` is moved. Random bytes come from a counter, so a run repeats exactly.
`fail_at` makes a call fail. With a `capacity`, a write beyond it is cut off there and fails with ENOSPC.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pltz.archive.format.byte_source import Held
from pltz.archive.storage.disk import Stamp

BLOCK = 4096  # bytes; files take whole blocks of a disk with a capacity


@dataclass(frozen=True)
class Change:
    """One unsynced change. ``what``: "bytes" (path is the inode's number), "name", "unname" or "directory"."""

    what: str
    path: str
    inode: int = 0


@dataclass
class DiskState:
    """The content of a disk: names of files, their bytes, folders."""

    names: dict[str, int] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {""})

    def copy(self) -> DiskState:
        """Return an independent copy."""
        return DiskState(dict(self.names), dict(self.data), set(self.folders))

    def files(self) -> dict[str, bytes]:
        """Return path -> bytes of every reachable file."""
        reachable = {p: i for p, i in self.names.items() if _parents(p) <= self.folders}
        return {path: self.data.get(inode, b"") for path, inode in reachable.items()}


class SimDisk:
    """A simulated disk. Implements `disk.Disk`."""

    def __init__(self, state: DiskState | None = None, seed: int = 0):
        self.seen = state.copy() if state else DiskState()
        for inode in self.seen.names.values():  # a durable name without bytes keeps its inode
            self.seen.data.setdefault(inode, b"")
        self.durable = self.seen.copy()
        self.pending: list[Change] = []
        self.watch: Callable[[], None] = lambda: None
        self.clock = 1_000_000_000 + seed  # a disk that goes on from another has a seed of its own, and is later
        self.ticked = 0  # 2^-20 seconds that changes took, one each
        self._written: dict[int, int] = {}  # inode -> time of the last write
        self.seed, self.drawn = seed, 0
        self.calls = 0  # number of changes requested so far
        self.hidden: set[str] = set()  # paths that `names` leaves out
        self.fail_at: dict[int, OSError] = {}  # number of the call -> error to raise
        self.size = 1 << 40
        self.size = 1 << 40  # bytes that the file system says to have in all
        self.capacity: int | None = None  # most bytes of all files, in whole blocks

    def clone(self) -> SimDisk:
        """Return an independent copy of the disk."""
        twin = SimDisk(seed=self.seed)
        twin.seen, twin.durable, twin.pending = self.seen.copy(), self.durable.copy(), list(self.pending)
        twin.hidden = set(self.hidden)
        twin.clock, twin.drawn, twin._written = self.clock, self.drawn, dict(self._written)
        twin.ticked = self.ticked
        twin.capacity = self.capacity
        return twin

    def crashes(self, *unread: str) -> Iterator[DiskState]:
        """Yield every different state that a power cut may leave now, once.

        Names in the folders ``unread``, which nothing there reads, are not varied.
        """
        paths = sorted({c.path for c in self.pending if c.what in ("name", "unname")})
        folders = sorted({c.path for c in self.pending if c.what == "directory"})
        inodes = sorted({c.inode for c in self.pending if c.what == "bytes"})

        def differs(state: DiskState) -> tuple[object, ...]:
            """Return all in which a state may differ from another one."""
            names, data = (state.names.get(path) for path in paths), (state.data.get(inode) for inode in inodes)
            return *names, *data, *(path in state.folders for path in folders)

        states = [self.durable.copy()]
        for change in self.pending:
            # states that are the same after a change stay so: a name that was made and removed is varied once
            different: dict[tuple[object, ...], DiskState] = {}
            for outcome in _outcomes(change, unread):
                for before in states:
                    state = before.copy()
                    if outcome != "lost":
                        self._apply(state, change, outcome)
                    different.setdefault(differs(state), state)
            states = [*different.values()]
        yield from states

    def left_by(self, work: Callable[[], object]) -> list[DiskState]:
        """Do work, and return each state that a power cut may leave meanwhile. Files in tmp/ tell none apart."""
        states: dict[frozenset[tuple[str, bytes]], DiskState] = {}

        def watch() -> None:
            for state in self.crashes("tmp"):
                states.setdefault(frozenset(f for f in state.files().items() if not f[0].startswith("tmp/")), state)

        self.flush()
        self.watch = watch
        work()
        self.watch = lambda: None
        return [*states.values()]

    def flush(self) -> None:
        """Make all durable that was written so far, as a system does within seconds."""
        self.durable, self.pending = self.seen.copy(), []

    def vanish(self, path: str) -> None:
        """Remove a file's name, synced or not; a missing one is fine."""
        for state in (self.seen, self.durable):
            state.names.pop(path, None)
        self.pending = [c for c in self.pending if c.what == "bytes" or c.path != path]

    def make_directory(self, path: str) -> None:
        self._count()
        for folder in sorted(_parents(path + "/")):
            if folder not in self.seen.folders:
                self._change(Change("directory", folder))

    def write_new(self, path: str, data: bytes) -> None:
        """Create a file and write it. Raises FileExistsError, FileNotFoundError, OSError."""
        self._need_folder(path)
        if path in self.seen.names:
            raise FileExistsError(17, "exists", path)
        self._count()
        inode = 1 + max([*self.seen.data, *self.durable.data, 0])
        self.seen.data[inode], self._written[inode] = b"", self.clock
        self._change(Change("name", path, inode))
        self._write(path, inode, bytes(data))

    def overwrite(self, path: str, data: bytes) -> None:
        inode = self._inode(path)
        self._count()
        self._write(path, inode, bytes(data))

    def flip(self, path: str, at: int, bits: int = 1) -> None:
        """Flip bits of a byte of a file."""
        data = bytearray(self.seen.files()[path])
        data[at] ^= bits
        self.overwrite(path, bytes(data))

    def append(self, path: str, data: bytes) -> None:
        inode = self._inode(path)
        self._count()
        self._write(path, inode, self.seen.data.get(inode, b"") + data)

    def truncate(self, path: str, size: int) -> None:
        inode = self._inode(path)
        self._count()
        self.seen.data[inode] = self.seen.data.get(inode, b"")[:size]
        self._change(Change("bytes", path, inode))

    def sync_file(self, path: str) -> None:
        inode = self._inode(path)
        self._count()
        self.durable.data[inode] = self.seen.data[inode]
        self.pending = [c for c in self.pending if not (c.what == "bytes" and c.inode == inode)]
        self.watch()

    def sync_files(self, paths: Sequence[str]) -> None:
        """Make the bytes of files durable, one after the other. Raises FileNotFoundError."""
        for path in paths:
            self.sync_file(path)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises FileExistsError, FileNotFoundError."""
        inode = self._inode(source)
        self._need_folder(target)
        if target in self.seen.names:
            raise FileExistsError(17, "exists", target)
        self._count()
        self._change(Change("name", target, inode))

    def rename(self, source: str, target: str) -> None:
        """Give a file another name. Either change of names may be lost alone. Raises FileNotFoundError."""
        inode = self._inode(source)
        self._need_folder(target)
        self._count()
        self._change(Change("name", target, inode))
        self._change(Change("unname", source, inode))

    def unlink(self, path: str) -> None:
        inode = self._inode(path)
        self._count()
        self._change(Change("unname", path, inode))

    def sync_directory(self, path: str) -> None:
        """Make a directory's names durable. Raises FileNotFoundError."""
        if path not in self.seen.folders:
            raise FileNotFoundError(2, "no such folder", path)
        self._count()
        rest: list[Change] = []
        for change in self.pending:
            if change.what != "bytes" and change.path.rpartition("/")[0] == path:
                self._apply(self.durable, change, "kept")
            else:
                rest.append(change)
        self.pending = rest
        self.watch()

    def names(self, path: str) -> list[tuple[str, int]]:
        """Return the files in a directory with their sizes in bytes, without `hidden` ones.

        Raises FileNotFoundError.
        """
        if path not in self.seen.folders:
            raise FileNotFoundError(2, "no such folder", path)
        listed = [(p.rpartition("/"), i) for p, i in self.seen.names.items() if p not in self.hidden]
        return [(name, len(self.seen.data.get(i, b""))) for (folder, _, name), i in listed if folder == path]

    def changed(self, path: str) -> int:
        """Return the time of the last write; now for a file that is older than this object."""
        return self._written.get(self._inode(path), self.clock)

    def stamp(self, path: str) -> Stamp:
        inode = self._inode(path)
        return Stamp(len(self.seen.data.get(inode, b"")), self._written.get(inode, 0), inode)

    def read(self, path: str, offset: int, size: int) -> bytes:
        return self.seen.data.get(self._inode(path), b"")[offset : offset + size]

    def view(self, path: str) -> memoryview:
        return memoryview(self.seen.data.get(self._inode(path), b""))

    def open(self, path: str) -> Held:
        return Held(self.view(path))

    def room(self) -> tuple[int, int]:
        return (1 << 40 if self.capacity is None else self.capacity - self.used), self.size

    def now(self) -> int:
        return self.clock

    def ticks(self) -> int:
        return (self.clock << 20) + self.ticked

    def sleep(self, seconds: float) -> None:
        """Wait for nothing: nobody else is at work meanwhile."""

    def random(self, size: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_128(f"{self.seed} {self.drawn}".encode()).digest(size)

    @property
    def used(self) -> int:
        """Return the bytes that files take, in whole blocks. A file takes space until its last name is gone."""
        return sum(_blocks(self.seen.data.get(inode, b"")) for inode in {*self.seen.names.values()})

    def _write(self, path: str, inode: int, data: bytes) -> None:
        """Set a file's bytes, as many as fit. Raises OSError where they do not all fit."""
        before = self.seen.data.get(inode, b"")
        self.seen.data[inode] = data
        if self.capacity is not None and len(data) > len(before) and self.used > self.capacity:
            room = self.capacity - self.used + _blocks(data)
            self.seen.data[inode] = data[: max(room // BLOCK * BLOCK, len(before))]
        self._change(Change("bytes", path, inode))
        if len(self.seen.data[inode]) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def _count(self) -> None:
        self.calls += 1
        self.ticked += 1
        if error := self.fail_at.get(self.calls):
            raise error

    def _change(self, change: Change) -> None:
        """Make a change visible; it is pending until it is synced."""
        if change.what != "bytes":
            self._apply(self.seen, change, "kept")
        self.pending.append(change)
        self.watch()

    def _apply(self, state: DiskState, change: Change, outcome: str) -> None:
        if change.what == "directory":
            state.folders.add(change.path)
        elif change.what == "name":
            state.names[change.path] = change.inode
        elif change.what == "unname":
            if state.names.get(change.path) == change.inode:
                del state.names[change.path]
        else:
            whole = self.seen.data[change.inode]
            safe = state.data.get(change.inode, b"")
            if safe.startswith(whole):  # truncated: the remaining bytes are safe
                state.data[change.inode] = whole
                return
            safe = safe if whole.startswith(safe) else b""  # synced bytes before an append are safe
            rest = whole[len(safe) :]
            kept = {"half": rest[: len(rest) // 2], "zeros": bytes(len(rest)), "kept": rest}
            state.data[change.inode] = safe + kept[outcome]

    def _inode(self, path: str) -> int:
        if path not in self.seen.names:
            raise FileNotFoundError(2, "no such file", path)
        return self.seen.names[path]

    def _need_folder(self, path: str) -> None:
        if path.rpartition("/")[0] not in self.seen.folders:
            raise FileNotFoundError(2, "no such folder", path)


def _blocks(data: bytes) -> int:
    """Return the bytes that a file with this data takes on a disk."""
    return -(-len(data) // BLOCK) * BLOCK


def _outcomes(change: Change, unread: Collection[str]) -> list[str]:
    if change.what == "bytes":
        return ["lost", "half", "zeros", "kept"]
    return ["kept"] if change.path.rpartition("/")[0] in unread else ["lost", "kept"]


def _parents(path: str) -> set[str]:
    """Return the folders above a path, the root included."""
    parts = path.split("/")[:-1]
    return {"/".join(parts[:n]) for n in range(len(parts) + 1)}

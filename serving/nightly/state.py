"""The state folder of a nightly job: receipts, pending rows, quarantine, reports and the lock.

Spec: FORMAT.md.

Every file appears complete and synced or not at all, through the archive's own store. The lock is the system's (flock),
so a killed run frees it. On a network file system it holds as far as that system's locks do.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pltz.archive import FOLDERS as ARCHIVE_FOLDERS, ArchiveError, DirectoryStore, OsDisk, StoreError, reason
from pltz.plt_codec import FormatError, UsageError, VersionError
from pltz.serving.nightly import receipt
from pltz.serving.nightly.receipt import ReceiptFile, ReceiptLedger

FOLDERS = ("receipts", "pending", "quarantine", "reports", "tmp")
NAME = re.compile(r"[0-9a-f]{32}")
SMALL = 1 << 20  # bytes of a receipt that are read; larger ones are mapped


class Busy(ArchiveError):
    """Another run holds this state folder."""


class StateStore(DirectoryStore):
    """The files of a state folder. Its errors name the folder, and say that the archive keeps what it has."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(OsDisk(root))
        self._root = root

    def put(self, name: str, data: bytes) -> bool:
        """Put a file, durable on return. Raises StoreError, FullError, WriterFailed."""
        try:
            return super().put(name, data)
        except StoreError as exc:
            why = reason(exc.__cause__) if isinstance(exc.__cause__, OSError) else str(exc)
            raise type(exc)(
                f"cannot write {name} in the state folder {self._root}: {why}; what the run stored in the archive is "
                "durable, and the next run sees it again. Free space on the disk of the state folder"
            ) from exc


class StateFolder:
    """An open state folder. Call ``make`` before anything is written."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.store = StateStore(root)
        self.damaged: set[str] = set()  # receipts that were skipped

    def make(self) -> None:
        """Create the folder durably. Raises StoreError."""
        try:
            for folder in ("", *FOLDERS):
                self.store.disk.make_directory(folder)
            self.store.disk.sync_directory("")
        except OSError as exc:
            raise StoreError(f"cannot make the state folder {self.root}: {exc.strerror or exc}") from exc

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock, so that this is the only run. Raises Busy and StoreError."""
        try:
            handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StoreError(f"cannot lock the state folder {self.root}: {reason(exc)}; nothing was done") from exc
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                who = os.pread(handle, 200, 0).decode("utf-8", "replace").strip()
                raise Busy(f"another run is going on ({who}): nothing was done") from exc
            os.ftruncate(handle, 0)
            # the process is only a hint for people, and may be missing on a full disk
            with suppress(OSError):
                os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            yield
        finally:
            os.close(handle)

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder that are named by a digest; none where there is no folder."""
        try:
            return sorted(name for name in self.store.list(folder) if NAME.fullmatch(name))
        except StoreError:
            if (self.root / folder).is_dir():
                raise
            return []

    def refresh(self, ledger: ReceiptLedger, folder: str = "receipts") -> ReceiptLedger:
        """Add new receipts of a folder to a ledger, and drop those that are gone. Returns the ledger."""
        there = self.names(folder)
        ledger.keep(there)
        for name in sorted(set(there) - ledger.names - self.damaged):
            try:
                ledger.add(name, self._open(folder, name))
            except (FileNotFoundError, VersionError):  # one of a newer pltz is left for that version
                continue
            except FormatError:
                self.damaged.add(name)
        return ledger

    def _open(self, folder: str, name: str) -> ReceiptFile:
        path = f"{folder}/{name}"
        data: bytes | memoryview = self.store.read(path, 0, SMALL)
        if len(data) == SMALL:
            data = self.store.view(path)
        return ReceiptFile.decode(data, name)

    def intend(self, run: int, rows: Mapping[bytes, bytes]) -> str:
        """Record durably which rows are about to be put. Returns the name of the record."""
        return self._receipt("pending", run, rows)

    def done(self, run: int, rows: Mapping[bytes, bytes], pending: str | None = None) -> None:
        """Record durably which rows were put. After that, delete ``pending``."""
        if rows:
            self._receipt("receipts", run, rows)
        if pending:
            self.store.delete(f"pending/{pending}")

    def _receipt(self, folder: str, run: int, rows: Mapping[bytes, bytes]) -> str:
        name, data = receipt.encode(run, rows)
        self.store.put(f"{folder}/{name}", data)
        return name

    def merge(self) -> None:
        """Replace many receipts by one. A crash leaves some beside it, which say the same."""
        ledger = self.refresh(ReceiptLedger())
        for name in self.damaged:
            self.store.delete(f"receipts/{name}")
        if len(ledger.names) < 2:
            return
        name, data = receipt.merged(ledger.receipts)
        self.store.put(f"receipts/{name}", data)
        for old in sorted(ledger.names - {name}):
            self.store.delete(f"receipts/{old}")

    def quarantine(self, name: str, data: bytes) -> None:
        """Keep the facts about a session that was refused."""
        self.store.put(f"quarantine/{name}", data)

    def release(self, staying: Iterable[str]) -> None:
        """Drop sessions from the quarantine that a complete run did not meet again."""
        for name in sorted(set(self.names("quarantine")) - set(staying)):
            self.store.delete(f"quarantine/{name}")

    def tidy(self) -> None:
        """Delete half-written files of killed runs. Only under the lock."""
        for name in self.store.list("tmp"):
            self.store.delete(f"tmp/{name}")

    def settle(self) -> None:
        """Delete all pending records. Only after a complete run, under the lock."""
        for name in self.names("pending"):
            self.store.delete(f"pending/{name}")


def check_place(root: str, archive: str) -> None:
    """Check that a folder can serve as state folder. Raises UsageError.

    It must be a folder, not a URL, and not the archive's own. Neither may it be inside a folder that the archive
    keeps, nor the archive inside one that the state keeps: each empties its ``tmp``.
    """
    if "://" not in archive:
        ours, theirs = Path(root).resolve(), Path(archive).resolve()
        kept = {*(ours / folder for folder in FOLDERS), *(theirs / folder for folder in ARCHIVE_FOLDERS)}
        if ours == theirs or kept & {ours, theirs, *ours.parents, *theirs.parents}:
            raise UsageError(f"expected a folder of its own as state, found {root} with the archive at {archive}")
    if "://" in root:
        raise UsageError(
            f"expected a folder as state, found {root}: for many machines, name one on a shared file system"
        )

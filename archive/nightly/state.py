"""The folder that a nightly job remembers by: receipts, what is pending, quarantine, reports, the lock. Spec: FORMAT.md.

Every file appears whole and synced or not at all, through the archive's own store. The lock is the system's (flock), so a killed run
leaves it open; on a network file system it holds as far as that system's locks do.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pltz.archive.errors import ArchiveError, StoreError, reason
from pltz.archive.nightly import receipt
from pltz.archive.nightly.receipt import Ledger, Receipt
from pltz.archive.storage.disk import OsDisk
from pltz.archive.storage.store import FOLDERS as ARCHIVE_FOLDERS
from pltz.archive.storage.store import DirectoryStore
from pltz.plt_codec.errors import FormatError, UsageError, VersionError

FOLDERS = ("receipts", "pending", "quarantine", "reports", "tmp")
NAME = re.compile(r"[0-9a-f]{32}")
SMALL = 1 << 20  # bytes of a receipt that is read; larger ones are mapped


class Busy(ArchiveError):
    """Another run has this state folder."""


class State:
    """An open state folder. ``make`` it before anything is written."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.store = DirectoryStore(OsDisk(root), reserve=False)
        self.damaged: set[str] = set()  # receipts that were passed over

    def make(self) -> None:
        """Create it, durably. Raises StoreError."""
        try:
            for folder in ("", *FOLDERS):
                self.store.disk.make_directory(folder)
            self.store.disk.sync_directory("")
        except OSError as exc:
            raise StoreError(f"cannot make the state folder {self.root}: {exc.strerror or exc}") from exc

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only run. Raises Busy, StoreError where the lock's file cannot be made."""
        try:
            handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise StoreError(
                f"cannot lock the state folder {self.root}: {reason(exc)}; nothing was done"
            ) from exc
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                who = os.pread(handle, 200, 0).decode("utf-8", "replace").strip()
                raise Busy(f"another run is going on ({who}): nothing was done") from exc
            os.ftruncate(handle, 0)
            with suppress(OSError):  # who runs is a hint for people; on a full disk it goes without
                os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            yield
        finally:
            os.close(handle)

    def names(self, folder: str) -> list[str]:
        """Files of a folder that bear a digest as their name; none where there is no folder."""
        try:
            return sorted(name for name in self.store.list(folder) if NAME.fullmatch(name))
        except StoreError:
            if (self.root / folder).is_dir():
                raise
            return []

    def refresh(self, ledger: Ledger, folder: str = "receipts") -> Ledger:
        """Take in what is new, drop what is gone."""
        there = self.names(folder)
        ledger.keep(there)
        for name in sorted(set(there) - ledger.names - self.damaged):
            try:
                ledger.add(name, self._open(folder, name))
            except (FileNotFoundError, VersionError):  # one of a newer pltz is left for that
                continue
            except FormatError:
                self.damaged.add(name)
        return ledger

    def _open(self, folder: str, name: str) -> Receipt:
        path = f"{folder}/{name}"
        data: bytes | memoryview = self.store.read(path, 0, SMALL)
        if len(data) == SMALL:
            data = self.store.view(path)
        return Receipt.decode(data, name)

    def intend(self, run: int, rows: Mapping[bytes, bytes]) -> str:
        """Say, durably, what is about to be put."""
        return self._receipt("pending", run, rows)

    def done(self, run: int, rows: Mapping[bytes, bytes], pending: str | None = None) -> None:
        """Say, durably, what was put; after that ``pending`` may go."""
        if rows:
            self._receipt("receipts", run, rows)
        if pending:
            self.store.delete(f"pending/{pending}")

    def _receipt(self, folder: str, run: int, rows: Mapping[bytes, bytes]) -> str:
        name, data = receipt.encode(run, rows)
        self.store.put(f"{folder}/{name}", data)
        return name

    def merge(self) -> None:
        """Put one receipt in the place of many. A crash leaves some beside it, which say the same."""
        ledger = self.refresh(Ledger())
        for name in self.damaged:
            self.store.delete(f"receipts/{name}")
        if len(ledger.names) < 2:
            return
        name, data = receipt.merged(ledger.receipts)
        self.store.put(f"receipts/{name}", data)
        for old in sorted(ledger.names - {name}):
            self.store.delete(f"receipts/{old}")

    def quarantine(self, name: str, data: bytes) -> None:
        """Keep what is said of a session that was not taken."""
        self.store.put(f"quarantine/{name}", data)

    def release(self, staying: Iterable[str]) -> None:
        """Drop from the quarantine what a whole run did not meet again."""
        for name in sorted(set(self.names("quarantine")) - set(staying)):
            self.store.delete(f"quarantine/{name}")

    def tidy(self) -> None:
        """Delete what killed runs left half written. Only under the lock."""
        for name in self.store.list("tmp"):
            self.store.delete(f"tmp/{name}")

    def settle(self) -> None:
        """Nothing is pending any more. Only after a whole run, under the lock."""
        for name in self.names("pending"):
            self.store.delete(f"pending/{name}")


def check_place(root: str, archive: str) -> None:
    """Raises UsageError where a state folder cannot be: in another place than a folder, or where the archive is, or one of them in a folder
    that the other keeps: each empties its ``tmp``."""
    if "://" not in archive:
        ours, theirs = Path(root).resolve(), Path(archive).resolve()
        kept = {*(ours / folder for folder in FOLDERS), *(theirs / folder for folder in ARCHIVE_FOLDERS)}
        if ours == theirs or kept & {ours, theirs, *ours.parents, *theirs.parents}:
            raise UsageError(
                f"expected a folder of its own as state, found {root} with the archive at {archive}"
            )
    if "://" in root:
        raise UsageError(
            f"expected a folder as state, found {root}: for many machines, name one on a shared file system"
        )

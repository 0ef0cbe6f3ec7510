"""Fixtures of the hook's tests: a small archive of token ids, locks and entries.

The codec is zlib (tests/archive/conftest.py): exact, fast, without weights.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.archive.storage.store import DirectoryStore
from pltz.coding.codecs.codec import SegmentCodec
from pltz.serving.eviction.hook import EvictionHook, HookSettings
from pltz.serving.eviction.journal.entry import JournalEntry
from pltz.serving.eviction.journal.lock import FileLocks, Lock
from pltz.serving.eviction.journal.reader import JournalReader
from pltz.serving.eviction.tokenizers import Tokenizers
from pltz.serving.eviction.worker import Worker
from tests.archive.simulated_disk import SimDisk
from tests.archive.towers import SessionArchive, TowerArchive
from tests.serving.eviction.opened import TARGET, BadDisk, Opened, worker_in_thread


class MemoryLocks:
    """The locks of one simulated machine. A crash frees all, with a new object. Their files are durable at once."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.held: set[str] = set()

    def take(self, name: str) -> Lock | None:
        if name in self.held:
            return None
        self.held.add(name)
        if name not in self.disk.seen.names:
            inode = 1 + max([*self.disk.seen.data, *self.disk.durable.data, 0])
            for state in (self.disk.seen, self.disk.durable):
                state.names[name], state.data[inode] = inode, b""
        return SimpleNamespace(free=lambda: self.held.discard(name))


class Bench:
    """A disk with an archive and a journal in one root: both keep to their own names."""

    def __init__(self, disk: SimDisk, codec: SegmentCodec) -> None:
        self.disk, self.codec, self.locks = disk, codec, MemoryLocks(disk)
        self.backlog = JournalReader(disk, self.locks)

    def archive(self) -> SessionArchive:
        bundle: Any = SimpleNamespace(tokenizer=SimpleNamespace(fingerprint=self.codec.tokenizer))
        return SessionArchive(TowerArchive.open(DirectoryStore(self.disk), [self.codec]), [bundle])

    def worker(self, **options: Any) -> Worker:
        return Worker(self.backlog, Tokenizers(self.disk), lambda: self.archive().cold, **options)

    def versions(self) -> list[tuple[str, list[int]]]:
        """Return (name, ids) of every version in the archive, oldest first."""
        found = self.archive().archive
        return [(v.name, found.tower(v).tokens.tolist()) for v in found.ls(history=True)]


def entry(name: str, count: int, seed: int = 0, time: int = 1_000_000_000, **options: Any) -> JournalEntry:
    """Return an entry of ``count`` ids. Fewer ids are a prefix of more."""
    return JournalEntry(name, np.random.default_rng(seed).integers(0, 1000, 64)[:count], time, **options)


@pytest.fixture
def bench(disk: SimDisk, codec: SegmentCodec) -> Bench:
    """Make a bench on a simulated disk, with an empty archive."""
    TowerArchive.create(DirectoryStore(disk), [codec])
    return Bench(disk, codec)


@pytest.fixture
def open_hook(tmp_path: Path) -> Iterator[Opened]:
    """Return ``open_hook(memory_bytes=...)``, which opens a hook without a worker on a disk that can fail."""
    made: list[EvictionHook] = []

    def open_one(folder: str = "journal", **settings: Any) -> EvictionHook:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        disk = BadDisk(root)
        disk.failing = {}
        chosen = HookSettings(**{"flush_seconds": 0.005, **settings})
        made.append(EvictionHook(disk, FileLocks(root), target=TARGET, settings=chosen))
        return made[-1]

    yield open_one
    for hook in made:
        hook.close(1.0)


@pytest.fixture
def in_thread() -> Iterator[None]:
    """Let hooks have their worker in a thread."""
    with worker_in_thread():
        yield

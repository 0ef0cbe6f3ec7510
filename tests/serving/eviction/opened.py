"""Helpers of the tests of an open hook: a disk that can fail, a worker in a thread, the journal's entries, waiting."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pltz.archive.storage.disk import OsDisk
from pltz.serving.eviction import background
from pltz.serving.eviction.hook import EvictionHook
from pltz.serving.eviction.journal.entry import JournalEntry

TARGET = bytes(range(16))
Opened = Callable[..., EvictionHook]


class BadDisk(OsDisk):
    """A disk whose calls can be made to fail."""

    failing: dict[str, int]  # call -> errno

    def append(self, path: str, data: bytes) -> None:
        self._perhaps("append")
        super().append(path, data)

    def write_new(self, path: str, data: bytes) -> None:
        self._perhaps("write_new")
        super().write_new(path, data)

    def sync_file(self, path: str) -> None:
        self._perhaps("sync_file")
        super().sync_file(path)

    def _perhaps(self, call: str) -> None:
        if call in self.failing:
            raise OSError(self.failing[call], os.strerror(self.failing[call]))


def entries(hook: EvictionHook) -> list[JournalEntry]:
    """Return the entries of the journal."""
    backlog = hook.backlog
    return [entry for segment in backlog.segments() for _, entry in backlog.read(segment)]


def eventually(what: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(what())


class ThreadWorker:
    """The worker of a hook in a thread of this process: another process takes seconds to begin."""

    def __init__(self, config: Mapping[str, Any], teller: background.Teller) -> None:
        self._stop = threading.Event()
        self._worker = background._worker(config, lambda done: teller.see(background._fields(done)))
        self._thread = threading.Thread(target=self._worker.run, args=(self._stop.wait,), daemon=True)
        self._thread.start()

    @property
    def done(self) -> Mapping[str, Any]:
        return background._fields(self._worker.done) | {"alive": self._thread.is_alive()}

    def close(self, timeout: float) -> None:
        self._stop.set()
        self._thread.join(timeout)


@contextmanager
def worker_in_thread() -> Iterator[None]:
    """Let hooks that are opened meanwhile have their worker in a thread."""
    with patch.object(background, "Process", ThreadWorker):
        yield

"""Process: the hook's worker beside the serving loop, in a process of its own.

The process is `main`, run by the same Python, which imports nothing from the current directory
(`child_python`). Its configuration arrives on stdin as one line of JSON. It reports on stdout, one line per
commit. It ends after its commit when stdin closes, because the hook was closed or died. A process that dies
is restarted, at growing intervals. It runs at low priority. A thread would share the GIL, and delay the serving loop up
to 5 ms at a time: evictions were durable after 676 to 1022 ms beside one, and after 34 to 391 ms beside a process.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pltz.archive import Archive, KeySource, OsDisk, Secret, opener
from pltz.plt_codec import UsageError, command, environment
from pltz.serving.eviction.journal.lock import FileLocks
from pltz.serving.eviction.journal.reader import JournalReader
from pltz.serving.eviction.tokenizers import Tokenizers
from pltz.serving.eviction.worker import Drained, Worker

if TYPE_CHECKING:
    from pltz.models import Bundle
    from pltz.serving.eviction.settings import HookSettings

PROGRAM = "from pltz.serving.eviction.background import main; main()"
NAME = b"pltz-hook"  # of the process, at most 15 bytes
log = logging.getLogger("pltz.hook")

RESTART = 1.0, 60.0  # seconds before a worker that died is restarted: first, longest
TOLD = 20  # refusals per line


# Called with session, tenant and reason of an entry that the archive refuses.
Aside = Callable[[str, str, str], None]


def start(
    journal: Path,
    archive: str | os.PathLike[str],
    bundle: Bundle | str | os.PathLike[str] | None,
    key: KeySource | None,
    settings: HookSettings,
    aside: Aside,
) -> Process:
    """Start a worker for a journal.

    The archive and its bundle are opened here once, so that their errors are raised at once: UsageError,
    ModelError, KeyMismatch, FormatError and StoreError.
    """
    from pltz.models import Bundle

    if key is not None and not isinstance(key, Secret):
        raise UsageError("a key service stays in its process: pass a Secret, or drain the journal by `pltz hook drain`")
    loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
    opened = opener.open_at(archive, key=key)
    opened.want_key()
    config: dict[str, Any] = {
        "journal": str(journal.absolute()),
        "archive": _absolute(archive),
        "identity": opened.settings.archive.hex(),
        "bundle": str(loaded.path),
        "key": key and [base64.b64encode(key.material).decode(), key.kdf],
        "threads": settings.threads,
        "layout": settings.layout,
        "model_ids": settings.model_ids,
        "merge_turns": settings.merge_turns,
        "batch_tokens": settings.batch_tokens,
        "nice": settings.nice,
    }
    return Process(config, Teller(aside))


class Teller:
    """A log of sessions laid aside, and of reasons why nothing is archived.

    Only `EvictionHook.status` would show them otherwise.
    """

    def __init__(self, aside: Aside) -> None:
        self._aside, self._rejected, self._failure = aside, 0, ""

    def see(self, fields: Mapping[str, Any]) -> None:
        """Log the news since the last call. ``fields``: `Process.done`."""
        rejected = fields.get("rejected", 0)
        new = rejected - self._rejected if rejected >= self._rejected else rejected  # of a new process
        self._rejected = rejected
        for tenant, name, why in fields.get("refused", [])[-new:] if new else []:
            self._aside(name, tenant, why)
        failure = fields.get("failure", "")
        if failure and failure != self._failure:
            log.warning("nothing is archived now, evictions wait in the journal: %s", failure)
        if self._failure and not failure:
            log.warning("evictions are archived again")
        self._failure = failure

    def ended(self, code: int, pause: float) -> None:
        """Log that the worker's process died."""
        log.warning("the worker's process ended with exit code %d: started again in %g s", code, pause)


class Process:
    """A worker in a process of its own, and the thread that listens to it."""

    def __init__(self, config: Mapping[str, Any], teller: Teller) -> None:
        self._teller = teller
        self._config = json.dumps(config).encode() + b"\n"
        self._closing = threading.Event()
        self._last: dict[str, Any] = Drained().as_fields()
        self._restarts = 0
        self._child = self._spawn()
        self._listener = threading.Thread(target=self._listen, name="pltz-hook-listener", daemon=True)
        self._listener.start()

    @property
    def done(self) -> Mapping[str, Any]:
        """Return its results so far (`Drained.as_fields`), ``alive``, its ``pid`` and the number of ``restarts``."""
        alive = self._child.poll() is None
        return self._last | {"alive": alive, "pid": self._child.pid, "restarts": self._restarts}

    @property
    def pid(self) -> int:
        """Return the id of the current process."""
        return self._child.pid

    def close(self, timeout: float) -> None:
        """End it after its commit. It is killed after ``timeout`` seconds, which the journal tolerates."""
        self._closing.set()
        self._end(timeout)
        self._listener.join(timeout)

    def _end(self, timeout: float) -> None:
        """End the child after its commit."""
        child = self._child
        with suppress(OSError):
            assert child.stdin is not None
            child.stdin.close()
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(command(PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
        assert child.stdin is not None
        with suppress(OSError):  # it died at once: the listener handles that
            child.stdin.write(self._config)
            child.stdin.flush()
        return child

    def _listen(self) -> None:
        pause, longest = RESTART
        while True:
            assert self._child.stdout is not None
            began = time.monotonic()
            for line in self._child.stdout:
                with suppress(ValueError):
                    self._last = json.loads(line)
                    self._teller.see(self._last)
            code = self._child.wait()
            if time.monotonic() - began > longest:
                pause = RESTART[0]
            if not self._closing.is_set():
                self._teller.ended(code, pause)
            if self._closing.wait(pause):
                return
            pause = min(2 * pause, longest)
            self._restarts += 1
            self._child = self._spawn()
            if self._closing.is_set():  # `close` ended the one before
                self._end(1.0)
                return


def main() -> None:
    """Run the worker of a process: read its configuration from stdin and work until stdin closes."""
    with suppress(OSError):  # Linux only: the name that ps -o comm, top and pgrep show
        Path("/proc/self/comm").write_bytes(NAME)
    config = json.loads(sys.stdin.buffer.readline())
    # Linux only: nice has no effect on a process that inherits real-time scheduling
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(config["nice"])
    worker = _worker(config, _say)

    def stop(seconds: float) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return bool(ready)  # nothing more is ever sent: it was closed

    worker.run(stop)


def _say(done: Drained) -> None:
    """Report results to the listener."""
    with suppress(OSError):  # the listener is gone; stdin shows that, too
        sys.stdout.buffer.write(json.dumps(_fields(done)).encode() + b"\n")
        sys.stdout.buffer.flush()


def _worker(config: Mapping[str, Any], progress: Callable[[Drained], None]) -> Worker:
    disk = OsDisk(config["journal"])
    key = config["key"] and Secret(base64.b64decode(config["key"][0]), config["key"][1])

    def open_archive() -> Archive:
        return Archive(
            opener.open_at(config["archive"], key=key),
            name=config["archive"],
            bundle=config["bundle"],
            threads=config["threads"],
            layout=config["layout"],
            model_ids=config["model_ids"],
            merge_turns=config["merge_turns"],
        )

    return Worker(
        JournalReader(disk, FileLocks(config["journal"])),
        Tokenizers(disk),
        open_archive,
        batch_tokens=config["batch_tokens"],
        progress=progress,
        identity=bytes.fromhex(config["identity"]),
    )


def _fields(done: Drained) -> dict[str, Any]:
    return done.as_fields() | {"refused": done.refused[-TOLD:]}


def _absolute(place: str | os.PathLike[str]) -> str:
    if isinstance(place, str) and "://" in place:
        return place
    return str(Path(place).absolute())

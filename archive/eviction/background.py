"""Background: the hook's worker, beside the serving loop: in a process of its own, or a thread.

The process is `main` run by the same Python, which imports nothing from the current directory (`child_python`): its configuration comes in on stdin as one line of JSON,
what it did goes out on stdout, one line a commit, and it ends after its commit when stdin closes: when the hook is closed, or dies. One that dies
is started again, later each time. Both run at low priority.

Which one: a thread shares the interpreter, so its Python may hold up the serving loop, for up to 5 ms at a time (`sys.setswitchinterval`); a process
cannot. `pltz bench hook` measures both; in benchmarks/results/hook.json evictions are durable after 34 to 391 ms beside a process, and 676 to 1022 beside a thread.
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
from typing import TYPE_CHECKING, Any, Protocol

from pltz.archive.child_python import command, environment
from pltz.archive.encryption.keys import Secret
from pltz.archive.eviction.journal.lock import FileLocks
from pltz.archive.eviction.journal.reader import Backlog
from pltz.archive.eviction.tokenizers import Tokenizers
from pltz.archive.eviction.worker import Drained, Worker
from pltz.archive.storage.disk import OsDisk
from pltz.archive.token_archive import TokenArchive

if TYPE_CHECKING:
    from pltz.archive.eviction.settings import HookSettings
    from pltz.models.bundle.bundle import Bundle

PROGRAM = "from pltz.archive.eviction.background import main; main()"
log = logging.getLogger("pltz.hook")

RESTART = 1.0, 60.0  # seconds until a worker that died is started again: at first, at most
TOLD = 20  # refusals in a line


Aside = Callable[
    [str, str, str], None
]  # told of the session, its tenant and why, where the archive cannot take it


class Background(Protocol):
    """A worker that runs."""

    @property
    def done(self) -> Mapping[str, Any]:
        """What it did so far: `Drained.as_fields`, and ``alive``."""

    def close(self, timeout: float) -> None:
        """End it after its commit; killed, if that takes longer: the journal does not mind."""


def start(
    kind: str,
    journal: Path,
    archive: str | os.PathLike[str],
    bundle: Bundle | str | os.PathLike[str] | None,
    key: Secret | None,
    settings: HookSettings,
    aside: Aside,
) -> Background:
    """Start a worker for a journal. The archive and its bundle are opened here once, so that what is wrong with them is said at once."""
    from pltz.models.bundle.bundle import Bundle

    loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
    cold = TokenArchive.open(
        archive, bundle=loaded, key=key, threads=settings.threads, layout=settings.layout
    )
    config: dict[str, Any] = {
        "journal": str(journal.absolute()),
        "archive": _absolute(archive),
        "identity": cold.archive.settings.archive.hex(),
        "bundle": str(loaded.path),
        "key": key and [base64.b64encode(key.material).decode(), key.kdf],
        "threads": settings.threads,
        "layout": settings.layout,
        "zstd_above": settings.zstd_above,
        "batch_tokens": settings.batch_tokens,
        "nice": settings.nice,
    }
    return Process(config, Teller(aside)) if kind == "process" else Thread(config, Teller(aside))


class Teller:
    """Says in the log what else only `EvictionHook.status` would: sessions that are laid aside, and why nothing is archived."""

    def __init__(self, aside: Aside) -> None:
        self._aside, self._rejected, self._failure = aside, 0, ""

    def see(self, fields: Mapping[str, Any]) -> None:
        """Tell what is new since the last call. ``fields``: `Background.done`."""
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
        """Tell that the worker's process died."""
        log.warning("the worker's process ended with exit code %d: started again in %g s", code, pause)


class Thread:
    """A worker in a thread."""

    def __init__(self, config: Mapping[str, Any], teller: Teller) -> None:
        self._config = config
        self._stop = threading.Event()
        self._worker = _worker(config, lambda done: teller.see(_fields(done)))
        self._thread = threading.Thread(target=self._run, name="pltz-hook-worker", daemon=True)
        self._thread.start()

    @property
    def done(self) -> Mapping[str, Any]:
        return _fields(self._worker.done) | {"alive": self._thread.is_alive()}

    def close(self, timeout: float) -> None:
        self._stop.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        with suppress(OSError, AttributeError):  # Linux only: the priority of one thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._config["nice"])
        self._worker.run(self._stop.wait)


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
        return self._last | {"alive": self._child.poll() is None, "restarts": self._restarts}

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._child.pid

    def close(self, timeout: float) -> None:
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
        child = subprocess.Popen(
            command(PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        assert child.stdin is not None
        with suppress(OSError):  # it died at once: the listener sees to it
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
    """The process: configuration from stdin, until stdin closes."""
    config = json.loads(sys.stdin.buffer.readline())
    with suppress(OSError, AttributeError):  # Linux only: nice means nothing to what inherits real time
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(config["nice"])
    worker = _worker(config, _say)

    def stop(seconds: float) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return bool(ready)  # nothing more is ever sent: it was closed

    worker.run(stop)


def _say(done: Drained) -> None:
    """Tell the listener what was done."""
    with suppress(OSError):  # nobody listens any more; stdin says so, too
        sys.stdout.buffer.write(json.dumps(_fields(done)).encode() + b"\n")
        sys.stdout.buffer.flush()


def _worker(config: Mapping[str, Any], progress: Callable[[Drained], None]) -> Worker:
    disk = OsDisk(config["journal"])
    key = config["key"] and Secret(base64.b64decode(config["key"][0]), config["key"][1])

    def open_archive() -> TokenArchive:
        return TokenArchive.open(
            config["archive"],
            bundle=config["bundle"],
            key=key,
            threads=config["threads"],
            layout=config["layout"],
            zstd_above=config["zstd_above"],
        )

    return Worker(
        Backlog(disk, FileLocks(config["journal"])),
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

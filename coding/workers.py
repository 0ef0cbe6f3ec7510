"""Workers: processes that run the methods of one object beside the caller, for work that holds Python's lock.

    workers = Workers(LogTables(tokenizer), 4)
    workers.on = True
    later = workers.submit("draft", content, b"")                 # a process has it
    draft = later.result()                                        # what LogTables.draft returns

Each process has a copy of the object. The methods return the same wherever they run, so results are the same for any
number of processes. With none they run where the result is asked for. So do those of a
process that ended or could not start.
"""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import IO, Any, Protocol, TypeVar, cast

from pltz.coding.threads import giving_way
from pltz.plt_codec.child_python import command, environment

MOST = 12  # processes: those that one GPU keeps busy
START_BYTES = 1 << 21  # of content in one call from which processes are worth it: they take a second to start
CODE = "from pltz.coding.workers import main; main()"
SINGLE = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # threads of libraries in a process

T = TypeVar("T")


class Later(Protocol):
    """A result to come."""

    def result(self) -> Any:
        """Return the result once it is there. Raises what the method raised."""


class WhenAsked:
    """A call that runs when its result is asked for."""

    def __init__(self, call: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._call, self._arguments = call, arguments

    def result(self) -> Any:
        """Run the call, once."""
        if self._arguments is not None:
            call, arguments = self._call, self._arguments
            self._value = call(*arguments)
            self._arguments = cast("Sequence[Any]", None)  # they may be large
        return self._value


class Executor(Protocol):
    """Owner of an object, or of several alike, whose methods it runs: here, in threads, or in processes."""

    def submit(self, method: str, *arguments: Any) -> Later:
        """Run a method, by its name."""


_Call = tuple["Future[Any]", str, tuple[Any, ...]]  # its result to come, the method and its arguments
_Calls = queue.PriorityQueue[tuple[int, int, "_Call | None"]]  # NOW, WAITS or END, in their order
NOW, WAITS, END = range(3)


class _Shared(Future[Any]):
    """A result to come. Who asks for it beside one process does calls that wait: else one of two cores is idle."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    def result(self, timeout: float | None = None) -> Any:
        """Return the result once it is there. Raises what the method raised."""
        if self._workers.count == 1:
            with giving_way():  # to the thread of that process
                while not self.done() and self._workers.help():
                    pass
        return super().result(timeout)


class Workers:
    """Processes that each have a copy of an object, which can be pickled.

    Attributes:
        count: number of processes, which start with the first call; 0: there are none.
        on: whether calls go to them; else they run here, when their result is asked for.
        unanswered: number of calls that ran here because no process answered them.
    """

    def __init__(self, of: Any, count: int = 0) -> None:
        self.count = count
        self.on = False
        self.unanswered = 0
        self._here = of
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._calls, self._order = _Calls(), itertools.count()
        self._started = False

    def submit(self, method: str, *arguments: Any, now: bool = False) -> Later:
        """Call a method of the object in a process. A copy of this one that was forked has none.

        ``now``: before the calls that wait already, since the caller has nothing else to do.
        """
        if not (self.count and self.on) or os.getpid() != self._process:
            return WhenAsked(self.here, (method, *arguments))
        if not self._started:
            self._start()
        future = _Shared(self)
        self._calls.put((NOW if now else WAITS, next(self._order), (future, method, arguments)))
        return future

    def map(self, method: str, rows: Iterable[Sequence[Any]]) -> list[Any]:
        """Return the results of a method for each row of arguments."""
        return [later.result() for later in [self.submit(method, *row) for row in rows]]

    def help(self) -> bool:
        """Run the next call that waits here. Returns whether there was one."""
        try:
            entry = self._calls.get_nowait()
        except queue.Empty:
            return False
        if (call := entry[-1]) is None:  # for the thread of the process
            self._calls.put(entry)
            return False
        try:
            call[0].set_result(self.here(call[1], *call[2]))
        except BaseException as exc:
            call[0].set_exception(exc)
            if not isinstance(exc, Exception):
                raise
        time.sleep(0)  # lets that thread give its process the next one
        return True

    def here(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object in this process."""
        with self._lock:
            return getattr(self._here, method)(*arguments)

    def _start(self) -> None:
        self._started = True
        made = pickle.dumps(self._here)
        for _ in range(self.count):
            thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._calls, made), daemon=True)
            thread.start()
            weakref.finalize(self, self._calls.put, (END, next(self._order), None))


def ahead(rows: Iterable[T], count: int, weight: Callable[[T], int] = lambda _: 1, first: int = 1) -> Iterator[T]:
    """Yield rows, each after the next ``count`` of them were taken, so that work on these has begun.

    The first row waits for ``first``, each further row for one more, up to ``count``. ``weight``: of a row that
    counts as several. An error of their source is raised after those before it.

    >>> [row for row in ahead(range(4), 2)]
    [0, 1, 2, 3]
    """
    source, taken = iter(rows), deque[tuple[T, int]]()
    behind, wanted, error = 0, min(first, count), None  # behind: weight of those behind the first
    while True:
        try:
            row = next(source)
        except StopIteration:
            break
        except Exception as exc:  # noqa: BLE001 - raised below
            error = exc
            break
        behind += weight(row) if taken else 0
        taken.append((row, weight(row)))
        del row
        while taken and behind >= wanted:
            yield taken.popleft()[0]
            behind -= taken[0][1] if taken else 0
            wanted = min(count, wanted + 1)
    yield from (one for one, _ in taken)
    if error:
        raise error


def helpers(threads: int | None = None, share: int = 1) -> int:
    """Return how many processes work beside a model: one per core, or thread, but one, and at most `MOST`.

    ``share``: callers that share the cores.
    """
    return min(MOST, max(0, (cores() if threads is None else threads) // share - 1))


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _serve(owner: weakref.ref[Workers], calls: _Calls, made: bytes) -> None:
    """Give calls to one process until None comes. A call that it does not answer runs here."""
    process = _process()
    greeting, alive = made, process is not None
    while (call := calls.get()[-1]) is not None:
        future, method, arguments = call
        sound: bool | None = None
        answer: Any = None
        try:
            if process and alive:
                to, back = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
                to.write(greeting + pickle.dumps((method, arguments), 5))
                to.flush()
                greeting = b""
                sound, answer = pickle.load(back)
        except Exception:  # noqa: BLE001 - it ended, or something cannot be pickled
            alive = False
        try:
            if sound is None:
                workers = owner()
                here = workers.here if workers else partial(_call, pickle.loads(made))  # its owner may be gone
                if workers:
                    workers.unanswered += 1
                sound, answer = True, here(method, *arguments)
                del workers, here
        except Exception as exc:  # noqa: BLE001 - for whoever asks for the result
            sound, answer = False, exc
        if sound:
            future.set_result(answer)
        else:
            future.set_exception(answer)
        del call, future, arguments, answer  # they may be large
    if process:
        with suppress(OSError):
            cast("IO[bytes]", process.stdin).close()
        cast("IO[bytes]", process.stdout).close()
        process.wait()


def _process() -> subprocess.Popen[bytes] | None:
    """Start a process that answers calls; None where the machine has no room for one."""
    with suppress(OSError):
        return subprocess.Popen(
            command(CODE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment() | dict.fromkeys(SINGLE, "1") | {"TOKENIZERS_PARALLELISM": "false"},
        )
    return None


def _call(of: Any, method: str, *arguments: Any) -> Any:
    return getattr(of, method)(*arguments)


def main() -> None:
    """Take the object that comes on stdin, and answer calls of its methods on stdout until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process by closing its stdin
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    calls = sys.stdin.buffer
    made: Any = None
    while True:
        try:
            if made is None:
                made = pickle.load(calls)
            method, arguments = pickle.load(calls)
        except (EOFError, pickle.UnpicklingError):  # the parent ended, perhaps within a call
            return
        try:
            answer = True, getattr(made, method)(*arguments)
        except Exception as exc:  # noqa: BLE001 - for whoever asks for the result
            answer = False, exc
        try:
            answers.write(pickle.dumps(answer, 5))
            answers.flush()
        except BrokenPipeError:  # nobody waits for it
            os._exit(1)

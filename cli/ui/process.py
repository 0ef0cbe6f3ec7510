"""Prepare the process for a command: three standard streams, signals that clean up, warnings in one line.

The descriptor of a closed stream (``pltz ... >&-``) would go to the next file that is opened, and printed text would
land in that file. So the stream is reopened in the wrong direction: stdout gets a handle that cannot be written. A
command that prints fails with an error; one that does not is not affected.

SIGTERM and SIGHUP end a command as Ctrl-C does: temporary files are removed and the exit code is 1. An ignored SIGHUP
(nohup) stays ignored.
"""

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO, cast


def prepare() -> None:
    """Prepare this process for a command. Never call it in a process that uses pltz as a library."""
    sys.stdin = sys.stdin or _closed(0, "r", os.O_WRONLY)
    sys.stdout = sys.stdout or _closed(1, "w", os.O_RDONLY)
    sys.stderr = sys.stderr or _closed(2, "w", os.O_WRONLY)  # Discard stderr.
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    warnings.formatwarning = _in_one_line  # type: ignore[assignment]  # ignores all other arguments


@contextmanager
def stdout_apart() -> Iterator[None]:
    """Send to stderr what libraries print on stdout in this context, from C or in threads of theirs.

    What the thread of the caller prints stays there.
    """
    sys.stdout.flush()
    before = sys.stdout
    with ExitStack() as stack:
        own, shared = before, before is sys.__stdout__
        if shared:  # the file of this process, where C prints too
            kept = os.dup(1)
            own = stack.enter_context(open(kept, "w", encoding=before.encoding, errors=before.errors))
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        sys.stdout = cast(TextIO, _OfOneThread(own))
        try:
            yield
        finally:
            own.flush()
            sys.stdout = before


class _OfOneThread:
    """A stream for the thread that makes it, and stderr for all others."""

    def __init__(self, own: TextIO) -> None:
        self._own, self._thread = own, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own if threading.get_ident() == self._thread else sys.stderr, name)


def _closed(descriptor: int, mode: str, access: int) -> TextIO:
    """Open the null device under the descriptor of the closed stream.

    It is unbuffered, so that no write is left to fail at exit.
    """
    opened = os.open(os.devnull, access)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    raw = io.FileIO(descriptor, mode, closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)  # like python -u


def _in_one_line(message: Warning | str, *_: object) -> str:
    """Return a warning without its place in the code, which does not help a user of the command line."""
    return f"warning: {' '.join(str(message).split())}\n"

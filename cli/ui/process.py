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
import warnings
from typing import TextIO


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

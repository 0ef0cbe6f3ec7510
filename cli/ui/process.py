"""What the process needs before a command runs: three standard streams, signals that clean up, warnings in one line.

A stream that the caller closed (``pltz ... >&-``) would be taken by the next file that is opened, and what is printed would land in it.
So it is put back in the wrong direction, stdout on a handle that cannot be written: who uses it is told so, who does not is not disturbed.

SIGTERM and SIGHUP end a command as Ctrl-C does: temporary files are removed, the exit code is 1. Where SIGHUP is ignored (nohup) it stays so.
"""

import io
import os
import signal
import sys
import warnings
from typing import TextIO


def prepare() -> None:
    """Ready this process for a command; for a process of its own only, never for one that called pltz as a library."""
    sys.stdin = sys.stdin or _closed(0, "r", os.O_WRONLY)
    sys.stdout = sys.stdout or _closed(1, "w", os.O_RDONLY)
    sys.stderr = sys.stderr or _closed(2, "w", os.O_WRONLY)  # errors that nobody wants to hear
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    warnings.formatwarning = _in_one_line  # type: ignore[assignment]  # takes whatever else it is told


def _closed(descriptor: int, mode: str, access: int) -> TextIO:
    """A stream on the null device under the number that the closed one had; unbuffered, so that nothing is left to fail at exit."""
    opened = os.open(os.devnull, access)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    raw = io.FileIO(descriptor, mode, closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)  # as python -u has it


def _in_one_line(message: Warning | str, *_: object) -> str:
    """A warning for users of commands, whom it does not help to know where in the code it arose."""
    return f"warning: {' '.join(str(message).split())}\n"

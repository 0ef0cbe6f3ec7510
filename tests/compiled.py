"""Keep what a compiler makes for tests from run to run, in the user's cache folder.

A file is named by a digest of all that it is made from, the compiler's version too: a change of any makes another file.
Files that no run used for a month are removed.
"""

import fcntl
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

MONTH = 30 * 24 * 3600


def compiled(ending: str, command: list[str], text: str, make: Callable[[Path], None]) -> Path:
    """Return the file that ``make(path)`` makes from a text by a command: once for all processes, which wait for it.

    Args:
        ending: of the file's name.
        command: the compiler and its options, without the names of files.
        text: all that is compiled.
        make: writes the file to a path, or raises an error.
    """
    words = version(command[0]), *command, text
    path = folder() / f"{hashlib.blake2b(chr(0).join(words).encode(), digest_size=16).hexdigest()}{ending}"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            os.utime(path)
        else:
            part = path.with_suffix(".part")
            make(part)
            part.rename(path)
    return path


def preprocessed(command: list[str], files: list[Path]) -> str:
    """Return C sources with all that they include."""
    return subprocess.run([*command, "-E", *map(str, files)], capture_output=True, text=True, check=True).stdout


@cache
def folder() -> Path:
    """Return the folder of compiled files, without those that no run used for a month."""
    found = Path.home() / ".cache/pltz-compiled-tests"
    try:
        found.mkdir(parents=True, exist_ok=True)
        (found / "used").touch()
    except OSError:  # no home of its own, or none to write to
        found = Path(tempfile.gettempdir()) / f"pltz-compiled-tests-{os.getuid()}"
        found.mkdir(mode=0o700, exist_ok=True)
    for file in found.iterdir():
        with suppress(FileNotFoundError):
            if file.stat().st_mtime < time.time() - MONTH:
                file.unlink()
    return found


@cache
def version(compiler: str) -> str:
    """Return what a compiler says of its version."""
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout

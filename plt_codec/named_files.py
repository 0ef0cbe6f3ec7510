"""A file that a user names, read whole but for one that is larger than any of its kind."""

from __future__ import annotations

import os
import stat

from pltz.plt_codec.errors import UsageError

MAX_TOKENIZER = 1 << 28  # bytes; the largest that are published have 40 MB


def named_file(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the bytes of a file or pipe.

    Raises OSError, and UsageError where there are more than ``most``: it may be sparse, or never end.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise UsageError(f"{os.fspath(path)} has more than {most} bytes: name another file")
    return data


def secret_file(path: str | os.PathLike[str], most: int, otherwise: str = "") -> bytes:
    """Return the bytes of a file that its owner alone may read, of at most ``most``. No pipe is waited for.

    ``otherwise``: what else to do about a file that is refused, for the message.

    Raises OSError, and UsageError where it is no plain file, is larger, or others may read it.
    """
    name = os.fspath(path)
    with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"expected a key in a plain file, found none in {name}: name another file{otherwise}")
        if mode & 0o077:
            raise UsageError(f"others may read the key in {name}: chmod 600 {name}{otherwise}")
        data = file.read(most + 1)
    if len(data) > most:
        raise UsageError(f"{name} has more than {most} bytes: name another file")
    return data

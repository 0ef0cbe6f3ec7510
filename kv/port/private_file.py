"""Files and folders of this user alone, behind no link: KV, ids and tokens may lie in them in the clear."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISREG


def private_folder(path: Path) -> None:
    """Make a folder, and those above it, where they are missing. Raises OSError."""
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(0o700, exist_ok=True)


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a handle of a file, made with ``os.O_CREAT`` for its owner alone. Raises OSError.

    Neither the file nor its folder may be a symbolic link. Only a regular file is opened, so nobody waits for a pipe.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        handle = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle

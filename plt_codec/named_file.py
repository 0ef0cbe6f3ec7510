"""A file that a user names, read whole but for one that is larger than any of its kind."""

from __future__ import annotations

import os

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

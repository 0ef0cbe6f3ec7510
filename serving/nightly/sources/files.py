"""Files: those of a source that is a file or a folder, in the order of their paths, each with its size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pltz.plt_codec import UsageError


def files_of(root: Path, ends: tuple[str, ...] = ("",)) -> Iterator[tuple[str, int]]:
    """Yield the one file, or the files below a folder whose names have these ends, each with its size in bytes.

    A folder or file that cannot be read has size 0: reading it fails again later, and names it. What blocks for ever,
    as a pipe does, is left out. Raises UsageError where ``root`` cannot be read.
    """
    if root.is_file():
        yield root.name, root.stat().st_size
        return
    found: list[tuple[str, int]] = []

    def unreadable(exc: OSError) -> None:
        if Path(exc.filename) == root:
            raise UsageError(f"{root} cannot be read: {exc.strerror}") from exc
        found.append((Path(exc.filename).relative_to(root).as_posix(), 0))

    for base, _, names in os.walk(root, onerror=unreadable):
        for name in names:
            path = Path(base, name)
            if name.lower().endswith(ends) and (size := _size(path)) is not None:
                found.append((path.relative_to(root).as_posix(), size))
    yield from sorted(found)


def _size(path: Path) -> int | None:
    """Return the bytes of a file, 0 where they are unknown, None where it is missing or no plain file."""
    try:
        return path.stat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None
    except OSError:
        return 0

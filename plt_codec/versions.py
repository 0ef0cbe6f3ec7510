"""Choose the reader of a file by the version that the file says it has.

Each format has one table, beside its code:

    READERS = Readers("the pack", {1: _read_table})
    ...
    read = READERS[version]          # raises VersionError where this pltz has none
    contexts = read(data)

To read two versions, keep the old reader and add a line: ``{1: _read_table, 2: _read_table_2}``. Only the newest is
written. `docs/formats.md` says which versions must be kept, `tests/plt_codec/test_versions.py` adds a reader to each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from pltz.plt_codec.errors import VersionError

Reader = TypeVar("Reader")
NEWER = "use a newer pltz"


class Readers(dict[Any, Reader]):
    """The readers of one format, by version. ``subject``: the file or its part in messages, as "the pack".

    >>> Readers("the pack", {1: bytes, 2: str})[3]
    Traceback (most recent call last):
    pltz.plt_codec.errors.VersionError: the pack is of version 3, this pltz reads 1 and 2: use a newer pltz
    """

    def __init__(self, subject: str, by_version: Mapping[int, Reader]) -> None:
        super().__init__(by_version)
        self.subject = subject

    def __missing__(self, version: object) -> NoReturn:
        """Raise VersionError for a version that has none."""
        known = " and ".join(map(str, self))
        raise VersionError(f"{self.subject} is of version {version!r:.40}, this pltz reads {known}: {NEWER}")


def number_in(text: object, name: str) -> int | None:
    """Return the version in a text of a format's name and a number, None where it is none.

    >>> number_in("pltz hot 6", "pltz hot"), number_in("pltz hot -6", "pltz hot"), number_in("zip", "pltz hot")
    (6, None, None)
    """
    found = str(text).removeprefix(f"{name} ")
    return int(found) if text == f"{name} {found}" and len(found) < 9 and found.isascii() and found.isdigit() else None

"""Places: the store at a path, or in a bucket at a URL.

    open_store("/data/cold")             DirectoryStore
    open_store("s3://bucket/cold")       ObjectStore
"""

from __future__ import annotations

import os

from pltz.archive.storage.disk import OsDisk
from pltz.archive.storage.s3 import ObjectStore
from pltz.archive.storage.seen import place_folder
from pltz.archive.storage.store import DirectoryStore, Store
from pltz.plt_codec.errors import UsageError


def open_store(place: str | os.PathLike[str]) -> Store:
    """Return the store at a path, or at a URL ``s3://bucket/prefix``. Raises UsageError.

    >>> open_store("/tmp/cold").now() > 0
    True
    """
    name = os.fspath(place)
    if not name or "://" in name.removeprefix("s3://"):
        raise UsageError(f"expected a directory or s3://bucket/prefix, found {name!r}")
    if isinstance(place, str) and place.startswith("s3://"):
        return ObjectStore(place)
    if os.path.exists(place) and not os.path.isdir(place):
        raise UsageError(f"expected the directory of an archive, found a file: {name}")
    return DirectoryStore(OsDisk(place), cache=place_folder(os.path.realpath(name)))

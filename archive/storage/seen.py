"""Seen: the highest generations of manifests that a machine saw, so that one from a backup is known as older.

Also the latest moment at which it put a version, so that a clock that goes back makes none older.

    seen = SeenGenerations(place_folder("/data/cold"))
    seen.note(archive, 12, durable=True)
    seen.highest()                  {archive: 12}, in other processes of this machine too
    seen.saw_moment(archive, ticks)
    seen.moment(archive)            ticks, in other processes too once they read the file

They are kept per place: by all objects of a process together, and outside the archive, in the user's cache folder. A
backup that is brought back does not bring them back. Spec: WRITING.md, "The register".
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock

from pltz.archive.format.record import MAX_MOMENT
from pltz.plt_codec.identity import digest

GENERATION = "generation"  # file of the cache: id of the archive, the highest generation and moment seen of it
LONGEST = 128  # bytes of it

PLACES: dict[Path, tuple[dict[bytes, int], dict[bytes, int]]] = {}  # by folder generations and moments, by archive
LOCK = Lock()  # of all of them


class SeenGenerations:
    """The highest generations of manifests that were seen in one place.

    ``folder``: where this machine keeps them, one for each place; None keeps them in this object alone.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._seen, self._moments = PLACES.setdefault(folder, ({}, {})) if folder else ({}, {})
        self._kept: dict[bytes, int] = {}  # those of the file
        self._folder = folder

    def highest(self) -> Mapping[bytes, int]:
        """Return the highest generation that was seen, by archive. It asks the store nothing."""
        if self._folder:
            with suppress(OSError, ValueError):  # by other processes of this machine too
                archive, generation, moment = _read(f"{self._folder}/{GENERATION}")
                self._kept[archive] = max(generation, self._kept.get(archive, 0))
                self._saw(archive, generation)
                self.saw_moment(archive, moment)
        return dict(self._seen)

    def _saw(self, archive: bytes, generation: int) -> None:
        with LOCK:
            self._seen[archive] = max(generation, self._seen.get(archive, 0))

    def moment(self, archive: bytes) -> int:
        """Return the latest moment at which a version was put, in ticks since 1970; 0 where none is known."""
        return self._moments.get(archive, 0)

    def saw_moment(self, archive: bytes, moment: int) -> None:
        """Remember the moment of a version. The next `note` writes it."""
        with LOCK:
            self._moments[archive] = max(moment, self._moments.get(archive, 0))

    def note(self, archive: bytes, generation: int, *, durable: bool) -> None:
        """Remember that the manifest of an archive had a generation; one below those remembered changes nothing.

        ``durable``: no power cut undoes it, so that other processes may know it too.
        """
        self._saw(archive, generation)
        if durable and self._folder and generation > self._kept.get(archive, 0):
            self.highest()  # others may have noted a higher one
            if generation > self._kept.get(archive, 0):
                self._kept[archive] = generation
                with suppress(OSError):  # an unwritable cache tells other processes nothing
                    _write(self._folder, archive, generation, self.moment(archive))


def _read(path: str) -> tuple[bytes, int, int]:
    """Return what a file says. Raises OSError, ValueError where that is nothing, or what two processes write now."""
    with open(path, "rb", buffering=0) as file:
        *fields, check = file.read(LONGEST).split()
    archive, generation, moment = fields
    numbers = int(generation), int(moment)
    if int(check, 16) != _check(fields) or max(numbers) >= MAX_MOMENT:
        raise ValueError("a file that is no longer whole")
    return bytes.fromhex(archive.decode()), *numbers


def _write(folder: Path, archive: bytes, generation: int, moment: int) -> None:
    """Write the file in place: a rename would make a file system write it out, which puts wait for. Raises OSError."""
    fields = archive.hex().encode(), b"%019d" % generation, b"%019d" % moment
    data = b"%s %s %s %08x\n" % (*fields, _check(fields))
    path = f"{folder}/{GENERATION}"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.pwrite(handle, data, 0)
    finally:
        os.close(handle)


def _check(fields: Iterable[bytes]) -> int:
    return zlib.crc32(b"".join(fields))


def place_folder(*place: str, cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that this machine's cache has for a place, such as a path. ``cache``: in that one instead."""
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pltz"
    return Path(cache or own) / digest(b"pltz cache", *(part.encode(errors="surrogateescape") for part in place)).hex()

"""Files below a source, in the order of their paths: those that are read, and each other one with what leaves it out.

    for file in walk("projects"):
        file.inside, file.fate, file.rule
        # -home-me-shop/4f35e220.jsonl  read
        # app.db-wal                    left      *-wal        a pattern of ``exclude``: a user changes it
        # -home-me-shop/pipe            left      no file      a pipe, a socket or a device: never opened
        # -home-me-lib                  told                   a link to a folder elsewhere: its files come, once
        # closed                        refused                it cannot be read

A pattern is one of file names. One with a slash is of paths below the source. A link to what is below the source, or
below a folder that another link led to, is left out: so nothing comes twice, and no loop is entered. Nor is a folder
followed that holds the source.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Literal, NamedTuple

from pltz.datasets.file_names import stem_of, unpacked
from pltz.plt_codec.errors import UsageError

EXCLUDE = ("*-shm", "*-wal", "*-journal", ".DS_Store", "*.lock")  # what programs keep beside a database, and locks
KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class WalkedFile(NamedTuple):
    """A file of a source.

    Attributes:
        path: to open it.
        inside: path below the source, with slashes.
        size: in bytes, 0 where it is not known.
        fate: what becomes of it.
        rule: what leaves it out: a pattern, "archive", "link", "no file" or "empty".
        why: the reason in words, of what is told by name.
        second: a file before it, in the same folder, has its stem with another suffix.
    """

    path: str
    inside: str
    size: int = 0
    fate: Literal["read", "left", "refused", "told"] = "read"
    rule: str = ""
    why: str = ""
    second: bool = False


def walk(source: str | os.PathLike[str], exclude: Sequence[str] = EXCLUDE) -> Iterator[WalkedFile]:
    """Yield the one file, or the files below a folder. ``exclude``: patterns of those to leave out.

    A file that is the source itself is read, whatever it is. Raises UsageError where a folder cannot be read.
    """
    root = os.fspath(source)
    if not os.path.isdir(root):
        size = os.path.getsize(root) if os.path.isfile(root) else 0
        yield WalkedFile(root, os.path.basename(root), size)
        return
    stems: dict[str, str] = {}
    for file in sorted(_Walk(root, exclude).files(), key=lambda file: file.inside):
        if file.fate == "read":
            folder, name = os.path.split(file.inside)
            first = stems.setdefault(os.path.join(folder, stem_of(name)), unpacked(name))
            file = file._replace(second=first != unpacked(name))
        yield file


class _Walk:
    """One walk. ``within``: the real paths of the folders all of which is met. ``met``: each folder that was."""

    def __init__(self, root: str, exclude: Sequence[str]) -> None:
        self.root, self.exclude = root, exclude
        self.within = [os.path.realpath(root)]
        self.met = set[tuple[int, int]]()
        self.folders: list[str] = []  # links to folders
        self.links: list[str] = []  # links to files

    def files(self) -> Iterator[WalkedFile]:
        """Yield what is below the root, then what links to folders lead to, then links to files."""
        yield from self._folder(self.root)
        for link in self.folders:  # which grows
            real = os.path.realpath(link)
            if _is_below(self.within[0], real):
                yield self._left(link, "link", f"a link to {real}, which holds this folder")
            elif self._is_met(real):
                yield self._left(link, "link", f"a link to {real}, which is taken there")
            else:
                self.within.append(real)
                yield WalkedFile(link, self._inside(link), fate="told", why=f"a link to {real}, followed")
                yield from self._folder(link)
        for link in self.links:
            real = os.path.realpath(link)
            if os.path.exists(link) and self._is_met(real):
                yield self._left(link, "link", f"a link to {real}, which is taken there")
            else:
                self.within.append(real)
                yield from self._file(link)

    def _folder(self, folder: str) -> Iterator[WalkedFile]:
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                at = os.stat(folder)
                with os.scandir(folder) as scanned:
                    entries = sorted(scanned, key=lambda entry: entry.name)
            except OSError as exc:
                if folder == self.root:
                    raise UsageError(f"{folder}: cannot be read: {exc.strerror}") from exc
                yield self._refused(folder, exc)
                continue
            if (at.st_dev, at.st_ino) in self.met:
                yield self._left(folder, "link", "a folder that a link led to before")
                continue
            self.met.add((at.st_dev, at.st_ino))
            names = {entry.name for entry in entries}
            if {"packs", "archive.json"} <= names:  # a put of `.` would take what it writes, each time more
                yield self._left(folder, "archive", "a pltz archive")
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_symlink() and not self._rule(entry.path):
                    (self.folders if os.path.isdir(entry.path) else self.links).append(entry.path)
                else:
                    yield from self._file(entry.path)

    def _file(self, path: str) -> Iterator[WalkedFile]:
        if rule := self._rule(path):
            yield self._left(path, rule)
            return
        try:
            at = os.stat(path)
        except OSError as exc:
            if os.path.islink(path):
                yield self._left(path, "link", "a link that leads nowhere")
            elif not isinstance(exc, FileNotFoundError):  # it was moved since it was listed
                yield self._refused(path, exc)
            return
        if stat.S_ISREG(at.st_mode):
            yield WalkedFile(path, self._inside(path), at.st_size)
        else:
            yield self._left(path, "no file", KINDS.get(stat.S_IFMT(at.st_mode), "no file"))

    def _rule(self, path: str) -> str:
        """Return the first pattern that a file matches, empty without."""
        inside = self._inside(path)
        name = inside.rpartition("/")[2]
        return next((rule for rule in self.exclude if rule and fnmatchcase(inside if "/" in rule else name, rule)), "")

    def _is_met(self, real: str) -> bool:
        return any(_is_below(real, folder) for folder in self.within)

    def _left(self, path: str, rule: str, why: str = "") -> WalkedFile:
        return WalkedFile(path, self._inside(path), fate="left", rule=rule, why=why)

    def _refused(self, path: str, exc: OSError) -> WalkedFile:
        return WalkedFile(path, self._inside(path), fate="refused", why=f"cannot be read: {exc.strerror}")

    def _inside(self, path: str) -> str:
        return PurePath(path).relative_to(self.root).as_posix()


def _is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder or below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)

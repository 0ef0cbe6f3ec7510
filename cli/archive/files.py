"""The files that sessions were put from: which they were, and how they are written into a folder."""

import collections
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from pltz.archive.humanize import counted
from pltz.cli.ui.output import IN_MEMORY, Output, kept, printable, say_if_interrupted, write_text
from pltz.cli.ui.progress import Progress
from pltz.plt_codec.errors import ContentError, UsageError, refusing

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.catalog.lookup import Version
    from pltz.models.session.session import Session

FORBIDDEN = '\\:*?"<>|' if os.name == "nt" else ""  # in names of files
LONGEST = 200  # bytes of a part of a path; file systems take 255


class StoredFile(NamedTuple):
    """A file to write: its path without a suffix, and the versions in it, in their order.

    ``name``: the same path as the sessions have it. ``numbered``: they are named STEM/0 and so on, as the lines of a
    file. ``suffix``: where it is known before the sessions are read.
    """

    stem: PurePath
    name: str
    versions: "list[Version]"
    numbered: bool
    suffix: str | None = None

    @property
    def mtime(self) -> int:
        """Return when the file was changed last, in nanoseconds since 1970, of one session; else 0."""
        return self.versions[0].content.mtime if len(self.versions) == 1 else 0


def is_folder(output: str) -> bool:
    """Return whether an output names a folder: one that is there, or that ends in a slash."""
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


class Folder:
    """A folder that files are written into.

    Each file appears whole or not at all. One that is there is compared: it is left where it is equal, or goes on where
    the content ends, and else refused, or replaced with ``force``. What lies behind a link is refused.

    Raises UsageError where something else lies at the path.
    """

    def __init__(self, path: str, *, force: bool) -> None:
        self.path, self._force = Path(path), force
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UsageError(f"{path} is no folder: name one")
        self._paths = Paths()
        self.written = self.there = self.refused = self.size = 0  # files, and the bytes of those written
        self._fresh = False  # whether the last file was written

    def write(self, cold: "Archive", chosen: "Iterable[Version]", bar: Progress) -> int:
        """Write the files of sessions, and return the exit code: 0, or that of the worst refusal."""
        say_if_interrupted("interrupted: the files written so far are whole")
        code, files = 0, files_of(chosen)
        read = _sessions(cold, files, bar)
        for file in files:
            members = itertools.islice(read, len(file.versions))
            try:
                name = file.versions[0].name
                with refusing(f"session {name!r}", "pltz archive get --format jsonl writes it as JSON"):
                    place, content = self._laid_out(file, members)
                    said = self._write(place, content)
                    if file.mtime and not said and self._fresh:
                        os.utime(self.path / place, ns=(file.mtime, file.mtime))
            except (UsageError, ContentError) as error:
                code, self.refused = max(code, error.exit_code), self.refused + 1
                said = f"refused: {error}"
            collections.deque(members, 0)  # the sessions that are left of this file
            if said:
                with bar.hidden():
                    click.echo(printable(said), err=True)
        return code

    def _laid_out(
        self, file: StoredFile, members: "Iterator[Session | ContentError]"
    ) -> tuple[PurePath, Iterator[bytes]]:
        """Return the path of a file in the folder, and its content. Raises ContentError."""
        from pltz.datasets.file_forms import suffix_in, suffix_of

        first = want_session(next(members))
        suffix = file.suffix
        if suffix is None:
            told = ".jsonl" if len(file.versions) > 1 else suffix_of(first, numbered=file.numbered)
            suffix = suffix_in(file.stem.name, told)
        place = self._paths.free(file.stem, suffix)
        if str(place) != file.name + suffix:
            click.echo(f"{printable(file.name)}: written as {printable(str(place))}", err=True)
        return place, content_of(itertools.chain([first], members), numbered=file.numbered)

    def _write(self, place: PurePath, content: Iterable[bytes]) -> str:
        """Write a file, or leave the one that is there. Return what is to be said of it.

        Raises UsageError where what lies there forbids it.
        """
        self._fresh = False
        self.path.mkdir(parents=True, exist_ok=True)
        for below in reversed(place.parents[:-1]):
            path = self.path / below
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                raise UsageError(
                    f"{path} is a link or no folder, and is not followed: remove it, or name another folder"
                )
            path.mkdir(exist_ok=True)
        path = self.path / place
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise UsageError(f"{path} is no plain file, and is not followed: remove it, or name another folder")
        if not path.exists():
            return self._put(path, content)
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as stored:
            stored.writelines(content)
            found = compared(path, stored)
            if found == "equal":
                self.there += 1
                return ""
            if found == "longer" and self._force:
                raise UsageError(f"{path} goes on where the stored version ends: remove it first")
            if found == "longer":
                self.there += 1
                return f"left: {path} goes on where the stored version ends"
            if not self._force:
                raise UsageError(f"{path} differs: add --force to replace it, or name another folder")
            return self._put(path, kept(stored))

    def _put(self, path: Path, content: Iterable[bytes]) -> str:
        output = Output(str(path), force=self._force)  # a temporary file gets the name: no link is opened on the way
        output.write(content)
        self.written, self.size = self.written + 1, self.size + output.written
        self._fresh = True
        return ""

    def counts(self) -> dict[str, Any]:
        """Return the files that were written, there and refused, and the bytes written."""
        return {"files": self.written, "there": self.there, "refused": self.refused, "bytes": self.size}

    def report(self, facts: dict[str, Any], as_json: bool) -> None:
        """Print what was done."""
        there = f", {self.there:,} there already" if self.there else ""
        refused = f"; {counted(self.refused, 'file')} refused" if self.refused else ""
        files, sessions = counted(self.written, "file"), counted(facts["sessions"], "session")
        text = f"{self.path}: {files} of {sessions}{there}{refused}"
        write_text(json.dumps(facts) if as_json else printable(text))


def compared(path: Path, stored: IO[bytes]) -> str:
    """Return whether a file is ``equal`` to what is stored, ``longer``, which begins with it, or ``other``.

    A line end that the stored bytes have at their end and the file lacks makes no difference.
    """
    with path.open("rb") as there:
        last = b""
        for piece in kept(stored):
            found = there.read(len(piece))
            if found != piece:
                return "equal" if piece.removesuffix(b"\n") == found and not stored.read(1) else "other"
            last = piece
        rest = there.read(1)
    return "longer" if rest and (last.endswith(b"\n") or rest == b"\n" or not last) else "other" if rest else "equal"


def _sessions(cold: "Archive", files: "list[StoredFile]", bar: Progress) -> "Iterator[Session | ContentError]":
    """Yield the sessions of files in their order; the error in place of one that is no session."""
    versions = [version for file in files for version in file.versions]
    read = cold.sessions.read_many(versions)
    for version in versions:
        try:
            with refusing(f"session {version.name!r}", "pltz archive verify --decode tells more"):
                session: Session | ContentError = next(read)
        except ContentError as error:
            session = error
        yield session
        bar.add(1)


def want_session(session: "Session | ContentError") -> "Session":
    """Return a session that was read. Raises the error that reading it had."""
    if isinstance(session, ContentError):
        raise session
    return session


def files_of(versions: "Iterable[Version]") -> list[StoredFile]:
    """Return the files that versions were put from: those of STEM/NUMBER together, in the order of their numbers.

    The other parts of a session have their paths in a folder of the name of its main one.
    """
    from pltz.datasets.file_forms import file_of

    rows = list(versions)
    tenants = {version.tenant for version in rows}
    found: dict[tuple[str, str, bool], list[tuple[int, str | None, Version]]] = {}
    for whole in rows:
        for version in whole.each:
            file = file_of(version.name, whole.tags)
            if version.part:
                found[version.tenant, f"{file.stem}/{version.part}", False] = [(0, "", version)]
                continue
            place = version.tenant, file.stem, file.number is not None
            found.setdefault(place, []).append((file.number or 0, file.suffix, version))
    files = []
    for (tenant, stem, numbered), members in found.items():
        members.sort(key=lambda member: member[0])
        stem = stem[2:] if stem.startswith("./-") else stem  # as `datasets.file_names.no_option` named it
        parts = ([tenant] if len(tenants) > 1 else []) + stem.split("/")
        suffix = members[0][1] if len(members) == 1 else None
        versions = [one[2] for one in members]
        files.append(StoredFile(PurePath(*map(safe, parts)), "/".join(parts), versions, numbered, suffix))
    return files


def safe(part: str) -> str:
    """Return a part of a name as a part of a path that stays in its folder.

    >>> safe("notes"), safe(".."), safe(""), safe("a" + chr(10) + "b")
    ('notes', '%2E%2E', '%', 'a%0Ab')
    """
    text = "".join(c if c.isprintable() and c not in FORBIDDEN else _quoted(c) for c in part)
    text = text or "%"
    if not text.strip("."):
        text = text.replace(".", "%2E")
    while len(text.encode(errors="replace")) > LONGEST:
        text = text[:-1]
    return text


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="replace"))


class Paths:
    """The paths of files that one run writes, so that no two of its sessions meet in one file."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def free(self, stem: PurePath, suffix: str) -> PurePath:
        """Return the path of a file, with ~2, ~3 and so on where another of this run has it."""
        folder = PurePath()
        for part in stem.parts[:-1]:
            folder = self._take(folder / part, "", self._files)
            self._folders.add(str(folder))
        path = self._take(folder / stem.name, suffix, self._files | self._folders)
        self._files.add(str(path))
        return path

    def _take(self, path: PurePath, suffix: str, taken: set[str]) -> PurePath:
        tails = itertools.chain([""], map("~{}".format, itertools.count(2)))
        tries = (path.with_name(f"{path.name}{tail}{suffix}") for tail in tails)
        return next(one for one in tries if str(one) not in taken)


def content_of(sessions: "Iterable[Session | ContentError]", *, numbered: bool) -> Iterator[bytes]:
    """Yield the bytes of a file of these sessions: a line each, or the bytes that were kept of them.

    ``numbered``: as of a `StoredFile`.
    """
    from pltz.datasets.file_forms import is_line

    before = b"\n"
    for session in map(want_session, sessions):
        line = session.kind == "chat" and not session.writing and is_line(session, numbered=numbered)
        for data in [session.to_json_line()] if line else session.pieces():
            yield data if before.endswith(b"\n") else b"\n" + data
            before = b"\n"
        before = data or b"\n"

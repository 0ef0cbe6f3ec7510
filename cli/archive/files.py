"""The files that sessions were put from: which they were, and how they are written into a folder.

A file that is there is compared with what is stored:

| it is | `missing` | `newer` | `force` |
|---|---|---|---|
| equal | left | left | left |
| longer: it goes on where the stored version ends | left, told | left, told | replaced, told |
| shorter: the stored version goes on where it ends | refused | replaced | replaced |
| other, and older than the stored version | refused | replaced | replaced |
| other, and not older | refused | left, told | replaced |
| a link, a pipe, a folder, or behind a link | refused | refused | refused |

One with the size and the time that the stored version was put with is equal: that is known before anything is decoded.
"""

import collections
import errno
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

import click

from pltz.archive.errors import NotFound
from pltz.archive.humanize import counted
from pltz.cli.ui.output import IN_MEMORY, Output, kept, printable, say_if_interrupted, write_text
from pltz.cli.ui.progress import Progress
from pltz.plt_codec.errors import ContentError, FormatError, MismatchError, PltzError, UsageError, refusing

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.catalog.lookup import Version
    from pltz.datasets.secrets import Redactor
    from pltz.models.session.session import Session

Over = Literal["missing", "newer", "force"]

FORBIDDEN = '\\:*?"<>|'  # in names of files, where a file system cannot have all of them
LONGEST = 200  # bytes of a part of a path there; most file systems take 255
NO_NAME = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)  # errors of a file system that cannot have a name
OF_ONE = (ContentError, FormatError, MismatchError, NotFound)  # errors of one session, after which others are read
ONE_BY_ONE = 256  # sessions: as many as are decoded together, at most
SUFFIXES = (".jsonl", ".json", ".txt")  # of files of which only the content tells the suffix


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

    @property
    def size(self) -> int:
        """Return the bytes of the file as it was put; 0: not known."""
        return sum(version.content.size for version in self.versions)


def is_folder(output: str) -> bool:
    """Return whether an output names a folder: one that is there, or that ends in a slash."""
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


class Folder:
    """A folder that files are written into, each whole or not at all.

    ``over``: what becomes of files that are there, by the table at the top of this file. ``fresh``: files get the time
    of now, those too that are equal, and not the one that they were put with. ``redactor``: marks secrets.

    Raises UsageError where something else lies at the path.
    """

    def __init__(
        self, path: str | Path, *, over: Over = "missing", fresh: bool = False, redactor: "Redactor | None" = None
    ) -> None:
        self.path, self._over, self._fresh, self._redactor = Path(path), over, fresh, redactor
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UsageError(f"{path} is no folder: name one")
        self._paths = Paths(self.path)
        self.written = self.there = self.refused = self.size = 0  # files, and the bytes of those written
        self.places: list[Path] = []  # of the files written and left
        self.fates: list[tuple[StoredFile, Path | None, str]] = []  # where each is, and why what is there is not it

    def write(self, cold: "Archive", files: "Iterable[StoredFile]", bar: Progress) -> int:
        """Write files, and return the exit code: 0, or that of the worst refusal."""
        say_if_interrupted("interrupted: the files written so far are whole")
        code, wanted = 0, list[StoredFile]()
        for file in files:
            if (place := self._untouched(file)) is not None:
                self.there += 1
                self.fates.append((file, place, ""))
                bar.add(len(file.versions), skipped=True)
            else:
                wanted.append(file)
        read = readable(cold, [version for file in wanted for version in file.versions], bar)
        for file in wanted:
            members = itertools.islice(read, len(file.versions))
            code = max(code, self.put(file, members, bar))
            collections.deque(members, 0)  # the sessions that are left of this file
        return code

    def put(self, file: StoredFile, sessions: "Iterator[Session | PltzError]", bar: Progress) -> int:
        """Write a file of these sessions. Return 0, or the exit code where it is refused, which is told."""
        code, place = 0, None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            name = file.versions[0].name
            with refusing(f"session {name!r}", "pltz archive get --format jsonl writes it as JSON"):
                place, content = self._laid_out(file, sessions)
                said = self._write(place, content, 0 if self._fresh else file.mtime)
        except (UsageError, PermissionError, *OF_ONE) as error:
            code, self.refused = getattr(error, "exit_code", UsageError.exit_code), self.refused + 1
            said = f"refused: {error}"
        why = said if said.startswith(("refused: ", "left: ")) else ""
        self.fates.append((file, self.path / place if place else None, why))
        if said:
            with bar.hidden():
                click.echo(printable(said), err=True)
        return code

    def _untouched(self, file: StoredFile) -> Path | None:
        """Return the path of a file that is there as it was put, by its size and time; None: it is not. It is taken."""
        for suffix in (file.suffix,) if file.suffix is not None else SUFFIXES if file.mtime and file.size else ():
            place = file.stem.with_name(file.stem.name + suffix)
            with suppress(OSError):
                at = os.lstat(self.path / place)
                same = (at.st_size, at.st_mtime_ns) == (file.size, file.mtime)
                if same and not self._fresh and not self._redactor and self._paths.is_free(place):
                    self._paths.free(file.stem, suffix)
                    return self.path / place
        return None

    def _laid_out(
        self, file: StoredFile, members: "Iterator[Session | PltzError]"
    ) -> tuple[PurePath, Iterator[bytes]]:
        """Return the path of a file in the folder, and its content. Raises what reading it had."""
        from pltz.datasets.file_forms import suffix_in, suffix_of

        first = want_session(next(members))
        suffix = file.suffix
        if suffix is None:
            told = ".jsonl" if len(file.versions) > 1 else suffix_of(first, numbered=file.numbered)
            suffix = suffix_in(file.stem.name, told)
        place = self._paths.free(file.stem, suffix)
        if place.as_posix() != file.name + suffix:
            click.echo(f"{printable(file.name)}: written as {printable(place.as_posix())}", err=True)
        sessions: Iterable[Session] = map(want_session, itertools.chain([first], members))
        sessions = map(self._redactor.session, sessions) if self._redactor else sessions
        return place, content_of(sessions, numbered=file.numbered)

    def _write(self, place: PurePath, content: Iterable[bytes], mtime: int) -> str:
        """Write a file, or leave the one that is there. Return what is to be said of it.

        Raises UsageError where what lies there forbids it.
        """
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
            return self._put(path, content, mtime)
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as stored:
            stored.writelines(content)
            found = compared(path, stored)
            longer, older = found == "longer", path.stat().st_mtime_ns < mtime
            if self._fresh and (longer or found == "equal"):
                os.utime(path)
            if found == "equal":
                self.there += 1
                self.places.append(path)
                return ""
            told = f"{path} goes on where the stored version ends" if longer else f"{path} differs"
            if self._over == "force" or (self._over == "newer" and not longer and (found == "shorter" or older)):
                self._put(path, kept(stored), mtime)
                return f"replaced: {told}" if longer else ""
            if longer or (self._over == "newer" and mtime):
                self.there += 1
                self.places.append(path)
                return f"left: {told}" + ("" if longer else ", and is not older than the stored version")
            if found == "shorter":
                raise UsageError(f"{path} lacks the end of the stored version: add --newer-wins to replace it")
            raise UsageError(f"{told}: add --newer-wins or --force to replace it, or name another folder")

    def _put(self, path: Path, content: Iterable[bytes], mtime: int) -> str:
        from pltz.datasets.packing import packed

        output = Output(str(path), force=self._over != "missing")  # a temporary file gets the name: no link is opened
        output.write(packed(path.name, content))
        self.written, self.size = self.written + 1, self.size + output.written
        self.places.append(path)
        if mtime:
            os.utime(path, ns=(mtime, mtime))
        return ""

    def counts(self) -> dict[str, Any]:
        """Return the files that were written, there and refused, and the bytes written."""
        return {"files": self.written, "there": self.there, "refused": self.refused, "bytes": self.size}


def report(facts: dict[str, Any], as_json: bool) -> None:
    """Print what was done, with the counts of a `Folder`."""
    there = f", {facts['there']:,} there already" if facts["there"] else ""
    refused = f"; {counted(facts['refused'], 'file')} refused" if facts["refused"] else ""
    files, sessions = counted(facts["files"], "file"), counted(facts["sessions"], "session")
    text = f"{facts['output']}: {files} of {sessions}{there}{refused}"
    write_text(json.dumps(facts) if as_json else printable(text))


def write_in_place(
    cold: "Archive", chosen: "Iterable[Version]", over: Over, bar: Progress, redactor: "Redactor | None" = None
) -> tuple[int, dict[str, int]]:
    """Write logs where their agents keep them. Return the exit code, and counts as of a `Folder`.

    A session of which no place is known is refused, which is told.
    """
    from pltz.datasets.agent_homes import home_of, root_of

    folders: dict[Path, Folder] = {}
    waiting: dict[tuple[Path, str], list[Version]] = {}
    code = refused = 0
    for version in chosen:
        if root := root_of(version.name):
            waiting.setdefault((root, version.tenant), []).append(version)
            continue
        try:
            home = home_of(cold.sessions.read(version.each[0]), version.name, [part.part for part in version.each[1:]])
            if home.content is not None:
                raise UsageError(f"session {version.name!r} was in a database: pltz resume brings it back")
            folder = folders.setdefault(home.root, Folder(home.root, over=over, redactor=redactor))
            code = max(code, folder.write(cold, parts_of(version, home.stem, home.suffix), bar))
        except (UsageError, *OF_ONE) as error:
            code, refused = max(code, error.exit_code), refused + 1
            click.echo(printable(f"refused: {error}"), err=True)
    for (root, _), versions in waiting.items():
        folder = folders.setdefault(root, Folder(root, over=over, redactor=redactor))
        code = max(code, folder.write(cold, files_of(versions), bar))
    counts = [folder.counts() for folder in folders.values()]
    total = {name: sum(one[name] for one in counts) for name in ("files", "there", "refused", "bytes")}
    return code, total | {"refused": total["refused"] + refused}


def compared(path: Path, stored: IO[bytes]) -> str:
    """Return whether a file is ``equal`` to what is stored, ``longer``, ``shorter`` or ``other``.

    It is longer where it begins with what is stored, and shorter where it is its beginning. A line end that the stored
    bytes have at their end and the file lacks makes no difference. A file that is packed is compared by its content,
    of a torn one what can be unpacked.
    """
    from pltz.datasets.packing import open_unpacked

    stored.seek(0)
    with open_unpacked(path, stored.read(4)) as there:
        last = b""
        for piece in kept(stored):
            found = _read(there, len(piece))
            if found != piece:
                begins = piece.startswith(found)
                end = piece.removesuffix(b"\n") == found and not stored.read(1)
                return "equal" if end else "shorter" if begins else "other"
            last = piece
        rest = _read(there, 1)
    return "longer" if rest and (last.endswith(b"\n") or rest == b"\n" or not last) else "other" if rest else "equal"


def _read(there: IO[bytes], size: int) -> bytes:
    """Return the next bytes of a file, as many as there are and can be unpacked."""
    from pltz.datasets.packing import DAMAGED

    found = b""
    with suppress(*DAMAGED):
        while len(found) < size and (piece := there.read(size - len(found))):
            found += piece
    return found


def readable(
    cold: "Archive", versions: "Iterable[Version]", bar: Progress | None = None
) -> "Iterator[Session | PltzError]":
    """Yield the sessions of versions in their order; the error in place of one that cannot be read.

    Where one of those that are decoded together cannot be read, some are read one by one. ``bar``: counts sessions.
    """
    left = collections.deque(versions)

    def read() -> "Iterator[Session | PltzError]":
        while left:
            try:
                with refusing("a session"):
                    for session in cold.sessions.read_many(list(left)):
                        left.popleft()
                        yield session
            except OF_ONE:
                yield from (_read_alone(cold, left.popleft()) for _ in range(min(len(left), ONE_BY_ONE)))

    for session in read():
        yield session
        if bar:
            bar.add(1)


def _read_alone(cold: "Archive", version: "Version") -> "Session | PltzError":
    try:
        with refusing(f"session {version.name!r}", "pltz archive verify --decode tells more"):
            return cold.sessions.read(version)
    except OF_ONE as error:
        return error


def want_session(session: "Session | PltzError") -> "Session":
    """Return a session that was read. Raises the error that reading it had."""
    if isinstance(session, PltzError):
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


def parts_of(whole: "Version", stem: PurePath, suffix: str) -> Iterator[StoredFile]:
    """Yield the files of a session: its log at a path, and its parts in a folder of the same name."""
    for version in whole.each:
        place = PurePath(stem, *version.part.split("/")) if version.part else stem
        own = "" if version.part else suffix
        yield StoredFile(PurePath(*map(safe, place.parts)), place.as_posix(), [version], False, own)


def safe(part: str, *, narrow: bool = os.name == "nt") -> str:
    """Return a part of a name as a part of a path that stays in its folder.

    ``narrow``: for a file system that does not take every character, or no name so long.

    >>> safe("notes"), safe(".."), safe(""), safe("a:b", narrow=False), safe("a:b", narrow=True)
    ('notes', '%2E%2E', '%', 'a:b', 'a%3Ab')
    """
    text = "".join(c if _stays(c, narrow) else _quoted(c) for c in part)
    text = text or "%"
    if not text.strip("."):
        text = text.replace(".", "%2E")
    while narrow and len(text.encode()) > LONGEST:
        text = text[:-1]
    return text


def _stays(character: str, narrow: bool) -> bool:
    if narrow:
        return character.isprintable() and character not in FORBIDDEN
    return character not in "\0/" and not "\ud800" <= character <= "\udfff"


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="replace"))


class Paths:
    """The paths of files that one run writes below a root, so that no two of its sessions meet in one file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def is_free(self, path: PurePath) -> bool:
        """Return whether no file of this run has a path, or a folder of it."""
        return self._files.isdisjoint(map(str, (path, *path.parents))) and str(path) not in self._folders

    def free(self, stem: PurePath, suffix: str) -> PurePath:
        """Return the path of a file, with ~2, ~3 and so on where another of this run has it.

        Where the file system cannot have its name, that is quoted and cut.
        """
        if any(map(self._is_no_name, stem.with_name(stem.name + suffix).parts)):
            stem = PurePath(*(safe(part, narrow=True) for part in stem.parts))
        folder = PurePath()
        for part in stem.parts[:-1]:
            folder = self._take(folder / part, "", self._files)
            self._folders.add(str(folder))
        path = self._take(folder / stem.name, suffix, self._files | self._folders)
        self._files.add(str(path))
        return path

    def _is_no_name(self, part: str) -> bool:
        """Return whether the file system cannot have a name."""
        try:
            os.lstat(self._root / part)
        except OSError as exc:
            return exc.errno in NO_NAME
        return False

    def _take(self, path: PurePath, suffix: str, taken: set[str]) -> PurePath:
        tails = itertools.chain([""], map("~{}".format, itertools.count(2)))
        tries = (path.with_name(f"{path.name}{tail}{suffix}") for tail in tails)
        return next(one for one in tries if str(one) not in taken)


def content_of(sessions: "Iterable[Session]", *, numbered: bool) -> Iterator[bytes]:
    """Yield the bytes of a file of these sessions: a line each, or the bytes that were kept of them.

    ``numbered``: as of a `StoredFile`.
    """
    from pltz.datasets.file_forms import is_line

    before = b"\n"
    for session in sessions:
        line = session.kind == "chat" and not session.writing and is_line(session, numbered=numbered)
        for data in [session.to_json_line()] if line else session.pieces():
            yield data if before.endswith(b"\n") else b"\n" + data
            before = b"\n"
        before = data or b"\n"

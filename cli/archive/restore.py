"""``pltz archive restore``: write the sessions of an archive as the files that they were put from."""

import collections
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

import click

from pltz.archive.humanize import counted
from pltz.cli.archive import shared
from pltz.cli.archive.shared import choose, open_archive, tags_of, the_one_meant
from pltz.cli.ui import options
from pltz.cli.ui.groups import NamingCommand
from pltz.cli.ui.key_options import key_options
from pltz.cli.ui.output import Output, printable, say_if_interrupted, write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.plt_codec.errors import ContentError, UsageError, refusing

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.catalog.lookup import Version
    from pltz.models.session.session import Session

FORBIDDEN = '%\\:*?"<>|'  # in names of files, on one system or another
LONGEST = 200  # bytes of a part of a path; file systems take 255


class StoredFile(NamedTuple):
    """A file to write: its path without a suffix, and the versions in it, in their order."""

    stem: PurePath
    versions: "list[Version]"
    numbered: bool  # they are named STEM/0 and so on, as the lines of a file
    suffix: str | None = None  # where it is known before the sessions are read


@click.command(
    cls=NamingCommand,
    short_help="Write sessions as the files that they were put from.",
    examples=[
        "pltz archive restore /data/cold -o back",
        "pltz archive restore /data/cold --tenant acme -o back",
        "pltz archive restore /data/cold chats/0 chats/1 -o back --json",
    ],
)
@shared.DIR
@shared.NAMES
@click.option("-o", "--output", required=True, metavar="FOLDER", help="The folder to write to.")
@shared.ONLY_TENANT
@shared.ONLY_TAGS
@shared.READ_BUNDLES
@shared.TOKENIZERS
@options.FORCE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
@key_options
def restore(
    place: str,
    names: tuple[str, ...],
    output: str,
    tenant: str | None,
    tags: tuple[str, ...],
    bundles: tuple[str, ...],
    tokenizers: tuple[str, ...],
    force: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Write the last versions of sessions, or of those named, as files in FOLDER.

    A NAME is that of a session, or what stands before a slash in the names of several, as the folder of logs. A part of
    a name is enough where get takes it.

    The sessions STEM/0, STEM/1 and so on become the lines of one file, STEM.jsonl. Any other session is a file of its
    own: the events of an agent as .jsonl, other JSON as .json, a text as .txt, logs in other forms as .md or .traj.
    Chats come back with equal values, and with equal bytes where put --exact kept them. Sessions of several tenants go
    into a folder per tenant.

    Each file appears whole or not at all, and none is replaced without --force. Nothing in FOLDER is followed: a file
    whose place is taken by a link, a pipe or a folder is refused, and so is one below a link. Refused files are named,
    the others are written, and the exit code is 2, or 5 where a session itself cannot be written. Where parts of the
    archive are damaged, the sessions that are still listed are written, and the exit code is 7.
    """
    from pltz.datasets.file_forms import suffix_in, suffix_of

    folder = Path(output)
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{output} is no folder: name one")
    cold = open_archive(place, bundles, tokenizers=tokenizers, device=device, threads=threads)
    chosen = list(choose(cold, _named(cold, names, tenant), tenant, tags_of(tags)))
    say_if_interrupted("interrupted: the files written so far are whole")
    sessions = size = count = code = 0
    paths = Paths()
    with Progress("restore", unit="sessions", total=len(chosen), shown=wanted(progress)) as bar:
        files = files_of(chosen)
        read = _sessions(cold, files, bar)
        for file in files:
            members = itertools.islice(read, len(file.versions))
            try:
                with refusing(f"session {file.versions[0].name!r}", "pltz archive export writes it as JSON"):
                    first = want_session(next(members))
                    suffix = file.suffix
                    if suffix is None:
                        told = ".jsonl" if len(file.versions) > 1 else suffix_of(first, numbered=file.numbered)
                        suffix = suffix_in(file.stem.name, told)
                    content = content_of(itertools.chain([first], members), numbered=file.numbered)
                    written = _write(folder, paths.free(file.stem, suffix), content, force=force)
            except (UsageError, ContentError) as error:
                code = max(code, error.exit_code)
                with bar.hidden():
                    click.echo(f"refused: {printable(str(error))}", err=True)
                collections.deque(members, 0)  # the sessions that are left of this file
            else:
                sessions, size, count = sessions + len(file.versions), size + written, count + 1
    found = {"sessions": sessions, "files": count, "bytes": size, "refused": len(files) - count, "output": output}
    refused = f"; {counted(len(files) - count, 'file')} refused" if count < len(files) else ""
    text = f"{printable(output)}: {counted(sessions, 'session')} in {counted(count, 'file')}{refused}"
    write_text(json.dumps(found) if as_json else text)
    if not names:
        cold.directory.want_whole(f"wrote {counted(sessions, 'session')}", tenant)
    click.get_current_context().exit(code)


def _write(folder: Path, place: PurePath, content: Iterable[bytes], *, force: bool) -> int:
    """Write a file at a place in a folder, and return its bytes. Raises UsageError where what lies there forbids it."""
    folder.mkdir(parents=True, exist_ok=True)
    for below in reversed(place.parents[:-1]):
        path = folder / below
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise UsageError(f"{path} is a link or no folder, and is not followed: remove it, or name another folder")
        path.mkdir(exist_ok=True)
    path = folder / place
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path} is no plain file, and is not followed: remove it, or name another folder")
    output = Output(str(path), force=force)  # a temporary file that gets the name: no link is opened on the way
    output.write(content)
    return output.written


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


def _named(cold: "Archive", names: Iterable[str], tenant: str | None) -> list[str]:
    """Return the names of sessions, with all that are below a name where no session has it, or the one that has a part.

    Raises NotFound where a part is that of several names.
    """
    wanted = list(names)
    known = {version.name for version in cold.list(tenant, partial=True)} if wanted else set()
    below = {name: sorted(one for one in known if one.startswith(name.rstrip("/") + "/")) for name in wanted}
    found: list[str] = []
    for name in wanted:
        found += [name] if name in known else below[name] or [the_one_meant(cold, name, tenant)]
    return found


def files_of(versions: "Iterable[Version]") -> list[StoredFile]:
    """Return the files that versions were put from: those of STEM/NUMBER together, in the order of their numbers."""
    from pltz.datasets.file_forms import file_of

    rows = list(versions)
    tenants = {version.tenant for version in rows}
    found: dict[tuple[str, str, bool], list[tuple[int, str | None, Version]]] = {}
    for version in rows:
        file = file_of(version.name, version.tags)
        place = version.tenant, file.stem, file.number is not None
        found.setdefault(place, []).append((file.number or 0, file.suffix, version))
    files = []
    for (tenant, stem, numbered), members in found.items():
        members.sort(key=lambda member: member[0])
        parts = ([tenant] if len(tenants) > 1 else []) + stem.split("/")
        suffix = members[0][1] if len(members) == 1 else None
        files.append(StoredFile(PurePath(*map(safe, parts)), [one[2] for one in members], numbered, suffix))
    return files


def safe(part: str) -> str:
    """Return a part of a name as a part of a path that stays in its folder, on every file system.

    >>> safe("notes"), safe(".."), safe(""), safe("a:b")
    ('notes', '%2E%2E', '%', 'a%3Ab')
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
        """Return the path of a file, with ~2, ~3 and so on where another of this run has it, in any case of letters."""
        folder = PurePath()
        for part in stem.parts[:-1]:
            folder = self._take(folder / part, "", self._files)
            self._folders.add(str(folder).casefold())
        path = self._take(folder / stem.name, suffix, self._files | self._folders)
        self._files.add(str(path).casefold())
        return path

    def _take(self, path: PurePath, suffix: str, taken: set[str]) -> PurePath:
        tails = itertools.chain([""], map("~{}".format, itertools.count(2)))
        tries = (path.with_name(f"{path.name}{tail}{suffix}") for tail in tails)
        return next(one for one in tries if str(one).casefold() not in taken)


def content_of(sessions: "Iterable[Session | ContentError]", *, numbered: bool) -> Iterator[bytes]:
    """Yield the bytes of a file of these sessions: a line each, or the bytes that were kept of them.

    ``numbered``: as of a `StoredFile`.
    """
    from pltz.datasets.file_forms import is_line

    before = b"\n"
    for session in map(want_session, sessions):
        line = session.kind == "chat" and not session.writing and is_line(session, numbered=numbered)
        data = session.to_json_line() if line else session.to_input_bytes()
        yield data if before.endswith(b"\n") else b"\n" + data
        before = data or b"\n"

"""``pltz resume``: put a session back where its agent looks, and print the command that goes on with it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted
from pltz.cli.archive import shared
from pltz.cli.archive.files import Folder, Over, StoredFile, files_of, parts_of, safe
from pltz.cli.archive.shared import one_meant, open_archive, redactor, tell_redacted
from pltz.cli.ui import options
from pltz.cli.ui.archive_options import ArchiveCommand
from pltz.cli.ui.output import printable, write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.catalog.lookup import Version, VersionName
    from pltz.datasets.agent_homes import AgentHome
    from pltz.datasets.secrets import Redactor
    from pltz.models.session.session import Session


@click.command(
    cls=ArchiveCommand,
    short_help="Put a session back where its agent goes on with it.",
    examples=[
        "pltz resume -r /data/cold '0f3a6c1e*'",
        "pltz resume 'rollout-2026-08-01*' --map /home/ada/shop=/home/ada/new/shop",
        "pltz resume '0f3a6c1e*' --here",
    ],
)
@click.argument("name")
@shared.TENANT
@shared.VERSION
@click.option(
    "--map", "moves", metavar="OLD=NEW", multiple=True, help="Folder OLD of projects is NEW now (repeatable)."
)
@click.option("--here", is_flag=True, help="Go on in the current folder, whichever the project was.")
@shared.REDACT
@options.JSON
def resume(
    name: str,
    tenant: str,
    number: "VersionName | None",
    moves: tuple[str, ...],
    here: bool,
    redact: bool,
    as_json: bool,
) -> None:
    """Put the session NAME back where its agent looks, with all its parts, and print the command that goes on with it.

    It is for Claude Code, Codex, Gemini CLI, OpenCode, pi and Copilot CLI, and NAME may end with *, where one session
    alone begins so. Files get the time of now, or an agent that deletes old ones would take them at once. What is there
    and equal stays. So does a log that goes on where the stored version ends, which is told. Any other file that
    differs is refused and never replaced, and the exit code is 2.

    What the agent will miss is told, such as logs of sub-agents that the archive does not have. Where the project has
    moved, --map or --here finds its place. The bytes of the log stay as they are.
    """
    if here and moves:
        raise UsageError("--here says where the project is: leave --map out, or --here")
    from pltz.models.session.session import Session

    cold = open_archive()
    name = one_meant(cold, name, tenant)
    whole = cold.directory.whole(name, tenant, number)
    session, home = _home(cold, whole, moves, here)
    files, notes = _files(cold, whole, home)
    over: Over = "missing" if home.content is None else "force"
    marked = redactor(redact)
    folder = Folder(home.root, over=over, fresh=True, redactor=marked)
    with Progress("decode", unit="files", total=len(files), shown=wanted(None)) as bar:
        if home.content is None:
            code = folder.write(cold, files, bar)
        else:
            code = folder.put(files[0], iter([Session("text", home.content)]), bar)
    notes = [*home.notes, *notes, *_after(session, home, folder, marked)]
    facts: dict[str, Any] = {"name": name, "version": whole.version, "agent": home.agent}
    facts |= {"id": home.id, "project": home.project}
    facts |= tell_redacted(marked)
    facts |= {"command": home.command, "notes": notes, "places": [str(place) for place in folder.places]}
    if as_json:
        write_text(json.dumps(facts | folder.counts()))
    else:
        there = f", {folder.there:,} there already" if folder.there else ""
        refused = f"; {counted(folder.refused, 'file')} refused" if folder.refused else ""
        told = f"{home.root}: {counted(folder.written, 'file')} of {name}{there}{refused}"
        for line in (told, *(f"note: {note}" for note in notes)):
            click.echo(printable(line), err=True)
        if not folder.refused:
            write_text(printable(home.command))
    click.get_current_context().exit(code)


def _home(cold: "Archive", whole: "Version", moves: tuple[str, ...], here: bool) -> "tuple[Session, AgentHome]":
    """Return the log of a session, and where it belongs. Raises UsageError."""
    from pltz.datasets.agent_homes import home_of

    if whole.part:
        raise UsageError(f"session {whole.name!r} has no log, but {counted(len(whole.each), 'other part')}")
    session, parts = cold.sessions.read(whole.each[0]), [version.part for version in whole.each[1:]]
    home = home_of(session, whole.name, parts, moved=os.getcwd() if here else "")
    moved = moved_by(moves, home.project)
    return session, home_of(session, whole.name, parts, moved=moved) if moved else home


def moved_by(moves: tuple[str, ...], project: str) -> str:
    """Return where a project is now, empty where nothing moved it. Raises UsageError.

    >>> moved_by(("/home/ada=/srv",), "/home/ada/shop"), moved_by(("/home/ada=/srv",), "/home/adam")
    ('/srv/shop', '')
    """
    for move in moves:
        old, _, new = move.partition("=")
        if not old or not new:
            raise UsageError(f"expected --map OLD=NEW, found {move!r}")
        if project and PurePath(project).is_relative_to(old):
            return str(Path(os.path.abspath(os.path.expanduser(new)), PurePath(project).relative_to(old)))
    return ""


def _files(cold: "Archive", whole: "Version", home: "AgentHome") -> tuple[list[StoredFile], list[str]]:
    """Return the files of a session and of those that belong to it, and what of these is not in the archive."""
    files, notes = list(parts_of(whole, home.stem, home.suffix)), list[str]()
    listed = cold.directory.ls(whole.tenant) if home.beside else ()
    others = [version for version in listed if version.name != whole.name]
    for name, place in home.beside.items():
        start = name.removesuffix("*")
        known = [one for one in others if one.name == name or (start != name and one.name.startswith(start))]
        if not known and start == name:
            notes.append(f"{name}, which the log mentions, is not in the archive")
        for file in files_of(known):
            stem = PurePath(place, *file.stem.parts[len(PurePath(name).parts) - 1 :])
            files.append(file._replace(stem=PurePath(*map(safe, stem.parts)), name=stem.as_posix()))
    return files, notes


def _after(session: "Session", home: "AgentHome", folder: Folder, marked: "Redactor | None") -> Iterator[str]:
    """Do what the agent needs beside the files, and yield what it will miss."""
    from pltz.datasets.agent_homes import add_codex_row
    from pltz.datasets.conversation import left_out

    if note := left_out(session):
        yield f"{home.agent} {note}"
    if home.agent == "codex" and folder.places:
        session = marked.session(session) if marked else session
        yield from filter(None, [add_codex_row(folder.places[0], session, home.project)])
    for path, text in home.claims.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text)
    if home.agent == "copilot-cli" and not any(place.name == "workspace.yaml" for place in folder.places):
        yield "workspace.yaml is not in the archive: Copilot CLI may not list the session, and goes on by its id"
    if home.project and not os.path.isdir(home.project):
        yield f"the project's folder {home.project} is not here: add --map {home.project}=NEW or --here"

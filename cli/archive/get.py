"""``pltz archive get``: write sessions, on stdout, as one file, or as the files that they were put from."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted
from pltz.archive.work_part import WorkPart
from pltz.cli.archive import shared
from pltz.cli.archive.files import Folder, Over, files_of, is_folder, report, write_in_place
from pltz.cli.archive.inventory import Asked, inventory as inventory_of
from pltz.cli.archive.parts import PartCommand, parted, report_of
from pltz.cli.archive.shared import choose, open_archive, redactor, seconds_of, tags_of, tell_redacted
from pltz.cli.ui import options
from pltz.cli.ui.output import Output
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.session_output import form_of, render
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.catalog.lookup import Blocks, Version, VersionName
    from pltz.datasets.secrets import Redactor
    from pltz.models.session.session import Session

FORMS = ("auto", "jsonl", "text", "ids", "agent-log", "pltz")


@click.command(
    cls=PartCommand,
    short_help="Write sessions: on stdout, as a file, or as the files put.",
    examples=[
        "pltz archive get -r /data/cold support/7 --tenant acme",
        "pltz archive get support/7 --version 2 -o chat.jsonl",
        "pltz archive get -o back/",
        "pltz archive get '0f3a6c1e*' -o ~/.claude/projects/ --newer-wins",
        "pltz archive get --tag channel=web -o web.pltz --redact",
        "pltz archive get -o all.jsonl --part 3/16 --json",
        "pltz archive get --tag person=42 --since 2026-01-01 -o given/ --inventory given.json",
    ],
)
@shared.NAMES
@click.option(
    "-o",
    "--output",
    metavar="FILE|FOLDER/",
    help="A file, a .pltz file, or a folder for the files that were put.  [default: stdout]",
)
@shared.ONLY_TENANT
@shared.ONLY_TAGS
@shared.SINCE
@shared.UNTIL
@shared.VERSION
@options.form(
    FORMS,
    "One line of JSON per session, bytes of texts, a list of ids per line, a line per event of a log, or a .pltz file.",
)
@shared.REDACT
@shared.TOKENIZERS
@click.option("--in-place", is_flag=True, help="Write logs where their agents keep them, as into a folder.")
@click.option("--missing", is_flag=True, help="Of a folder: write only what is not there.  [default]")
@click.option(
    "--newer-wins", is_flag=True, help="Of a folder: replace files that are older, or lack the end of what is stored."
)
@click.option("--force", is_flag=True, help="Replace the output file, or files of a folder, also by a shorter version.")
@click.option(
    "--inventory",
    metavar="FILE",
    help="Of a folder: write a JSON document of what was given, with digests and holds, and of what was not, and why.",
)
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
@parted("sessions")
def get(
    names: tuple[str, ...],
    output: str | None,
    tenant: str | None,
    tags: tuple[str, ...],
    since: str | None,
    until: str | None,
    number: "VersionName | None",
    form: str,
    redact: bool,
    tokenizers: tuple[str, ...],
    in_place: bool,
    missing: bool,
    newer_wins: bool,
    force: bool,
    inventory: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
    part: WorkPart | None,
) -> None:
    """Write the last versions of the sessions NAME..., or version N; without NAME of all sessions.

    A NAME is exact. With * at its end it is the beginning of names, or of what is behind a slash in them. NAMEs are of
    the tenant "default" unless --tenant is given. On stdout and in one file a session is its main part.

    On stdout or as a FILE, a chat comes back as JSON with equal values, the log of an agent as the lines that it was, a
    text byte for byte, and token ids as a list. Several sessions are a line each. A .pltz file has no names, tags and
    times. Nothing is written unless every chosen session passes its check.

    Into a FOLDER/, the sessions STEM/0, STEM/1 and so on are written as the lines of one file, STEM.jsonl, any other
    session as a file of its own, and its other parts as files of a folder of its name, all with the times that they
    had. Several tenants have a folder each. What is not there is written. A file that is there and equal is left, and
    one that goes on where the stored version ends is left and named. Another one is refused: --newer-wins replaces it
    where it is older, or lacks the end of what is stored, and --force always, also one that goes on, which it names.
    Nothing in FOLDER is followed: what lies behind a link is refused. Refused files are named, the others are written,
    and the exit code is 2, or that of a session that cannot be read or written.

    Who asks for all of a person or a period gets it with --tag, --since, --until and --inventory.

    With --redact keys and passwords that have a known shape are marked, in what is written; the archive stays exact.

    With --in-place logs go where their agents keep them, as `pltz resume` says; other sessions are refused.

    Where parts of the archive are damaged, what is still listed is written, and the exit code is 7.
    """
    if in_place and output is not None:
        raise UsageError("--in-place says where files go: leave -o out")
    if not names and output is None and not in_place:
        raise UsageError("name sessions, or where all are to be written: -o FILE, -o FOLDER/, or -o - for stdout")
    if number is not None and not names:
        raise UsageError("--version is that of a session: name it")
    to = "in place" if in_place else output or "-"
    if form == "auto" and to.endswith(".pltz"):
        form = "pltz"
    into = in_place or is_folder(to)
    if missing + newer_wins + force > 1 or (missing + newer_wins and not into):
        raise UsageError("--missing and --newer-wins are of files in a folder, -o FOLDER/, and one of them and --force")
    over: Over = "force" if force else "newer" if newer_wins else "missing"
    marked = redactor(redact)
    folder = Folder(to, over=over, redactor=marked) if into and not in_place else None
    if into and part:
        raise UsageError("a folder is written by one call, as several sessions may be in one file: leave --part out")
    if into and form != "auto":
        raise UsageError(f"into a folder files are written as they were put: leave --format {form} out")
    if inventory is not None and folder is None:
        raise UsageError("--inventory is of files in a folder: add -o FOLDER/")
    paper = None if inventory is None else Output(inventory, force=force)
    destination = None if into else Output(to, force=force, binary=form == "pltz")
    cold = open_archive(tokenizers=tokenizers, device=device, threads=threads)
    catalog = cold.parts.catalog
    # the opening looked already, in this same call
    blocks: Blocks | None = {} if names else None
    with catalog.one_look(math.inf), nullcontext() if blocks is None else catalog.lookup.keeping_blocks(blocks):
        wanted_tags, period = tags_of(tags), (seconds_of(since), seconds_of(until))
        chosen = list(choose(cold, names, tenant, wanted_tags, number=number, part=part, period=period))
    code, counts = 0, dict[str, int]()
    total = sum(len(version.each) for version in chosen) if into else len(chosen)
    found: dict[str, Any] = {"sessions": len(chosen), "output": to}
    with Progress("decode", unit="sessions", total=total, shown=wanted(progress)) as bar:
        if in_place:
            code, counts = write_in_place(cold, chosen, over, bar, marked)
        elif folder:
            code, counts = folder.write(cold, files_of(chosen), bar), folder.counts()
            if paper:
                asked = Asked(names, tenant or ("default" if names else None), wanted_tags, since, until)
                told = json.dumps(inventory_of(cold, folder, chosen, asked), indent=1, ensure_ascii=False)
                paper.write([told.encode("utf-8", "backslashreplace")])
        elif destination and form == "pltz":
            destination.write([_as_pltz(cold, chosen, device, threads, bar, marked)])
        elif destination:
            destination.write(_rendered(cold, chosen, blocks, form, bar, marked), whole=bool(names))
    found |= tell_redacted(marked)
    if into:
        report(found | counts, as_json)
    if not names:  # before what may be the report of a part
        cold.directory.want_whole(f"went through {counted(len(chosen), 'session')}", tenant)
    if destination and as_json:
        destination.report(json.dumps(report_of(part, found | {"bytes": destination.written})))
    elif destination and to != "-":
        destination.report(f"{to}: {counted(len(chosen), 'session')}{f', part {part}' if part else ''}")
    click.get_current_context().exit(code)


def _sessions(
    cold: "Archive",
    chosen: "Sequence[Version]",
    bar: Progress,
    blocks: "Blocks | None" = None,
    marked: "Redactor | None" = None,
) -> "Iterator[Session]":
    for session in cold.sessions.read_many(chosen, blocks):
        yield marked.session(session) if marked else session
        bar.add(1)


def _rendered(
    cold: "Archive",
    chosen: "Sequence[Version]",
    blocks: "Blocks | None",
    form: str,
    bar: Progress,
    marked: "Redactor | None",
) -> Iterator[bytes]:
    """Yield sessions in a format; ``auto``: one as it was, several as a line each."""
    from pltz.datasets.file_forms import NUMBERED, is_log

    sessions: Iterable[Session] = _sessions(cold, chosen, bar, blocks, marked)
    if form == "auto" and len(chosen) == 1:
        [one] = sessions = list(sessions)
        log = is_log(one, known=NUMBERED.fullmatch(chosen[0].name) is not None)
        form = "exact" if one.writing else "agent-log" if log else form_of([one.kind])
    yield from render(sessions, "jsonl" if form == "auto" else form, names=[repr(version.name) for version in chosen])


def _as_pltz(
    cold: "Archive", chosen: "list[Version]", device: str, threads: int | None, bar: Progress, marked: "Redactor | None"
) -> bytes:
    """Return the sessions as one .pltz file, frozen for a target only where all were frozen for it."""
    from pltz.plt_codec.container.frame import is_bytewise

    own = cold.codecs.tokenizer.fingerprint
    if any(v.tokenizer != own and not is_bytewise(v.tokenizer) for v in chosen):
        raise UsageError("some of these ids belong to another tokenizer than the bundle's: write them as JSONL")
    targets = {version.target for version in chosen}
    target = targets.pop() if len(targets) == 1 else bytes(16)
    return options.load_codec(None, device, threads).compress(
        _sessions(cold, chosen, bar, marked=marked),
        target_fingerprint=target if any(target) else None,
        keep_opaque=True,
    )

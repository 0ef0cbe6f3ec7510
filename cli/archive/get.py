"""``pltz archive get`` and ``export``: write sessions of an archive as they were put."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted
from pltz.archive.work_part import WorkPart
from pltz.cli.archive import shared
from pltz.cli.archive.parts import PartCommand, parted, report_of
from pltz.cli.archive.shared import choose, full_names, open_archive, tags_of
from pltz.cli.ui import options
from pltz.cli.ui.groups import NamingCommand
from pltz.cli.ui.key_options import key_options
from pltz.cli.ui.output import Output
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.session_output import SESSION_FORMAT, form_of, render, written
from pltz.plt_codec.errors import ContentError, UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.catalog.lookup import Version, VersionName
    from pltz.models.session.session import Session


@click.command(
    cls=NamingCommand,
    short_help="Write sessions as they were put.",
    examples=[
        "pltz archive get /data/cold support/7 --tenant acme",
        "pltz archive get /data/cold support/7 --version 2 -o chat.jsonl",
        "pltz archive get /data/cold notes -o notes.txt",
    ],
)
@shared.DIR
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@shared.TENANT
@shared.VERSION
@options.OUTPUT
@SESSION_FORMAT
@shared.READ_BUNDLES
@shared.TOKENIZERS
@options.FORCE
@options.THREADS
@options.DEVICE
@options.JSON
@key_options
def get(
    place: str,
    names: tuple[str, ...],
    tenant: str,
    number: "VersionName | None",
    output: str,
    form: str,
    bundles: tuple[str, ...],
    tokenizers: tuple[str, ...],
    force: bool,
    threads: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Write the sessions NAME... of the archive in DIR: their last versions, or version N.

    Of a NAME that ends in * the beginning is enough where one session alone begins so, or a part of it behind the last
    slash. Chats come back as JSONL with equal values, the log of an agent as the lines that it was, a text byte for
    byte, and token ids as JSON lists. Of several sessions each is one line; restore writes a file for each. Nothing is
    written unless every chosen session passes its check.
    """
    from pltz.datasets.file_forms import NUMBERED, is_log

    destination = Output(output, force=force, binary=False)
    cold = open_archive(place, bundles, tokenizers=tokenizers, device=device, threads=threads)
    catalog = cold.parts.catalog
    # the opening looked already, in this same call
    with catalog.one_look(math.inf):
        whole = full_names(cold, names, tenant, number)
        with Progress("decode", unit="sessions", total=len(whole), shown=wanted(None)):  # a log may take minutes
            sessions = [found.session for found in cold.get_many(whole, tenant=tenant, version=number)]
    if form == "auto":
        [first, *more] = sessions
        log = not more and is_log(first, known=NUMBERED.fullmatch(whole[0]) is not None)
        kept = not more and first.writing
        form = "exact" if kept else "agent-log" if log else form_of([session.kind for session in sessions])
    destination.write(render(sessions, form), whole=True)
    if number is None and catalog.listing.behind:
        click.echo(f"warning: a newer version may be missing: {catalog.listing.behind}", err=True)
    if as_json:
        destination.report(written(destination, len(sessions)))


@click.command(
    cls=PartCommand,
    short_help="Write many sessions as JSONL or as a .pltz file.",
    examples=[
        "pltz archive export /data/cold -o all.jsonl",
        "pltz archive export /data/cold --tenant acme --tag channel=web --format pltz -o acme.pltz",
        "pltz archive export /data/cold support/7 support/8 -o - | head -n 1",
        "pltz archive export s3://bucket/cold -o all-3.jsonl --part 3/16 --json",
    ],
)
@shared.DIR
@shared.NAMES
@shared.ONLY_TENANT
@shared.ONLY_TAGS
@click.option("--history", is_flag=True, help="All versions, not only the last of each session.")
@click.option("-o", "--output", required=True, metavar="OUT", help="The file to write; - for stdout.")
@options.form(("auto", "jsonl", "pltz"), "Output format. auto is pltz for a name that ends in .pltz, else jsonl.")
@click.option(
    "--with-names", is_flag=True, help='JSONL: {"name": ..., "session": ...} with tenant, tags and time.'
)
@shared.BUNDLES
@shared.TOKENIZERS
@options.FORCE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
@parted("sessions")
@key_options
def export(
    place: str,
    names: tuple[str, ...],
    tenant: str | None,
    tags: tuple[str, ...],
    history: bool,
    output: str,
    form: str,
    with_names: bool,
    bundles: tuple[str, ...],
    tokenizers: tuple[str, ...],
    force: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
    part: WorkPart | None,
) -> None:
    """Write sessions of the archive in DIR, by tenant and name, as JSONL or as one .pltz file.

    The file appears whole or not at all. Without NAME all sessions are written. Where parts of the archive are damaged,
    the file then has the sessions that are still listed, and the exit code is 7. A .pltz file keeps sessions without
    their names, tags and times. It is frozen for a target only where all its sessions were frozen for that target.
    """
    if form == "auto":
        form = "pltz" if output.endswith(".pltz") else "jsonl"
    if form == "pltz" and with_names:
        raise UsageError("a .pltz file has no names: leave --with-names out, or write JSONL")
    destination = Output(output, force=force, binary=form == "pltz")
    cold = open_archive(place, bundles, tokenizers=tokenizers, device=device, threads=threads)
    chosen = list(choose(cold, names, tenant, tags_of(tags), history=history, part=part))
    with Progress("export", unit="sessions", total=len(chosen), shown=wanted(progress)) as bar:
        if form == "pltz":
            destination.write([_as_pltz(cold, chosen, bundles, device, threads, bar)])
        else:
            destination.write(_lines(cold, chosen, with_names, bar.add))
    if not names:
        cold.directory.want_whole(f"wrote {counted(len(chosen), 'session')}", tenant)
    if as_json:
        found = {"sessions": len(chosen), "format": form, "output": output}
        destination.report(json.dumps(report_of(part, found)))
    elif output != "-":
        destination.report(f"{output}: {counted(len(chosen), 'session')}{f', part {part}' if part else ''}")


def _sessions(cold: "Archive", chosen: "Sequence[Version]", seen: "Callable[[int], object]") -> "Iterator[Session]":
    for session in cold.sessions.read_many(chosen):
        yield session
        seen(1)


def _lines(
    cold: "Archive", chosen: "Sequence[Version]", with_names: bool, seen: "Callable[[int], object]"
) -> Iterator[bytes]:
    """Yield one line per session. Raises ContentError for a text that cannot be written as JSONL."""
    for version, session in zip(chosen, _sessions(cold, chosen, seen), strict=True):
        try:
            line = session.to_json_line()
        except ContentError as exc:
            raise ContentError(
                f"{version.name!r}: {exc} (pltz archive get writes it, or export it as .pltz)"
            ) from exc
        if with_names:
            head = json.dumps(
                {"tenant": version.tenant, "name": version.name, "version": version.version}
                | {"time": version.time, "tags": version.tags}
            )
            line = head[:-1].encode() + b', "session": ' + line.rstrip(b"\n") + b"}\n"
        yield line


def _as_pltz(
    cold: "Archive",
    chosen: "list[Version]",
    bundles: tuple[str, ...],
    device: str,
    threads: int | None,
    bar: Progress,
) -> bytes:
    from pltz.coding.codecs.codec import BytesCodec

    if any(v.tokenizer not in (cold.codecs.tokenizer.fingerprint, BytesCodec.tokenizer) for v in chosen):
        raise UsageError(
            "some of these ids belong to another tokenizer than the bundle's: export them as JSONL"
        )
    codec = options.load_codec(bundles[0] if bundles else None, device, threads)
    targets = {version.target for version in chosen}
    target = targets.pop() if len(targets) == 1 else bytes(16)
    return codec.compress(
        _sessions(cold, chosen, bar.add),
        target_fingerprint=target if any(target) else None,
        keep_opaque=True,
    )

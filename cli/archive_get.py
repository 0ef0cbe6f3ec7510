"""``pltz archive get`` and ``export``: sessions out of an archive, as they were put."""

import json

import click

from pltz.cli import archive_options as shared
from pltz.cli import options
from pltz.cli.decompress import FORMATS, json_line, render
from pltz.cli.groups import Command
from pltz.cli.output import Output, write_text
from pltz.cli.progress import Progress, wanted


@click.command(
    cls=Command,
    short_help="Write sessions of an archive as they were put.",
    examples=[
        "pltz archive get /data/cold chat-7",
        "pltz archive get /data/cold chat-7 --version 1 -o chat-7.jsonl",
        "pltz archive get /data/cold notes/1 --tenant acme -o note.txt",
    ],
)
@shared.PLACE
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@shared.TENANT
@shared.VERSION
@click.option("-o", "--output", default="-", metavar="OUT", help="Where to write.  [default: stdout]")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="How to write: one JSON line a session, the bytes of texts, or one JSON list of ids a line.",
)
@options.BUNDLE
@options.FORCE
@options.THREADS
@options.DEVICE
def get(
    place: str,
    names: tuple[str, ...],
    tenant: str,
    number: int | None,
    output: str,
    form: str,
    bundle: str | None,
    force: bool,
    threads: int | None,
    device: str,
) -> None:
    """Write the sessions NAME... of ARCHIVE: chats as JSONL, value for value, a text byte for byte.

    Nothing is written unless every session decodes to what its name says.
    """
    destination = Output(output, force=force, binary=False)
    freezer = shared.open_freezer(place, bundle, device, threads)
    versions = [freezer.archive.version(name, tenant, number) for name in names]
    sessions = [session for _, session in freezer.sessions(versions)]
    destination.write(list(render(sessions, form)))


@click.command(
    cls=Command,
    short_help="Write all sessions of an archive to one file.",
    examples=[
        "pltz archive export /data/cold -o all.jsonl",
        "pltz archive export /data/cold --tenant acme --label from=nightly -o acme.pltz",
    ],
)
@shared.PLACE
@shared.ANY_TENANT
@shared.LABELS
@click.option(
    "-o", "--output", required=True, metavar="OUT", help="A .jsonl or .pltz file; - for JSONL on stdout."
)
@options.BUNDLE
@options.FORCE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
def export(
    place: str,
    tenant: str | None,
    labels: tuple[str, ...],
    output: str,
    bundle: str | None,
    force: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Write the last versions of all sessions of ARCHIVE as JSONL, or as one .pltz file by its name.

    Chats are written as they are, texts that are no JSON lines are refused in JSONL and fit a .pltz file.
    The file appears whole or not at all.
    """
    from pltz.models.codec import Codec

    destination = Output(output, force=force, binary=output.endswith(".pltz"))
    freezer = shared.open_freezer(place, bundle, device, threads)
    count = 0
    with Progress("export", unit="sessions", shown=wanted(progress)) as bar:
        versions = freezer.archive.find(shared.labels_of(labels), tenant=tenant)
        found = [session for _, session in freezer.sessions(versions, progress=bar.add)]
        count = len(found)
        if output.endswith(".pltz"):
            codec = Codec.load(freezer.bundle, device=device, threads=threads)
            destination.write([codec.compress(found, keep_opaque=True)])
        else:
            destination.write([json_line(session, i) for i, session in enumerate(found)])
    if output != "-":
        line = {"sessions": count, "output": output}
        write_text(json.dumps(line) if as_json else f"{output}: {count} sessions")

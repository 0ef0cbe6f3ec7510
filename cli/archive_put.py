"""``pltz archive init`` and ``put``: make an archive, freeze sessions into it."""

import json
import time
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

import click

from pltz.cli import archive_options as shared
from pltz.cli import options
from pltz.cli.compress import FORMATS, read_sessions
from pltz.cli.groups import Command
from pltz.cli.output import write_text
from pltz.cli.progress import Progress, wanted
from pltz.cli.table import size
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.freezer import Freezer, Named
    from pltz.models.session import Session


@click.command(
    cls=Command,
    short_help="Make an archive.",
    examples=["pltz archive init /data/cold", "pltz archive init s3://bucket/cold --json"],
)
@shared.PLACE
@shared.LINES
def init(place: str, as_json: bool) -> None:
    """Make an archive at ARCHIVE, a directory or s3://bucket/prefix, where there is none yet."""
    from pltz.archive.archive import Archive
    from pltz.archive.codec import BytesCodec

    made = Archive.create(place, [BytesCodec()]).settings.archive.hex()
    write_text(json.dumps({"archive": made, "place": place}) if as_json else f"{place}: archive {made}")


@click.command(
    cls=Command,
    short_help="Freeze the sessions of INPUT... into an archive.",
    examples=[
        "pltz archive put /data/cold chats.jsonl",
        "pltz archive put /data/cold chats.pltz --tenant acme --label from=nightly",
        "pltz archive put /data/cold note.txt --name notes/1 --json",
        "pltz archive put /data/cold - --dry-run < chats.jsonl",
    ],
)
@shared.PLACE
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@shared.TENANT
@click.option("--name", metavar="NAME", help="What the session is called, where the input holds one only.")
@shared.LABELS
@click.option("--share-prompts", is_flag=True, help="Share long system prompts between tenants.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="What the inputs are; .pltz files are known by themselves.",
)
@click.option(
    "--keep-opaque", is_flag=True, help="Keep sessions with image, audio or file parts, as plain bytes."
)
@shared.DRY_RUN
@options.BUNDLE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@shared.LINES
def put(
    place: str,
    inputs: tuple[str, ...],
    tenant: str,
    name: str | None,
    labels: tuple[str, ...],
    share_prompts: bool,
    form: str,
    keep_opaque: bool,
    dry_run: bool,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Freeze the sessions of INPUT... (files as for pltz compress, or .pltz files) into ARCHIVE.

    A chat is called by its "id", any other session by its file and number; --name names a single one. A
    session put again under its name becomes its next version, and only what is new is stored; one that
    did not change adds nothing. Each batch is durable, decoded back and compared before its lines appear.
    """
    freezer = shared.open_freezer(place, bundle, device, threads)
    found = named(freezer, inputs, form, name, shared.labels_of(labels), device, threads)
    count = new = stored = unchanged = 0
    start = time.perf_counter()
    with Progress("freeze", unit="sessions", shown=wanted(progress)) as bar:
        for receipt in freezer.put(
            found,
            tenant,
            share_prompts=share_prompts,
            keep_opaque=keep_opaque,
            dry_run=dry_run,
            progress=bar.add,
        ):
            count, new, stored = count + 1, new + receipt.new, stored + receipt.size
            unchanged += receipt.unchanged
            if as_json:
                write_text(
                    json.dumps(
                        {
                            "tenant": receipt.tenant,
                            "name": receipt.name,
                            "version": receipt.number,
                            "new_segments": receipt.new,
                            "bytes": receipt.size,
                            "unchanged": receipt.unchanged,
                        },
                        ensure_ascii=False,
                    )
                )
    seconds = time.perf_counter() - start
    if as_json:
        line = {"sessions": count, "unchanged": unchanged, "new_segments": new, "bytes": stored}
        write_text(json.dumps(line | {"dry_run": dry_run, "seconds": round(seconds, 3)}))
    elif dry_run:
        write_text(f"{place}: would look at {count} sessions of at most {new} segments; nothing was written")
    else:
        write_text(
            f"{place}: {count} sessions ({unchanged} unchanged), {new} new segments of {size(stored)}, {seconds:.1f} s"
        )


def named(
    freezer: "Freezer",
    inputs: tuple[str, ...],
    form: str,
    name: str | None,
    labels: dict[str, str],
    device: str,
    threads: int | None,
) -> Iterator["Named"]:
    """The sessions of all inputs with their names. Raises UsageError where one name is to serve several."""
    from pltz.archive.freezer import Named, names

    count = 0
    for path in inputs:
        stem = "stdin" if path == "-" else PurePath(path).name.split(".")[0] or path
        for own, session in names(sessions_of(freezer, path, form, device, threads), stem):
            count += 1
            if name is not None and count > 1:
                raise UsageError("--name names one session, and the input holds more: leave it out")
            yield Named(name or own, session, labels)


def sessions_of(
    freezer: "Freezer", path: str, form: str, device: str, threads: int | None
) -> Iterator["Session"]:
    """The sessions of one input; those of a .pltz file are decoded with the bundle it names."""
    if path != "-" and form == "auto" and is_pltz(path):
        from pltz import api

        same = None
        with options.open_reader(path) as reader:
            if reader.header.bundle_id == freezer.bundle.id:
                same = freezer.bundle
            yield from api.open(reader, bundle=same, device=device, threads=threads)
    else:
        yield from read_sessions([path], form)


def is_pltz(path: str) -> bool:
    """Whether a file begins as a .pltz file does."""
    from pltz.plt_codec.container import MAGIC

    try:
        with open(path, "rb") as f:
            return f.read(len(MAGIC)) == MAGIC
    except OSError:
        return False  # the loader says what is wrong with it

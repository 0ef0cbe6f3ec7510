"""``pltz archive copy``: bring what an archive holds to another."""

import dataclasses
import json

import click

from pltz.archive.errors import LostError
from pltz.cli import archive_options as shared
from pltz.cli import options
from pltz.cli.groups import Command
from pltz.cli.output import write_text
from pltz.cli.progress import Progress, wanted
from pltz.cli.table import size


@click.command(
    cls=Command,
    short_help="Copy the sessions of an archive to another.",
    examples=[
        "pltz archive copy /data/cold s3://bucket/cold",
        "pltz archive copy /data/cold /mnt/usb/cold --tenant acme --decode --json",
    ],
)
@shared.PLACE
@click.argument("destination", metavar="DESTINATION")
@shared.ANY_TENANT
@click.option("--decode", is_flag=True, help="Decode every segment and compare before it is copied.")
@shared.DRY_RUN
@options.BUNDLE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
def copy(
    place: str,
    destination: str,
    tenant: str | None,
    decode: bool,
    dry_run: bool,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Copy all versions of all sessions of ARCHIVE that are not forgotten to the archive DESTINATION.

    Records are copied as they are, checked on the way. What is there already is left out: run it again
    after it was stopped, or every night. A session that is damaged here is left out and counted (exit 3).
    """
    from pltz.archive.transfer import Transfer

    source = (
        shared.open_freezer(place, bundle, device, threads).archive if decode else shared.open_archive(place)
    )
    target = shared.open_archive(destination)
    with Progress("copy", unit="sessions", shown=wanted(progress)) as bar:
        done = Transfer(source, target).run(tenant, decode=decode, dry_run=dry_run, progress=bar.add)
    facts = dataclasses.asdict(done)
    if as_json:
        write_text(json.dumps(facts | {"dry_run": dry_run}))
    else:
        write_text(
            f"{destination}: {done.sessions} versions {'would be ' if dry_run else ''}copied ({done.segments} segments, "
            f"{size(done.size)}), {done.there} were there"
        )
    if done.lost:
        raise LostError(
            f"{done.lost} versions are damaged at the source and were left out: see pltz archive verify"
        )

"""``pltz archive merge``: rewrite the turns of cold sessions as one segment each."""

import dataclasses
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted, size
from pltz.cli.archive import shared
from pltz.cli.archive.shared import Recoding, show
from pltz.cli.ui.groups import Command
from pltz.cli.ui.progress import Progress, wanted

if TYPE_CHECKING:
    from pltz.archive.maintenance.merge import Merged


@click.command(
    cls=Command,
    short_help="Make sessions that grew turn by turn quick to read.",
    examples=[
        "pltz archive merge /data/cold",
        "pltz archive merge /data/cold --cold 30d --tenant acme --dry-run --json",
    ],
)
@shared.DIR
@click.option(
    "--cold",
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="Least age of a session's newest version: 12h, 30d. 0s merges all.",
)
@shared.ONLY_TENANT
@shared.recoding_options
def merge(
    place: str,
    cold: str,
    tenant: str | None,
    recoding: Recoding,
) -> None:
    """Rewrite the own segments of each cold session in DIR as one, so that it is decoded at once.

    Every version keeps its number, tags and content; segments that sessions share stay shared. Each session is decoded
    and compared before and after it is written. A session that would take more bytes is left as it is. The old records
    are freed by collect. Readers, writers and collectors may work at the same time, and a merge that was stopped is
    simply run again.
    """
    from pltz.archive.retention import seconds

    age = seconds(cold)
    archive = recoding.open(place)
    with Progress("merge", unit="sessions", shown=wanted(recoding.progress)) as bar:

        def note(done: "Merged") -> None:
            bar.add(done.sessions - bar.count)

        done = archive.merge(cold=age, tenant=tenant, dry_run=recoding.dry_run, progress=note)
    may = "would be " if recoding.dry_run else ""
    text = (
        f"{counted(done.merged, 'session')} of {done.sessions:,} cold {may}merged, "
        f"{counted(done.segments, 'segment')} in all: {size(done.before)} become {size(done.after)} "
        "once collect has run twice"
    )
    show(dataclasses.asdict(done) | {"dry_run": recoding.dry_run}, text, recoding.as_json)

"""``pltz archive cluster``: choose the sessions that new ones are coded after."""

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted, size
from pltz.cli.archive import shared
from pltz.cli.archive.shared import Recoding, show
from pltz.cli.archive.spreading import Spreading, spread_options
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.progress import Progress, wanted

if TYPE_CHECKING:
    from pltz.archive.maintenance.cluster import Clustered


@click.command(
    cls=Command,
    short_help="Choose the sessions that new ones are coded after.",
    examples=[
        "pltz archive cluster /data/cold",
        "pltz archive cluster /data/cold --medoids 16 --dry-run --json",
        "pltz archive cluster /data/cold --layout fast",
        "pltz archive cluster s3://bucket/cold --ray ray://head:10001",
    ],
)
@shared.DIR
@options.count("--medoids", 64, "Sessions per tenant, at most.")
@spread_options
@shared.recoding_options
def cluster(
    place: str,
    medoids: int,
    recoding: Recoding,
    spreading: Spreading,
) -> None:
    """Choose up to 64 sessions of each tenant in DIR, after which its other sessions take few bytes.

    A put with --neighbours looks for the nearest of them, and codes a new session after it where that is shorter. Their
    sketches are put into a small file, which replaces the last one. Tenants whose sessions have hardly changed keep
    theirs. Run it now and then, as sessions change. Give the --layout of the puts: in the fast one a session that was
    coded after another serves no other.
    """
    from pltz.archive import bulk

    archive, recipe = recoding.opened(place)
    with Progress("cluster", unit="sessions", shown=wanted(recoding.progress)) as bar:

        def note(done: "Clustered") -> None:
            bar.add(done.sessions - bar.count)

        how: dict[str, Any] = {"medoids": medoids, "dry_run": recoding.dry_run, "progress": note}
        if spreading:
            identity = archive.parts.settings.archive
            with spreading.over(identity, recipe.place, "cluster", writes=not recoding.dry_run) as spread:
                done = bulk.cluster(archive, recipe, spread, **how)
        else:
            done = archive.cluster(**how)
    kept = f" ({done.kept:,} of them have hardly changed)" if done.kept else ""
    looked = f"{done.sessions:,} looked at, {counted(done.tenants, 'tenant')}{kept}"
    text = (
        f"{counted(done.medoids, 'session')} chosen, {looked}; "
        f"their sketches {'would take' if recoding.dry_run else 'take'} {size(done.file_bytes)}"
    )
    show(dataclasses.asdict(done) | {"dry_run": recoding.dry_run}, text, recoding.as_json)

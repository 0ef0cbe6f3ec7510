"""``pltz archive ls``, ``find`` and ``stat``: list and count what is in an archive. None of them decodes anything."""

import dataclasses
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted, size
from pltz.cli.archive import shared
from pltz.cli.archive.shared import facts, line_of, open_archive, seconds_of, show, tags_of
from pltz.cli.ui.groups import Command
from pltz.cli.ui.key_options import key_options
from pltz.cli.ui.table import pairs

if TYPE_CHECKING:
    from pltz.archive.archive import Archive


@click.command(
    cls=Command,
    examples=["pltz archive ls /data/cold", "pltz archive ls /data/cold --tenant acme --history --json"],
)
@shared.DIR
@shared.ONLY_TENANT
@click.option("--history", is_flag=True, help="All versions, not only the last of each session.")
@click.option("--forgotten", is_flag=True, help="Forgotten versions too.")
@shared.JSON_LINES
@key_options
@click.pass_context
def ls(
    ctx: click.Context, place: str, tenant: str | None, history: bool, forgotten: bool, as_json: bool
) -> None:
    """List the last versions of sessions, by tenant and name.

    Where packs are damaged, missing or lost, their sessions may not be listed, and the exit code is 7.
    """
    cold = open_archive(place)
    for version in cold.list(tenant, forgotten=forgotten, history=history, partial=True):
        show(facts(version), line_of(version), as_json)
    ctx.exit(_warn(cold))


@click.command(
    cls=Command,
    short_help="List sessions by a part of their name, tags and time.",
    examples=[
        "pltz archive find /data/cold support",
        "pltz archive find /data/cold --tag channel=web --since 2026-01-01 --json",
    ],
)
@shared.DIR
@click.argument("text", metavar="[TEXT]", default="")
@shared.ONLY_TENANT
@shared.ONLY_TAGS
@click.option("--since", metavar="DATE", help="Not older than this: 2026-01-31, 2026-01-31T12:00.")
@click.option("--until", metavar="DATE", help="Older than this.")
@shared.JSON_LINES
@key_options
@click.pass_context
def find(
    ctx: click.Context,
    place: str,
    text: str,
    tenant: str | None,
    tags: tuple[str, ...],
    since: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """List the last versions of sessions that have all the tags and TEXT in their name, by time.

    Where packs are damaged, missing or lost, their sessions may not be listed, and the exit code is 7.
    """
    cold = open_archive(place)
    chosen, start, end = tags_of(tags), seconds_of(since), seconds_of(until)
    for version in cold.find(text, tenant=tenant, tags=chosen, since=start, until=end, partial=True):
        show(facts(version), line_of(version), as_json)
    ctx.exit(_warn(cold))


@click.command(cls=Command, examples=["pltz archive stat /data/cold", "pltz archive stat /data/cold --json"])
@shared.DIR
@shared.JSON_LINES
@key_options
def stat(place: str, as_json: bool) -> None:
    """Count what is in the archive: packs, indexes, records and bytes."""
    cold = open_archive(place)
    found = dataclasses.asdict(cold.stat())
    found["archive"] = found["archive"].hex()
    words = {k: size(v) if k.endswith("bytes") else str(v) for k, v in found.items()}
    if as_json:
        show(found, "", True)
    else:
        click.echo(pairs([(key.replace("_", " "), value) for key, value in words.items()], indent=""))
    _warn(cold)


def _warn(cold: "Archive") -> int:
    """Print a warning where parts are damaged or gone, as a listing may lack their sessions. Return an exit code."""
    from pltz.archive.errors import ArchiveError

    try:
        cold.tower.want_whole("listed what is there")
    except ArchiveError as exc:
        click.echo(f"warning: {exc}", err=True)
        return exc.exit_code
    if problems := cold.tower.problems:
        click.echo(
            f"warning: {counted(len(problems), 'damaged part')}, so sessions may be missing here: "
            "run pltz archive verify",
            err=True,
        )
    return 0

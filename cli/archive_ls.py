"""``pltz archive ls``, ``find`` and ``stat``: what is in an archive. No bundle is loaded."""

import dataclasses
import json

import click

from pltz.cli import archive_options as shared
from pltz.cli import options
from pltz.cli.groups import Command
from pltz.cli.output import write_text
from pltz.cli.table import pairs, size


@click.command(
    cls=Command,
    short_help="List the sessions of an archive.",
    examples=[
        "pltz archive ls /data/cold",
        "pltz archive ls /data/cold --tenant acme --history --json",
    ],
)
@shared.PLACE
@shared.ANY_TENANT
@click.option("--history", is_flag=True, help="All versions, not the last ones only.")
@click.option("--forgotten", is_flag=True, help="Forgotten versions too.")
@shared.LINES
def ls(place: str, tenant: str | None, history: bool, forgotten: bool, as_json: bool) -> None:
    """List the sessions of ARCHIVE by tenant and name: time, version, kind, name, labels."""
    shared.show(shared.open_archive(place).ls(tenant, forgotten=forgotten, history=history), as_json)


@click.command(
    cls=Command,
    short_help="Find sessions by name, label and time.",
    examples=[
        "pltz archive find /data/cold --name support --since 30d",
        "pltz archive find /data/cold --label from=nightly --until 2026-01-01 --json",
    ],
)
@shared.PLACE
@shared.ANY_TENANT
@click.option("--name", default="", metavar="TEXT", help="Part of the name.")
@shared.LABELS
@click.option("--since", metavar="WHEN", help="Not older than: a date, or a duration ago such as 30d.")
@click.option("--until", metavar="WHEN", help="Older than: a date, or a duration ago.")
@shared.LINES
def find(
    place: str,
    tenant: str | None,
    name: str,
    labels: tuple[str, ...],
    since: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """List the sessions of ARCHIVE that fit everything asked for."""
    found = shared.open_archive(place).find(
        shared.labels_of(labels),
        tenant=tenant,
        name=name,
        since=None if since is None else shared.moment(since),
        until=None if until is None else shared.moment(until),
    )
    shared.show(found, as_json)


@click.command(
    cls=Command,
    short_help="Counts and bytes of an archive.",
    examples=["pltz archive stat /data/cold", "pltz archive stat s3://bucket/cold --json"],
)
@shared.PLACE
@options.JSON
def stat(place: str, as_json: bool) -> None:
    """Count what ARCHIVE holds: sessions (all versions), segments, packs, indexes, bytes, what is condemned."""
    found = dataclasses.asdict(shared.open_archive(place).stat())
    found["archive"] = found["archive"].hex()
    if as_json:
        write_text(json.dumps(found))
        return
    shown = {
        k: size(v) if k.endswith("bytes") else f"{v:,}" if isinstance(v, int) else v for k, v in found.items()
    }
    write_text(pairs([(k.replace("_", " "), v) for k, v in shown.items()], indent=""))

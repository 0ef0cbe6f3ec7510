"""``pltz hold``: keep sessions from being forgotten, freed or erased, until somebody releases them."""

from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import moment
from pltz.cli.archive import shared
from pltz.cli.archive.shared import open_archive, show, tags_of
from pltz.cli.ui.archive_options import ArchiveGroup, ChangeCommand
from pltz.cli.ui.options import nonempty
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.catalog.holds import LegalHold

COMMANDS = {name: f"pltz.cli.archive.hold:{name}" for name in ("add", "release", "ls")}


@click.group(cls=ArchiveGroup, lazy=COMMANDS, short_help="Hold sessions: nothing forgets, frees or erases them.")
def hold() -> None:
    """Hold sessions, tags or tenants: no forget, policy, collect or erase takes anything of them, whoever asks.

    A hold says who placed it and why, and covers what is put later. It is in the manifest and in a file of its own:
    repair makes either again from the other. A copy takes it along.
    """


@click.command(
    cls=ChangeCommand,
    short_help="Hold a session, a tag or a tenant.",
    examples=[
        "pltz hold add -r /data/cold support/7 --tenant acme --reason case-7 --actor alice",
        "pltz hold add --tag matter=42 --reason case-42",
        "pltz hold add --tenant acme --reason audit",
    ],
)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--tenant", type=nonempty, metavar="TENANT", help="Tenant of NAME or of the tag; alone: all of it.")
@click.option("--tag", metavar="KEY=VALUE", help="Versions with this tag, without --tenant of all tenants.")
@shared.JSON_LINES
def add(name: str | None, tenant: str | None, tag: str | None, as_json: bool) -> None:
    """Hold the session NAME, all versions with a tag, or all of a tenant, and print the hold's id."""
    [pair] = tags_of([tag]).items() if tag is not None else [None]
    if name is None and tenant is None and pair is None:
        raise UsageError("name what to hold: NAME, --tag KEY=VALUE or --tenant TENANT")
    _show(open_archive().hold(name, tenant=tenant, tag=pair), as_json)


@click.command(
    cls=ChangeCommand,
    short_help="Release a hold by its id.",
    examples=["pltz hold release 1f0e6c2a --reason closed --actor alice"],
)
@click.argument("hold", metavar="ID")
@shared.JSON_LINES
def release(hold: str, as_json: bool) -> None:
    """Release the hold whose id begins with ID, 8 digits or more."""
    try:
        identity = bytes.fromhex(hold[: len(hold) // 2 * 2])
    except ValueError:
        identity = b""
    if len(hold) < shared.LEAST_DIGITS or not identity:
        raise UsageError(f"expected 8 hex digits or more of a hold's id, found {hold!r}: see pltz hold ls")
    _show(open_archive().release(identity), as_json)


@click.command(
    cls=ChangeCommand,
    short_help="List the holds in force.",
    examples=["pltz hold ls -r /data/cold", "pltz hold ls --json"],
)
@shared.JSON_LINES
def ls(as_json: bool) -> None:
    """List the holds in force, the oldest first."""
    for each in open_archive().holds():
        _show(each, as_json)


def _show(found: "LegalHold", as_json: bool) -> None:
    """Print a hold."""
    record: dict[str, Any] = found._asdict() | {"id": found.id.hex(), "tag": dict([found.tag]) if found.tag else None}
    whose = "all tenants" if found.tenant is None else found.tenant
    tag = "=".join(found.tag) if found.tag else "(all)"
    what = f"{whose}  {tag if found.name is None else found.name}"
    show(record, f"{record['id'][:8]}  {what}  {moment(found.time)}  {found.actor}  {found.reason}".rstrip(), as_json)

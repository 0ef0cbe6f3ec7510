"""``pltz archive erase``: destroy the keys of a session or of a tenant, and prove that nothing opens any more."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pltz.archive.words import counted
from pltz.cli import archive_options, options
from pltz.cli.archive_key import key_options, secret
from pltz.cli.groups import Command
from pltz.cli.options import nonempty
from pltz.cli.output import write_text
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.erase import Erasure


@click.command(
    cls=Command,
    short_help="Destroy the keys of a session or a tenant.",
    examples=[
        "pltz archive erase /data/cold --tenant acme --name chat-7 --key-file key --dry-run",
        "pltz archive erase /data/cold --tenant acme --name chat-7 --key-file key --yes",
        "pltz archive erase /data/cold --tenant acme --all --key-command my-vault --yes",
    ],
)
@archive_options.DIR
@click.option("--tenant", type=nonempty, metavar="TENANT", required=True, help="Whose.")
@click.option(
    "--name", type=nonempty, metavar="NAME", help="The session: all its versions, forgotten ones too."
)
@click.option("--all", "everything", is_flag=True, help="Everything of the tenant.")
@key_options
@click.option("--dry-run", is_flag=True, help="Only say what would be erased.")
@click.option("--yes", is_flag=True, help="Do not ask. This cannot be undone.")
@options.JSON
def erase(
    place: str,
    tenant: str,
    name: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Destroy the keys of a session, or of all of a tenant, in the sealed archive in DIR; what they opened is noise from then on.

    Afterwards every record is read from the raw packs and its key asked for: the proof. What other sessions of the
    tenant share stays. Copies of the folder keys/ in backups, snapshots or buckets with versions are out of reach.
    """
    from pltz.archive.archive import Archive

    if (name is None) != everything:
        raise UsageError("expected either --name NAME or --all")
    opened = Archive.open(place, [], key=secret())
    if not (dry_run or yes):
        found = opened.erase(tenant, name, dry_run=True)  # what cannot be erased is not asked about
        what = f"session {name!r}" if name is not None else "everything"
        question = f"Erase {what} of tenant {tenant!r}, versions: {found.versions}? This cannot be undone"
        click.confirm(question, abort=True, err=True)
    done = opened.erase(tenant, name, dry_run=dry_run)
    write_text(json.dumps(asdict(done)) if as_json else as_text(done, dry_run))


def as_text(done: "Erasure", dry_run: bool) -> str:
    """What was done, for people."""
    verb = "would be erased" if dry_run else "erased"
    lines = [f"{counted(done.versions, 'version')} {verb}"]
    if done.name is not None:
        lines.append(
            f"{counted(done.segments, 'segment')} with them; shared with other sessions, to stay: {done.shared:,}"
        )
    if not dry_run:
        lines.append(f"{counted(done.files, 'key file')} overwritten and deleted")
        lines.append(f"proof: {counted(done.records, 'record')} read from the packs, none has a key any more")
    if done.unread:
        lines.append(f"damaged and not read whole: {counted(done.unread, 'pack')}; run pltz archive repair")
    return "\n".join(lines)

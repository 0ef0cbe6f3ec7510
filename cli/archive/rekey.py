"""``pltz archive rekey``: change the key of an archive, or add to it, without coding anything again."""

import click

from pltz.archive.humanize import counted
from pltz.cli.archive import shared
from pltz.cli.archive.shared import open_archive, show
from pltz.cli.ui.archive_options import ChangeCommand
from pltz.cli.ui.options import nonempty


@click.command(
    cls=ChangeCommand,
    short_help="Change the key of a sealed archive.",
    examples=[
        "pltz archive rekey -r /data/sealed --key-file key --new-key-file next",
        "pltz archive rekey --key-command my-vault --new-key-file escrow --add",
        "pltz archive rekey --key-file key --tenant acme",
    ],
)
@click.option("--new-key-file", type=nonempty, metavar="FILE", help="The new key.")
@click.option("--new-key-command", type=nonempty, metavar="CMD", help="Shell command that prints the new key.")
@click.option("--add", is_flag=True, help="Let the new key open the archive beside the others.")
@click.option("--drop", is_flag=True, help="End all other keys, where there are several.")
@click.option("--tenant", metavar="TENANT", help="Change the keys of this tenant, and no key of the archive.")
@shared.JSON_LINES
def rekey(
    new_key_file: str | None, new_key_command: str | None, add: bool, drop: bool, tenant: str | None, as_json: bool
) -> None:
    """Change what opens a sealed archive. Nothing is coded again.

    The new key opens it alone from the moment on when it was proven; until then the present one does. Key files of
    tenants and bases are put again under it, so that whoever kept the present key opens none of them. Copies of keys/
    elsewhere open by the present key as before. With --add both open it, as where a second key lies in a safe.

    With --tenant the records of a tenant, and those under its salts, are put again under other keys, and the present
    ones destroyed. Run again what was cut off. Whoever goes on by a key that was changed is told so: start it again by
    the new one.
    """
    done = open_archive().rekey(key_file=new_key_file, key_command=new_key_command, add=add, drop=drop, tenant=tenant)
    what = f"{counted(done.moved, 'record')} put again, " if tenant is not None else ""
    verb = "destroyed" if tenant is not None else "put again"
    text = f"{what}{counted(done.files, 'key file')} {verb}; {counted(done.secrets, 'key')} open the archive"
    show(done._asdict(), text, as_json)

"""``pltz bundle remove``: remove a bundle that was added."""

import json

import click

from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text


@click.command(
    cls=Command,
    short_help="Remove a bundle that was added.",
    examples=["pltz bundle remove my-bundle", "pltz bundle remove my-bundle --yes"],
)
@click.argument("name")
@click.option(
    "--yes",
    is_flag=True,
    help="Do not ask. Files and archives that need the bundle cannot be read without it.",
)
@options.JSON
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Remove a bundle that `pltz bundle add` added.

    Files and archives frozen with it can be read again once it is added again: keep a copy while there are any.
    """
    from pltz.models.bundle.user_bundles import added, remove as remove_bundle

    location = added(name)
    if not yes:
        question = (
            f"Remove {location.folder}? Files and archives that need the bundle {name} cannot be read without it."
        )
        click.confirm(question, abort=True, err=True)
    remove_bundle(name)
    write_text(
        json.dumps({"removed": name, "path": str(location.folder)})
        if as_json
        else f"removed {location.folder}"
    )

"""``pltz bundle add``: put a bundle where pltz finds it by name and by fingerprint."""

import json

import click

from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text


@click.command(
    cls=Command,
    short_help="Add a bundle from its folder.",
    examples=[
        "pltz bundle add ./my-bundle",
        "pltz bundle add ./my-bundle --name mine --id be9333de2e58e290a6aed00659f2b556",
    ],
)
@click.argument("source", metavar="FOLDER")
@click.option("--id", "bundle_id", metavar="HEX", help="Refuse a bundle with another fingerprint than this.")
@click.option("--name", metavar="NAME", help="Name it gets here.  [default: its own]")
@options.JSON
def add(source: str, bundle_id: str | None, name: str | None, as_json: bool) -> None:
    """Add a bundle from its folder. What is packed or on a hub is unpacked or downloaded first.

    Every file is checked against bundle.json, and the content against the bundle's fingerprint. The bundle then lies
    in $PLTZ_BUNDLES, else in $XDG_DATA_HOME/pltz/bundles or ~/.local/share/pltz/bundles, and its name is enough.
    """
    from pltz.models.bundle.user_bundles import add as add_bundle

    location = add_bundle(source, name=name, bundle_id=bundle_id)
    result = {"name": location.name, "id": location.open().id, "source": location.source, "path": str(location.folder)}
    write_text(json.dumps(result) if as_json else f"{location.name} {result['id']}: in {location.folder}")

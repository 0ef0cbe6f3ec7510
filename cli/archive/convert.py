"""``pltz archive convert``: give an archive a manifest, in place."""

import click

from pltz.cli.archive import shared
from pltz.cli.archive.shared import show
from pltz.cli.ui.groups import Command


@click.command(
    cls=Command,
    short_help="Give an archive a manifest, in place.",
    examples=[
        "pltz archive convert s3://bucket/cold",
        "pltz archive convert /data/cold --json",
    ],
)
@shared.DIR
@shared.JSON_LINES
def convert(place: str, as_json: bool) -> None:
    """Give the archive in DIR a manifest: one object that names its packs, so that gets and puts list nothing.

    New archives in buckets have one. No session is read or moved, and a sealed archive needs no key. Others may go on:
    a put that began before is refused once, and has to be put again. A conversion that was stopped is simply run again.
    Programs with a pltz that is older than manifests have to end before.
    """
    from pltz.archive import opener

    fresh = opener.convert(place)
    text = f"{place}: has a manifest now" if fresh else f"{place}: has had a manifest"
    show({"place": place, "manifest": True, "converted": fresh}, text, as_json)

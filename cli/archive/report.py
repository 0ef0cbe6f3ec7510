"""``pltz archive report``: write a page about an archive."""

import json

import click

from pltz.cli.archive import shared
from pltz.cli.archive.shared import open_archive
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.key_options import key_options
from pltz.cli.ui.output import Output
from pltz.cli.ui.progress import Progress, wanted


@click.command(
    cls=Command,
    short_help="Write a page about the archive: state, sizes, tenants.",
    examples=[
        "pltz archive report /data/cold -o cold.html",
        "pltz archive report /data/cold --content -o cold.html --force",
    ],
)
@shared.DIR
@click.option("-o", "--output", required=True, metavar="OUT", help="The HTML file to write; - for stdout.")
@click.option("--content", is_flag=True, help="Decode the last versions, to count the bytes of their content.")
@shared.READ_BUNDLES
@shared.TOKENIZERS
@options.FORCE
@options.PROGRESS
@options.JSON
@key_options
def report(
    place: str,
    output: str,
    content: bool,
    bundles: tuple[str, ...],
    tokenizers: tuple[str, ...],
    force: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Write one HTML file about the archive in DIR: its state, its sizes, its tenants and its newest sessions.

    Where packs are damaged, missing or lost, the page says so, and the exit code is 7. The page has the names of
    sessions and tenants. It has no script and loads nothing. Its plots need matplotlib (pip install 'pltz[plots]').
    """
    from pltz.archive.archive_report import archive_page

    destination = Output(output, force=force, binary=False)
    cold = open_archive(place, bundles, tokenizers=tokenizers)
    total = sum(1 for _ in cold.directory.ls()) if content else None
    with Progress("decode" if content else "read", unit="sessions", total=total, shown=wanted(progress)) as bar:
        destination.write([archive_page(cold, place, content=content, seen=lambda: bar.add(1))])
    if as_json:
        destination.report(json.dumps({"page": output}))
    elif output != "-":
        destination.report(f"{output}: the page of {place}")
    cold.directory.want_whole("wrote the page")

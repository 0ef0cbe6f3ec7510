"""``pltz search``: find what was said in the sessions of an archive."""

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted
from pltz.cli.archive import shared
from pltz.cli.archive.shared import open_archive, seconds_of
from pltz.cli.ui.archive_options import ArchiveCommand
from pltz.cli.ui.output import printable, write_text
from pltz.cli.ui.progress import Progress, wanted

if TYPE_CHECKING:
    from pltz.archive.search import SearchHit


@click.command(
    cls=ArchiveCommand,
    short_help="Find what was said, in all sessions.",
    examples=[
        "pltz search -r /data/cold bell",
        "pltz search bell --role user --since 2026-01-01 --agent claude-code",
        "pltz search TODO.*parser --regex --project shop --json",
    ],
)
@click.argument("words", nargs=-1, required=True)
@shared.ONLY_TENANT
@click.option("--agent", metavar="NAME", default="", help="Only logs of this agent, as claude-code; or chat.")
@click.option("--project", metavar="TEXT", default="", help="Only sessions with this in their name.")
@click.option("--since", metavar="DATE", help="Said at this time or later: 2026-01-31, 2026-01-31T12:00.")
@click.option("--role", metavar="ROLE", help="Only what user, assistant, system or tool said.")
@click.option("--tool", metavar="NAME", help="Only turns that call this tool.")
@click.option("--regex", is_flag=True, help="WORDS are one regular expression.")
@click.option("--ranked", is_flag=True, help="The best first, at the end, and not each as it is found.")
@shared.JSON_LINES
def search(
    words: tuple[str, ...],
    tenant: str | None,
    agent: str,
    project: str,
    since: str | None,
    role: str | None,
    tool: str | None,
    regex: bool,
    ranked: bool,
    as_json: bool,
) -> None:
    """Print the turns that have all WORDS, in any case, a line each: where, when, who, and what is around.

    The last version of each session is decoded, the one talked in last first, with all branches and parts: there is
    no index. A phrase stands in "quotes" within quotes. The number of a turn is that of `pltz show --all --turns`.
    Sessions that are damaged are passed over, and the exit code is 7.
    """
    cold = open_archive()
    found, first = 0, seconds_of(since) or 0
    with Progress("search", unit="parts of sessions", shown=wanted(None)) as bar:

        def looked(done: int, total: int) -> None:
            bar.total = total
            bar.add(1)

        hits = cold.search(
            " ".join(words),
            tenant=tenant,
            agent=agent,
            project=project,
            since=first,
            role=role,
            tool=tool,
            regex=regex,
            progress=looked,
        )
        for hit in sorted(hits, key=lambda hit: -hit.score) if ranked else hits:
            found += 1
            with bar.hidden():
                write_text(json.dumps(dataclasses.asdict(hit)) if as_json else line_of(hit))
    if not found:
        click.echo(f"nothing found in {counted(bar.count, 'part')} of sessions", err=True)


def line_of(hit: "SearchHit") -> str:
    """Return a hit as one line, without what could steer a terminal."""
    from pltz.datasets.pages import clean, when

    place = "/".join(filter(None, (hit.name, hit.part)))
    turn = f"  {hit.turn}" if hit.turn else ""
    head = f"{hit.tenant}  {place}{turn}  {when(hit.time)}  {hit.agent or '-'}  {hit.role}"
    return f"{printable(head)}  {clean(hit.line)}"

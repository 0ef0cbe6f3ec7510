"""``pltz search``: find what was said in the sessions of an archive."""

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted, folder_of, size
from pltz.cli.archive import shared
from pltz.cli.archive.shared import open_archive, seconds_of
from pltz.cli.ui.archive_options import ArchiveCommand
from pltz.cli.ui.output import printable, write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.search import SearchHit


@click.command(
    cls=ArchiveCommand,
    short_help="Find what was said, in all sessions.",
    examples=[
        "pltz search -r /data/cold bell",
        "pltz search bell --role user --since 2026-01-01 --agent claude-code",
        "pltz search --secrets",
        "pltz search TODO.*parser --regex --project shop --json",
    ],
)
@click.argument("words", nargs=-1)
@shared.ONLY_TENANT
@click.option("--agent", metavar="NAME", default="", help="Only logs of this agent, as claude-code; or chat.")
@click.option("--project", metavar="TEXT", default="", help="Only sessions with this in their name or their folder.")
@click.option("--since", metavar="DATE", help="Said at this time or later: 2026-01-31, 2026-01-31T12:00.")
@click.option("--role", metavar="ROLE", help="Only what user, assistant, system or tool said.")
@click.option("--tool", metavar="NAME", help="Only turns that call this tool.")
@click.option("--regex", is_flag=True, help="WORDS are one regular expression; as --scan.")
@click.option("--scan", is_flag=True, help="Use no index: decode all sessions, those talked in last first.")
@click.option("--limit", type=click.IntRange(0), metavar="N", default=20, help="Sessions, at most: 20; 0: all.")
@click.option("--rebuild", is_flag=True, help="Make the index anew first.")
@click.option("--secrets", is_flag=True, help="List the sessions that hold keys or passwords, instead of WORDS.")
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
    scan: bool,
    limit: int,
    rebuild: bool,
    secrets: bool,
    as_json: bool,
) -> None:
    """Print sessions with turns that have all WORDS, the best first, a line each: where, when, who, what is around.

    Words are whole ones, in any case; bel* is a beginning, and "a phrase" stands within quotes. With --json all turns
    that match are printed. `pltz show --turns` takes the number of a turn. All branches and parts of the last version
    are searched. An index of words in your cache folder is brought up to date first, by decoding what is new; without
    WORDS that is all. Where sessions cannot be read, the others are searched, and the exit code is 7.
    """
    if secrets:
        if words or agent or role or tool or regex:
            raise UsageError("--secrets looks at all that is in sessions: leave words and other filters out")
        return _secrets(tenant, project, since, as_json)
    cold = open_archive()
    first, found = seconds_of(since) or 0, 0
    with Progress("search", unit="parts of sessions", shown=wanted(None)) as bar:
        if rebuild:
            cold.word_index().clear()
        if not words:
            index = cold.word_index()
            index.catch_up(bar.reach)
            facts = {"parts": len(index.facts()), "bytes": index.size}
            text = f"the index of words has {counted(facts['parts'], 'part')} of sessions, {size(facts['bytes'])}"
            return shared.show(facts, text, as_json)
        hits = cold.search(
            " ".join(words),
            tenant=tenant,
            agent=agent,
            project=project,
            since=first,
            role=role,
            tool=tool,
            regex=regex,
            scan=scan,
            limit=limit or None,
            progress=bar.reach,
        )
        for _, group in itertools.groupby(hits, key=lambda hit: (hit.tenant, hit.name, hit.part)):
            some = list(group)
            found += 1
            best = line_of(max(some, key=lambda hit: hit.score), len(some) - 1)
            with bar.hidden():
                write_text("\n".join(json.dumps(dataclasses.asdict(hit)) for hit in some) if as_json else best)
    if not found:
        click.echo("nothing found", err=True)


def _secrets(tenant: str | None, project: str, since: str | None, as_json: bool) -> None:
    """Print the sessions whose last version holds secrets, by kind and never by what they are."""
    from pltz.archive.holders import every_part, holders, kinds_of_secrets

    cold, first = open_archive(), seconds_of(since) or 0
    last = (v for v in cold.directory.ls(tenant) if project.casefold() in v.name.casefold())
    parts = [part for part in every_part(last) if (part.content.last or part.time) >= first]
    found = 0
    with Progress("search", unit="parts of sessions", total=len(parts), shown=wanted(None)) as bar:
        for holder in holders(cold.sessions, parts, kinds_of_secrets, lambda: bar.add(1)):
            found += 1
            place = " --part ".join(filter(None, (holder.name, holder.part)))
            told = ", ".join(f"{count:,} {kind}" for kind, count in holder.kinds.items())
            with bar.hidden():
                row = json.dumps(dataclasses.asdict(holder))
                write_text(row if as_json else printable(f"{holder.tenant}  {place}  {told}"))
    if not found:
        click.echo(f"no secret of a known shape in {counted(len(parts), 'part')} of sessions", err=True)


def line_of(hit: "SearchHit", more: int = 0) -> str:
    """Return a hit as one line, without what could steer a terminal. ``more``: turns of the part that match, too."""
    from pltz.datasets.pages import clean, when

    place = " --part ".join(filter(None, (hit.name, hit.part)))  # as `pltz show` takes it
    turn = f"  {hit.turn}" if hit.turn else ""
    folder = folder_of(hit.project)
    head = f"{hit.tenant}  {place}{turn}  {when(hit.time)}  {hit.agent or '-'}  {folder or '-'}  {hit.role}"
    return f"{printable(head)}  {clean(hit.line)}" + (f"  (and {counted(more, 'turn')} more)" if more else "")

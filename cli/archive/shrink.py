"""``pltz archive shrink``: code again by the model what was put in a fast form."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted, size
from pltz.archive.work_part import WorkPart
from pltz.cli.archive import shared
from pltz.cli.archive.parts import DAMAGED, PartCommand, parted, report_of
from pltz.cli.archive.shared import open_archive, show
from pltz.cli.ui import options
from pltz.cli.ui.progress import Progress, wanted

if TYPE_CHECKING:
    from pltz.archive.maintenance.shrink import Shrunk


@click.command(
    cls=PartCommand,
    short_help="Make logs smaller that were put the fast way.",
    examples=[
        "pltz archive shrink -r /data/cold --for 2h",
        "pltz archive shrink --device cuda",
        "pltz archive shrink --dry-run --json",
    ],
)
@click.option("--for", "budget", metavar="DURATION", help="Begin nothing more after this: 45m, 2h.  [default: no end]")
@click.option("--bundle", metavar="NAME|DIR", help="Bundle to code with: a name or a folder.  [default: mini]")
@shared.TOKENIZERS
@shared.DRY_RUN
@options.THREADS
@options.DEVICE
@options.PROGRESS
@shared.JSON_LINES
@parted("packs")
@click.pass_context
def shrink(
    ctx: click.Context,
    budget: str | None,
    bundle: str | None,
    tokenizers: tuple[str, ...],
    dry_run: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
    part: WorkPart | None,
) -> None:
    """Code logs, and token ids, again by the model that were put the fast way. Sessions stay what they are.

    What was put last comes first. Each record is decoded and compared before it takes the place of the old one, which
    collect frees. Interrupt it whenever you like: what it did stays. Others may read and write meanwhile. What is in
    packs that collect condemned is left to the run after. The exit code is 3 where a record cannot be decoded.
    """
    from pltz.archive.retention import seconds

    wait = None if budget is None else seconds(budget)
    cold = open_archive(bundle=bundle, tokenizers=tokenizers, device=device, threads=threads)
    with Progress("shrink", unit="records", shown=wanted(progress)) as bar:

        def tell(done: "Shrunk") -> None:
            bar.total = done.fresh
            bar.add(done.done - bar.count)

        found = cold.shrink(budget=wait, part=part, dry_run=dry_run, progress=tell)
    for problem in found.problems:
        click.echo(problem, err=True)
    facts = asdict(found) | {"problems": len(found.problems), "dry_run": dry_run}
    show(report_of(part, facts), _text(found, dry_run), as_json)
    if found.unread:
        ctx.exit(DAMAGED)


def _text(found: "Shrunk", dry_run: bool) -> str:
    """Return the report in words."""
    fresh = f"{counted(found.fresh, 'record')} of {size(found.fresh_bytes)} in a fast form"
    if dry_run:
        text = f"{fresh}, which shrinking makes about {size(found.expected)} smaller"
    else:
        text = f"{fresh}: {found.shrunk:,} shrunk ({size(found.before)} to {size(found.after)})"
        more = {"no smaller by the model": found.kept, "not decoded": found.unread, "left": found.left}
        text += "".join(f", {count:,} {what}" for what, count in more.items() if count)
    if found.waiting:
        text += f"; no time for {counted(found.waiting, 'pack')}"
    if found.condemned:
        text += f"; {counted(found.condemned, 'pack')} not looked at, which collect is to move"
    return text

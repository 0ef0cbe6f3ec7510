"""``pltz hook``: inspect and drain the journal of the eviction hook. See archive/eviction/hook.py."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted, moment, size
from pltz.cli.archive.shared import open_towers
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command, Group
from pltz.cli.ui.key_options import key_options, secret
from pltz.cli.ui.output import printable, write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import pairs
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.eviction.journal.reader import Status
    from pltz.archive.eviction.refusals import Refusal
    from pltz.archive.eviction.worker import Drained
    from pltz.plt_codec.lanes import LayoutName

SHOWN = 20  # refusals printed


@click.group(cls=Group, short_help="Look into, or empty, the journal of an eviction hook.")
def hook() -> None:
    """The journal that a serving process's eviction hook writes: what waits in it, and putting it into an archive.

    A serving process opens the hook from Python (docs/transformers.md) and has a worker of its own; these commands are for looking on, and for what a
    process left behind that is not started again.
    """


@hook.command(
    cls=Command,
    short_help="Say what a journal holds.",
    examples=["pltz hook status /run/journal", "pltz hook status /run/journal --json"],
)
@click.argument("journal", metavar="DIR")
@options.JSON
def status(journal: str, as_json: bool) -> None:
    """Say what the journal in DIR holds: bytes not archived yet, processes that write to it, what was laid aside.

    Evictions that the hook refused are counted by reason ("not taken"), and the last of them named, with session and tenant. A name is cut after 80
    characters. They are in no archive and in no journal. The counts are those of all processes that wrote to DIR, until their .refusals files are removed.
    """
    from pltz.archive.eviction.journal.lock import FileLocks
    from pltz.archive.eviction.journal.reader import Backlog
    from pltz.archive.eviction.refusals import read_refusals
    from pltz.archive.storage.disk import OsDisk

    if not Path(journal).is_dir():
        raise UsageError(f"no journal at {journal}: expected the directory that the hook was opened with")
    disk = OsDisk(journal)
    found = Backlog(disk, FileLocks(journal)).status()
    counts, last = read_refusals(disk)
    if as_json:
        record = {"not_taken": counts, "refusals": [asdict(row) for row in last]}
        write_text(json.dumps(asdict(found) | record))
    else:
        write_text(_status_text(found, counts, last))


@hook.command(
    cls=Command,
    short_help="Put what a journal holds into an archive.",
    examples=[
        "pltz hook drain /run/journal --archive /data/cold",
        "pltz hook drain /run/journal --archive s3://bucket/cold --max-seconds 600 --json",
    ],
)
@click.argument("journal", metavar="DIR")
@click.option("--archive", "place", metavar="DIR", required=True, help="Archive to put it into.")
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Stop after the commit in which S seconds pass.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for the worker of a serving process to end its pass.",
)
@options.BUNDLE
@options.LAYOUT
@options.ZSTD_ABOVE
@options.THREADS
@options.PROGRESS
@options.JSON
@key_options
@click.pass_context
def drain(
    ctx: click.Context,
    journal: str,
    place: str,
    max_seconds: float | None,
    wait: float,
    bundle: str | None,
    layout: "LayoutName",
    zstd_above: int | None,
    threads: int | None,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Put what the journal in DIR holds into an archive: of dead processes all, of living ones what they have written so far.

    An entry goes from the journal when it is durable in the archive, decoded back and compared. May be killed anywhere and run
    again. Exits with 7 where another worker had the journal all the time, or something had to be left; with 5 where the archive cannot take an
    entry, which is laid aside in DIR.
    """
    from pltz.archive.eviction.worker import Drained
    from pltz.archive.eviction.worker import drain as run

    if Path(journal).is_dir():
        open_towers(place, None)  # report a missing archive even where the journal is empty
    with Progress("drain", unit="sessions", shown=wanted(progress)) as bar:
        shown = 0

        def say(done: Drained) -> None:
            nonlocal shown
            bar.add(done.entries - shown)
            shown = done.entries

        done = run(
            journal,
            place,
            bundle=bundle,
            key=secret(),
            threads=threads,
            layout=layout,
            zstd_above=zstd_above,
            max_seconds=max_seconds,
            wait=wait,
            progress=say,
        )
    write_text(json.dumps(done.as_fields()) if as_json else _drained_text(done))
    if done.busy or done.left:
        ctx.exit(7)
    if done.rejected:
        ctx.exit(5)


def _status_text(found: "Status", counts: dict[str, int], last: "list[Refusal]") -> str:
    lines = [
        ("not archived", size(found.waiting)),
        ("files", f"{found.segments}, {size(found.bytes)}"),
        ("processes", f"{found.living} writing"),
    ]
    lines += [("refused", name) for name in found.refused]
    lines += [("damaged", name) for name in found.damaged]
    lines += [("not taken", f"{count:,}: {printable(reason)}") for reason, count in sorted(counts.items())]
    return "\n".join(
        [pairs(lines, ""), *(f"{moment(row.time)}  {printable(str(row))}" for row in last[-SHOWN:])]
    )


def _drained_text(done: "Drained") -> str:
    if done.busy:
        return "another worker has this journal: nothing done"
    lines = [
        f"{counted(done.stored, 'session')} stored, {done.unchanged} there already",
        f"{counted(done.tokens, 'token')}, {size(done.raw)} of ids in {size(done.frozen)}",
    ]
    lines += [f"refused: {name!r} of tenant {tenant!r}: {why}" for tenant, name, why in done.refused]
    lines += [f"{size(done.damaged)} of the journal were damaged, laid aside"] if done.damaged else []
    lines += [f"{size(done.left)} left: {done.failure}"] if done.left else []
    return "\n".join(lines)

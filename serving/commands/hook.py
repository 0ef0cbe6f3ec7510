"""``pltz hook``: inspect and drain the journal of the eviction hook. See serving/eviction/hook.py."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pltz.archive import counted, size
from pltz.cli import (
    ArchiveCommand,
    Command,
    OrderedGroup,
    Progress,
    archive_place,
    archive_secret,
    options,
    pairs,
    wanted,
    write_text,
)
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    from pltz.serving.eviction.journal.reader import Status
    from pltz.serving.eviction.worker import Drained


@click.group(cls=OrderedGroup, short_help="Inspect or drain the journal of an eviction hook.")
def hook() -> None:
    """Inspect the journal that a serving process's eviction hook writes, and put it into an archive.

    A serving process opens the hook from Python (docs/transformers.md) and has a worker of its own. Use these commands
    to inspect its journal, or to archive the journal of a process that does not start again.
    """


@hook.command(
    cls=Command,
    short_help="Show what a journal holds.",
    examples=["pltz hook status /run/journal", "pltz hook status /run/journal --json"],
)
@click.argument("journal", metavar="DIR")
@options.JSON
@click.pass_context
def status(ctx: click.Context, journal: str, as_json: bool) -> None:
    """Show the contents of the journal in DIR: bytes not archived yet, processes that write to it, quarantined entries.

    Evictions that the hook refused are in no archive and no journal: the log and the metrics of its process have them.

    The exit code is 3 where files of the journal disappeared and no worker deleted them: "lost" names them. What was in
    them and not archived is gone. Remove DIR's .lost files once you know of them.
    """
    from pltz.archive import OsDisk
    from pltz.serving.eviction.journal.lock import FileLocks
    from pltz.serving.eviction.journal.reader import JournalReader

    want_journal(journal)
    disk = OsDisk(journal)
    found = JournalReader(disk, FileLocks(journal)).status()
    write_text(json.dumps(asdict(found)) if as_json else _status_text(found))
    if found.lost:
        ctx.exit(3)


def want_journal(place: str) -> None:
    """Refuse a folder that no hook or worker has opened: both leave a file there. Raises UsageError."""
    from pltz.archive import OsDisk
    from pltz.serving.eviction.journal.reader import is_of_journal

    if not Path(place).is_dir():
        raise UsageError(f"no journal at {place}: expected the directory that the hook was opened with")
    if not any(is_of_journal(name) for name, _ in OsDisk(place).names("")):
        raise UsageError(f"no journal at {place}: it holds no file of an eviction hook, not even a lock")


@hook.command(
    cls=ArchiveCommand,
    short_help="Put what a journal holds into an archive.",
    examples=[
        "pltz hook drain /run/journal --archive /data/cold",
        "pltz hook drain /run/journal --archive s3://bucket/cold --max-seconds 600 --json",
    ],
)
@click.argument("journal", metavar="DIR")
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Stop after the first commit that ends later than S seconds.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait until the worker of a serving process ends its pass.",
)
@options.BUNDLE
@options.THREADS
@options.PROGRESS
@options.JSON
@click.pass_context
def drain(
    ctx: click.Context,
    journal: str,
    max_seconds: float | None,
    wait: float,
    bundle: str | None,
    threads: int | None,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Put the sessions in the journal in DIR into an archive, also those that running processes have written so far.

    An entry is removed from the journal when it is durable in the archive, decoded back and compared. The command may
    be killed at any point and run again. It exits with 7 where another worker held the journal all the time or entries
    had to be left. It exits with 5 where the archive cannot take an entry, which is quarantined in DIR.
    """
    from pltz.archive import Archive
    from pltz.serving.eviction.worker import Drained, drain as run

    want_journal(journal)
    place = archive_place()
    Archive.open(place)  # report a missing archive even where the journal is empty
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
            key=archive_secret(place),
            threads=threads,
            max_seconds=max_seconds,
            wait=wait,
            progress=say,
        )
    write_text(json.dumps(done.as_fields()) if as_json else _drained_text(done))
    if done.lost:
        ctx.exit(3)
    if done.busy or done.left:
        ctx.exit(7)
    if done.rejected:
        ctx.exit(5)


def _status_text(found: "Status") -> str:
    lines = [
        ("not archived", size(found.waiting)),
        ("files", f"{found.segments}, {size(found.bytes)}"),
        ("processes", f"{found.living} writing"),
    ]
    lines += [("refused", name) for name in found.refused]
    lines += [("damaged", name) for name in found.damaged]
    lines += [("lost", name) for name in found.lost]
    return pairs(lines, "")


def _drained_text(done: "Drained") -> str:
    if done.busy:
        return "another worker has this journal: nothing done"
    lines = [
        f"{counted(done.stored, 'session')} stored, {done.unchanged} there already",
        f"{counted(done.tokens, 'token')}, {size(done.raw)} of ids in {size(done.frozen)}",
    ]
    lines += [f"{counted(done.erased, 'session')} dropped, as erased from the archive"] if done.erased else []
    lines += [f"refused: {name!r} of tenant {tenant!r}: {why}" for tenant, name, why in done.refused]
    lines += [f"{size(done.damaged)} of the journal were damaged, laid aside"] if done.damaged else []
    if done.lost:
        lines += [f"LOST: {counted(done.lost, 'file')} of the journal, deleted by no worker; see pltz hook status"]
    lines += [f"{size(done.left)} left: {done.failure}"] if done.left else []
    return "\n".join(lines)

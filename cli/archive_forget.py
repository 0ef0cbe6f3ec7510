"""``pltz archive forget``, ``undelete`` and ``collect``: let sessions go, bring them back, free the space."""

import dataclasses
import json
import time
from typing import TYPE_CHECKING

import click

from pltz.cli import archive_options as shared
from pltz.cli import options
from pltz.cli.groups import Command
from pltz.cli.output import write_text
from pltz.cli.table import size
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.archive.archive import Archive
    from pltz.archive.view import Version


@click.command(
    cls=Command,
    short_help="Forget sessions, by name or by policy.",
    examples=[
        "pltz archive forget /data/cold chat-7 chat-8",
        "pltz archive forget /data/cold chat-7 --version 1",
        "pltz archive forget /data/cold --keep-last 3 --keep-within 90d --dry-run",
        "pltz archive forget /data/cold --tenant acme --label from=trial --keep-within 30d --whole",
    ],
)
@shared.PLACE
@shared.NAMES
@click.option(
    "--tenant", metavar="NAME", help="Whose sessions.  [default: with names default, else everybody's]"
)
@shared.VERSION
@click.option(
    "--keep-last", type=click.IntRange(min=0), metavar="N", help="Keep the last N versions of each session."
)
@click.option(
    "--keep-within", metavar="TIME", help="Keep versions not older than TIME: 36h, 30d, 2w, 6m, 1y."
)
@click.option(
    "--whole", is_flag=True, help="Let the last version of a session go too, where no rule keeps it."
)
@shared.LABELS
@shared.DRY_RUN
@shared.LINES
def forget(
    place: str,
    names: tuple[str, ...],
    tenant: str | None,
    number: int | None,
    keep_last: int | None,
    keep_within: str | None,
    whole: bool,
    labels: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Forget the sessions NAME... of ARCHIVE, or all that no rule keeps.

    Forgotten sessions are no longer listed or read; undelete brings them back until collect ran twice.
    Several rules keep what any of them keeps.
    """
    from pltz.archive.retention import Policy

    archive = shared.open_archive(place)
    ruled = keep_last is not None or keep_within is not None
    if bool(names) == ruled or (names and (labels or whole)):
        raise UsageError(
            "expected names, or rules (--keep-last, --keep-within) with --tenant and --label, not both"
        )
    if names:
        gone = chosen(archive, names, tenant or "default", number, forgotten=False)
    else:
        policy = Policy(keep_last, None if keep_within is None else shared.duration(keep_within), whole)
        wanted = shared.labels_of(labels).items()
        rows = (v for v in archive.ls(tenant, history=True) if wanted <= v.labels.items())
        gone = policy.forgets(rows, int(time.time()))
    shared.show(gone, as_json)
    if not dry_run:
        archive.forget(gone)
    if not as_json:
        write_text(f"{len(gone)} versions {'would be ' if dry_run else ''}forgotten")


@click.command(
    cls=Command,
    short_help="Bring forgotten sessions back.",
    examples=[
        "pltz archive undelete /data/cold chat-7",
        "pltz archive undelete /data/cold chat-7 --version 2 --dry-run",
    ],
)
@shared.PLACE
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@shared.TENANT
@shared.VERSION
@shared.DRY_RUN
@shared.LINES
def undelete(
    place: str, names: tuple[str, ...], tenant: str, number: int | None, dry_run: bool, as_json: bool
) -> None:
    """Bring forgotten versions of the sessions NAME... of ARCHIVE back, as long as collect has not freed them."""
    archive = shared.open_archive(place)
    back = chosen(archive, names, tenant, number, forgotten=True)
    shared.show(back, as_json)
    if not dry_run:
        archive.restore(back)
    if not as_json:
        write_text(f"{len(back)} versions {'would come' if dry_run else 'are'} back")


@click.command(
    cls=Command,
    short_help="Free what no session needs.",
    examples=["pltz archive collect /data/cold", "pltz archive collect /data/cold --dry-run --json"],
)
@shared.PLACE
@click.option(
    "--dead-share",
    type=click.FloatRange(0, 1),
    default=0.2,
    show_default=True,
    help="Dead share of a pack from which on the rest is copied.",
)
@shared.DRY_RUN
@options.JSON
def collect(place: str, dead_share: float, dry_run: bool, as_json: bool) -> None:
    """Free the space of forgotten sessions of ARCHIVE, in two runs: the first condemns packs, the next deletes them.

    Between the two undelete still works. Leave as much time between runs as you want to be able to change
    your mind. Others may read and write meanwhile. Where anything is damaged, nothing is deleted.
    """
    done = dataclasses.asdict(shared.open_archive(place).collect(dead_share=dead_share, dry_run=dry_run))
    if as_json:
        write_text(json.dumps(done | {"dry_run": dry_run}))
        return
    would = "would be " if dry_run else ""
    write_text(
        f"{done['deleted']} packs {would}deleted ({size(done['freed'])} freed, {done['copied']} records copied), "
        f"{done['condemned']} {would}condemned; {done['live_versions']} versions of {done['live_segments']} segments stay"
    )


def chosen(
    archive: "Archive", names: tuple[str, ...], tenant: str, number: int | None, *, forgotten: bool
) -> list["Version"]:
    """All versions of these sessions (or version ``number`` of each) in that state. Raises NotFound."""
    from pltz.archive.errors import NotFound

    found: list[Version] = []
    for name in names:
        known = [v for v in archive.history(name, tenant) if number is None or v.number == number]
        fitting = [v for v in known if v.forgotten == forgotten]
        if not fitting:
            state = "that is forgotten" if forgotten else "that is not forgotten yet" if known else "at all"
            raise NotFound(
                f"tenant {tenant!r} has no session {name!r}{'' if number is None else f', version {number},'} {state}"
            )
        found += fitting
    return found

"""``pltz archive verify``: read everything and report all damage."""

from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import counted
from pltz.archive.work_part import WorkPart
from pltz.cli.archive import shared
from pltz.cli.archive.parts import COPIES_MISSING, DAMAGED, UNFINISHED, PartCommand, parted, report_of
from pltz.cli.archive.shared import facts, open_archive, show
from pltz.cli.ui import options
from pltz.cli.ui.output import printable
from pltz.cli.ui.progress import Progress, wanted

if TYPE_CHECKING:
    from pltz.archive.maintenance.verify import Report

COUNTS = ("packs", "records", "decoded", "undecoded", "unreadable")


@click.command(
    cls=PartCommand,
    short_help="Report all damage, and the sessions that are lost.",
    examples=[
        "pltz archive verify -r /data/cold",
        "pltz archive verify --expect 3f2a9c01d0e4b7a2-12-9b1c5e0f00aa7d31",
        "pltz archive verify --decode --part 3/16 --json",
        "pltz archive verify --decode --ray auto",
    ],
)
@click.option("--decode", is_flag=True, help="Also decode every segment and compare it with its id.")
@click.option(
    "--expect",
    metavar="TOKEN",
    help="A token that put or verify printed. An archive older than it is reported as damaged.",
)
@shared.TOKENIZERS
@options.THREADS
@options.DEVICE
@options.PROGRESS
@shared.JSON_LINES
@parted("packs")
@click.pass_context
def verify(
    ctx: click.Context,
    decode: bool,
    expect: str | None,
    tokenizers: tuple[str, ...],
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
    part: WorkPart | None,
) -> None:
    """Read the archive and report exactly what is damaged and which sessions are lost. Changes nothing.

    Each problem and each lost session is a line, and the last line is the summary. The exit code is 3 where anything is
    damaged. It is else 10 where an erase was cut off, which damages nothing; its line says how to finish it. It is else
    9 where redundant copies are missing (parity, second copies of small files), which pltz archive repair remakes.
    """
    cold = open_archive(tokenizers=tokenizers, device=device, threads=threads)
    with Progress("verify", unit="packs", total=None if part else cold.stat().packs, shown=wanted(progress)) as bar:
        report = cold.verify(
            decode=decode, expect=expect, part=part, progress=lambda found: bar.add(found.packs - bar.count)
        )
    _print(report, part, as_json)
    if not report.sound:
        ctx.exit(DAMAGED)
    if report.unfinished:
        ctx.exit(UNFINISHED)
    if report.missing_copies:
        ctx.exit(COPIES_MISSING)


def _print(report: "Report", part: WorkPart | None, as_json: bool) -> None:
    from pltz.archive.archive import SessionVersion

    for problem in report.problems:
        record = {"problem": problem.kind, "name": problem.name, "what": problem.what}
        show(record, f"{problem.kind} {problem.name}: {problem.what}", as_json)
    for problem in report.unfinished:
        record = {"unfinished": problem.kind, "name": problem.name, "what": problem.what}
        show(record, f"unfinished erase {problem.name}: {problem.what}", as_json)
    for version in report.lost:
        text = f"lost: {version.tenant}  {version.name}  version {version.version}"
        show({"lost_session": facts(SessionVersion.of(version))}, text, as_json)
    for path in report.missing_copies:
        show({"missing_copy": path}, f"missing copy: {path}", as_json)
    counts = {key: getattr(report, key) for key in COUNTS}
    counts |= {"problems": len(report.problems), "lost": len(report.lost)}
    counts |= {"unfinished": len(report.unfinished)}
    found = counts | {
        "missing_copies": len(report.missing_copies),
        "unnamed": report.unnamed,
        "complete": not part,  # of a part only the join says so
        "sound": report.sound,
        "token": report.token if report.sound else None,  # a script that keeps it would take the damage for good
    }
    state = "sound" if report.sound else "DAMAGED"
    remarks = []
    if report.unfinished:
        remarks.append(f"with {counted(len(report.unfinished), 'unfinished erase')}")
    if report.unnamed:
        remarks.append(f"with {counted(report.unnamed, 'pack')} that no put finished")
    if report.undecoded:
        remarks.append(f"with {counted(report.undecoded, 'segment')} not decoded, whose bundle or key is not here")
    if missing := len(report.missing_copies):
        copies = "redundant copy is" if missing == 1 else "redundant copies are"
        remarks.append(f"{missing:,} {copies} missing: run repair")
    if remarks:
        state += (", but " if report.sound else ", and ") + " and ".join(remarks)
    extent = "all of it" if not report.undecoded else "a part of it"
    extent = f"part {part} of it" if part else extent
    told = [counted(n, key[:-1]) if key.endswith("s") else f"{n:,} {key}" for key, n in counts.items()]
    text = f"{state}{';' if remarks else ','} {extent}: {', '.join(told)}"
    show(report_of(part, found), printable(text), as_json)
    if not as_json and report.sound:
        click.echo(f"token for --expect: {report.token}", err=True)
    if report.unreadable and not as_json:
        click.echo(
            "sessions with unreadable records of their own are not listed as lost: see pltz archive repair --dry-run",
            err=True,
        )

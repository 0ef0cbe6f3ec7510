"""``pltz archive verify``: read everything and report all damage. A run that was stopped resumes where it was."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import counted
from pltz.archive.work_part import WorkPart
from pltz.cli.archive import shared
from pltz.cli.archive.parts import COPIES_MISSING, DAMAGED, UNFINISHED, PartCommand, parted, report_of
from pltz.cli.archive.shared import facts, open_archive, show
from pltz.cli.ui import options
from pltz.cli.ui.key_options import key_options
from pltz.cli.ui.output import Output, printable
from pltz.cli.ui.progress import Progress, wanted
from pltz.plt_codec.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from pltz.archive.maintenance.verify import Report

MAX_STATE = 1 << 26  # bytes
COUNTS = ("packs", "records", "decoded", "undecoded", "unreadable")


@click.command(
    cls=PartCommand,
    short_help="Report all damage, and the sessions that are lost.",
    examples=[
        "pltz archive verify /data/cold",
        "pltz archive verify /data/cold --expect 3f2a9c01d0e4b7a2-12-9b1c5e0f00aa7d31",
        "pltz archive verify /data/cold --decode --fraction 0.05 --json",
        "pltz archive verify /data/cold --decode --max-seconds 3600 --state /var/lib/pltz/verify.json",
        "pltz archive verify s3://bucket/cold --part 3/16 --json",
        "pltz archive verify s3://bucket/cold --decode --ray auto",
    ],
)
@shared.DIR
@click.option(
    "--decode", is_flag=True, help="Also decode every segment and compare it with its id."
)
@click.option(
    "--fraction",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    metavar="X",
    help="Check a random share X of the packs.",
)
@click.option("--max-seconds", type=click.IntRange(min=1), metavar="N", help="Stop after about N seconds.")
@click.option(
    "--state",
    metavar="FILE",
    help="Remember the progress in FILE and resume there. It is removed when all is checked.",
)
@click.option(
    "--expect",
    metavar="TOKEN",
    help="A token that put or verify printed. An archive older than it is reported as damaged.",
)
@shared.READ_BUNDLES
@shared.TOKENIZERS
@options.THREADS
@options.DEVICE
@options.PROGRESS
@shared.JSON_LINES
@parted("packs")
@click.pass_context
@key_options
def verify(
    ctx: click.Context,
    place: str,
    decode: bool,
    fraction: float,
    max_seconds: int | None,
    state: str | None,
    expect: str | None,
    bundles: tuple[str, ...],
    tokenizers: tuple[str, ...],
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
    part: WorkPart | None,
) -> None:
    """Read the archive in DIR and report exactly what is damaged and which sessions are lost. Changes nothing.

    Each problem and each lost session is a line, and the last line is the summary. The exit code is 3 where anything is
    damaged. It is else 10 where an erase was cut off, which damages nothing; its line says how to finish it. It is else
    9 where redundant copies are missing (parity, second copies of small files), which pltz archive repair remakes.
    """
    if state is not None and fraction < 1:
        raise UsageError("--state covers all packs: leave --fraction out")
    if part and (max_seconds is not None or fraction < 1):
        raise UsageError("a part is checked to its end: leave --max-seconds and --fraction out")
    cold = open_archive(place, bundles, tokenizers=tokenizers, device=device, threads=threads)
    # A state file lets a later call go on behind the packs that were read.
    file = None if state is None else VerifyState(state, cold.parts.settings.archive, decode, part)
    before = file.load() if file else None
    seen = before.packs if before else 0
    left = cold.stat().packs - seen if fraction == 1 and not part else None
    with Progress("verify", unit="packs", total=left, shown=wanted(progress)) as bar:

        def note(report: "Report") -> None:
            nonlocal seen
            bar.add(report.packs - seen)
            seen = report.packs
            if file:
                file.save(report)

        report = cold.verify(
            decode=decode,
            fraction=fraction,
            max_seconds=max_seconds,
            resume=before,
            expect=expect,
            part=part,
            progress=note,
        )
    if file and report.complete:
        file.remove()
    _print(report, part, as_json)
    if not report.sound:
        ctx.exit(DAMAGED)
    if report.unfinished:
        ctx.exit(UNFINISHED)
    if report.missing_copies:
        ctx.exit(COPIES_MISSING)


class VerifyState:
    """The file that remembers how far a run came.

    It is replaced whole after each pack and after some decoded segments, so that a kill costs no more than these.
    Raises UsageError for the file of another archive, --decode or --part, CorruptError for a damaged one.
    """

    def __init__(self, path: str, archive: bytes, decode: bool, part: WorkPart | None = None) -> None:
        if path == "-":
            raise UsageError("expected a file for --state, found -: name a file")
        self.path = Path(path)
        self.mark = {"archive": archive.hex(), "decode": decode, "part": str(part)}
        self.load()
        self.output = Output(path, force=True)

    def load(self) -> "Report | None":
        """Return what an earlier run had found, or None where there was none.

        Raises CorruptError where the file is no state, UsageError where it is of another archive or check.
        """
        if not self.path.exists():
            return None
        try:
            with self.path.open("rb") as source:
                found = json.loads(source.read(MAX_STATE))
            report = _report_in(found)
            mark = {key: found[key] for key in self.mark}
        except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise CorruptError(f"{self.path} is not the state of a verify: remove it to start anew") from exc
        if mark != self.mark:
            raise UsageError(
                f"{self.path} belongs to another archive, --decode or --part: name another file"
            )
        return report

    def save(self, report: "Report") -> None:
        """Replace the file."""
        fields: dict[str, Any] = {key: getattr(report, key) for key in COUNTS}
        fields["problems"] = [[p.kind, p.name, p.what] for p in report.problems]
        fields |= {"cursor": report.cursor.hex(), "within": report.within.hex(), "offset": report.offset}
        fields["bad"] = sorted(b.hex() for b in report.bad)
        self.output.write([json.dumps(self.mark | fields).encode() + b"\n"])

    def remove(self) -> None:
        """Remove the file, as all is checked and the next run starts anew."""
        self.path.unlink(missing_ok=True)


def _report_in(fields: Mapping[str, Any]) -> "Report":
    """Return the report of such fields. Raises ValueError, KeyError, TypeError, AttributeError, ArithmeticError."""
    from pltz.archive.catalog.problems import Problem
    from pltz.archive.maintenance.verify import Report

    report = Report(
        problems=[Problem(*map(str, row)) for row in fields["problems"]],
        cursor=bytes.fromhex(fields["cursor"]),
        within=bytes.fromhex(fields.get("within", "")),
        offset=int(fields.get("offset", 0)),
        bad={bytes.fromhex(b) for b in fields["bad"]},
    )
    for key in COUNTS:
        setattr(report, key, int(fields.get(key, 0)))
    return report


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
        "orphans": report.orphans,
        "leftovers": report.leftovers,
        "complete": report.complete and not part,  # of a part only the join says so
        "sound": report.sound,
        "token": report.token if report.sound else None,  # a script that keeps it would take the damage for good
    }
    state = "sound" if report.sound else "DAMAGED"
    remarks = []
    if report.unfinished:
        remarks.append(f"with {counted(len(report.unfinished), 'unfinished erase')}")
    if report.orphans:
        remarks.append(f"with {counted(report.orphans, 'pack')} that no put finished")
    if report.leftovers:
        remarks.append(f"with parity of {counted(report.leftovers, 'deleted pack')}, which the next collect deletes")
    if report.undecoded:
        remarks.append(f"with {counted(report.undecoded, 'segment')} not decoded, whose bundle or key is not here")
    if missing := len(report.missing_copies):
        copies = "redundant copy is" if missing == 1 else "redundant copies are"
        remarks.append(f"{missing:,} {copies} missing: run repair")
    if remarks:
        state += (", but " if report.sound else ", and ") + " and ".join(remarks)
    extent = "all of it" if report.complete and not report.undecoded else "a part of it"
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

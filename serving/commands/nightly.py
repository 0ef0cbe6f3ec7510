"""``pltz nightly``: take new sessions from their sources into the archive. `pltz.serving.nightly` does the work."""

import json
from typing import TYPE_CHECKING, Any

import click

from pltz.archive import counted, size
from pltz.cli import DRY_RUN, Command, Progress, left_out, options, pairs, printable, wanted, write_text
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    from pltz.serving.nightly.run_stats import RunStats

SHOWN = 20  # refused sessions printed


@click.command(
    cls=Command,
    short_help="Freeze new sessions every night, and report.",
    examples=[
        "pltz nightly --example > nightly.toml",
        "pltz nightly --config nightly.toml --dry-run",
        "pltz nightly --config nightly.toml --json",
    ],
)
@click.option("--config", "path", metavar="FILE", help="The configuration, a TOML file.")
@click.option("--example", is_flag=True, help="Print a configuration with comments.")
@DRY_RUN
@options.PROGRESS
@options.JSON
def nightly(
    path: str | None,
    example: bool,
    dry_run: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Put new sessions from JSONL files, databases, slot files and the hook's journal into an archive.

    Known sessions are not coded again. Then the job forgets the versions that the retention rules do not keep,
    collects, verifies a sample, and writes a report into the state folder. A run that was killed is
    simply run again. A second run at the same time does nothing and exits with 7.

    The job exits with 5 where sessions were refused; all others are stored. It exits with 3 where the sample was
    damaged, and with 7 where a step could not be done now.
    """
    from pltz.serving.nightly import config, job

    if example:
        write_text(config.EXAMPLE)
        return
    if path is None:
        raise UsageError("expected --config FILE; --example prints one to begin with")
    loaded = config.load(path)
    with Progress("freeze", unit="sessions", shown=wanted(progress)) as bar:

        def seen(tally: "RunStats") -> None:
            bar.add(tally.seen)

        def begin(step: str) -> None:
            bar.begin(step, unit="sessions" if step == "freeze" else "steps")

        report = job.run(loaded, dry_run=dry_run, seen=seen, begin=begin)
    write_text(json.dumps(report) if as_json else as_text(report))
    click.get_current_context().exit(report["exit_code"])


def as_text(report: dict[str, Any]) -> str:
    """Return the report of a run as text."""
    total, would = report["totals"], "would be " if report["dry_run"] else ""
    frozen = f"{total['frozen']:,} ({size(total['bytes'])} of content"
    frozen += (
        ")"
        if report["dry_run"]
        else f", {size(total['frozen_bytes'])} new in the archive; {total['unchanged']:,} unchanged)"
    )
    lines = [
        ("sessions seen", f"{total['seen']:,}"),
        ("known", f"{total['known']:,}"),
        (f"{would}frozen", frozen),
        (f"{would}refused", f"{total['refused']:,}"),
    ]
    if left := left_out(total["left_out"]):
        lines.append(("not stored", left))
    # A line per step that ran.
    if done := report["retention"]:
        lines.append(
            (f"{would}forgotten", f"{done['forgotten']:,} of {counted(done['versions'], 'version')}")
        )
    if done := report["shrink"]:
        saved = f"{size(done['expected'])} saved, about" if report["dry_run"] else f"{done['left']:,} left"
        lines.append((f"{would}shrunk", f"{done['shrunk']:,} of {counted(done['fresh'], 'record')}, {saved}"))
    if done := report["collect"]:
        lines.append(
            (f"{would}collected", f"{counted(done['deleted'], 'pack')}, {size(max(0, done['freed']))} freed")
        )
    if done := report["verify"]:
        state = "sound" if done["sound"] else "DAMAGED: pltz archive verify lists the lost sessions"
        lines.append(
            (
                "verified",
                f"{counted(done['packs'], 'pack')}, {counted(done['decoded'], 'segment')} decoded: {state}",
            )
        )
    if "report" in report:
        lines.append(("report", report["report"]))
    # Then the sessions that were refused and the steps that failed, a line each.
    text = [pairs(lines, "")]
    text += [f"refused: {r['where']} ({r['source']}): {r['reason']}" for r in report["refused"][:SHOWN]]
    if total["refused"] > SHOWN:
        text.append(f"refused: {total['refused'] - SHOWN:,} more, see the folder quarantine")
    text += [f"told: {words}" for words in report["told"][:SHOWN]]
    text += [f"not done: {words}" for words in report["failures"]]
    return "\n".join([text[0], *map(printable, text[1:])])

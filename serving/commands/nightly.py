"""``pltz nightly``: take new sessions from their sources into the archive. `pltz.serving.nightly` does the work."""

import json
from typing import TYPE_CHECKING, Any

import click

from pltz.archive import counted, duration, moment, size
from pltz.cli import DRY_RUN, Command, Progress, content_alone, left_out, options, pairs, printable, wanted, write_text
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    from pltz.serving.nightly.config import Config
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
@click.option("--ping", "url", metavar="URL", help="Told of begin (URL/start), end (URL) and failure (URL/fail).")
@DRY_RUN
@options.PROGRESS
@options.JSON
def nightly(
    path: str | None, example: bool, url: str | None, dry_run: bool, progress: bool | None, as_json: bool
) -> None:
    """Put new sessions from JSONL files, databases, slot files and the hook's journal into an archive.

    Known sessions are not coded again. Then the job forgets the versions that the retention rules do not keep,
    collects, verifies a sample, and writes a report into the state folder. A run that was killed is
    simply run again. A second run at the same time does nothing and exits with 7.

    The job exits with 5 where sessions were refused; all others are stored. It exits with 11 for an alarm of [watch],
    with 3 where the sample was damaged, and with 7 where a step could not be done now.
    """
    from pltz.serving.nightly import config, job
    from pltz.serving.nightly.watch import ping

    if example:
        write_text(config.EXAMPLE)
        return
    if path is None:
        raise UsageError("expected --config FILE; --example prints one to begin with")
    loaded = config.load(path)
    if url is None:
        report = _run(loaded, dry_run, progress)
    else:
        _told(ping(url, "start"))
        state = "fail"
        try:
            report = _run(loaded, dry_run, progress)
            state = "" if report["exit_code"] in (0, job.REFUSED) else state
        finally:
            _told(ping(url, state))
    write_text(json.dumps(report) if as_json else as_text(report))
    click.get_current_context().exit(report["exit_code"])


def _told(problem: str) -> None:
    """Print what went wrong with a ping, if anything did: it fails no job."""
    if problem:
        click.echo(f"warning: {printable(problem)}", err=True)


def _run(loaded: "Config", dry_run: bool, progress: bool | None) -> dict[str, Any]:
    """Do one run and return its report."""
    from pltz.serving.nightly import job

    with Progress("freeze", unit="sessions", shown=wanted(progress)) as bar:

        def seen(tally: "RunStats") -> None:
            bar.add(tally.seen)

        def begin(step: str) -> None:
            bar.begin(step, unit="sessions" if step == "freeze" else "steps")

        return job.run(loaded, dry_run=dry_run, seen=seen, begin=begin)


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
    if packings := total["packings"]:
        lines.append(("packings", content_alone(packings)))
    # A line per step that ran.
    if done := report["retention"]:
        lines.append((f"{would}forgotten", f"{done['forgotten']:,} of {counted(done['versions'], 'version')}"))
        for rule in done["rules"]:
            found = f"{counted(rule.get('versions', 0), 'version')} of {counted(rule.get('sessions', 0), 'session')}"
            lines.append((f"  by {rule['rule']}", found))
        for why, what in (("held", "kept by holds"), ("floor", "kept by a floor")):
            if count := done.get(why):
                lines.append((f"  {what}", counted(count, "version")))
        if done["behind"]:
            behind = f"up to {duration(done['behind'])} ago, until another run agrees with the clock"
            lines.append(("  ages count", behind))
    if done := report["shrink"]:
        saved = f"{size(done['expected'])} saved, about" if report["dry_run"] else f"{done['left']:,} left"
        lines.append((f"{would}shrunk", f"{done['shrunk']:,} of {counted(done['fresh'], 'record')}, {saved}"))
    if done := report["collect"]:
        lines.append((f"{would}collected", f"{counted(done['deleted'], 'pack')}, {size(max(0, done['freed']))} freed"))
    if done := report["verify"]:
        state = "sound" if done["sound"] else "DAMAGED: pltz archive verify lists the lost sessions"
        lines.append(
            ("verified", f"{counted(done['packs'], 'pack')}, {counted(done['decoded'], 'segment')} decoded: {state}")
        )
    if before := report.get("before"):
        ago = duration(max(0.0, report["started"] - before["started"]))
        code = f"exit code {before['exit_code']}"
        lines.append(("run before", f"{moment(int(before['started']))}, {ago} earlier, {code}"))
    if "report" in report:
        lines.append(("report", report["report"]))
    # Then the sessions that were refused and the steps that failed, a line each.
    text = [pairs(lines, "")]
    text += [f"refused: {r['where']} ({r['source']}): {r['reason']}" for r in report["refused"][:SHOWN]]
    if total["refused"] > SHOWN:
        text.append(f"refused: {total['refused'] - SHOWN:,} more, see the folder quarantine")
    text += [f"told: {words}" for words in report["told"][:SHOWN]]
    text += [f"alarm: {words}" for words in (report["watch"] or {}).get("alarms", ())]
    text += [f"not done: {words}" for words in report["failures"]]
    return "\n".join([text[0], *map(printable, text[1:])])

"""Bulk work in parts: ``--part N/M`` does one, ``pltz archive join`` joins their reports, ``--ray`` does both.

    pltz archive verify --part 3/16 --json > 3.jsonl     # by whatever starts 16 processes
    pltz archive join *.jsonl                            # an error unless all 16 are there
    pltz archive verify --ray auto                       # the same on a Ray cluster

A part is a process of its own that asks nobody. Its report is the last line that it prints with ``--json``, and it
prints none where it did not come to its end. So one that failed, was killed or never ran is missing from the join.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from pltz.archive.errors import ArchiveError
from pltz.archive.work_part import WorkPart
from pltz.cli.archive.files import is_folder
from pltz.cli.ui.archive_options import ArchiveCommand, archive_place, archive_words
from pltz.cli.ui.groups import Command, Interrupted
from pltz.cli.ui.options import Decorator
from pltz.cli.ui.output import write_text
from pltz.plt_codec.errors import ContentError, PltzError, UsageError
from pltz.plt_codec.identity import digest

WORDS, WORK = "pltz.parts.words", "pltz.parts.work"  # in click's context: the words of the call, the id of the work
APART = ("part", "output", "force", "threads", "device", "progress", "as_json")  # may differ between parts
# rows of which several parts may print the same, and their number in the report
COUNTED = {"problem": "problems", "lost_session": "lost", "unfinished": "unfinished", "missing_copy": "missing_copies"}
DAMAGED, COPIES_MISSING, UNFINISHED = 3, 9, 10  # exit codes of verify
SHOWN = 5  # missing parts that an error names


def _part(ctx: click.Context, parameter: click.Parameter, value: str | None) -> WorkPart | None:
    return None if value is None else WorkPart.parse(value)


def parted(of: str) -> Decorator:
    """Return the options ``--part``, which the command takes as ``part``, and ``--ray``. ``of``: what is divided."""
    part = click.option(
        "--part", metavar="N/M", callback=_part, help=f"Only part N of M of the {of}. See pltz archive join."
    )
    ray = click.option(
        "--ray",
        metavar="ADDRESS",
        help="All parts on a Ray cluster (ray://HOST:PORT, HOST:PORT, auto, local), one per CPU. Prints JSON.",
    )
    return lambda command: part(ray(command))


class PartCommand(ArchiveCommand):
    """A command with the options of `parted`. With ``--ray`` its parts run elsewhere, and here their reports join."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words, from which those of each part are made."""
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, or all its parts. Raises UsageError."""
        address: str | None = ctx.params.pop("ray")
        deciding = sorted((key, value) for key, value in ctx.params.items() if key not in APART)
        ctx.meta[WORK] = digest(b"pltz part of", repr((ctx.info_name, archive_place(), deciding)).encode()).hex()
        if address is None:
            return super().invoke(ctx)
        if ctx.params["part"]:
            raise UsageError("--ray does all parts: leave --part out, or --ray")
        if "-" in (*ctx.params.get("inputs", ()), ctx.params.get("output")):
            raise UsageError("several processes can neither read stdin nor write stdout: name files")
        if is_folder(ctx.params.get("output") or ""):
            raise UsageError("several processes cannot write into one folder: name a file")
        words = [*archive_words(), *ctx.command_path.split()[1:], *_without_ray(ctx.meta[WORDS])]
        try:
            code = show_joined(on_ray(address, words, ctx.params.get("output")))
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted: run the command again, all parts of it") from error
        ctx.exit(code)


def report_of(part: WorkPart | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of a part of the running command, or of all. It is printed last, when nothing can fail."""
    return {**facts, "part": str(part), "work": click.get_current_context().meta[WORK]} if part else dict(facts)


def joined(reports: Iterable[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all parts, those that verify may print in several once, and at the end the report of the whole.

    ``reports``: what each part printed, with a name for it.

    Raises UsageError for the report of other work, ArchiveError where a part is missing or did not come to its end.
    """
    parts: dict[WorkPart, dict[str, Any]] = {}
    met, counts, works = set[str](), Counter[str](), set[tuple[str, int]]()
    for name, text in reports:
        try:
            *rows, last = map(json.loads, text.splitlines())
            part, work = WorkPart.parse(last.pop("part")), str(last.pop("work"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PltzError) as exc:
            raise ArchiveError(f"{name} is not the report of a part that came to its end: run that part again") from exc
        works.add((work, part.of))
        if len(works) > 1 or part in parts:
            why = f"is part {part} again" if part in parts else "is of another command, archive or number of parts"
            raise UsageError(f"{name} {why}: join the reports of one call with --part 1/M to M/M")
        parts[part] = last
        for row in rows:
            kind = next((COUNTED[key] for key in COUNTED if key in row), None)
            if kind is None or (line := json.dumps(row)) not in met:
                met |= set() if kind is None else {line}
                counts[kind or ""] += 1
                yield row
    [(_, of)] = works or {("", 1)}
    if absent := [str(part) for part in (WorkPart(number, of) for number in range(1, of + 1)) if part not in parts]:
        more = ", ..." if len(absent) > SHOWN else ""
        raise ArchiveError(f"{len(absent)} of {of} parts are missing: run {', '.join(absent[:SHOWN])}{more}")
    total = {key: _together([report.get(key) for report in parts.values()]) for key in next(iter(parts.values()))}
    total |= {key: counts[key] for key in COUNTED.values() if key in total}
    yield total | {"parts": of} | ({"complete": True} if "complete" in total else {})


def _together(values: list[Any]) -> Any:
    """Return one value for those of all parts: a sum, whether all are true, or the one that all have."""
    if all(isinstance(value, bool) for value in values):
        return all(values)
    if all(isinstance(value, int) for value in values):
        return sum(values)
    return values[0] if all(value == values[0] for value in values) else None


def show_joined(reports: Iterable[tuple[str, str]]) -> int:
    """Print the rows of all parts and the report of the whole, and return the exit code. Raises as `joined`."""
    row: dict[str, Any] = {}
    for row in joined(reports):
        write_text(json.dumps(row, ensure_ascii=False))
    if not row.get("sound", True):
        return DAMAGED
    if row.get("unfinished"):
        return UNFINISHED
    if row.get("refused"):
        return ContentError.exit_code
    return COPIES_MISSING if row.get("missing_copies") else 0


@click.command(cls=Command, short_help="Join the reports of parts.", examples=["pltz archive join report-*.jsonl"])
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", is_flag=True, expose_value=False, help="Print JSON, one object per line, as it does anyway.")
@click.pass_context
def join(ctx: click.Context, files: tuple[str, ...]) -> None:
    """Join what verify, export, copy or put printed with --part N/M --json, a FILE for each part, as JSON lines.

    The report of the whole is the last line, and the exit code is that of the command. Where a part is missing there is
    neither: exit code 7.
    """
    from pltz.cli.ui.session_input import want_there

    want_there(files)
    ctx.exit(show_joined((name, Path(name).read_text("utf8", "replace")) for name in files))


def _without_ray(words: list[str]) -> list[str]:
    """Return the words of a call without ``--ray`` and its address."""
    left, rest = list[str](), iter(words)
    for word in rest:
        if word == "--":
            return [*left, word, *rest]
        if word == "--ray":
            next(rest, None)
        elif not word.startswith("--ray="):
            left.append(word)
    return left


def on_ray(address: str, words: list[str], output: str | None) -> Iterator[tuple[str, str]]:
    """Run all parts of a command on a Ray cluster, and yield what each printed when it ends.

    A file that the command writes is one for each part. A worker that dies is replaced by Ray, and its part runs again.

    Raises UsageError where Ray is missing or no cluster answers.
    """
    try:
        import ray
    except ImportError as exc:
        raise UsageError("parts on Ray need Ray: pip install 'pltz[ray]'") from exc
    try:
        more = {} if address.startswith("ray://") else {"include_dashboard": False}
        ray.init(address=address, log_to_driver=False, **more)
    except (ConnectionError, ValueError) as exc:
        raise UsageError(f"no Ray cluster at {address}: {exc}") from exc
    try:
        of = max(1, int(ray.cluster_resources().get("CPU", 1)))
        at = words.index("--") if "--" in words else len(words)
        task, running = ray.remote(num_cpus=1)(run_here), dict[Any, WorkPart]()
        for part in (WorkPart(number, of) for number in range(1, of + 1)):
            own = ["--part", str(part), "--json"] + ([] if output is None else ["-o", output_of(output, part)])
            running[task.remote([*words[:at], *own, *words[at:]])] = part
        while running:
            [done], _ = ray.wait(list(running), num_returns=1)
            part = running.pop(done)
            try:
                code, out, err = ray.get(done)
            except ray.exceptions.RayError as exc:
                code, out, err = 1, "", str(exc)
            why = (err.strip().splitlines() or ["it says nothing"])[-1]
            yield f"part {part} (exit code {code}: {why})", out
    finally:
        ray.shutdown()


def output_of(output: str, part: WorkPart) -> str:
    """Return the file that a part writes.

    >>> output_of("all.jsonl", WorkPart(2, 16))
    'all-2-of-16.jsonl'
    """
    path = Path(output)
    return str(path.with_name(f"{path.stem}-{part.number}-of-{part.of}{path.suffix}"))


def run_here(words: list[str]) -> tuple[int, str, str]:
    """Run a command of pltz in a process of its own; return its exit code and what it printed on stdout and stderr."""
    call = [sys.executable, "-m", "pltz", *words]
    done = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf8", check=False)
    return done.returncode, done.stdout, done.stderr

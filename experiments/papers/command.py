"""``pltz.experiments papers``: the theorems and tables of five papers beside what this code measures.

Rows are measured on the spot, on a target, sessions and a bundle that ship with pltz or that you give. Rows that need a
GPU, another target or hours are recorded: they say when, by which command, and where the figures are kept.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

import click

from pltz.benchmarks import options as bench_options
from pltz.cli.bench import machine, shared
from pltz.cli.bench.codec import corpus
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.experiments.papers.row import PAPERS, VERDICTS, PaperRow
from pltz.plt_codec.errors import UsageError

TITLES = {
    "towers": "Towers of Segments",
    "learnable": "Learnable Adaptive KV-cache Compression",
    "agent-memory": "Agent Memory Below the Prompt",
    "three-tier": "3-Tier KV Cache",
    "joint-encoding": "Joint Encoding of KV-Cache Blocks",
}
WIDTH = 110


@click.command(
    cls=Command,
    short_help="The papers' claims beside what is measured.",
    examples=[
        "python -m pltz.experiments papers",
        "python -m pltz.experiments papers --paper towers --sessions 96 --json",
        "python -m pltz.experiments papers --target ./my-model --data chats.jsonl",
    ],
)
@shared.TARGET
@shared.DATA
@click.option(
    "--paper", "chosen", type=click.Choice(PAPERS), multiple=True, help="Show only this paper (repeatable)."
)
@click.option(
    "--sessions", "count", type=click.IntRange(min=8), default=48, show_default=True, metavar="N",
    help="Sessions of the deployment that is archived.",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(min=2), default=6, show_default=True, metavar="N", help="Rows of tokens.")
@click.option(
    "--context", type=click.IntRange(min=256), default=512, show_default=True, metavar="N", help="Tokens kept as KV."
)
@bench_options.NEW
@options.coder_options
@shared.JSON
def papers(
    model: str,
    data: str | None,
    chosen: tuple[str, ...],
    count: int,
    rows: int,
    context: int,
    new: int,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Print each theorem and table of five papers on KV caches beside what this code measures.

    Verdicts follow from the figures of the run: "holds", "in part", "does not hold", "not measured". Rows marked as
    recorded were measured elsewhere, and say when and how. experiments/README.md explains them.
    """
    from pltz.experiments.papers.records import RECORDED
    from pltz.experiments.papers.subjects import SUBJECTS
    from pltz.experiments.papers.work import Work
    from pltz.models.target.target import Target

    sessions = [record.session for record in corpus.read(data)]
    if not sessions:
        raise UsageError("expected sessions, found none: give --data with records of chats")
    codec = options.load_codec(bundle, device, threads)
    target = Target.load(model, device, "float32")
    work = Work(target, sessions, rows, context, new, model, codec, bundle, threads, count)
    found: list[PaperRow] = []
    with Progress("measure", unit="subjects", total=len(SUBJECTS), shown=wanted(progress)) as bar:
        for subject in SUBJECTS:
            found += subject(work)
            bar.add(1)
    # Per paper: rows of this run, then those that were recorded elsewhere.
    names = [paper for paper in PAPERS if not chosen or paper in chosen]
    told = [row for paper in names for row in (*found, *RECORDED) if row.paper == paper]
    result: dict[str, Any] = {
        "benchmark": "papers",
        "target": target.fingerprint.hex(),
        "bundle": codec.bundle.id.hex(),
        "data": data or "sample sessions",
        "sessions": count,
        "rows_of_tokens": rows,
        "context": context,
        "new": new,
        "rows": [row.as_json() for row in told],
        "verdicts": {name: sum(row.verdict == name for row in told) for name in VERDICTS},
        "machine": machine.describe(codec.coder, device, threads),
    }
    write_text(json.dumps(result) if as_json else as_text(told, result["verdicts"]))


def as_text(rows: list[PaperRow], verdicts: dict[str, int]) -> str:
    """Return the rows by paper, each as a few lines: claim, what the paper says, what was measured, and why."""
    lines: list[str] = []
    for paper in PAPERS:
        some = [row for row in rows if row.paper == paper]
        if some:
            lines += [TITLES[paper], "=" * len(TITLES[paper]), ""]
        for row in some:
            mark = "" if row.recorded is None else f"  [recorded {row.recorded.date}]"
            lines.append(f"{row.place}: {row.claim}: {row.verdict}{mark}")
            lines += _wrapped("paper", row.said) + _wrapped("pltz", row.measured)
            if row.why and row.verdict != "holds":
                lines += _wrapped("why", row.why)
            if row.recorded is not None:
                lines += _wrapped("by", f"{row.recorded.command} ({row.recorded.source})")
            lines.append("")
    lines.append(", ".join(f"{name}: {count}" for name, count in verdicts.items()))
    return "\n".join(lines)


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<6} ", subsequent_indent=" " * 9)

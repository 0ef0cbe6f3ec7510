"""``pltz.experiments lossy``: what it saves and loses to replace rare tokens by probable ones, to rebuild KV alone.

The experiment of Towers of Segments, section 10.3. No archive of pltz replaces tokens: they are the only copy of a
session, and the run shows that little is saved at a drift that the form q4 has without. It ends with one line of JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pltz.benchmarks import options as bench_options
from pltz.cli.bench import machine, shared
from pltz.cli.bench.codec import corpus
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.plt_codec.errors import UsageError

BITS = 8.0, 11.0, 14.0, 17.0
NAMES = "at-once", "in-turn", "if-shorter"


@click.command(
    cls=Command,
    short_help="Rare tokens replaced by probable ones (an experiment).",
    examples=[
        "python -m pltz.experiments lossy",
        "python -m pltz.experiments lossy --bits 14 --data chats.jsonl",
        "python -m pltz.experiments lossy --bits 12 --way if-shorter --target ./my-model --json",
    ],
)
@shared.TARGET
@shared.DATA
@click.option(
    "--bits", "thresholds", type=click.FloatRange(min=1), multiple=True, default=BITS, show_default=True, metavar="B",
    help="Replace tokens that are rarer than 2^-B (repeatable).",
)  # fmt: skip
@click.option(
    "--way", "ways", type=click.Choice(NAMES), multiple=True, default=NAMES, show_default=True,
    help="How: see experiments/README.md (repeatable).",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(min=2), default=6, show_default=True, metavar="N", help="Rows of tokens.")
@click.option(
    "--context", type=click.IntRange(min=64), default=512, show_default=True, metavar="N", help="Tokens kept as KV."
)
@bench_options.NEW
@options.coder_options
@shared.JSON
def lossy(
    model: str, data: str | None, thresholds: tuple[float, ...], ways: tuple[str, ...], rows: int, context: int,
    new: int, bundle: str | None, threads: int | None, device: str, progress: bool | None, as_json: bool,
) -> None:  # fmt: skip
    """Replace rare tokens by probable ones, and compare what that saves with what the rebuilt KV loses.

    Rarity and code length are the target's own; bytes are those of the bundle. The form q4 stands beside them: it
    makes KV smaller, not tokens, and loses less.
    """
    from pltz.experiments import bench_kv as kv
    from pltz.experiments.kv_rows import KVRows
    from pltz.experiments.lossy import measure
    from pltz.models.target.target import Target

    sessions = [record.session for record in corpus.read(data)]
    if not sessions:
        raise UsageError("expected sessions, found none: give --data with records of chats")
    here = KVRows(Target.load(model, device, "float32"), sessions, rows, context, new)
    codec = options.load_codec(bundle, device, threads)
    before, found = measure.Before.of(here, codec), []
    with Progress("replace", unit="settings", total=len(ways) * len(thresholds), shown=wanted(progress)) as bar:
        for way in ways:
            for bits in thresholds:
                found.append(measure.replaced(before, way, bits))
                bar.add(1)
    q4 = here.forms(kv.chosen(here.target, None, "q4", (), ()))["q4"]
    result: dict[str, Any] = {
        "benchmark": "lossy", "target": Path(model).name, "bundle": codec.bundle.id.hex(),
        "data": Path(data).name if data else "sample sessions", "rows": len(here.drawn), "context": context,
        "new": new, "settings": found, "q4": {name: q4[name] for name in ("kl", "top1")},
        "machine": machine.describe(codec.coder, device, threads),
    }  # fmt: skip
    write_text(json.dumps(result) if as_json else f"{as_text(result)}\n\n{json.dumps(result)}")


def as_text(result: dict[str, Any]) -> str:
    """Return the table."""
    rows = [
        [
            one["way"], f"{one['threshold']:g}", f"{one['replaced']:.1%}", f"{one['bits']:+.1%}",
            f"{one['bytes']:+.1%}", f"{one['kl']:.4f}", f"{one['top1']:.1%}",
        ]
        for one in result["settings"]
    ]  # fmt: skip
    rows.append(["q4", "", "0.0%", "+0.0%", "+0.0%", f"{result['q4']['kl']:.4f}", f"{result['q4']['top1']:.1%}"])
    return render(["tokens replaced", "B", "share", "bits", "bytes", "KL", "top-1"], rows)

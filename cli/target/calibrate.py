"""``pltz target calibrate``: make the calibration that the predictive form of a target's KV needs."""

import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pltz.archive.humanize import size
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pltz.models.kv.calibration import Calibration
    from pltz.models.session.session import Session

HELD = 0.2  # share of the rows that receipts are measured on


@click.command(
    cls=Command,
    short_help="Calibrate the small forms of a target's KV.",
    examples=[
        "pltz target calibrate ./my-model --data chats.jsonl -o my-model.kv.safetensors",
        "pltz target calibrate mini-llama --data chats/ -o . --rows 24 --context 512 --json",
    ],
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--data",
    "files",
    required=True,
    multiple=True,
    metavar="SESSIONS",
    help="Sessions like those to be served: files or folders (repeatable).",
)
@click.option(
    "--output", "-o", required=True, metavar="FILE|DIR", help="The calibration; in a folder it is named by its digest."
)
@click.option(
    "--rows", type=click.IntRange(min=5), default=80, show_default=True, metavar="N",
    help="Rows of tokens; a fifth of them is held out for the receipts.",
)  # fmt: skip
@click.option(
    "--context", type=click.IntRange(min=64), default=1536, show_default=True, metavar="N", help="Tokens per row."
)
@click.option(
    "--new", type=click.IntRange(min=8), default=512, show_default=True, metavar="N",
    help="Tokens per row that are scored after the context.",
)  # fmt: skip
@click.option(
    "--effects", type=click.IntRange(min=1), metavar="N",
    help="Rows on which the effect of errors is measured.  [default: half of the rows]",
)  # fmt: skip
@click.option(
    "--rank", type=click.IntRange(min=1), metavar="N",
    help="Rank of the predictors.  [default: so that the file stays below 3 % of the model]",
)  # fmt: skip
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu, cuda or cuda:N.")
@click.option("--dtype", metavar="TYPE", help="Type of the target's numbers.  [default: that of its weights]")
@options.FORCE
@options.PROGRESS
@options.JSON
def calibrate(
    model: str,
    files: tuple[str, ...],
    output: str,
    rows: int,
    context: int,
    new: int,
    effects: int | None,
    rank: int | None,
    device: str,
    dtype: str | None,
    force: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Calibrate the small forms of a target's KV on sessions of yours.

    The file holds predictors, transforms and tables of the form predictive, and receipts: what each form loses on
    rows that were held out. A server asks for a form with a bound on that loss.

    A run that was killed resumes where it was: its work is kept beside the output until the calibration is written.
    A target whose keys cannot be turned is refused, with the reason.
    """
    from pltz.models.kv import fitting, measure
    from pltz.models.target.target import Target

    place = Path(output)
    if place.is_file() and not force:
        raise UsageError(f"{output} exists: name another file, or add --force")
    if not place.is_dir() and not place.parent.is_dir():
        raise UsageError(f"folder {place.parent} does not exist: make it first")
    with Progress("load", unit="rows", shown=wanted(progress)) as bar:
        target = Target.load(model, device, dtype)
        longest = target.max_positions
        if longest is not None and context + new > longest:
            raise UsageError(f"--context and --new: the target has {longest} positions, fewer than {context + new}")
        drawn = measure.sessions_to_rows(target, sessions(files), rows, context + new)
        held = max(1, round(HELD * len(drawn)))
        work = place / f"{target.fingerprint.hex()}.work" if place.is_dir() else place.with_name(place.name + ".work")
        plan = fitting.Plan(
            context, new, effects or max(1, (len(drawn) - held) // 2), work, rank,
            begin=lambda stage, count: bar.begin(stage, count, "steps"), advance=bar.add,
        )  # fmt: skip
        found = fitting.calibrate(target, drawn[:-held], drawn[-held:], plan)
    written = found.save(place)
    shutil.rmtree(work, ignore_errors=True)
    result = {
        "file": str(written),
        "bytes": written.stat().st_size,
        "target": found.target.hex(),
        "digest": found.digest.hex(),
        "rows": len(drawn) - held,
        "held_out": held,
        "receipts": [receipt.to_dict() for receipt in found.receipts],
    }
    write_text(json.dumps(result) if as_json else as_text(found, written))


def sessions(files: tuple[str, ...]) -> "Iterator[Session]":
    """Yield the sessions of files and folders. Raises UsageError where one does not exist."""
    from pltz.datasets.loaders import load

    for path in map(Path, files):
        if not path.exists():
            raise UsageError(f"{path} does not exist: name a file or folder of sessions")
        inside = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
        yield from itertools.chain.from_iterable(load(one) for one in inside)


def as_text(found: "Calibration", written: Path) -> str:
    """Return the receipts as a table, and where the calibration is."""
    rows = [
        [
            f"{r.form} at {r.point}" if r.point else r.form,
            f"{r.bits:.2f}",
            f"{r.kl:.5f}",
            f"{r.kl99:.4f}",
            f"{100 * r.top1:.1f} %",
        ]
        for r in found.receipts
    ]
    table = render(["form", "bits per element", "KL, bits per token", "99 %", "same top-1"], rows)
    return f"{table}\n\n{written}: {size(written.stat().st_size)}, for the target {found.target.hex()}"

"""``pltz target calibrate``: make the calibration that the predictive form of a target's KV needs."""

import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive import size
from pltz.cli import Command, Progress, options, render, wanted, write_text
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pltz.kv.port.bound import Bound
    from pltz.kv.predictive.calibration import Calibration
    from pltz.models import Session

FEW = 16  # rows held out: with fewer the upper limits of losses lie far above the means


@click.command(
    cls=Command,
    short_help="Calibrate the small forms of a target's KV.",
    examples=[
        "pltz target calibrate ./my-model --data chats.jsonl -o my-model.kv.safetensors",
        "pltz target calibrate mini-llama --data chats/ -o . --rows 24 --held-out 16 --context 512 --json",
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
    "--rows", type=click.IntRange(min=4), default=64, show_default=True, metavar="N",
    help="Rows of tokens to fit predictors, transforms and tables to.",
)  # fmt: skip
@click.option(
    "--held-out", "held_out", type=click.IntRange(min=8), default=24, show_default=True, metavar="N",
    help="More rows, on which the receipts are measured; the more, the nearer a receipt's upper limit is to its mean.",
)  # fmt: skip
@click.option(
    "--max-kl", "max_kl", type=click.FloatRange(min=0, min_open=True), multiple=True, default=(0.0005, 0.005),
    show_default=True, metavar="KL",
    help="Measure the very points that these bounds choose, in bits per token (repeatable).",
)  # fmt: skip
@click.option(
    "--max-kl-recall", "max_kl_recall", type=click.FloatRange(min=0, min_open=True), metavar="KL",
    help="Bound the loss where early passages are asked for, too.  [default: four times each --max-kl]",
)  # fmt: skip
@click.option(
    "--context", type=click.IntRange(min=64), default=1536, show_default=True, metavar="N", help="Tokens per row."
)
@click.option(
    "--new", type=click.IntRange(min=8), default=512, show_default=True, metavar="N",
    help="Tokens per row that are scored after the context. Bounds hold for the first 32 of them, too, and more.",
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
    held_out: int,
    max_kl: tuple[float, ...],
    max_kl_recall: float | None,
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
    rows that were held out. A server asks for a form with a bound on that loss. The bound is compared with an upper
    limit of the mean ("at most"), the largest over the first 32, 64, 128, ... tokens after the context and over all.
    Recall is the loss where the target repeats an early passage, or is asked about one. It has a bound of its own.

    A run that was killed resumes where it was: its work is kept beside the output until the calibration is written.
    A target whose keys cannot be turned is refused, with the reason.
    """
    from pltz.kv.calibrate import fitting, measure
    from pltz.kv.port.bound import Bound
    from pltz.kv.port.receipt import LEAST_ROWS
    from pltz.kv.port.rotary import Rotary
    from pltz.models import Target

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
        Rotary.of(target)  # a target that is refused is refused at once
        bar.begin("read", None, "sessions")
        drawn = measure.sessions_to_rows(target, counted(sessions(files), bar), rows + held_out, context + new)
        held = max(LEAST_ROWS, len(drawn) * held_out // (rows + held_out))
        if len(drawn) < held + 4:
            raise UsageError(
                f"the sessions fill {len(drawn)} rows of {context + new} tokens, and 4 to fit and {LEAST_ROWS} to hold "
                "out are the fewest: give more sessions, or a smaller --context"
            )
        work = place / f"{target.fingerprint.hex()}.work" if place.is_dir() else place.with_name(place.name + ".work")
        asked = tuple(Bound.of(kl, max_kl_recall) for kl in max_kl)
        plan = fitting.Plan(
            context, new, effects or max(1, (len(drawn) - held) // 2), work, rank, asked,
            begin=lambda stage, count: bar.begin(stage, count, "steps"), advance=bar.add,
        )  # fmt: skip
        found = fitting.calibrate(target, drawn[:-held], drawn[-held:], plan)
    written = found.save(place)
    shutil.rmtree(work, ignore_errors=True)
    if held < FEW:
        click.echo(
            f"receipts are of {held} rows only: a bound on the loss costs more bits than with {FEW} or more. "
            "Give more sessions, or raise --held-out",
            err=True,
        )
    bounds = [chosen(found, bound) for bound in asked]
    result = {
        "file": str(written),
        "bytes": written.stat().st_size,
        "target": found.target.hex(),
        "digest": found.digest.hex(),
        "rows": len(drawn) - held,
        "held_out": held,
        "receipts": [receipt.to_dict() for receipt in found.receipts],
        "bounds": bounds,
    }
    write_text(json.dumps(result) if as_json else as_text(found, written, bounds))


def sessions(files: tuple[str, ...]) -> "Iterator[Session]":
    """Yield the sessions of files and folders. Raises UsageError where one does not exist."""
    from pltz.datasets import load

    for path in map(Path, files):
        if not path.exists():
            raise UsageError(f"{path} does not exist: name a file or folder of sessions")
        inside = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
        yield from itertools.chain.from_iterable(load(one) for one in inside)


def counted(found: "Iterator[Session]", bar: Progress) -> "Iterator[Session]":
    """Yield sessions, and count them on a progress line."""
    for session in found:
        bar.add(1)
        yield session


def chosen(found: "Calibration", bound: "Bound") -> dict[str, Any]:
    """Return what a bound on the loss chooses; no point where none keeps to it."""
    from pltz.kv.predictive.calibration import PREDICTIVE

    try:
        receipt = found.receipt(PREDICTIVE, found.point(max_kl=bound.kl, max_kl_recall=bound.recall))
    except UsageError:
        receipt = None
    facts = {} if receipt is None else receipt.to_dict()
    return {"max_kl": bound.kl, "max_kl_recall": bound.recall, "measured": receipt in found.receipts, **facts}


def as_text(found: "Calibration", written: Path, bounds: list[dict[str, Any]]) -> str:
    """Return the receipts as a table, what bounds choose, and where the calibration is."""
    rows = [
        [
            f"{r.form} at {r.point:g}" if r.form.startswith("predictive") else r.form,
            f"{r.bits:.2f}",
            f"{r.kl:.5f}",
            f"{r.most:.5f}",
            "-" if r.kl_recall is None else f"{r.kl_recall:.5f}",
            "-" if r.most_recall is None else f"{r.most_recall:.5f}",
            f"{r.kl99:.4f}",
            f"{100 * r.top1:.1f} %",
        ]
        for r in sorted(found.receipts, key=lambda r: (r.form != "q8", r.form != "q4", r.point))
    ]
    head = ["form", "bits per element", "KL, bits per token", "at most", "recall", "at most", "99 %", "same top-1"]
    table = render(head, rows)
    lines = [
        f"max_kl={bound['max_kl']:g} takes {bound['bits']:.2f} bits per element, and loses {bound['kl']:.5f}, at most "
        f"{bound['most']:.5f}; recall {bound['kl_recall']:.5f}, at most {bound['most_recall']:.5f}"
        if "bits" in bound
        else f"max_kl={bound['max_kl']:g}: no point keeps to it, so such sessions are prefilled"
        for bound in bounds
    ]
    chosen_text = "\n".join(lines)
    return f"{table}\n\n{chosen_text}\n\n{written}: {size(written.stat().st_size)}, for the target {found.target.hex()}"

"""Measure whether bounds on the loss of KV hold on sessions that a calibration has not seen.

    python -m pltz.benchmarks.kv.kv_targets DIR
    python -m pltz.benchmarks.kv.measure_bounds DIR/mha mha.kv.safetensors chat_test.jsonl.zst

Each bound chooses a point twice: by the upper limit of the receipts, as pltz does, and by their mean. Both are measured
on the same rows, over as many tokens after the context as the receipts are of. A bound holds where the mean loss of all
rows keeps to it. That mean has an error, too, so it is told.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import click

from pltz.cli.bench import machine
from pltz.datasets.loaders import load
from pltz.kv.calibrate.measure import compare, sessions_to_rows
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import PREDICTIVE, Calibration
from pltz.kv.predictive.layer import layers_of
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.models.target.target import Target
from pltz.plt_codec.errors import UsageError

BOUNDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01)  # bits per token


@click.command()
@click.argument("model")
@click.argument("calibration")
@click.argument("data", nargs=-1, required=True)
@click.option("--rows", default=48, show_default=True, metavar="N", help="Rows of tokens, each of sessions of its own.")
@click.option("--new", type=int, metavar="N", help="Tokens after the context.  [default: as many as in the receipts]")
@click.option("--bound", "bounds", type=float, multiple=True, default=BOUNDS, metavar="KL", help="Bits per token.")
@click.option("--dtype", default="float32", show_default=True, metavar="TYPE", help="Type of the target's numbers.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of the target.")
def main(
    model: str, calibration: str, data: tuple[str, ...], rows: int, new: int | None, bounds: tuple[float, ...],
    dtype: str, device: str,
) -> None:  # fmt: skip
    """Print one line of JSON."""
    target = Target.load(model, device, dtype)
    fitted = Calibration.load(calibration, target.fingerprint)
    first = fitted.receipts[0]
    context, new = first.context, new or first.scored // first.rows + 1
    sessions = chain.from_iterable(load(path) for path in data)
    drawn = sessions_to_rows(target, sessions, rows, context + new)
    result = {
        "benchmark": "bounds",
        "target": Path(model).name,
        "context": context,
        "new": new,
        "held_out": first.rows,
        "rows": len(drawn),
        "bounds": by_bound(target, fitted, drawn, context, bounds),
        "machine": machine.describe(None, device, None),
    }
    click.echo(json.dumps(result))


def by_bound(
    target: Target, fitted: Calibration, drawn: Any, context: int, bounds: tuple[float, ...]
) -> list[dict[str, Any]]:
    """Return what both choices of each bound said and lost; a bound that a choice cannot keep has none."""
    flat = replace(fitted, receipts=tuple(replace(r, most=r.kl, most_recall=r.kl_recall) for r in fitted.receipts))
    asked = {"limit": fitted, "mean": flat}
    chosen: dict[tuple[str, float], float] = {}
    for by, receipts in asked.items():
        for bound in bounds:
            try:
                chosen[by, bound] = receipts.point(max_kl=bound)
            except UsageError:
                continue
    embedding = target.model.get_input_embeddings().weight.detach()
    layers, rotary = layers_of(fitted, embedding.device), Rotary.of(target)
    points = sorted(set(chosen.values()))
    codecs = [(f"{point:g}", PredictiveCodec(fitted, rotary, embedding, point, layers)) for point in points]
    measured = dict(zip(points, compare(target, drawn, context, codecs, control=False), strict=True))
    found: list[dict[str, Any]] = []
    for bound in bounds:
        row: dict[str, Any] = {"bound": bound}
        for by in asked:
            if (point := chosen.get((by, bound))) is None:
                continue
            said, lost = fitted.receipt(PREDICTIVE, point), measured[point].row()
            assert said is not None, "a chosen point has a receipt"
            row[by] = {
                "point": point, "said_kl": said.kl, "said_most": said.most, "kl": lost["kl"],
                "kl_error": lost["kl_error"], "bits": lost["bits"], "holds": lost["kl"] <= bound,
            }  # fmt: skip
        found.append(row)
    return found


if __name__ == "__main__":
    main()

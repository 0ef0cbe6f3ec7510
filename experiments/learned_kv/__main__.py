"""Train and measure what is learnt on the KV of a target.

    python -m pltz.experiments.learned_kv rows mini-llama --train train.jsonl --test chat_test.jsonl.zst -o rows.npz
    python -m pltz.experiments.learned_kv decoder mini-llama rows.npz --seconds 6 > universal_decoder.json
    python -m pltz.experiments.learned_kv budgets mini-llama rows.npz --seconds 3 > learned_budgets.json

It is the evidence for Conjecture 35 of "Towers of Segments" and for "Learnable Adaptive KV-cache Compression".

A line of JSON per target goes to standard output, and after each network to ``--partial`` as well.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from numpy.typing import NDArray

from pltz.experiments.learned_kv import measure
from pltz.experiments.learned_kv.codes import Codes
from pltz.experiments.learned_kv.course import Course, centres_of, train
from pltz.experiments.learned_kv.frozen_target import ChangedForm, FrozenTarget
from pltz.experiments.learned_kv.network import Decoder, Size, TargetShape
from pltz.kv.calibrate.measure import POOL, compare
from pltz.kv.kv_forms import kv_forms, row_forms
from pltz.models.target.target import Target

if TYPE_CHECKING:
    from pltz.models.session.session import Session

Rows = NDArray[np.int32]
RATIOS = 2, 3, 4
HELD = 8  # rows of which the error by layer and the bits are


@click.group()
def learned() -> None:
    """Train and measure what is learnt on the KV of a target."""


@learned.command()
@click.argument("model")
@click.option("--train", "source", required=True, metavar="FILE", help="Sessions to train on.")
@click.option("--test", required=True, metavar="FILE", help="Sessions to report on.")
@click.option("--length", default=1792, show_default=True, help="Ids of a row of the first.")
@click.option("--test-length", default=2048, show_default=True, help="Ids of a row of the second.")
@click.option("--most", default=8000, show_default=True, help="Rows of the first, at most.")
@click.option("-o", "output", required=True, type=click.Path(path_type=Path))
def rows(model: str, source: str, test: str, length: int, test_length: int, most: int, output: Path) -> None:
    """Write rows of ids of sessions, so that a machine with a GPU needs no tokenizer."""
    from pltz.datasets.loaders import load
    from pltz.kv.calibrate.measure import sessions_to_rows

    target = Target.load(model, "cpu", "float32")
    drawn = (sessions_to_rows(target, some, most, length) for some in _parts(load(source)))
    kept = {
        "train": np.concatenate(list(drawn))[:most],
        "test": sessions_to_rows(target, load(test), 32, test_length),
    }
    np.savez_compressed(output, **{name: one.astype(np.uint32) for name, one in kept.items()})  # type: ignore[arg-type]


WORDS = [
    click.argument("model"),
    click.argument("file", type=click.Path(exists=True, path_type=Path)),
    click.option("--device", default="cpu", show_default=True),
    click.option("--batch", default=8, show_default=True, help="Rows per step."),
    click.option("--seconds", default=10.0, show_default=True, help="Of training, each; 0 for none."),
    click.option("--steps", default=1_000_000, help="Of training, each, at most."),
    click.option("--short", default=1536, show_default=True, help="Ids of a context in training."),
    click.option("--new", default=256, show_default=True, help="Ids after it."),
    click.option("--test-rows", default=16, show_default=True, help="Rows that are reported on."),
    click.option("--partial", type=click.Path(path_type=Path), help="File for what is done so far."),
]


def words(command: Any) -> Any:
    """Add the options that both measurements take."""
    for one in reversed(WORDS):
        command = one(command)
    return command


@learned.command()
@words
@click.option("--only", multiple=True, metavar="NAME", help="Sizes to measure (repeatable).  [default: all]")
def decoder(**given: Any) -> None:
    """Train decoders of tokens to KV, from small to large, and measure each."""
    click.echo(json.dumps(decoders(**given)))


@learned.command()
@words
@click.option("--ratio", "ratios", type=int, multiple=True, default=RATIOS, show_default=True)
@click.option("--calibration", metavar="FILE", help="Of `pltz target calibrate`: measures the form predictive too.")
def budgets(**given: Any) -> None:
    """Train codes of low rank with even and with learnt budgets, and measure each."""
    click.echo(json.dumps(codes(**given)))


def both(model: str, device: str) -> tuple[FrozenTarget, FrozenTarget]:
    """Return a target in float32, and the one to train with: in bfloat16 where there is a GPU."""
    target = Target.load(model, device, "float32")
    frozen = FrozenTarget(target)
    if not device.startswith("cuda"):
        return frozen, frozen
    quick = copy.copy(target)
    quick.model = copy.deepcopy(target.model).bfloat16()
    return frozen, FrozenTarget(quick, frozen.rotary)


def decoders(
    model: str, file: Path, device: str, batch: int, seconds: float, test_rows: int, partial: Path | None = None,
    steps: int = 1_000_000, short: int = 1536, new: int = 256, only: Sequence[str] = (),
    sizes: Sequence[Size] | None = None, context: int = 1536,
) -> dict[str, Any]:  # fmt: skip
    """Return the figures of decoders of all sizes. One that trains its readers alone is given a third of the time."""
    frozen, quick = both(model, device)
    kept = np.load(file)
    fit, test = kept["train"].astype(np.int32), kept["test"].astype(np.int32)[:test_rows]
    shape, course = TargetShape.of(frozen), Course(batch, short, new, steps, seconds)
    centres = centres_of(frozen, fit[:1000], 4)
    told = _head("universal_decoder", model, frozen, fit, test, context, course)
    told |= {"prefill_macs": shape.prefill_macs(context), "decoders": []}
    chosen = measure.series(shape) if sizes is None else sizes
    chosen = [size for size in chosen if not only or size.name in only]
    torch.manual_seed(0)
    made = [Decoder(frozen, size, centres if size.experts > 1 else None).to(frozen.device) for size in chosen]
    # Times depend on sizes and not on weights, so they come first, while nothing else runs.
    taken = measure.times(quick, made, context, 1)
    told["prefill_s"] = taken[0]
    for size, one, took in zip(chosen, made, taken[1:], strict=True):
        told["decoders"].append({
            "name": size.name, "size": vars(size), "share": shape.macs(size, context) / shape.prefill_macs(context),
            "parameters": sum(p.numel() for p in one.parameters()), "s": took,
        })  # fmt: skip
    # Two ends of the scale: a good form, and the KV of another session, which knows nothing of this one.
    forms: list[tuple[str, Any]] = [
        ("q4", row_forms(frozen.target)["q4"]),
        ("another session", ChangedForm("other", frozen, functools.partial(_other, frozen, fit), 0.0)),
    ]
    told["ends"] = [one.row() for one in compare(frozen.target, test, context, forms, control=False)]
    _write(partial, told)
    held = min(HELD, test_rows)
    for size, one, row in zip(chosen, made, told["decoders"], strict=True):
        own = course if size.blocks else replace(course, steps=steps // 3, seconds=seconds / 3)
        row["trained"] = train(one, quick, fit, own)
        one.requires_grad_(False)
        row |= measure.errors(frozen, one, test[:held, :context])
        row["bits_for_1"] = measure.bits_saved(frozen, one, fit[: 4 * held, :context], test[:held, :context])
        form = ChangedForm(size.name, frozen, functools.partial(_decoded, one), 0.0)
        row["loss"] = compare(frozen.target, test, context, [(size.name, form)], control=False)[0].row()
        _write(partial, told)
    return told


def codes(
    model: str, file: Path, device: str, batch: int, seconds: float, test_rows: int, partial: Path | None = None,
    steps: int = 1_000_000, short: int = 1536, new: int = 256, ratios: Sequence[int] = RATIOS,
    calibration: str | None = None, context: int = 1536,
) -> dict[str, Any]:  # fmt: skip
    """Return the figures of codes: principal directions with even budgets and by variance, and trained ones."""
    frozen, quick = both(model, device)
    kept = np.load(file)
    fit, test = kept["train"].astype(np.int32), kept["test"].astype(np.int32)[:test_rows]
    course = Course(batch, short, new, steps, seconds)
    told = _head("learned_budgets", model, frozen, fit, test, context, course)
    forms: list[tuple[str, Any]] = [*row_forms(frozen.target).items()]
    if calibration is not None:
        for bound in (0.005, 0.0005):
            found = kv_forms(frozen.target, calibration, max_kl=bound)
            forms.append((f"predictive KL {bound}", found["predictive"]))
    told["forms"] = [one.row() for one in compare(frozen.target, test, context, forms, control=False)]
    told["codes"] = []
    for ratio in ratios:
        for name, by_kl, learnt in (
            ("principal directions, even", None, False),
            ("principal directions, by variance", None, True),
            ("trained by error, learnt budgets", False, True),
            ("trained by KL, even", True, False),
            ("trained by KL, learnt budgets", True, True),
        ):
            one = Codes(frozen, ratio)
            one.solve(quick, fit, batch, by_variance=by_kl is None and learnt)
            made = 0 if by_kl is None else one.train_on(quick, fit, course, by_kl=by_kl, budgets=learnt)
            one.requires_grad_(False)
            form = ChangedForm(name, frozen, functools.partial(_coded, one), one.bits)
            (lost,) = compare(frozen.target, test, context, [(name, form)], control=False)
            ranks = one.whole_ranks().view(-1, 2).tolist()
            told["codes"].append({"name": name, "ratio": ratio, "steps": made, "ranks": ranks, "loss": lost.row()})
            _write(partial, told)
    return told


def _decoded(network: Decoder, ids: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = network(ids)
    return found


def _other(frozen: FrozenTarget, fit: Rows, ids: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the exact rows of another session, one of those that are trained on."""
    row = fit[int(ids.sum()) % len(fit), : ids.shape[1]]
    return frozen.exact(torch.from_numpy(row.astype(np.int64))[None].to(ids.device))


def _coded(network: Codes, ids: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = network(exact)
    return found


def _head(
    name: str, model: str, frozen: FrozenTarget, fit: Rows, test: Rows, context: int, course: Course
) -> dict[str, Any]:
    from pltz.cli.bench import machine

    return {
        "benchmark": name, "target": Path(model).name, "layers": frozen.layers, "train_rows": len(fit),
        "test_rows": len(test), "context": context, "scored": test.shape[1] - context - 1,
        "course": vars(course), "machine": machine.describe(None, str(frozen.device), None),
    }  # fmt: skip


def _parts(sessions: Iterable[Session]) -> Iterator[list[Session]]:
    """Yield sessions in parts as large as a row's draw looks at."""
    sessions = iter(sessions)
    while part := list(itertools.islice(sessions, POOL)):
        yield part


def _write(partial: Path | None, told: dict[str, Any]) -> None:
    if partial is not None:
        partial.write_text(json.dumps(told))


if __name__ == "__main__":
    learned()

"""``python -m pltz.experiments kv``: what each form of KV takes and loses. `kv_peers.py` adds the forms of others.

A context is prefilled exactly, its KV is coded and decoded, and the session's own next tokens are scored on it
(`kv/calibrate/measure.py`). Bits count everything that a form stores beside the calibration. The first row is the
control: the exact KV in another batch. The run ends with one line of JSON.

`--resume FILE` keeps what each form loses on each row, one line of JSON for each. A run that was killed, or is to have
more rows or forms, measures what the file lacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from pltz.cli import DATA, TARGET, Command, Progress, machine, options, render, wanted, write_text
from pltz.kv.commands.calibrate import sessions
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    from pltz.kv.port.codec import KVCodec

OWN = ("q8", "q4", "predictive")


@click.command(
    cls=Command,
    short_help="Bits and loss of each form of KV.",
    examples=[
        "python -m pltz.experiments kv",
        "python -m pltz.experiments kv --target ./my-model --calibration my-model.kv.safetensors --data test.jsonl",
        "python -m pltz.experiments kv --forms q8,q4 --sessions 2 --context 256 --new 64 --json",
        "python -m pltz.experiments kv --sessions 32 --resume kv-rows.jsonl",
    ],
)
@TARGET
@click.option("--calibration", metavar="FILE", help="Of `pltz target calibrate`; the form predictive needs it.")
@DATA
@click.option(
    "--forms", metavar="NAME,...",
    help="Forms to measure: q8, q4, predictive.  [default: all]",
)
@click.option(
    "--sessions", "count", type=click.IntRange(min=2), default=8, show_default=True, metavar="N", help="Rows of tokens."
)
@click.option(
    "--context", type=click.IntRange(min=64), default=512, show_default=True, metavar="N", help="Tokens that are coded."
)
@click.option(
    "--new", type=click.IntRange(min=8), default=128, show_default=True, metavar="N", help="Tokens scored after them."
)
@click.option(
    "--max-kl", "max_kl", type=click.FloatRange(min=0), multiple=True, metavar="KL",
    help="Measure predictive at this loss in bits per token (repeatable).  [default: at all points with a receipt]",
)  # fmt: skip
@click.option(
    "--max-kl-recall", "max_kl_recall", type=click.FloatRange(min=0), metavar="KL",
    help="At this loss where early passages are asked for, too.  [default: four times each --max-kl]",
)  # fmt: skip
@click.option(
    "--bits", type=click.FloatRange(min=0), multiple=True, metavar="N",
    help="Measure predictive at so many bits per element (repeatable).",
)  # fmt: skip
@click.option(
    "--resume", metavar="FILE", help="Keep each measurement in this file, and measure only what it lacks."
)
@click.option("--dtype", metavar="TYPE", help="Type of the target's numbers.  [default: that of its weights]")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu, cuda or cuda:N.")
@options.PROGRESS
@options.JSON
def kv(**given: Any) -> None:
    """Measure what forms of KV take and lose: bits per element, KL against the exact KV, top-1, milliseconds.

    Give sessions that the calibration has not seen. With --max-kl or --bits, compare the row with its receipt.
    """
    measured({}, **given)


def measured(
    others: Mapping[str, KVCodec],
    model: str,
    calibration: str | None,
    data: str | None,
    forms: str | None,
    count: int,
    context: int,
    new: int,
    max_kl: tuple[float, ...],
    max_kl_recall: float | None,
    bits: tuple[float, ...],
    resume: str | None,
    dtype: str | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure forms, with ``others`` by their names, and print the table. The rest: options of the command."""
    from pltz.datasets import sample_path
    from pltz.kv.calibrate import measure
    from pltz.kv.calibrate.outcome_file import OutcomeFile
    from pltz.models import Target

    with Progress("load", unit="rows", shown=wanted(progress)) as bar:
        target = Target.load(model, device, dtype)
        codecs = chosen(target, calibration, forms, max_kl, bits, max_kl_recall, others)
        files = (data,) if data else (str(sample_path()),)
        rows = measure.sessions_to_rows(target, sessions(files), count, context + new)
        setting = {
            "target": target.fingerprint.hex(),
            "dtype": str(target.model.dtype).removeprefix("torch."),
            "context": context,
            "new": new,
        }
        # Each row's figures go to the file at once, so that a measurement may be stopped and resumed.
        kept = OutcomeFile(resume, setting)
        bar.begin("measure", len(rows), "rows")
        for row in rows:
            kept.measure(target, row, context, {of(*named): named for named in codecs})
            bar.add(1)
    # Beside each measured row stands what its receipt promised.
    lines = [kept.total(rows, measure.CONTROL, measure.CONTROL).row()]
    for name, codec in codecs:
        line = kept.total(rows, of(name, codec), name).row()
        if codec.receipt is not None:
            said = ("bits", "kl", "most", "kl_recall", "most_recall")
            line["receipt"] = {name: getattr(codec.receipt, name) for name in said}
        lines.append(line)
    result: dict[str, Any] = {
        "benchmark": "kv",
        "target": Path(model).name,
        "dtype": setting["dtype"],
        "calibration": Path(calibration).name if calibration else None,
        "sessions": len(rows),
        "context": context,
        "new": new,
        "load": kept.load(),
        "rows": lines,
        "machine": machine.describe(None, device, None),
    }
    write_text(json.dumps(result) if as_json else f"{as_text(result)}\n\n{json.dumps(result)}")


def of(name: str, codec: KVCodec) -> str:
    """Return under what a measurement is kept: predictive by calibration and point, the others by name."""
    return str(codec.name) if name.startswith("predictive") else name


def chosen(
    target: Any, calibration: str | None, forms: str | None, max_kl: tuple[float, ...], bits: tuple[float, ...],
    max_kl_recall: float | None = None, others: Mapping[str, KVCodec] = MappingProxyType({}),
) -> list[tuple[str, Any]]:
    """Return name and codec of each form to measure. Raises UsageError for an unknown one."""
    from pltz.kv.kv_forms import row_forms
    from pltz.kv.port.rotary import Rotary
    from pltz.kv.predictive.calibration import PREDICTIVE, Calibration
    from pltz.kv.predictive.layer import layers_of
    from pltz.kv.predictive.predictive import PredictiveCodec

    names = forms.split(",") if forms else [n for n in (*OWN, *others) if n != "predictive" or calibration]
    if unknown := set(names) - {*OWN, *others}:
        raise UsageError(f"expected forms among {', '.join((*OWN, *others))}, found {min(unknown)}")
    rotary = Rotary.of(target) if set(names) & set(OWN) else None
    found: list[tuple[str, Any]] = []
    for name in names:
        if name in others:
            found.append((name, others[name]))
        elif rotary is None:
            continue
        elif name != "predictive":
            found.append((name, row_forms(target)[name]))
        elif calibration is None:
            raise UsageError("the form predictive needs --calibration: make one with `pltz target calibrate`")
        else:
            # Points that are asked for by a bound; without one, all that have a receipt.
            fitted = Calibration.load(calibration, target.fingerprint)
            embedding = target.model.get_input_embeddings().weight.detach()
            layers = layers_of(fitted, embedding.device)
            asked = [(f"KL {kl:g}", fitted.point(max_kl=kl, max_kl_recall=max_kl_recall)) for kl in max_kl]
            asked += [(f"{n:g} bits", fitted.point(bits=n)) for n in bits]
            points = asked or [(f"{r.point:g}", r.point) for r in fitted.receipts if r.form == PREDICTIVE]
            found += [(f"predictive {n}", PredictiveCodec(fitted, rotary, embedding, p, layers)) for n, p in points]
    return found


def as_text(result: dict[str, Any]) -> str:
    """Return the table, and how to read it."""
    rows = [
        [
            row["form"],
            f"{row['bits']:.2f}",
            f"{row['kl']:.5f}",
            f"{row['kl_error']:.5f}",
            *(f"{row[name]:.5f}" if name in row else "-" for name in ("kl_copied", "kl_asked")),
            f"{row['kl99']:.4f}",
            f"{100 * row['top1']:.1f} %",
            f"{row['change']:+.4f}",
            f"{row['encode_ms']:.0f}",
            f"{row['decode_ms']:.0f}",
        ]
        for row in result["rows"]
    ]
    head = ["form", "bits", "KL", "+/-", "repeated", "asked", "99 %", "top-1", "change"]
    head += ["encode, ms", "decode, ms"]
    setting = (
        f"{result['target']} in {result['dtype']}: KV of {result['context']:,} tokens, {result['new']:,} scored after "
        f"it, {result['sessions']} sessions"
    )
    notes = (
        "bits: per element of K and V, all side data counted. KL, change: bits per token. repeated, asked: KL where an "
        "early passage is repeated, or asked about. control: the exact KV in another batch; it decodes by the prefill."
    )
    return f"{setting}\n\n{render(head, rows)}\n\n{notes}"

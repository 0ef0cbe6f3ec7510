"""``pltz.experiments joint``: blocks of KV that several sessions share because they point alike, beside smaller forms.

The experiment of "Joint Encoding of KV-Cache Blocks" over pages of a pool (`fused_pool.py`). No store of pltz does it:
the run shows why, on your target and your sessions. It ends with one line of JSON.
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

COSINES = 0.99, 0.95, 0.9, 0.8, 0.7, 0.6
SHARES = 0.0005, 0.005, 0.02
SERVED = 0.95, 0.8, 0.7  # cosines whose pool is filled and decoded from


@click.command(
    cls=Command,
    short_help="Blocks of KV fused where alike (an experiment).",
    examples=[
        "python -m pltz.experiments joint",
        "python -m pltz.experiments joint --target ./my-model --data chats.jsonl --calibration my-model.kv.safetensors",
        "python -m pltz.experiments joint --cosine 0.9 --cosine 0.8 --room 4 --rows 16 --json",
    ],
)
@shared.TARGET
@click.option("--calibration", metavar="FILE", help="Of `pltz target calibrate`: measures the form predictive too.")
@shared.DATA
@click.option("--rows", type=click.IntRange(min=4), default=32, show_default=True, metavar="N", help="Rows of tokens.")
@click.option(
    "--context", type=click.IntRange(min=128), default=512, show_default=True, metavar="N", help="Tokens kept as KV."
)
@bench_options.NEW
@click.option(
    "--batch", type=click.IntRange(min=2), default=8, show_default=True, metavar="N", help="Sessions fused together."
)
@click.option(
    "--chunks", type=click.IntRange(min=2), default=8, show_default=True, metavar="N",
    help="Chunks of a session that are fused together.",
)  # fmt: skip
@click.option(
    "--cosine", "cosines", type=click.FloatRange(0, 1), multiple=True, default=COSINES, show_default=True, metavar="U",
    help="Fuse blocks whose keys have a larger cosine, in all layers (repeatable).",
)  # fmt: skip
@click.option(
    "--share", "shares", type=click.FloatRange(0, 1, min_open=True, max_open=True), multiple=True, default=SHARES,
    show_default=True, metavar="P",
    help="Choose the cosine of each layer so that this share of pairs is expected above it (repeatable).",
)  # fmt: skip
@click.option(
    "--room", type=click.IntRange(min=1), default=8, show_default=True, metavar="N",
    help="Sessions that fit unfused in the pool that is filled.",
)  # fmt: skip
@options.PROGRESS
@shared.JSON
def joint(
    model: str, calibration: str | None, data: str | None, rows: int, context: int, new: int, batch: int, chunks: int,
    cosines: tuple[float, ...], shares: tuple[float, ...], room: int, progress: bool | None, as_json: bool,
) -> None:  # fmt: skip
    """Fuse blocks of KV that point alike, and compare bytes and loss with the forms q4 and predictive.

    Half of the sessions choose thresholds by layer, the other half is measured. Sessions are of one tenant: blocks of
    several are never fused. experiments/README.md says what came out, and why no store does this.
    """
    from pltz.experiments import bench_kv as kv
    from pltz.experiments.joint import measure
    from pltz.experiments.kv_rows import KVRows
    from pltz.models.target.target import Target

    sessions = [record.session for record in corpus.read(data)]
    if len(sessions) < 4:
        raise UsageError(f"expected at least 4 sessions, found {len(sessions)}: give --data with more records")
    target = Target.load(model, dtype="float32")
    # Every other session chooses thresholds, the others are measured.
    before = KVRows(target, sessions[::2], min(rows, 8), context, new)
    here = KVRows(target, sessions[1::2], rows, context, new)
    if len(here.drawn) <= room:
        raise UsageError(f"expected more than {room} rows, to see how many fit: give more sessions or a smaller --room")
    named = kv.chosen(target, calibration, ",".join(kv.OWN if calibration else kv.OWN[:2]), (), ())
    estimates = measure.Estimates.of(before, chunks)
    work = [(way, one) for way in measure.STRATEGIES for one in estimates.settings(way, cosines, shares)]
    fused = []
    with Progress("fuse", unit="settings", total=len(work) + 2, shown=wanted(progress)) as bar:
        for way, setting in work:
            fused.append(measure.fused(here, estimates, way, setting, batch, chunks))
            bar.add(1)
        # The rivals, on the same rows.
        rivals = [
            {"form": name, **{key: row[key] for key in ("bits", "kl", "top1")}}
            for name, row in here.forms(named).items()
        ]
        bar.add(1)
        # How many sessions fit into a pool, and how fast all of them decode.
        each = len(here.kvs[0])
        chosen = [measure.Setting(f"{u:g}", (u,) * each) for u in cosines if u in SERVED or len(cosines) < 4]
        served = measure.served(here, chosen, room)
        bar.add(1)
    result: dict[str, Any] = {
        "benchmark": "joint", "target": Path(model).name, "data": Path(data).name if data else "sample sessions",
        "rows": len(here.drawn), "context": context, "new": new, "batch": batch, "chunks": chunks,
        "exact_prefixes": measure.exact_sharing(here, batch), "fused": fused, "forms": rivals, "room": room,
        "served": served, "machine": machine.describe(None, "cpu", None),
    }  # fmt: skip
    write_text(json.dumps(result) if as_json else f"{as_text(result)}\n\n{json.dumps(result)}")


def as_text(result: dict[str, Any]) -> str:
    """Return the tables: compression and loss, the forms, and what a pool serves."""
    rows = [
        [
            one["strategy"], one["threshold"], f"{one['ratio']:.2f}", f"{one['bits']:.2f}", f"{one['kl']:.4f}",
            f"{one['top1']:.1%}", f"{sum(one['gaussian']):,.0f}", f"{sum(one['kernel']):,.0f}",
            f"{sum(one['pairs']):,.0f}",
        ]
        for one in result["fused"]
    ]  # fmt: skip
    rows += [[one["form"], "", "", f"{one['bits']:.2f}", f"{one['kl']:.4f}", f"{one['top1']:.1%}"] + [""] * 3
             for one in result["forms"]]  # fmt: skip
    head = ["", "cosine", "blocks", "bits", "KL", "top-1", "pairs expected", "by density", "found"]
    served = [
        [
            one["threshold"], f"{one['sessions']}{' or more' * one.get('more', False)}",
            f"{one['kl']:.4f}" if "kl" in one else "", f"{one['tokens_per_s']:,.1f}",
        ]
        for one in result["served"]
    ]  # fmt: skip
    note = f"A trie of exact prefixes holds {result['exact_prefixes']:.2f} times fewer blocks, without loss."
    return f"{render(head, rows)}\n\n{note}\n\n{render(['cosine', 'sessions', 'KL', 'tokens/s'], served)}"

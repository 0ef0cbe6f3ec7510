"""Measure composed KV against the full prefill: what it loses and the time to the first token, for shares of repair.

    python -m pltz.experiments.compose.measure_compose MODEL chat_test.jsonl.zst --rows 12

Rows of ids are cut into a prompt and documents. The documents are prefilled alone, kept in a form of KV, and moved
behind the prompt; the target then scores the ids that follow. "first" repairs the first 16 tokens of each document
only. The time to the first token counts composition, repair and a question, the prompt's KV being there; that of the
prefill counts everything behind the prompt.
"""

from __future__ import annotations

import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np

from pltz.cli.bench import machine
from pltz.datasets.loaders import load
from pltz.experiments.compose.composition import Composer
from pltz.experiments.compose.raw_codec import RAW
from pltz.experiments.compose.repair import FIRST
from pltz.experiments.compose.segment import Segment
from pltz.kv.calibrate.measure import prefilled, scored, sessions_to_rows
from pltz.kv.kv_forms import kv_forms
from pltz.models.target.cache import cache_argument, cache_of
from pltz.models.target.target import Target

SHARES, QUESTION = (0.0, 0.05, 0.15, 0.3, 1.0), 32
FAR = 4000  # positions that a whole tower is moved by


@click.command()
@click.argument("model")
@click.argument("data", nargs=-1, required=True)
@click.option("--rows", default=12, show_default=True, metavar="N", help="Rows of ids.")
@click.option("--prompt", default=384, show_default=True, metavar="N", help="Ids of the prompt.")
@click.option("--document", default=384, show_default=True, metavar="N", help="Ids of each document.")
@click.option("--documents", default=3, show_default=True, metavar="N", help="Documents behind the prompt.")
@click.option("--new", default=256, show_default=True, metavar="N", help="Ids scored.")
@click.option("--form", "named", multiple=True, metavar="NAME", help="Only these forms (repeatable).  [default: all]")
@click.option("--calibration", metavar="FILE", help="Of `pltz target calibrate`: measures the form predictive too.")
@click.option("--max-kl", default=0.005, show_default=True, metavar="KL", help="Bound of the form predictive.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of the target.")
def main(
    model: str, data: tuple[str, ...], rows: int, prompt: int, document: int, documents: int, new: int,
    named: tuple[str, ...], calibration: str | None, max_kl: float, device: str,
) -> None:  # fmt: skip
    """Print one line of JSON."""
    target = Target.load(model, device, "float32")
    composer = Composer(target)
    forms = {"raw": RAW, **kv_forms(target, calibration, max_kl=max_kl if calibration else None)}
    forms = {name: forms[name] for name in named or forms}
    context = prompt + document * documents
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    prefill_s: list[float] = []
    shift: list[float] = []
    drawn = sessions_to_rows(target, (one for path in data for one in load(path)), rows, context + new)
    for row in drawn:
        # The exact answer, and the time of the prefill behind a prompt that is there.
        ids, follow = row[:context], row[context:]
        edges = [0, *range(prompt, context + 1, document)]
        runs = [ids[a:b] for a, b in pairwise(edges)]
        front = Segment.alone(target, runs[0])
        kept = cache_of(((k[None], v[None]) for k, v in front.block.kv), target.model.config)
        began = _now(device)
        target.prefill(row[: context + QUESTION], cache=kept)
        prefill_s.append(_now(device) - began)
        kv = prefilled(target, ids)
        exact = scored(target, kv, follow)
        if not shift:
            shift.append(_shift(target, composer, runs))
        # Documents of each form, moved behind the prompt and repaired.
        for name, codec in forms.items():
            parts = [front, *(Segment.alone(target, run, codec) for run in runs[1:])]
            tokens = sum(map(len, parts[1:]))
            settings = {f"{share:.0%}": share for share in SHARES} | {"first": FIRST * documents / tokens}
            for said, share in settings.items():
                began = _now(device)
                one = composer.compose(parts, repair=share)
                target.prefill(row[: context + QUESTION], cache=one.cache(target))
                seconds = _now(device) - began
                got = scored(target, one.kv, follow)
                lost = float(((exact.exp() * (exact - got)).sum(-1) / np.log(2)).mean())
                same = float((exact.argmax(-1) == got.argmax(-1)).double().mean())
                found.setdefault((name, said), []).append((lost, same, seconds))
    table = [
        {
            "form": name, "repair": said, "kl": statistics.mean(r[0] for r in got),
            "kl_most": max(r[0] for r in got), "top1": statistics.mean(r[1] for r in got),
            "first_token_s": statistics.median(r[2] for r in got),
        }
        for (name, said), got in found.items()
    ]  # fmt: skip
    told: dict[str, Any] = {
        "benchmark": "compose", "target": Path(model).name, "data": [Path(path).name for path in data],
        "rows": len(drawn), "prompt": prompt,
        "document": document, "documents": documents, "scored": new - 1, "prefill_s": statistics.median(prefill_s),
        "tower_moved_by_4000": shift[0], "settings": table, "machine": machine.describe(None, device, None),
    }  # fmt: skip
    click.echo(json.dumps(told))


def _shift(target: Target, composer: Composer, runs: list[Any]) -> float:
    """Return the largest difference of keys of a tower that moves as a whole, as a share of the largest key."""
    import torch

    moved = composer.compose(Segment.tower(target, runs), start=FAR).kv
    ids = torch.from_numpy(np.concatenate(runs).astype(np.int64))[None].to(target.device)
    model: Any = target.model
    with torch.inference_mode():
        cache: Any = cache_of([], model.config)
        where = FAR + torch.arange(ids.shape[1], device=ids.device)[None]
        model(input_ids=ids, position_ids=where, **cache_argument(model, cache), use_cache=True)
    exact = torch.stack([one.keys[0] for one in cache.layers])
    return float((moved[:, 0] - exact).abs().max() / exact.abs().max())


def _now(device: str) -> float:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()

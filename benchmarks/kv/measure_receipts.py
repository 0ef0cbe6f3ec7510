"""Measure whether the receipt of a bound holds for KV of other origins than those that it was measured on.

    python -m pltz.benchmarks.kv.measure_receipts MODEL my.kv.safetensors chat_test.jsonl.zst --other texts.jsonl

Receipts are of one block that was prefilled from the beginning, of sessions like those of the calibration, in one type
of numbers. Each setting changes one of these: the KV was generated token by token; it lies in six blocks, five of which
stand behind others; the target runs in bfloat16; the context is longer; the sessions are others (another language).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from pltz.cli.bench import machine
from pltz.datasets.loaders import load
from pltz.kv.calibrate import measure
from pltz.kv.calibrate.measure import sessions_to_rows
from pltz.kv.calibrate.watch import Watch
from pltz.kv.port.bound import Bound
from pltz.kv.port.codec import Span
from pltz.kv.port.rotary import Rotary
from pltz.kv.predictive.calibration import PREDICTIVE, Calibration
from pltz.kv.predictive.predictive import PredictiveCodec
from pltz.models.target.cache import cache_argument, cache_of, pairs_of
from pltz.models.target.target import Target

BLOCKS, PROMPT, LAST = 6, 64, 64  # blocks of a context; ids before generated ones; queries whose attention is seen
Rows = NDArray[np.int32]


class SeparateBlocks:
    """A form of blocks that stand one behind the other, each coded for itself. ``parts``: joined for their size."""

    def __init__(self, codec: PredictiveCodec) -> None:
        self.codec, self.name, self.receipt = codec, codec.name, codec.receipt

    def encode(self, kv: Any, span: Span) -> dict[str, Any]:
        """Return the parts of all blocks."""
        found: dict[str, Any] = {}
        for n, (one, part) in enumerate(self._blocks(kv, span)):
            found |= {f"{name}.{n}": value for name, value in self.codec.encode(one, part).items()}
        return found

    def decode(self, parts: dict[str, Any], span: Span) -> Any:
        """Return the KV of all blocks."""
        import torch

        kinds = {name.rpartition(".")[0] for name in parts}
        blocks = self._blocks(None, span)
        return torch.cat(
            [self.codec.decode({k: parts[f"{k}.{n}"] for k in kinds}, part) for n, (_, part) in enumerate(blocks)], 3
        )

    def check(self, parts: dict[str, Any], tokens: int) -> None:
        """Accept the parts: each block was just made."""

    @staticmethod
    def _blocks(kv: Any, span: Span) -> list[tuple[Any, Span]]:
        edges = np.linspace(0, len(span.ids), BLOCKS + 1).astype(int)
        mass = span.observed()
        return [
            (None if kv is None else kv[:, :, :, a:b].contiguous(), Span(span.ids[a:b], span.start + a, mass[a:b]))
            for a, b in pairwise(map(int, edges))
        ]


@click.command()
@click.argument("model")
@click.argument("calibration")
@click.argument("data", nargs=-1, required=True)
@click.option("--other", "others", multiple=True, metavar="FILE", help="Sessions of another kind (repeatable).")
@click.option("--rows", default=24, show_default=True, metavar="N", help="Rows of tokens of each setting.")
@click.option("--new", type=int, metavar="N", help="Tokens after the context.  [default: as many as in the receipts]")
@click.option("--longer", default=4, show_default=True, metavar="N", help="Contexts of so many times the length.")
@click.option("--max-kl", "bounds", type=float, multiple=True, default=(0.0005, 0.005), metavar="KL")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of the target.")
def main(
    model: str, calibration: str, data: tuple[str, ...], others: tuple[str, ...], rows: int, new: int | None,
    longer: int, bounds: tuple[float, ...], device: str,
) -> None:  # fmt: skip
    """Print one line of JSON."""
    target = Target.load(model, device, "float32")
    fitted = Calibration.load(calibration, target.fingerprint)
    first = fitted.receipts[0]
    context, new = first.context, new or first.scored // first.rows + 1

    def drawn(files: tuple[str, ...], length: int) -> Rows:
        sessions = (session for path in files for session in load(path))
        return sessions_to_rows(target, sessions, rows, length + new)

    own = drawn(data, context)
    half = Target.load(model, device, "bfloat16")
    settings: dict[str, Callable[[], tuple[Target, Rows, int, bool]]] = {
        "as the receipts": lambda: (target, own, context, False),
        "generated": lambda: (target, own, context, False),
        "behind others": lambda: (target, own, context, True),
        "bfloat16": lambda: (half, own, context, False),
        f"contexts of {longer * context}": lambda: (target, drawn(data, longer * context), longer * context, False),
    }

    def of(path: str) -> Callable[[], tuple[Target, Rows, int, bool]]:
        return lambda: (target, drawn((path,), context), context, False)

    settings |= {f"of {path}": of(path) for path in others}
    found = []
    for name, setting in settings.items():
        at, ids, length, parted = setting()
        codecs = [(f"{bound:g}", codec_of(at, fitted, bound)) for bound in bounds]
        coded: list[tuple[str, Any]] = [(n, SeparateBlocks(codec) if parted else codec) for n, codec in codecs]
        watched = measure.watched
        if name == "generated":
            drawn_here = Generated(at, ids, length, length + new)
            ids, measure.watched = drawn_here.rows, drawn_here.watched
        try:
            outcomes = measure.compare(at, ids, length, coded, control=False)
        finally:
            measure.watched = watched
        for (bound, codec), outcome in zip(codecs, outcomes, strict=True):
            lost, said = outcome.row(), codec.receipt
            assert said is not None, "a chosen point has a receipt"
            recall = max(lost["kl_copied"], lost["kl_asked"])
            allowed = Bound.of(float(bound))
            found.append({
                "setting": name, "max_kl": float(bound), "rows": len(ids), "context": length, "bits": lost["bits"],
                "kl": lost["kl"], "kl_error": lost["kl_error"], "kl_copied": lost["kl_copied"],
                "kl_copied_error": lost["kl_copied_error"], "kl_asked": lost["kl_asked"],
                "kl_asked_error": lost["kl_asked_error"], "receipt": said.to_dict(),
                "holds": lost["kl"] <= allowed.kl and recall <= allowed.recall,
            })  # fmt: skip
    told = machine.describe(None, device, None)
    click.echo(json.dumps({"benchmark": "receipts", "target": model, "settings": found, "machine": told}))


def codec_of(target: Target, fitted: Calibration, bound: float) -> PredictiveCodec:
    """Return the form at the point that a bound chooses."""
    embedding = target.model.get_input_embeddings().weight.detach()
    codec = PredictiveCodec(fitted, Rotary.of(target), embedding, fitted.point(max_kl=bound))
    assert codec.receipt == fitted.receipt(PREDICTIVE, codec.point)
    return codec


class Generated:
    """Rows that the target drew itself, id by id, each after the first ids of a row. ``rows``: (n, length)."""

    def __init__(self, target: Target, rows: Rows, context: int, length: int) -> None:
        import torch

        ids = torch.from_numpy(rows[:, :PROMPT].astype(np.int64)).to(target.device)
        generator = torch.Generator(target.device).manual_seed(0)
        cache, found = cache_of([], target.model.config), [ids]
        with torch.inference_mode():
            for _ in range(length - PROMPT):
                out = target.model(input_ids=found[-1], **cache_argument(target.model, cache), logits_to_keep=1)
                found.append(torch.multinomial(out.logits[:, -1].float().softmax(-1), 1, generator=generator))
            self.rows: Rows = torch.cat(found, 1).cpu().numpy().astype(np.int32)
            pairs = [(k[:, :, :context], v[:, :, :context]) for k, v in pairs_of(cache)]
        self._kv = torch.stack([torch.stack(pair, 1) for pair in pairs], 1)  # (n, layers, 2, heads, T, D)

    def watched(self, target: Target, ids: NDArray[np.int32]) -> tuple[Any, NDArray[np.float32] | None]:
        """Return the KV of a row as it was generated, and the attention by a second pass over its end."""
        import torch

        kv = self._kv[next(n for n, row in enumerate(self.rows) if np.array_equal(row[: len(ids)], ids))]
        before = cache_of(((k[None], v[None]) for k, v in kv[:, :, :, :-LAST]), target.model.config)
        last = torch.from_numpy(ids[None, -LAST:].astype(np.int64)).to(target.device)
        with torch.inference_mode(), Watch([LAST]) as watch:
            target.model(input_ids=last, **cache_argument(target.model, before))
        return kv, watch.mass(0, len(ids))


if __name__ == "__main__":
    main()

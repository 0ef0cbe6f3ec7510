"""Measure the time to the first token of a session that is cold, in the archive, in a file, or hot, by its length.

    python -m pltz.benchmarks.kv.measure_first_token ./smollm2 --lengths 1024,2048,4096,8192
    python -m pltz.benchmarks.kv.measure_first_token llama-8b --calibration smollm2.kv.safetensors --device cuda

Each way ends with the first new token on the host:

    cold          the ids are at hand, and the target is prefilled
    archive       `Thawer.thaw`: catalogue, record, decoding, prefill; stored at once, and in ``--turns`` turns
    warm          `Thawer.thaw` from a file that is not in the page cache, as computed (raw)
    warm, small   the same from a file of the form `predictive`; of a shape only, with ``--calibration``
    hot           `Thawer.thaw` from the memory of the device

The ways take turns in one process, and the median of the rounds counts. Ids are checked in each round. In float32 the
token is that of the prefill, but for `predictive`: its integers are drawn, as `measure_kv` says. MODEL is a target, or
a shape with random weights.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from pltz.archive.writing.put_request import PutRequest
from pltz.benchmarks import options as bench_options
from pltz.benchmarks.kv.measure_kv import (
    NAME,
    RANK,
    Bench,
    drawn_calibration,
    drop,
    random_target,
    sample_ids,
)
from pltz.benchmarks.kv.random_target import SHAPES
from pltz.benchmarks.turns import Way, nothing, take_turns
from pltz.cli.bench import machine
from pltz.datasets import sample_sessions
from pltz.kv.predictive.calibration import Calibration
from pltz.kv.thaw.thawed import Thawed
from pltz.kv.thaw.thawer import Thawer
from pltz.models.session.session import Session
from pltz.models.target.target import Target, as_seen_by
from pltz.plt_codec.errors import ModelError

GROWN = "grown"  # the session that was put in turns
LENGTHS = "1024,2048,4096,8192,16384"


@click.command()
@click.argument("model")
@click.option("--lengths", default=LENGTHS, show_default=True, metavar="N,...", help="Tokens of a session.")
@click.option("--turns", default=40, show_default=True, metavar="N", help="Turns in which one was put; 0: none.")
@click.option("--calibration", metavar="FILE", help="Draw integers of `predictive` with its statistics, for a shape.")
@click.option("--point", default=-6.0, show_default=True, metavar="P", help="Operating point to draw at.")
@click.option("--rank", default=RANK, show_default=True, metavar="N", help="Rank of the predictors.")
@click.option("--rounds", default=3, show_default=True, metavar="N", help="Rounds, of which the median counts.")
@click.option("--warm-up", default=1, show_default=True, metavar="N", help="Rounds before these.")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of target and bundle.")
@click.option("--commit", metavar="ID", help="Of this code, where it runs from a copy without its history.")
def main(
    model: str, lengths: str, turns: int, calibration: str | None, point: float, rank: int, rounds: int,
    warm_up: int, device: str, commit: str | None,
) -> None:  # fmt: skip
    """Print one line of JSON per length."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        target = random_target(place, model, device) if model in SHAPES else Target.load(model, device)
        drawn = None if calibration is None else drawn_calibration(calibration, target, rank)
        for tokens in bench_options.numbers(lengths):
            if target.max_positions is not None and tokens > target.max_positions:
                click.echo(f"{tokens} tokens are beyond the target's {target.max_positions} positions", err=True)
                continue
            ids = ids_of(target, tokens) if model not in SHAPES else sample_ids(target, tokens)
            (place / f"{tokens}").mkdir()
            found = measure(place / f"{tokens}", target, ids, turns, drawn, point, rounds, warm_up)
            said = machine.describe(None, device, None) | ({"commit": commit} if commit else {})
            head = {"benchmark": "first_token", "target": Path(model).name, "tokens": tokens, "turns": turns}
            click.echo(json.dumps(head | {"rounds": rounds} | found | {"machine": said}))


def ids_of(target: Target, tokens: int) -> np.ndarray[Any, Any]:
    """Return ids (tokens,) of the sample sessions as the target reads them, from the beginning again at their end."""
    read, total = list[np.ndarray[Any, Any]](), 0
    for one in sample_sessions():
        if total >= tokens:
            break
        read.append(np.asarray(as_seen_by(target, Session("text", one.to_bytes())).value, np.int32))
        total += len(read[-1])
    return np.resize(np.concatenate(read), tokens)


def measure(
    folder: Path,
    target: Target,
    ids: np.ndarray[Any, Any],
    turns: int,
    calibration: Calibration | None,
    point: float,
    rounds: int,
    warm_up: int,
) -> dict[str, Any]:
    """Return seconds, bytes and stages of each way, and how often each is faster than cold.

    Raises ModelError where a way gives other ids, or another first token.
    """
    import torch

    device = target.device.type
    bench = Bench(folder, target, ids, calibration, device, "fast" if device == "cuda" else "default")
    ways: list[Way] = []

    def add(name: str, stored: int, call: Callable[[], Any], before: Callable[[], object] = nothing) -> None:
        ways.append(Way(name, stored, before, lambda: with_token(call())))

    add("cold", 0, lambda: target.prefill(ids))
    bare = Thawer(bench.cold, target)
    add("archive", stored_bytes(bench, NAME), partial(bare.thaw, NAME))
    if turns:
        ends = [len(ids) * n // turns for n in range(1, turns + 1)]
        tokenizer = target.tokenizer_json
        list(bench.cold.put_many(PutRequest(GROWN, Session("ids", ids[:e]), GROWN, tokenizer=tokenizer) for e in ends))
        bench.cold.parts.catalog.refresh()
        add(f"archive, {turns} turns", stored_bytes(bench, GROWN, GROWN), partial(bare.thaw, GROWN, GROWN))
    dropped: list[bool] = []
    hot, in_memory = bench.thawer("device")
    files, from_files = bench.thawer("disk")
    size = files.stats().tiers["disk"].used
    add("warm", size, lambda: from_files.thaw(NAME), lambda: dropped.append(drop(files)))
    if calibration is not None:
        small, from_small = bench.thawer("disk", bench.predictive(point))
        size = small.stats().tiers["disk"].used
        add("warm, small", size, lambda: from_small.thaw(NAME), lambda: dropped.append(drop(small)))
    add("hot", hot.stats().tiers["device"].used, lambda: in_memory.thaw(NAME))
    first = int(bench.logits.float().argmax())
    stages: dict[str, dict[str, float]] = {}
    same: dict[str, bool] = {}

    def look(name: str, result: tuple[Any, int], _: float | None) -> None:
        found, token = result
        if isinstance(found, Thawed):
            stages[name] = {stage: round(ms, 2) for stage, ms in found.timings.items()}
            if not np.array_equal(found.token_ids, ids):
                raise ModelError(f"{name}: other ids")
        same[name] = same.get(name, True) and token == first

    times = take_turns(ways, rounds, look, warm_up=warm_up, wait=bench.wait)
    # a thaw runs the ids after the last full block: in bfloat16 another cut of the prefill differs by noise
    if wrong := [name for name in ("warm", "hot") if not same[name] and target.model.dtype == torch.float32]:
        raise ModelError(f"{wrong[0]}: another first token than the prefill's")
    middle = {name: statistics.median(some) for name, some in times.items()}
    rows = [
        {
            "way": name, "bytes": stored, "s": round(middle[name], 6),
            "all_s": [round(seconds, 6) for seconds in times[name]],
            "cold_over": round(middle["cold"] / middle[name], 3), "same_token": same[name],
            "stages_ms": stages.get(name, {}),
        }
        for name, stored, *_ in ways
    ]  # fmt: skip
    return {"rows": rows, "page_cache_dropped": all(dropped)}


def with_token(found: Any) -> tuple[Any, int]:
    """Return what a way gives, and the first token of it, which is on the host then."""
    logits = found.logits if isinstance(found, Thawed) else found[1]
    return found, int(logits.float().argmax())


def stored_bytes(bench: Bench, name: str, tenant: str = "default") -> int:
    """Return the bytes of a session's bitstrings in the archive."""
    reader = bench.cold.parts.reader
    tower = reader.tower(bench.cold.directory.version(name, tenant))
    return sum(len(reader.record(segment).record.bitstring) for segment, _ in tower.segments)


if __name__ == "__main__":
    main()

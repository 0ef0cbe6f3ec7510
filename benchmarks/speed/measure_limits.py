"""Measure time and peak memory of large sessions, up to the limit: the tables of docs/limits.md.

    python -m pltz.benchmarks.speed.measure_limits             # the zstd way to the limit, many values, nesting
    python -m pltz.benchmarks.speed.measure_limits --model 1   # and the model with 1 MB

Times are CPU seconds of all threads. Each row runs in a process of its own. Its peak is that process's `getrusage`,
with imports and bundle included. The content is lines drawn at random from the sample sessions, so it repeats itself
as much as a long log does.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click

from pltz.cli.bench.machine import commit, cpu_name
from pltz.models.session.json_value import MAX_DEPTH, MAX_VALUES
from pltz.plt_codec import limits
from pltz.plt_codec.limits import MAX_BYTES

MB = 1_000_000
TEXT = 2_000  # characters per message
Row = dict[str, Any]


@click.command()
@click.option("--model", "sizes", type=float, multiple=True, metavar="MB", help="Also code so much with the model.")
@click.option("--only", metavar="WORD", help="Only rows with this word in their name.")
def main(sizes: tuple[float, ...], only: str | None) -> None:
    """Print a table and one line of JSON."""
    largest = MAX_BYTES // MB
    jobs: list[tuple[str, Callable[..., Row], tuple[Any, ...]]] = [
        (f"chat, {size:g} MB, {way}", _coded, (int(size * MB), way, None))
        for size in (1, 10, largest)
        for way in ("compress", "archive put and get")
    ]
    jobs += [(f"chat, {size:g} MB, model", _coded, (int(size * MB), "compress", size)) for size in sizes]
    jobs += [
        (f"{MAX_VALUES:,} values", _shaped, ("[" + "0," * (MAX_VALUES - 2) + "0]",)),
        (f"{MAX_VALUES // 2:,} objects", _shaped, ("[" + '{"a":0},' * (MAX_VALUES // 2 - 2) + "0]",)),
        (f"nested {MAX_DEPTH} deep", _shaped, ("[" * MAX_DEPTH + "]" * MAX_DEPTH,)),
        ("nested 100,000 deep", _shaped, ("[" * 100_000 + "]" * 100_000,)),
    ]
    rows = []
    print(f"{'session':44} {'bytes':>12} {'frozen':>11} {'in s':>8} {'out s':>8} {'peak MB':>8}")
    for name, work, given in jobs:
        if only is not None and only not in name:
            continue
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            row = {"session": name} | pool.submit(work, *given).result()
        rows.append(row)
        row["peak"] = round(row["peak"] * 1024 / MB)
        cells = f"{row['bytes']:12,} {row['frozen']:11,} {row['in']:8.1f} {row['out']:8.1f} {row['peak']:8}"
        print(f"{name:44} {cells}", flush=True)
    print(json.dumps({"cpu": cpu_name(), "commit": commit(), "rows": rows}))


def _coded(size: int, way: str, model: float | None) -> Row:
    """Code a chat of about ``size`` bytes and decode it again."""
    from pltz.archive.archive import Archive
    from pltz.coding.codec import Codec
    from pltz.datasets.loaders import load
    from pltz.models.bundle.bundle import Bundle

    folder = Path(tempfile.mkdtemp())
    (folder / "big.jsonl").write_bytes(_chat(size))
    limits.ZSTD_ABOVE = 1 << 40 if model else 0
    bundle = Bundle.load()
    codec = Codec.load(bundle)
    start = time.process_time()
    if way == "compress":
        [session] = load(folder / "big.jsonl", "jsonl")
        data = codec.compress([session])
        del session
        middle, frozen = time.process_time(), len(data)
        found = codec.decompress(data)[0]
    else:
        cold = Archive.open(folder / "cold", create=True, bundle=bundle, model_logs=bool(model))
        start = time.process_time()
        frozen = cold.put("big", next(load(folder / "big.jsonl", "jsonl"))).size
        middle = time.process_time()
        found = cold.get("big").session
    return _row(len(found.to_bytes()), frozen, start, middle)


def _shaped(text: str) -> Row:
    """Code a JSON line of some shape. A line that is kept as text is reported so."""
    from pltz.coding.codec import Codec
    from pltz.models.session.session import Session

    line, codec = text.encode(), Codec.load()
    start = time.process_time()
    limits.ZSTD_ABOVE = 0
    data = codec.compress([Session.from_json_line(line)])
    middle = time.process_time()
    found = codec.decompress(data)[0]
    if found != Session.from_json_line(line):
        raise SystemExit("a session came back changed")
    return _row(len(line), len(data), start, middle)


def _row(size: int, frozen: int, start: float, middle: float) -> Row:
    end = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    return {"bytes": size, "frozen": frozen, "in": middle - start, "out": end - middle, "peak": peak}


def _chat(size: int) -> bytes:
    """Return a JSONL line of a chat of about ``size`` bytes, at most that many."""
    from pltz.datasets import sample_sessions

    lines = [
        line
        for session in sample_sessions()
        for message in session.value["messages"]
        for line in message["content"].splitlines()
        if line.isascii()
    ]
    dice, messages, held = random.Random(1), list[dict[str, str]](), 40
    while True:
        content = "\n".join(dice.choices(lines, k=TEXT // 80))
        message = {"role": ("user", "assistant")[len(messages) % 2], "content": content}
        held += len(json.dumps(message)) + 1
        if held > size:
            return json.dumps({"messages": messages}).encode() + b"\n"
        messages.append(message)


if __name__ == "__main__":
    main(sys.argv[1:])

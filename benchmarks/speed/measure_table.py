"""Measure MB/s of logs into tables and back, compiled and from the sources, in turns, in processor time of one core.

    python -m pltz.benchmarks.speed.measure_table agents_validation.jsonl.zst --turns 5

DATA is a JSONL file of logs: records with a "text". Each turn is a process, in which each log is split and joined, each
alone, after a first split of nothing. Medians count.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
from functools import partial
from typing import Any

import click

from pltz.benchmarks.speed.timing import timed
from pltz.coding import log

FORMS = ("compiled", "sources")


@click.command()
@click.argument("data")
@click.option("--turns", default=3, show_default=True, help="Turns of each form.")
@click.option("--once", type=click.Choice(FORMS), help="Print one turn of one form.")
def main(data: str, turns: int, once: str | None) -> None:
    """Print MB/s of both forms, and one line of JSON."""
    if once:
        click.echo(json.dumps(measured(data, once)))
        return
    rows: dict[str, list[Any]] = {form: [] for form in FORMS}
    for form in FORMS * turns:
        words = [sys.executable, "-m", "pltz.benchmarks.speed.measure_table", data, "--once", form]
        rows[form].append(json.loads(subprocess.run(words, check=True, capture_output=True).stdout))
    if len({row["digest"] for form in FORMS for row in rows[form]}) > 1:
        raise click.ClickException("the two forms make other tables: no speed of this run is valid")
    names = ("first", "split", "join")
    found = {form: {name: statistics.median(row[name] for row in rows[form]) for name in names} for form in FORMS}
    for form, row in found.items():
        first, split, join = (row[name] for name in names)
        click.echo(f"{form:9} first {first * 1e3:4.0f} ms  split {split:5.2f}  join {join:5.2f} MB/s")
    click.echo(json.dumps({"data": data, "turns": turns, "load": os.getloadavg()[0], **found}))


def measured(data: str, form: str) -> dict[str, Any]:
    """Return seconds of the first split, MB/s, and a digest of all tables."""
    if form == "sources":
        log.__path__[:] = log.__path__[-1:]
    elif len(log.__path__) < 2:
        raise click.ClickException("the table is not compiled as its sources are: make .venv/.tests")
    from pltz.benchmarks.speed.measure_throughput import sessions_of
    from pltz.coding.log import table

    digest, split, join = hashlib.blake2b(digest_size=8), 0.0, 0.0
    first, _ = timed(partial(table.split, b"{}"))
    contents = [session.to_bytes() for session in sessions_of(data, None)]
    for content in contents:
        took, found = timed(partial(table.split, content))
        split += took.busy
        for part in (found.columns, found.opaque, table.text_of(piece.text for piece in found.pieces)):
            digest.update(part)
        took, made = timed(partial(table.join, found.columns, found.opaque, found.pieces, len(content)))
        join += took.busy
        assert made == content
    size = sum(map(len, contents)) / 1e6
    return {"first": first.busy, "split": size / split, "join": size / join, "digest": digest.hexdigest()}


if __name__ == "__main__":
    main()

"""``pltz bench neighbours``: sessions coded after the nearest earlier one of their tenant, by real decoding.

It ends with one line of JSON that holds every figure and the machine.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pltz.benchmarks import corpus, machine
from pltz.benchmarks.neighbours import (
    AT_HAND,
    FILE,
    RECORD,
    TOGETHER_RECORD,
    Neighbourly,
    measure,
    tenants_of,
)
from pltz.cli.bench import shared
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.plt_codec.errors import UsageError


@click.command(
    cls=Command,
    short_help="Sessions coded after the nearest earlier one.",
    examples=[
        "pltz bench neighbours --sessions 4",
        "pltz bench neighbours --data chat_test.jsonl.zst --earlier chat_train.jsonl.zst --bundle base --json",
    ],
)
@shared.DATA
@click.option(
    "--earlier",
    metavar="FILE|DIR",
    help="Take the earlier sessions of each source from here.  [default: those before the measured ones]",
)
@options.count("--sessions", 12, "Sessions per source, at most.")
@options.count("--least", 20, "Fewest tokens.")
@options.count("--most", 1500, "Most tokens.")
@options.count("--tries", 3, "Neighbours that real code length decides among.")
@options.coder_options
@shared.JSON
def neighbours(
    data: str | None,
    earlier: str | None,
    sessions: int,
    least: int,
    most: int,
    tries: int,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure sessions of records {"id", "messages", ...} alone and after their nearest earlier neighbour.

    The source of a record is its id up to the last "-"; every source is a tenant, with the 64 sessions before at hand.
    Sketches propose a few, and the shortest frame counts, if it is shorter than the session alone by more than the
    bytes that name the neighbour. "archive" is the rule of an archive: the neighbour is coded alone itself. zstd gets
    the three nearest as a prefix, and all 64 as a dictionary. Every size is of data that was decoded and compared.
    """
    codec = options.load_codec(bundle, device, threads)
    pools: dict[str, list[Any]] | None = None
    if earlier is not None:
        pools = {}
        for record in corpus.read(earlier):
            pools.setdefault(record.source, []).append(record.session)
    tenants = tenants_of(corpus.read(data), codec, least=least, most=most, count=sessions, earlier=pools)
    if not tenants:
        raise UsageError(f"no session of {least} to {most} tokens: lower --least or raise --most")
    found: list[Neighbourly] = []
    with Progress("code", unit="sources", total=len(tenants), shown=wanted(progress)) as bar:
        for tenant in tenants:
            found.append(measure(codec, tenant, tries))
            bar.add(1)
    rows = [row(one, tries) for one in found]
    result = {
        "benchmark": "neighbours",
        "bundle": codec.bundle.id.hex(),
        "data": Path(data).name if data else "sample sessions",
        "earlier": Path(earlier).name if earlier else None,
        "at_hand": AT_HAND,
        "least": least,
        "most": most,
        "tries": tries,
        "sources": rows,
        "all": together(rows),
        "machine": machine.describe(codec.coder, device, threads),
    }
    if not as_json:
        write_text(as_text(result) + "\n")
    write_text(json.dumps(result))


def row(found: Neighbourly, tries: int) -> dict[str, Any]:
    """Return the figures of one source, in bytes of all its sessions."""
    return {
        "source": found.source,
        "sessions": len(found.alone),
        "content": sum(found.content),
        "alone": sum(found.alone),
        "bits": sum(found.chosen(0, tries)),
        "first": sum(found.chosen(0, 1)),
        "eight": sum(found.after_eight()),
        "file": sum(found.chosen(FILE, tries)),
        "together": sum(found.by_archive(TOGETHER_RECORD)),
        "archive": sum(found.by_archive(RECORD)),
        "zstd": sum(found.zstd),
        "patched": sum(found.patched),
        "dictionary": sum(found.dictionary),
    }


OURS = "bits", "first", "eight", "file", "together", "archive"
FIGURES = "content", "alone", *OURS, "zstd", "patched", "dictionary"


def together(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over all sources, in bytes, and with each source counted alike: its mean per session."""
    sums = {name: sum(row[name] for row in rows) for name in FIGURES}
    means = {name: round(sum(row[name] / row["sessions"] for row in rows), 1) for name in FIGURES}
    return {"sessions": sum(row["sessions"] for row in rows), **sums, "sources_alike": means}


def as_text(result: dict[str, Any]) -> str:
    """Return the table."""
    head = ["source", "sessions", "alone", *OURS, "zstd", "patch-from", "dictionary"]
    lines = [cells(row) for row in result["sources"]]
    alike = {"source": "all, sources alike", "sessions": result["all"]["sessions"], **result["all"]["sources_alike"]}
    lines += [cells({"source": "all bytes", **result["all"]}), cells(alike)]
    note = (
        "'bits' to 'archive' are shares of the bytes alone: after the best of those tried, after the nearest, after "
        f"the nearest eight together. A file names a neighbour in {FILE} bytes. 'together' and 'archive' are the rule "
        f"of an archive, with {TOGETHER_RECORD} and {RECORD} bytes for a name. 'zstd' is in bytes, and the two columns "
        "after it are shares of that."
    )
    return f"{render(head, lines)}\n\n{note}"


def cells(row: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    ours = [f"{row[name] / max(1, row['alone']):.3f}" for name in OURS]
    peers = [f"{row[name] / max(1, row['zstd']):.3f}" for name in ("patched", "dictionary")]
    return [row["source"], f"{row['sessions']:,}", f"{row['alone']:,.0f}", *ours, f"{row['zstd']:,.0f}", *peers]

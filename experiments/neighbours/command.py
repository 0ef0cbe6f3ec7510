"""``pltz.experiments neighbours``: sessions coded after the nearest earlier one of their tenant, by real decoding.

It ends with one line of JSON that holds every figure and the machine.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pltz.cli.bench import machine, shared
from pltz.cli.bench.codec import corpus
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.experiments.neighbours.nearest import (
    AT_HAND,
    EIGHT,
    by_file,
    by_zstd,
    drawn,
    measure,
    nearest,
    tenants_of,
)
from pltz.plt_codec.errors import UsageError

NEAR, ZSTD, FILE = ROWS = "near", "zstd", "file"
OURS = "best", "nearest", "eight"
PEERS = "zstd", "patched", "dictionary"


@click.command(
    cls=Command,
    short_help="Sessions coded after the nearest earlier one.",
    examples=[
        "python -m pltz.experiments neighbours --sessions 4",
        "python -m pltz.experiments neighbours --data test.jsonl.zst --earlier train.jsonl.zst --bundle base --json",
    ],
)
@shared.DATA
@click.option(
    "--earlier",
    metavar="FILE|DIR",
    help="Take the earlier sessions of each source from here, 64 at random.  [default: those before the measured ones]",
)
@options.count("--sessions", 12, "Sessions per source, at most.")
@options.count("--least", 20, "Fewest tokens.")
@options.count("--most", 1500, "Most tokens.")
@options.count("--tries", 3, "Neighbours that real code length decides among.")
@click.option(
    "--measure",
    "what",
    default=",".join(ROWS),
    show_default=True,
    metavar="NAME,...",
    help=f"What to measure, of {', '.join(ROWS)}.",
)
@options.coder_options
@shared.JSON
def neighbours(
    data: str | None,
    earlier: str | None,
    sessions: int,
    least: int,
    most: int,
    tries: int,
    what: str,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure sessions of records {"id", "messages" or "text", ...} without and with their nearest earlier neighbour.

    The source of a record is its id up to the last "-"; every source is a tenant. "near" codes each session alone and
    after the nearest of the 64 before, and counts bitstrings alone. "zstd" gets the three nearest as a prefix, and all
    64 as a dictionary. "file" is a real file of the measured sessions, all bytes counted. Every size is of data that
    was decoded and compared.
    """
    names = [name for name in what.split(",") if name]
    if unknown := set(names) - set(ROWS):
        raise UsageError(f"expected --measure of {', '.join(ROWS)}, found {', '.join(sorted(unknown))}")
    codec = options.load_codec(bundle, device, threads)
    records = corpus.read(data)
    pools = drawn(corpus.read(earlier)) if earlier is not None else None
    tenants = tenants_of(records, codec, least=least, most=most, count=sessions, earlier=pools)
    if not tenants:
        raise UsageError(f"no session of {least} to {most} tokens: lower --least or raise --most")
    rows = []
    with Progress("code", unit="sources", total=len(tenants), shown=wanted(progress)) as bar:
        for tenant in tenants:
            rows.append(row(codec, tenant, names, tries))
            bar.add(1)
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
        write_text(as_text(result, names) + "\n")
    write_text(json.dumps(result))


def row(codec: Any, tenant: Any, names: Iterable[str], tries: int) -> dict[str, Any]:
    """Return the figures of one source, in bytes of all its sessions."""
    found: dict[str, Any] = {
        "source": tenant.source,
        "sessions": len(tenant.measured),
        "content": sum(len(tenant.texts[n]) for n in tenant.measured),
        "tokens": sum(len(tenant.tokens[n]) for n in tenant.measured),
    }
    near = nearest(tenant, codec.bundle.weights.shape.memory, max(tries, EIGHT))
    for name in names:
        if name == NEAR:
            after = measure(codec, tenant, near, tries)
            found["alone"] = sum(after.alone)
            sums = after.chosen(tries), after.chosen(1), after.after_eight()
            found |= dict(zip(OURS, map(sum, sums), strict=True))
        elif name == ZSTD:
            found |= dict(zip(PEERS, map(sum, by_zstd(tenant, near)), strict=True))
        else:
            found[name] = {"without": by_file(codec, tenant, False), "with": by_file(codec, tenant, True)}
    return found


def together(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of all figures of a list of rows."""
    first = rows[0]
    return {
        name: together([row[name] for row in rows])
        if isinstance(value, dict)
        else round(sum(row[name] for row in rows), 3)
        for name, value in first.items()
        if name != "source"
    }


def as_text(result: dict[str, Any], names: Sequence[str]) -> str:
    """Return the table."""
    ours = OURS if NEAR in names else ()
    peers = PEERS if ZSTD in names else ()
    products = [FILE] if FILE in names else []
    head = ["source", "sessions", *(("alone", *ours) if ours else ())]
    head += [*(("zstd", "patch-from", "dictionary") if peers else ()), *products]
    lines = []
    for one in [*result["sources"], {"source": "all", **result["all"]}]:
        cells = [one["source"], f"{one['sessions']:,}"]
        if ours:
            cells += [f"{one['alone']:,}", *(f"{one[name] / max(1, one['alone']):.3f}" for name in ours)]
        if peers:
            cells += [f"{one['zstd']:,}", *(f"{one[name] / max(1, one['zstd']):.3f}" for name in PEERS[1:])]
        lines.append(cells + [f"{one[name]['with']['bytes'] / one[name]['without']['bytes']:.3f}" for name in products])
    note = (
        "'alone' is in bytes of bitstrings. 'best', 'nearest' and 'eight' are shares of it: after the best of those "
        "tried, after the nearest, after the nearest eight together. 'zstd' is in bytes, the two columns after it are "
        "shares of that. 'file' is bytes with neighbours over bytes without, of a whole file."
    )
    return f"{render(head, lines)}\n\n{note}"

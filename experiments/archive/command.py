"""``pltz.experiments archive``: measure the archive's own speed and size, next to plain appends, the hash and the disk.

All are measured in the same run. It ends with one line of JSON that holds every figure and the machine.
"""

import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import click

from pltz.benchmarks import options as bench_options
from pltz.cli.bench import machine, shared
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.table import pairs, render

QUICK = {"sessions": 50_000, "entries": 1_000_000, "sharing": 5_000}
FULL = {"sessions": 1_000_000, "entries": 10_000_000, "sharing": 500_000}
PROMPTS = 1, 50, 500
TOGETHER = 4  # sessions that grow side by side


@click.command(
    cls=Command,
    short_help="The archive: put, look up, verify, bytes per session.",
    examples=[
        "python -m pltz.experiments archive",
        "python -m pltz.experiments archive --full --where /data",
        "python -m pltz.experiments archive --sessions 10000 --sealed --writers 1",
        "python -m pltz.experiments archive --writers 4 --json",
        "python -m pltz.experiments archive --growing --turns 40 --turn-tokens 100",
    ],
)
@click.option(
    "--full",
    is_flag=True,
    help="Measure 1,000,000 sessions, 10,000,000 index entries, and sharing of up to 500,000 sessions. Takes minutes "
    "and 4 GB of disk.",
)
@click.option(
    "--sessions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Sessions to put.  [default: 50000; 1000000 with --full]",
)
@click.option("--sealed", is_flag=True, help="Measure putting, overhead and reading with encryption.")
@click.option(
    "--growing",
    is_flag=True,
    help="Measure sessions that grow instead, turn by turn, coded by a bundle on the CPU. Takes minutes.",
)
@options.count("--turns", 40, "--growing: puts per session.")
@options.count("--turn-tokens", 100, "--growing: tokens per put.")
@options.BUNDLE
@bench_options.WHERE
@click.option(
    "--writers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that write at once, after a run with one.  [default: all cores]",
)
@shared.JSON
def archive(
    full: bool,
    sessions: int | None,
    sealed: bool,
    growing: bool,
    turns: int,
    turn_tokens: int,
    bundle: str | None,
    where: str | None,
    writers: int | None,
    as_json: bool,
) -> None:
    """Measure the archive: putting, looking up, verifying, opening an index, bytes per session.

    Half of the sessions have 200 bytes, half 1,500. Their bitstrings are made beforehand, so the archive is measured,
    not a model. The time includes all work of the archive: naming, lookups, layout, reading back, decoding and
    comparing, fsync.

    With --growing a model codes real text: one session in one put, one turn by turn, with turns that puts join and with
    turns that they do not, and four side by side.
    """
    bench_options.check_where(where)
    if growing:
        result = measured_growing(bundle, turns, turn_tokens, where)
        if not as_json:
            write_text(growing_text(result) + "\n")
        write_text(json.dumps(result))
        return
    sizes = FULL if full else QUICK
    if sessions is not None:
        sizes = {**sizes, "sessions": sessions}
    result = measured(sizes, where, writers or os.cpu_count() or 1, sealed=sealed)
    if not as_json:
        write_text(as_text(result) + "\n")
    write_text(json.dumps(result))


def measured(sizes: dict[str, int], where: str | None, writers: int, *, sealed: bool = False) -> dict[str, Any]:
    """Measure and return all figures."""
    from pltz.archive.encryption.keys import Secret
    from pltz.experiments.archive import measure

    key = Secret(os.urandom(32), 0) if sealed else None
    with tempfile.TemporaryDirectory(prefix="pltz-bench-", dir=where) as name:
        folder = Path(name)
        load = os.getloadavg()[0]
        alone = measure.put(folder, sizes["sessions"], 1, key)
        place = Path(alone.pop("place"))
        figures = {
            "put": alone,
            "overhead": measure.overhead(place, alone, key),
            "reading": measure.reading(place, key),
        }
        if writers > 1:
            several = measure.put(folder, sizes["sessions"], writers, key)
            figures["put_at_once"] = {
                key: several[key] for key in ("writers", "sessions", "per_s", "per_cpu_s")
            }
        figures["index"] = measure.opening(folder, sizes["entries"])
        figures["sharing"] = measure.sharing(folder, sizes["sharing"], PROMPTS)  # type: ignore[assignment]
    on = machine.describe(None, "cpu", None)
    return {"benchmark": "archive", "sealed": sealed, **figures, "load_at_start": round(load, 2), "machine": on}


def measured_growing(bundle: str | None, turns: int, tokens: int, where: str | None) -> dict[str, Any]:
    """Measure sessions that grow and return the figures, next to the size of one bitstring of the whole."""
    from pltz.experiments.archive import measure
    from pltz.models.bundle.bundle import Bundle

    load = os.getloadavg()[0]
    loaded = Bundle.load(bundle)
    with tempfile.TemporaryDirectory(prefix="pltz-bench-", dir=where) as name:
        rows = measure.growing(Path(name), loaded, turns, tokens, TOGETHER)
    on = machine.describe(loaded.coder(), "cpu", None)
    facts = {"bundle": loaded.id.hex(), "turns": turns, "turn_tokens": tokens, "growing": rows}
    return {"benchmark": "archive growing", **facts, "load_at_start": round(load, 2), "machine": on}


def growing_text(result: dict[str, Any]) -> str:
    """Return the figures of sessions that grow as text."""
    head = ["put as", "sessions", "puts each", "puts/s", "tokens/s", "bytes each"]
    head += ["collected", "a put, ms", "longest", "read, s each"]
    lines = []
    for row in result["growing"]:
        spent = [after - before for before, after in itertools.pairwise([0.0, *row["seconds_after_put"]])]
        lines.append(
            [
                row["way"],
                str(row["sessions"]),
                str(row["puts"]),
                f"{row['puts_per_s']:,.2f}",
                f"{row['tokens_per_s']:,.0f}",
                f"{row['bytes_per_session']:,.0f}",
                f"{row['bytes_per_session_collected']:,.0f}",
                f"{1e3 * sum(spent) / len(spent):,.0f}",
                f"{1e3 * max(spent):,.0f}",
                f"{row['read_s_per_session']:.2f}",
            ]
        )
    return render(head, lines)


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    put, over, read, opened = result["put"], result["overhead"], result["reading"], result["index"]
    at_once = result.get("put_at_once")
    lines = [
        (
            "put",
            (
                f"{put['per_s']:,} sessions/s by one writer ({put['per_cpu_s']:,} per CPU second), "
                f"commits of {put['commit']:,}"
            ),
        ),
        ("plain appends", f"{put['plain_appends_per_s']:,} /s, the same bitstrings and fsyncs"),
    ]
    if at_once:
        lines.append(("put at once", f"{at_once['per_s']:,} sessions/s by {at_once['writers']} writers"))
    lines += [
        (
            "overhead",
            (
                f"{over['bytes_per_session']} bytes per session: packs {over['packs_bytes_per_session']}, "
                f"index {over['index_bytes_per_session']} ({over['index_bytes_per_entry']} per entry)"
            ),
        ),
        (
            "after collection",
            (
                f"{over['collected']['bytes_per_session']} bytes per session: "
                f"packs {over['collected']['packs_bytes_per_session']}, "
                f"index {over['collected']['index_bytes_per_session']}"
            ),
        ),
        (
            "record by id",
            (
                f"{read['found_p50_us']} us at p50, {read['found_p99_us']} us at p99; "
                f"absent {read['absent_p99_us']} us at p99"
            ),
        ),
        (
            "verify",
            f"{read['verify_mb_s']:,} MB/s; reading alone {read['read_mb_s']:,}, hashing alone {read['hash_mb_s']:,}",
        ),
        (
            "index",
            (
                f"{opened['entries']:,} entries opened in {opened['open_ms']} ms, "
                f"{opened['resident_opened_mb']:.0f} MB resident ({opened['resident_before_mb']:.0f} before); "
                f"lookup {opened['found_p50_us']} us at p50, {opened['found_p99_us']} us at p99"
            ),
        ),
    ]
    # Below the lines a table: a row per number of sessions, a column per number of prompts.
    counts = sorted({row["sessions"] for row in result["sharing"]})
    kinds = list(dict.fromkeys(row["prompts"] for row in result["sharing"]))
    cells = {(row["prompts"], row["sessions"]): f"{row['bytes_per_session']:,}" for row in result["sharing"]}
    head = ["bytes per session", *("flat" if k is None else f"{k} prompts" for k in kinds)]
    table = render(head, [[f"{n:,} sessions", *(cells[k, n] for k in kinds)] for n in counts])
    return f"{pairs(lines, '')}\n\n{table}"

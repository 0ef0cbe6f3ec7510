"""Measure the nightly job as the sessions grow.

Each night gives sessions and bytes per second, lag and peak memory. One archive grows night by night. Each night is a
process of its own, so that its peak memory is its own. Every size has two nights: one that meets new sessions, and one
that meets nothing new. The run ends with one line of JSON.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from pltz.archive.humanize import size
from pltz.benchmarks import options as bench_options
from pltz.cli.bench import machine, shared
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.table import render
from pltz.plt_codec.child_python import command, environment
from pltz.plt_codec.errors import UsageError

QUICK, FULL = (500, 1_000, 2_000), (1_000, 10_000, 100_000)  # total sessions after each night
SHIPPED = 100, 1_000  # sessions with the bundle that ships
CUT = 300  # characters per message: small sessions, as most are
DAY = 10_000  # sessions per file
NIGHT = (
    "import json, sys; from pltz.serving.nightly import config, job; "
    "print(json.dumps(job.run(config.load(sys.argv[1]))))"
)
ALONE = """
import itertools, json, sys, time
from pathlib import Path
from pltz.archive.archive import Archive
from pltz.archive.writing.put_request import PutRequest
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
place, bundle, source = sys.argv[1:]
cold = Archive.open(place, create=True, bundle=Bundle.load(bundle))
start, spent, count = time.perf_counter(), time.process_time(), 0
lines = Path(source).open("rb")
while rows := list(itertools.islice(lines, 256)):
    sessions = [Session.from_json_line(row.rstrip()) for row in rows]
    count += sum(1 for _ in cold.put_many([PutRequest(s.value["id"], s) for s in sessions]))
per_cpu = round(count / (time.process_time() - spent), 1)
print(json.dumps({"per_s": round(count / (time.perf_counter() - start), 1), "per_cpu_s": per_cpu}))
"""


@click.command(
    cls=Command,
    short_help="The nightly job, as the sessions grow.",
    examples=[
        "python -m pltz.benchmarks nightly",
        "python -m pltz.benchmarks nightly --full --where /data",
        "python -m pltz.benchmarks nightly --full --json",
    ],
)
@click.option("--full", is_flag=True, help="Measure up to 100,000 sessions instead of 2,000. Takes minutes.")
@bench_options.WHERE
@shared.JSON
def nightly(full: bool, where: str | None, as_json: bool) -> None:
    """Measure the nightly job on small sessions made from the sample sessions, no two alike.

    A tiny untrained bundle codes them, so that the job is measured and not the model. A last row has the bundle that
    ships. The same run also measures putting the same sessions without the job, and reading and hashing the same files.
    """
    bench_options.check_where(where)
    result = measured(FULL if full else QUICK, SHIPPED[full], where)
    if not as_json:
        write_text(as_text(result) + "\n")
    write_text(json.dumps(result))


def measured(sizes: Sequence[int], shipped: int, where: str | None) -> dict[str, Any]:
    """Measure and return all figures."""
    with tempfile.TemporaryDirectory(prefix="pltz-bench-", dir=where) as name:
        folder, load = Path(name), os.getloadavg()[0]
        tiny = folder / "tiny"
        write_tiny(tiny)
        nights = list(_nights(folder / "tiny-job", str(tiny), sizes))
        first = folder / "tiny-job/chats/00000.jsonl"
        part = folder / "part.jsonl"
        part.write_bytes(b"".join(first.read_bytes().splitlines(keepends=True)[: sizes[0]]))
        alone = _child(ALONE, str(folder / "alone"), str(tiny), str(part))
        real = list(_nights(folder / "real-job", "mini", [shipped]))
        read = _read_rate(folder / "tiny-job/chats")
    flat = {key: round(nights[-2][key] / nights[0][key], 3) for key in ("freeze_peak_memory_mb", "peak_memory_mb")}
    return {
        "benchmark": "nightly",
        "nights": nights,
        "with_the_bundle_that_ships": real,
        "put_without_the_job": alone,
        "read_and_hash_mb_per_s": read,
        "memory_last_to_first": flat,
        "load_at_start": round(load, 2),
        "machine": machine.describe(None, "cpu", None),
    }


def write_tiny(folder: Path) -> None:
    """Write an untrained bundle of two small layers with the tokenizer of the bundle that ships.

    Everything about it is real except its compression.
    """
    from pltz.benchmarks.random_weights import random_weights
    from pltz.models.bundle.bundle import Bundle, write_bundle

    ships = Bundle.load()
    weights = random_weights(1, vocab=ships.weights.shape.vocab, d=32, layers=1, heads=2, kv_heads=1, hidden=32)
    write_bundle(folder, "tiny", weights, ships.tokenizer.json, ships.zstd_dict[:1000], {"licence": "none"})


def sessions(begin: int, end: int) -> Iterator[bytes]:
    """Yield small chats as lines of JSON, no two alike: beginnings of sample sessions, each message with a number."""
    from pltz.datasets import sample_sessions

    sample = [session.value["messages"][:3] for session in sample_sessions()]
    for n in range(begin, end):
        messages = [
            {"role": m["role"], "content": m["content"][:CUT] + (f" [{n}.{k}]" if k else "")}
            for k, m in enumerate(sample[n % len(sample)])
        ]
        yield json.dumps({"id": f"session-{n}", "messages": messages}, ensure_ascii=False).encode() + b"\n"


def _nights(root: Path, bundle: str, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run two nights for each size, one with new sessions and one with nothing new, and yield their figures."""
    from pltz.archive import opener

    (root / "chats").mkdir(parents=True)
    opener.create(root / "cold")
    file = root / "nightly.toml"
    file.write_text(
        f'archive = "cold"\nstate = "state"\nbundles = ["{bundle}"]\n'
        '[[source]]\nkind = "jsonl"\npath = "chats"\nname_key = "id"\n'
        '[[retention]]\nkeep_last = 3\n[shrink]\nbudget = "0s"\n[collect]\ngrace = "7d"\n[verify]\n'
    )
    done = 0
    for total in sizes:
        for begin in range(done, total, DAY):
            data = b"".join(sessions(begin, min(total, begin + DAY)))
            (root / f"chats/{begin:05}.jsonl").write_bytes(data)
        done = total
        for kind in ("new", "known"):
            yield _row(kind, total, _child(NIGHT, str(file)))


def _row(kind: str, total: int, report: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a night. Raises UsageError where its report is not as expected."""
    if report["exit_code"]:
        raise UsageError(f"a night exited with {report['exit_code']}: {report['failures'] or report['refused']}")
    totals, steps = report["totals"], report["steps"]
    met = totals["frozen"] if kind == "new" else totals["known"]
    content = totals["bytes"] if kind == "new" else totals["bytes_seen"]
    seconds, cpu_seconds = steps["freeze"]["seconds"], steps["freeze"]["cpu_seconds"]
    return {
        "night": kind,
        "sessions": total,
        "met": met,
        "per_s": round(met / seconds, 1),
        "per_cpu_s": round(met / max(cpu_seconds, 0.01), 1),
        "mb_per_s": round(content / seconds / 1e6, 3),
        "night_s": report["seconds"],
        "steps": steps,
        "lag_mean_s": totals["lag_mean"],
        "lag_max_s": totals["lag_max"] if totals["lagged"] else None,
        "ratio": totals["ratio"],
        "freeze_peak_memory_mb": steps["freeze"]["peak_memory_mb"],
        "peak_memory_mb": report["peak_memory_mb"],
    }


def _child(code: str, *arguments: str) -> dict[str, Any]:
    """Run Python code in a process of its own and return the JSON that it prints."""
    done = subprocess.run(command(code, *arguments), env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"a night failed: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _read_rate(folder: Path) -> float:
    """Return the MB/s of reading the same files line by line and hashing each line.

    A night of known sessions is compared with it.
    """
    import hashlib

    start, total = time.perf_counter(), 0
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            for line in file:
                hashlib.blake2b(line, digest_size=16).digest()
                total += len(line)
    return round(total / (time.perf_counter() - start) / 1e6, 1)


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    head = [
        "night",
        "sessions",
        "met",
        "sessions/s",
        "a CPU second",
        "content/s",
        "lag, mean",
        "whole night",
        "peak of freezing",
        "peak memory",
    ]
    rows = [_cells(row) for row in result["nights"]]
    rows += [_cells(row, "bundle mini: ") for row in result["with_the_bundle_that_ships"]]
    return (
        f"{render(head, rows)}\n\nput without the job: {result['put_without_the_job']['per_s']:,} sessions/s, "
        f"{result['put_without_the_job']['per_cpu_s']:,} per CPU second; "
        f"reading and hashing the lines: {result['read_and_hash_mb_per_s']:,} MB/s"
    )


def _cells(row: dict[str, Any], before: str = "") -> list[str]:
    lag = "" if row["lag_mean_s"] is None else f"{row['lag_mean_s']:,.1f} s"
    return [
        before + row["night"],
        f"{row['sessions']:,}",
        f"{row['met']:,}",
        f"{row['per_s']:,.0f}",
        f"{row['per_cpu_s']:,.0f}",
        f"{size(row['mb_per_s'] * 1e6)}/s",
        lag,
        f"{row['night_s']:,.1f} s",
        f"{row['freeze_peak_memory_mb']:,.0f} MB",
        f"{row['peak_memory_mb']:,.0f} MB",
    ]

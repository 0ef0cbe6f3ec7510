"""Measure the cost of the eviction hook in a serving loop.

Its worker runs in a process, in a thread, or not at all. The run ends with one line of JSON that holds every figure and
the machine.
"""

import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.benchmarks import options as bench_options
from pltz.cli.bench import machine, shared
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.table import render
from pltz.serving.eviction.eviction import EvictionRequest

if TYPE_CHECKING:
    from pltz.models.bundle.tokenizer import Ids
    from pltz.serving.eviction.hook import EvictionHook

# tokens per eviction, and the form in which they are given
ROWS = (
    *((length, "list") for length in (512, 4096, 16384, 32768)),
    *((length, "numpy") for length in (512, 4096, 32768)),
    (32768, "torch"),
    (32768, "bytes"),
)
KINDS = ("none", "process")
STEP = 0.002  # seconds of work between evictions, about a decode step
BUSY = 1 << 16  # tokens queued for the worker before anything is measured
BATCH = 1 << 14  # tokens per commit; many commits, so that every part of the worker's cycle is measured
PATIENCE = 60.0  # seconds for a worker's first commit


@click.command(
    cls=Command,
    short_help="The eviction hook in a serving loop.",
    examples=["python -m pltz.benchmarks hook", "python -m pltz.benchmarks hook --calls 2000 --where /data --json"],
)
@click.option(
    "--calls", type=click.IntRange(min=20), default=400, show_default=True, metavar="N", help="Evictions a row."
)
@bench_options.WHERE
@shared.JSON
def hook(calls: int, where: str | None, as_json: bool) -> None:
    """Measure the eviction hook: the time of on_evict, of the loop's steps, and until tokens are durable.

    A loop computes for 2 ms and evicts a session, again and again, while the worker archives. The sessions are the
    samples that ship with pltz, repeated to length, as a list of Python integers, a numpy array, a torch tensor and
    bytes. A bare copy of the ids is timed with each eviction, except for bytes, which are immutable and not copied. On
    a busy machine its 99th percentile shows the load.

    "kept" leaves out evictions during which the system gave the core to another process, and "lost core" counts these.
    The time of a step shows what the worker takes from the loop. Without a worker it is the loop alone. On a machine
    with other work `chrt --fifo 1 python -m pltz.benchmarks hook` gives the loop a core of its own.
    """
    bench_options.check_where(where)
    rows = [row for kind in KINDS for row in measured(kind, calls, where)]
    on = machine.describe(None, "cpu", 1)
    result = {"benchmark": "hook", "calls": calls, "rows": rows, "cpus": os.cpu_count()}
    result["real_time"] = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    result |= {"load": round(os.getloadavg()[0], 2), "machine": on}
    if not as_json:
        write_text(as_text(rows) + "\n")
    write_text(json.dumps(result))


def measured(kind: str, calls: int, where: str | None) -> list[dict[str, Any]]:
    """Return the rows of one kind of worker."""
    from pltz.archive.archive import Archive
    from pltz.serving.eviction.hook import EvictionHook, HookSettings

    with tempfile.TemporaryDirectory(prefix="pltz-bench-", dir=where) as name:
        cold = None if kind == "none" else Path(name) / "cold"
        if cold:
            Archive.open(cold, create=True)
        settings = HookSettings(batch_tokens=BATCH)
        made = EvictionHook.open(Path(name) / "journal", cold, settings=settings)
        try:
            if cold:
                keep_busy(made)
            return [row(made, kind, length, form, calls) for length, form in ROWS]
        finally:
            made.close(2.0)


def keep_busy(hook: "EvictionHook") -> None:
    """Give the worker something to do, and wait until it has begun."""
    for number in range(BUSY * 16 // 4096):  # more than it can archive while it is measured
        hook.on_evict(EvictionRequest(f"busy/{number}", tokens(4096, number)))
    end = time.monotonic() + PATIENCE
    while not hook.status()["worker"].get("commits") and time.monotonic() < end:
        time.sleep(0.05)


def row(hook: "EvictionHook", kind: str, length: int, form: str, calls: int) -> dict[str, Any]:
    """Make one measurement, in microseconds and milliseconds."""
    import numpy as np

    array = tokens(length, 0)
    given = as_form(array, form)
    bare = array if form == "torch" else given  # a tensor's own copy releases the GIL
    before, slept = list(hook.counts.latency), hook.counts.latency_sum
    evictions, used, copies, steps, switches = [], [], [], [], []
    for number in range(calls):
        steps.append(work())
        lost = switched()
        start, cpu = time.perf_counter(), time.thread_time()
        hook.on_evict(EvictionRequest(f"{length}/{number}", given))
        used.append(time.thread_time() - cpu)
        evictions.append(time.perf_counter() - start)
        switches.append(switched() - lost)
        copies.append(copy(bare))
    hook.flush(PATIENCE)
    counts = np.array(hook.counts.latency) - np.array(before)
    p50, p99, worst = (1e6 * float(np.quantile(evictions, q)) for q in (0.5, 0.99, 1.0))
    kept = [took for took, lost in zip(evictions, switches, strict=True) if not lost]
    return {
        "worker": kind,
        "tokens": length,
        "form": form,
        "p50_us": round(p50, 1),
        "p99_us": round(p99, 1),
        "max_us": round(worst, 1),
        "kept_p99_us": round(1e6 * float(np.quantile(kept, 0.99)), 1) if kept else None,
        "lost_core": calls - len(kept),
        "cpu_p99_us": round(1e6 * float(np.quantile(used, 0.99)), 1),
        "copy_p50_us": round(1e6 * float(np.quantile(copies, 0.5)), 1),
        "copy_p99_us": round(1e6 * float(np.quantile(copies, 0.99)), 1),
        "step_p50_ms": round(1e3 * float(np.quantile(steps, 0.5)), 2),
        "step_p99_ms": round(1e3 * float(np.quantile(steps, 0.99)), 2),
        "durable_mean_ms": round(1e3 * (hook.counts.latency_sum - slept) / max(1, int(counts.sum())), 1),
        "refused": sum(hook.counts.refused.values()),
    }


def switched() -> int:
    """Return how often this thread has been preempted so far (involuntary context switches)."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def as_form(ids: "Ids", form: str) -> Any:
    """Return ids (T,) in a form that a serving loop might hold."""
    if form == "torch":
        import torch

        return torch.from_numpy(ids)
    return ids.tolist() if form == "list" else ids.astype("<u4").tobytes() if form == "bytes" else ids


def copy(ids: Any) -> float:
    """Return the seconds for a copy of the ids and nothing else, after a step of its own."""
    work()
    start = time.perf_counter()
    if isinstance(ids, list):
        tuple(ids)
    elif not isinstance(ids, bytes):
        ids.tobytes()
    return time.perf_counter() - start


def work() -> float:
    """Run a serving step in pure Python for STEP seconds of CPU time, and return the wall seconds that passed."""
    start, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < STEP:
        sum(range(200))
    return time.perf_counter() - start


def tokens(length: int, number: int) -> "Ids":
    """Return token ids of a sample session, (length,), from a different start for each number."""
    import numpy as np

    return np.resize(np.roll(_samples(), -997 * number), length)


def _samples() -> "Ids":
    import numpy as np

    from pltz.datasets import sample_sessions
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.session.transcript import to_tokens_many

    if not _CACHE:
        _CACHE.append(np.concatenate(to_tokens_many(sample_sessions()[:50], Bundle.load().tokenizer)))
    return _CACHE[0]


_CACHE: "list[Ids]" = []


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return the figures as text."""
    keys = [
        "p50_us",
        "p99_us",
        "max_us",
        "kept_p99_us",
        "lost_core",
        "cpu_p99_us",
        "copy_p50_us",
        "copy_p99_us",
        "step_p50_ms",
        "step_p99_ms",
        "durable_mean_ms",
    ]
    head = ["worker, tokens", *(key.replace("_", " ") for key in keys)]
    names = [f"{r['worker']}, {r['tokens']} as {r['form']}" for r in rows]
    cells = [[f"{r[k]:,}" if r[k] is not None else "" for k in keys] for r in rows]
    return render(head, [[name, *row] for name, row in zip(names, cells, strict=True)])

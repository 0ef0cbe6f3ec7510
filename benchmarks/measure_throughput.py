"""Measure MB/s of sessions into a .pltz file, proof included, and the phases that the time goes to.

    python -m pltz.benchmarks.measure_throughput chats.jsonl.zst --device cuda
    python -m pltz.benchmarks.measure_throughput agents_test.jsonl.zst --device cuda --layout fast

DATA is a JSONL file of chats, or of logs: records with a "kind" and a "text". MB are those of the sessions' content
(`Session.to_bytes`), which for a log are its own bytes. Each input is coded as one file with proof, twice: as
`pltz compress` does it, and each session alone. The first seconds, which load kernels, are not counted.

A phase is timed on the thread that runs it, without the phases inside it. Threads may run phases side by side, so their
sum can exceed the wall time. ``idle`` is the wall time in which the main thread was in no phase. Phases that run in
processes beside it (``--workers``) are not seen, but for the wait for them and their processor time.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import click

from pltz.cli.bench import machine
from pltz.coding.codec import START_BYTES, Codec
from pltz.coding.log import log_coder, table
from pltz.coding.options import CodingOptions
from pltz.datasets.given import as_sessions
from pltz.datasets.loaders import load
from pltz.models.session import transcript
from pltz.models.session.session import Session
from pltz.plt_codec import repeats
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.plt_codec.lanes import LayoutName

WARM_UP = 1 << 16  # bytes of sessions coded before the clock starts
SEAMS: tuple[tuple[Any, str, str], ...] = (
    (transcript, "to_tokens_many", "tokenise"),
    (table, "split", "split logs"),
    (table, "join", "join logs"),
    (log_coder.LogTables, "_text", "tokenise"),
    (log_coder.LogTables, "_spoken", "detokenise"),
    (Future, "result", "wait for processes"),
    (repeats, "find", "find copies"),
    (Fallback, "compress", "zstd"),
    (Fallback, "fast_size", "zstd, look"),
    (Fallback, "may_reach", "zstd, look"),
)


class Phases:
    """The seconds of each phase, on the thread that runs it, without those of phases inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.main = 0.0  # of phases of the main thread
        self._local = threading.local()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and is timed as a phase."""

        def run(*args: Any, **kwargs: Any) -> Any:
            stack = self._local.__dict__.setdefault("stack", [])
            stack.append(0.0)
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                took = time.perf_counter() - start
                self.seconds[name] += took - stack.pop()
                if stack:
                    stack[-1] += took
                elif threading.current_thread() is threading.main_thread():
                    self.main += took

        return run


@contextmanager
def watched(codec: Codec) -> Iterator[Phases]:
    """Time the phases of a codec while the context lasts."""
    phases = Phases()
    with mock.patch.multiple(
        codec.coder,
        encode=phases.timed("encode", codec.coder.encode),
        decode=phases.timed("decode", codec.coder.decode),
    ):
        patches = [mock.patch.object(owner, name, phases.timed(to, getattr(owner, name))) for owner, name, to in SEAMS]
        for patch in patches:
            patch.start()
        try:
            yield phases
        finally:
            for patch in patches:
                patch.stop()


@click.command()
@click.argument("data", nargs=-1, required=True)
@click.option("--bundle", metavar="NAME|DIR", help="Bundle.  [default: the one that ships with pltz]")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of the bundle.")
@click.option("--threads", type=int, metavar="N", help="CPU threads of the engine.")
@click.option("--workers", type=int, metavar="N", help="Processes beside the model.  [default: as `pltz compress`]")
@click.option("--layout", "layouts", type=click.Choice(["default", "fast"]), multiple=True, help="Layouts of sessions.")
@click.option("--most", type=float, metavar="MB", help="Measure only the first MB of each input.")
@click.option("--alone/--no-alone", default=True, help="Measure each session coded alone, too.")
def main(
    data: tuple[str, ...],
    bundle: str | None,
    device: str,
    threads: int | None,
    workers: int | None,
    layouts: tuple[LayoutName, ...],
    most: float | None,
    alone: bool,
) -> None:
    """Print MB/s and phases, and one line of JSON. DATA: JSONL files of chats, or of logs."""
    codec = Codec.load(bundle, device=device, threads=threads, workers=workers)
    rows = []
    for name in data:
        sessions = sessions_of(name, most)
        for layout in layouts or ("default",):
            for independent in (False, True)[: 1 + alone]:
                rows.append({"data": name, **measured(codec, sessions, layout, independent)})
                click.echo(as_text(rows[-1]))
    click.echo(json.dumps({"rows": rows, **machine.describe(codec.coder, device, threads)}))


def sessions_of(path: str, most: float | None) -> list[Session]:
    """Return the sessions of an input, of about ``most`` MB; a record with a "text" is a log."""
    found: list[Session] = []
    size = 0
    for given in load(path, "jsonl"):
        value = given.value if given.kind == "chat" else None
        text = value.get("text") if isinstance(value, dict) else None
        new = [given]
        if isinstance(text, str):
            new = list(as_sessions(text.encode("utf-8", "surrogatepass"), exact=True))
        size += sum(len(one.to_bytes()) for one in new)
        if found and most is not None and size > 1e6 * most:
            break
        found += new
    return found


def measured(codec: Codec, sessions: list[Session], layout: LayoutName, independent: bool) -> dict[str, Any]:
    """Return size, seconds and phases of one file of sessions."""
    raw = sum(len(one.to_bytes()) for one in sessions)
    first, size = [], 0
    for one in sessions:
        first.append(one)
        size += len(one.to_bytes())
        if size > WARM_UP:
            break
    codec.compress(first, layout=layout, independent=independent)
    if raw >= START_BYTES and codec.workers.count:  # they start once per codec
        codec.workers.on = True
        codec.workers.map("prepare", [([], CodingOptions())] * codec.workers.count)
    sink = io.BytesIO()
    with watched(codec) as phases:
        start, used = time.perf_counter(), time.process_time()
        codec.compress_into(sink, sessions, layout=layout, independent=independent)
        wall, used = time.perf_counter() - start, time.process_time() - used
    return {
        "sessions": len(sessions),
        "raw": raw,
        "file": len(sink.getvalue()),
        "layout": layout,
        "alone": independent,
        "workers": codec.workers.count if codec.workers.on else 0,
        "wall_s": round(wall, 2),
        "cpu_s": round(used, 2),
        "MB_per_s": round(raw / 1e6 / wall, 3),
        "idle_s": round(wall - phases.main, 2),
        "phases_s": {name: round(seconds, 2) for name, seconds in sorted(phases.seconds.items())},
    }


def as_text(row: dict[str, Any]) -> str:
    """Return one measurement in words."""
    head = (
        f"{row['data']}: {row['sessions']} sessions, {row['raw'] / 1e6:.2f} MB to {row['file']:,} bytes, "
        f"{row['layout']}{', alone' if row['alone'] else ''}, {row['workers']} processes: {row['wall_s']} s, "
        f"{row['MB_per_s']} MB/s"
    )
    return head + "".join(f"\n  {name:12} {seconds:8.2f} s" for name, seconds in row["phases_s"].items())


if __name__ == "__main__":
    main()

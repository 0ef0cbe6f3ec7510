"""Measure MB/s of sessions into a .pltz file and into an archive, proof included, and the phases that the time goes to.

    python -m pltz.benchmarks.speed.measure_throughput chats.jsonl.zst --device cuda
    python -m pltz.benchmarks.speed.measure_throughput chats.jsonl.zst logs.jsonl.zst --device cuda --put --compare

DATA is a JSONL file of chats, or of logs: records with a "kind" and a "text". MB are those of the sessions' content
(`Session.to_bytes`), which for a log are its own bytes. Each input is coded as one file, as `pltz compress` does it,
and with ``--put`` put into an archive, as `pltz archive put` does. The first seconds, which load kernels, do not count.

``--compare`` measures files also without threads, where the device has some, and puts without processes and in commits
of 4 MB.

"encode after" codes sessions after others, or turns after those above. A phase is timed on the thread that runs it,
without the phases inside it. Those of threads beside the main thread have names of their own, and their sum can exceed
the wall time. ``idle`` is the wall time in which the main thread was in no phase. Phases that run in processes
(``--workers``) are not seen, but for the wait for them and their processor time.
"""

from __future__ import annotations

import gc
import io
import json
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import click

from pltz.archive.archive import Archive
from pltz.archive.writing.commits import COMMIT_BYTES
from pltz.archive.writing.put_request import PutRequest
from pltz.cli.bench import machine
from pltz.coding.codec import Codec
from pltz.coding.log import log_coder, table
from pltz.coding.log.log_look import is_log
from pltz.coding.options import CodingOptions
from pltz.coding.parts import Doubling
from pltz.coding.workers import START_BYTES
from pltz.datasets.given import as_sessions
from pltz.datasets.loaders import load
from pltz.models.bundle.bundle import Bundle
from pltz.models.session import transcript
from pltz.models.session.session import Session
from pltz.plt_codec import repeats
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.coding.codecs.codec import BundleCodec
    from pltz.coding.parts import Coder
    from pltz.plt_codec.lanes import LayoutName

WARM_UP = 1 << 16  # bytes of sessions coded before the clock starts
SEAMS: tuple[tuple[Any, str, str], ...] = (
    (transcript, "to_tokens_many", "tokenise"),
    (table, "split", "split logs"),
    (table, "content_of", "join logs"),
    (log_coder.LogTables, "_said", "tokenise"),
    (log_coder.LogTables, "text", "detokenise"),
    (Future, "result", "wait for processes"),
    (repeats, "find", "find copies"),
    (Fallback, "compress", "zstd"),
    (Fallback, "fast_size", "zstd, look"),
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
                main = threading.current_thread() is threading.main_thread()
                self.seconds[name if main else f"{name}, beside"] += took - stack.pop()
                if stack:
                    stack[-1] += took
                elif main:
                    self.main += took

        return run


def _by_context(phases: Phases, encode: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that encodes, timed apart where sequences have contexts."""
    alone, after = phases.timed("encode", encode), phases.timed("encode after", encode)

    def run(*args: Any, **kwargs: Any) -> Any:
        behind = any(one is not None and len(one) for one in kwargs.get("contexts") or ())
        return (after if behind else alone)(*args, **kwargs)

    return run


@contextmanager
def watched(coder: Coder) -> Iterator[Phases]:
    """Time the phases of coding while the context lasts, with any coder of this type."""
    phases = Phases()
    by = type(coder)
    seams = (*SEAMS, (by, "decode", "decode"))
    patches = [mock.patch.object(by, "encode", _by_context(phases, by.encode))]
    patches += [mock.patch.object(o, name, phases.timed(to, getattr(o, name))) for o, name, to in seams]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield phases


@click.command()
@click.argument("data", nargs=-1, required=True)
@click.option("--bundle", metavar="NAME|DIR", help="Bundle.  [default: the one that ships with pltz]")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of the bundle.")
@click.option("--threads", type=int, metavar="N", help="CPU threads of the engine.")
@click.option("--workers", type=int, metavar="N", help="Processes beside the model.  [default: as `pltz compress`]")
@click.option("--layout", "layouts", type=click.Choice(["default", "fast"]), multiple=True, help="Layouts of chats.")
@click.option("--most", type=float, metavar="MB", help="Measure only the first MB of each input.")
@click.option("--put", type=float, metavar="MB", help="Put the first MB of each input into an archive, too.")
@click.option("--compare", is_flag=True, help="Measure files without threads too, and puts without processes.")
def main(
    data: tuple[str, ...],
    bundle: str | None,
    device: str,
    threads: int | None,
    workers: int | None,
    layouts: tuple[LayoutName, ...],
    most: float | None,
    put: float | None,
    compare: bool,
) -> None:
    """Print MB/s and phases, and one line of JSON. DATA: JSONL files of chats, or of logs."""
    loaded = Bundle.load(bundle)
    codec = Codec.load(loaded, device=device, threads=threads, workers=workers)
    rows = []

    def tell(row: dict[str, Any]) -> None:
        rows.append(row)
        click.echo(as_text(row))

    for name in data:
        sessions = sessions_of(name, most)
        logs = is_log(sessions[0], sessions[0].to_bytes())
        for layout in (layouts or ("default",))[: 1 if logs else None]:  # of a log it is fixed
            for plain in (True, False)[not compare :]:
                tell({"data": name, **measured(codec, sessions, layout, threaded=not plain)})
        some = sessions_of(name, put) if put else []
        for plain in (True, False)[not compare :] if some else ():
            tell({"data": name, **measured_put(loaded, some, device, threads, alone=plain)})
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


def measured(codec: Codec, sessions: list[Session], layout: LayoutName, *, threaded: bool = True) -> dict[str, Any]:
    """Return size, seconds and phases of one file of sessions. ``threaded``: as of `Codec`."""
    raw = sum(len(one.to_bytes()) for one in sessions)
    codec.threaded = threaded
    codec.compress(_first(sessions), layout=layout)
    if raw >= START_BYTES and codec.workers.count:  # they start once per codec
        codec.workers.on = True
        codec.workers.map("prepare", [([], CodingOptions())] * codec.workers.count)
        codec.compress(_first(sessions, START_BYTES), layout=layout)  # the coders of threads load kernels too
    sink = io.BytesIO()
    with watched(codec.coder) as phases:
        start, used = time.perf_counter(), time.process_time()
        codec.compress_into(sink, sessions, layout=layout)
        wall, used = time.perf_counter() - start, time.process_time() - used
    how = "threads" if threaded and isinstance(codec.coder, Doubling) else "no threads"
    return {
        "into": f"file, {layout}, {how}",
        "file": len(sink.getvalue()),
        **_figures(sessions, raw, wall, used, phases),
        "workers": codec.workers.count if codec.workers.on else 0,
    }


def measured_put(
    bundle: Bundle, sessions: list[Session], device: str, threads: int | None, *, alone: bool
) -> dict[str, Any]:
    """Return size, seconds and phases of sessions put by the model. ``alone``: no processes, commits of 4 MB."""
    raw = sum(len(one.to_bytes()) for one in sessions)
    how: dict[str, Any] = {"bundle": bundle, "device": device, "threads": threads}
    with (
        tempfile.TemporaryDirectory() as place,
        Archive.open(place, create=True, model_ids=True, model_logs=True, **how) as cold,
    ):
        workers = cold.codecs.workers
        if alone:
            workers.count = 0
        first = [PutRequest(f"{n}", one, tenant="warm") for n, one in enumerate(_first(sessions, START_BYTES))]
        taken = list(cold.put_many(first))
        if workers.count:
            workers.on = True
            workers.map("tokens", [([], False)] * workers.count)
        requests = [PutRequest(f"{n}", one) for n, one in enumerate(sessions)]
        gc.collect()
        with watched(cast("BundleCodec", cold.codecs.model).coder) as phases:
            start, used = time.perf_counter(), time.process_time()
            taken = list(cold.put_many(requests, commit_bytes=1 << 22 if alone else COMMIT_BYTES))
            wall, used = time.perf_counter() - start, time.process_time() - used
        return {
            "into": f"archive{', alone' if alone else ''}",
            "file": sum(one.size for one in taken),
            **_figures(sessions, raw, wall, used, phases),
            "workers": workers.count if workers.on else 0,
        }


def _first(sessions: list[Session], least: int = WARM_UP) -> list[Session]:
    """Return the first sessions, of ``least`` bytes or more where there are so many."""
    ends = accumulate(len(one.to_bytes()) for one in sessions)
    return sessions[: 1 + next((n for n, end in enumerate(ends) if end >= least), len(sessions))]


def _figures(sessions: list[Session], raw: int, wall: float, used: float, phases: Phases) -> dict[str, Any]:
    return {
        "sessions": len(sessions),
        "raw": raw,
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
        f"{row['into']}, {row['workers']} processes: {row['wall_s']} s, {row['MB_per_s']} MB/s, idle {row['idle_s']}"
    )
    return head + "".join(f"\n  {name:26} {seconds:8.2f} s" for name, seconds in row["phases_s"].items())


if __name__ == "__main__":
    main()

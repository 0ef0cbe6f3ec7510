"""Measure many writers on one bucket: throughput, requests and conflicts, against one writer.

    python -m pltz.benchmarks.archive.measure_writers --writers 1,4,16 --puts 20 --latency 0.03

The bucket is SeaweedFS's, on this machine. Each request takes ``--latency`` seconds on its way, as over a network. Each
writer is a process that puts small sessions one by one into an archive with a manifest, as other tenants' writers
would. In the end a fresh reader gets each acknowledged session and compares its tokens. ``--stall``: seconds that the
pack of the first writer's first put takes to upload: the other writers' slowest put tells whether they wait for it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import numpy as np

from pltz.archive import opener
from pltz.archive.errors import ArchiveError
from pltz.archive.format.object_names import MANIFEST, PACKS
from pltz.archive.storage.s3 import BucketPlace, ObjectStore
from pltz.archive.storage.store import Content
from pltz.archive.writing.new_session import NewSession
from pltz.benchmarks.archive.seaweed import Seaweed
from pltz.cli.bench import machine
from pltz.coding.codecs.codec import BytesCodec

BUCKET = "cold"


class Written(NamedTuple):
    """The work of one writer: seconds of each put, names of what was acknowledged, refused puts, requests by kind."""

    seconds: list[float]
    names: list[str]
    refused: int
    requests: dict[str, int]


class CountingStore(ObjectStore):
    """A bucket that counts its requests, by method and folder, and the swaps in which another was first."""

    def __init__(self, place: BucketPlace, cache: str, latency: float = 0.0, stall: float = 0.0) -> None:
        super().__init__(place, cache)
        self.counts: Counter[str] = Counter()
        self.latency, self.stall = latency, stall

    def put(self, name: str, data: bytes) -> bool:
        if self.stall and name.startswith(PACKS):
            time.sleep(self.stall)
            self.stall = 0.0
        return super().put(name, data)

    def swap(self, *args: Any, **options: Any) -> Content | None:
        after = super().swap(*args, **options)
        self.counts["conflicts"] += after is None or after.data != args[1]
        return after

    def _called(self, what: str, call: Any, **options: Any) -> Any:
        verb, _, name = what.partition(" ")
        self.counts[f"{verb} {name.partition('/')[0] if name.startswith((PACKS, MANIFEST)) else 'others'}"] += 1
        time.sleep(self.latency)
        return super()._called(what, call, **options)


def session_of(writer: int, number: int) -> NewSession:
    """Return a session of 300 bytes as tokens that no other has."""
    tokens = np.random.default_rng([writer, number]).integers(97, 123, 300)
    return NewSession(f"w{writer}-{number}", [tokens], tenant=f"tenant-{writer}")


def write(place: BucketPlace, writer: int, puts: int, latency: float, stall: float, ready: Barrier, done: Any) -> None:
    """Put sessions one by one, all writers from the same moment on."""
    with tempfile.TemporaryDirectory() as cache:
        store = CountingStore(place, cache, latency, stall)
        archive = opener.open_at(store, [BytesCodec()])
        ready.wait()
        store.counts.clear()
        work = Written([], [], 0, {})
        for number in range(puts):
            began = time.perf_counter()
            try:
                archive.writer.put([session_of(writer, number)])
                work.names.append(f"w{writer}-{number}")
            except ArchiveError:
                work = work._replace(refused=work.refused + 1)
            work.seconds.append(time.perf_counter() - began)
        done.put((writer, work._replace(requests=dict(store.counts))))


def measure(place: BucketPlace, writers: int, puts: int, latency: float, stall: float) -> dict[str, Any]:
    """Return the facts of a run with so many writers, each acknowledged session read back."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as cache:
        opener.create(ObjectStore(place, cache), [BytesCodec()])
        ready, done = context.Barrier(writers + 1), context.Queue()
        tasks = [
            context.Process(target=write, args=(place, n, puts, latency, stall if n == 0 else 0.0, ready, done))
            for n in range(writers)
        ]
        for task in tasks:
            task.start()
        ready.wait()
        began = time.perf_counter()
        found: dict[int, Written] = dict(done.get() for _ in tasks)
        elapsed = time.perf_counter() - began
        for task in tasks:
            task.join()
        # a reader that knows nothing yet
        reader = opener.open_at(ObjectStore(place, f"{cache}/reader"), [BytesCodec()])
        readable = 0
        for writer, work in found.items():
            for name in work.names:
                version = reader.directory.version(name, f"tenant-{writer}")
                wanted = session_of(writer, int(name.partition("-")[2])).segments[0]
                readable += reader.reader.tower(version).tokens.tolist() == wanted.tolist()
    counts = sum((Counter(work.requests) for work in found.values()), Counter[str]())
    acknowledged = sum(len(work.names) for work in found.values())
    others = [s for writer, work in found.items() for s in work.seconds if writer or not stall]
    return {
        "writers": writers,
        "acknowledged": acknowledged,
        "refused": sum(work.refused for work in found.values()),
        "readable": readable,
        "seconds": round(elapsed, 2),
        "puts_per_second": round(acknowledged / elapsed, 1),
        "requests_per_put": round((counts.total() - counts["conflicts"]) / max(1, acknowledged), 2),
        "conflicts": counts["conflicts"],
        "lists": sum(count for what, count in counts.items() if what.startswith("list")),
        "median_put": round(median(others), 3) if others else None,
        "slowest_put": round(max(others), 3) if others else None,
        "requests": dict(sorted(counts.items())),
    }


def numbers(_: click.Context, __: click.Parameter, text: str) -> Sequence[int]:
    """Return the numbers of an option."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter("expected numbers with commas: 1,4,16") from None


@click.command()
@click.option("--writers", default="1,4,16", callback=numbers, help="Numbers of writers, one run for each.")
@click.option("--puts", default=20, type=click.IntRange(min=1), help="Puts of each writer.")
@click.option("--latency", default=0.03, type=click.FloatRange(min=0), help="Seconds of each request on its way.")
@click.option("--stall", default=0.0, type=click.FloatRange(min=0), help="Seconds of the first writer's first upload.")
def main(writers: Sequence[int], puts: int, latency: float, stall: float) -> None:
    """Measure many writers on one bucket of a SeaweedFS server."""
    with tempfile.TemporaryDirectory() as folder, Seaweed(Path(folder)) as server:
        server.make_bucket(BUCKET)
        places = [BucketPlace(BUCKET, os.urandom(4).hex(), server.options) for _ in writers]
        runs = [measure(place, n, puts, latency, stall) for place, n in zip(places, writers, strict=True)]
    where = {"cpu": machine.cpu_name(), "cores": os.cpu_count()}
    click.echo(json.dumps({"puts": puts, "latency": latency, "stall": stall} | where | {"runs": runs}, indent=1))


if __name__ == "__main__":
    main()

"""Requests and seconds of put, get, ls and collect in a bucket of a real server, SeaweedFS on this machine.

    python -m pltz.benchmarks.archive.measure_bucket --sessions 10000 --bytes 4000

Sessions are words of random letters, coded by zstd, so that the bucket is measured and not a coder. They are put a
thousand at a time, a hundred more one by one. A get, ls or collect is that of a process that keeps nothing. ``cpu`` are
seconds of this process, ``seconds`` those that passed, the server's among them: of use on an idle machine alone.
``mb_per_s``: content per second that passed, ``mb_per_cpu_s``: per second of this process.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from pltz.archive import opener
from pltz.archive.maintenance.collect import Collector
from pltz.archive.storage.s3 import BucketPlace
from pltz.archive.writing.new_session import NewSession
from pltz.benchmarks.archive.measure_writers import BUCKET, CountingStore
from pltz.benchmarks.archive.seaweed import Seaweed
from pltz.cli.bench import machine
from pltz.coding.codecs.codec import BytesCodec

BATCH, ALONE, READ = 1000, 100, 100  # sessions per put, put one by one, and read


class Bucket:
    """An archive in a bucket, and what was measured there."""

    def __init__(self, place: BucketPlace, folder: Path, size: int) -> None:
        self.place, self.folder, self.size, self.rows = place, folder, size, list[dict[str, Any]]()

    def fresh(self) -> tuple[CountingStore, opener.OpenArchive]:
        """Open the archive as a process does that keeps nothing."""
        store = CountingStore(self.place, str(self.folder / os.urandom(4).hex()))
        return store, opener.open_at(store, [BytesCodec()])

    def session(self, number: int) -> NewSession:
        """Return a session of so many bytes that no other has."""
        tokens = np.random.default_rng(number).integers(97, 123, self.size)
        return NewSession(f"s{number}", [tokens])

    def measure(self, name: str, sessions: int, calls: int, work: Callable[[], CountingStore]) -> None:
        """Note a row: the work of some calls on so many sessions. ``work`` returns its store."""
        began, cpu = time.perf_counter(), time.process_time()
        counts = work().counts
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        requests, content = counts.total() - counts["conflicts"], sessions * self.size / 1e6
        row = {"work": name, "calls": calls, "sessions": sessions, "requests_per_call": round(requests / calls, 2)}
        rates = {"mb_per_s": round(content / seconds, 2), "mb_per_cpu_s": round(content / cpu, 2)}
        self.rows.append(row | {"seconds": round(seconds, 2), "cpu": round(cpu, 2)} | rates)


def run(bucket: Bucket, sessions: int) -> None:
    """Measure put, get, ls and collect."""

    def put(numbers: range, batch: int) -> CountingStore:
        store, archive = bucket.fresh()
        for at in range(numbers.start, numbers.stop, batch):
            archive.writer.put([bucket.session(number) for number in range(at, min(at + batch, numbers.stop))])
        return store

    def get() -> CountingStore:
        store, archive = bucket.fresh()
        for number in range(0, sessions, sessions // READ)[:READ]:
            tower = archive.reader.tower(archive.directory.version(f"s{number}"))
            assert tower.tokens.tolist() == bucket.session(number).segments[0].tolist()
        return store

    def ls() -> CountingStore:
        store, archive = bucket.fresh()
        assert sum(1 for _ in archive.directory.ls()) == sessions + ALONE
        return store

    def collect() -> CountingStore:
        store, archive = bucket.fresh()
        Collector(archive.catalog, archive.writer, archive.indexes).run()
        return store

    bucket.measure(f"put of {BATCH}", sessions, -(-sessions // BATCH), lambda: put(range(sessions), BATCH))
    bucket.measure("put of one", ALONE, ALONE, lambda: put(range(sessions, sessions + ALONE), 1))
    bucket.measure("get", READ, READ, get)
    bucket.measure("ls", sessions + ALONE, 1, ls)
    bucket.measure("collect, which condemns", sessions + ALONE, 1, collect)
    bucket.measure("collect, which moves and deletes", sessions + ALONE, 1, collect)
    bucket.measure("ls after it", sessions + ALONE, 1, ls)


@click.command()
@click.option("--sessions", default=10_000, type=click.IntRange(min=READ), help="Sessions that are put together.")
@click.option("--bytes", "size", default=4000, type=click.IntRange(min=1), help="Bytes of a session.")
def main(sessions: int, size: int) -> None:
    """Measure put, get, ls and collect in a bucket of a SeaweedFS server."""
    with tempfile.TemporaryDirectory() as folder, Seaweed(Path(folder)) as server:
        place = BucketPlace(server.make_bucket(BUCKET), "archive", server.options)
        bucket = Bucket(place, Path(folder), size)
        opener.create(CountingStore(place, folder), [BytesCodec()])
        run(bucket, sessions)
    where = {"cpu": machine.cpu_name(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    click.echo(json.dumps(where | {"bytes": size, "rows": bucket.rows}, indent=1))


if __name__ == "__main__":
    main()

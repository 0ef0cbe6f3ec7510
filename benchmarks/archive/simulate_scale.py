"""Requests, bytes, seconds and dollars of an archive in a bucket, from ten thousand sessions to a billion.

    python -m pltz.benchmarks.archive.simulate_scale > benchmarks/results/scale.json

The archive's own code works on a bucket in memory that counts what would be requests. Sessions are synthetic: a prompt
that all share, but for one of `ALONE`, and some random bytes, coded by zstd, put `COMMIT` at a time. At each size the
index is written, and then each operation is done once. A night puts `NIGHT` sessions and collects once, as the nightly
job does. The third is counted: it deletes what the second condemned. Larger archives are not made: a line through the
two largest sizes gives their requests and bytes. Ranges of their indexes are read, so what was counted with the index
taken for a large one counts there. ``line_off`` says how far such a line through two smaller ones is off at the
largest.

    python -m pltz.benchmarks.archive.simulate_scale --indexes 1000000 10000000

prints what a look-up of a session and of a segment above its own asks of an index alone, of which no copy is there: of
a large one its first MiB, and a page per key.

Seconds are those of requests that follow each other, at `FIRST_BYTE` each and `BYTES_PER_S`, without the work of the
processor. Dollars are those of `PRICES`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pltz.archive import opener
from pltz.archive.archive import Archive
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.encryption.keys import Secret
from pltz.archive.format import index_file, object_names
from pltz.archive.format.byte_source import File, Held
from pltz.archive.format.index_file import U64, Lookup
from pltz.archive.maintenance.collect import Collector
from pltz.archive.maintenance.verify import Verifier
from pltz.archive.opener import OpenArchive
from pltz.archive.storage.s3 import FRONT, MOST_KEPT, RangedObject
from pltz.archive.storage.seen import SeenGenerations
from pltz.archive.storage.store import Content, Store
from pltz.archive.writing.new_session import NewSession
from pltz.coding.codecs.codec import BytesCodec

SIZES = (10_000, 100_000, 1_000_000)  # sessions of archives that are made
LARGER = (100_000_000, 1_000_000_000)  # of those that the line is for
SEALED = 100_000  # sessions, at most, of the archive in which some are erased
COMMIT = 50_000  # sessions per put when an archive is made, so that no pack is small
NIGHT = 1000  # sessions per night
OWN, PROMPT = 360, 1000  # random bytes of each session, and of the prompt
ALONE = 50  # of so many sessions one has no prompt
LISTED = 1000  # names per LIST
FIRST_BYTE = {"GET": 0.03, "PUT": 0.06, "LIST": 0.06, "DELETE": 0.03}  # seconds; assumed, not measured
BYTES_PER_S = 80e6  # assumed
# S3 Standard in us-east-1, dollars: per request, and per GB and month. From memory, as listed in January 2025.
PRICES = {"GET": 0.4e-6, "PUT": 5e-6, "LIST": 5e-6, "DELETE": 0.0}
STORED = 0.023
COUNTED = (*PRICES, "read", "written", "beside")
COALESCED = 1 << 20  # bytes between two ranges below which obstore reads both with one request
PRICED = "S3 Standard, us-east-1, list prices of January 2025"
# of these the code asks the same at any size: what differs is the packs in which session and prompt happen to lie
STEADY = (
    "get, index by ranges",
    "get without a prompt, index by ranges",
    "get, indexes cached",
    "get, archive open",
    "put of one",
    "put of a thousand",
)
KEY = Secret(b"a key of the simulation", 0)


@dataclass
class Traffic:
    """Requests by kind, and bytes read and written. ``beside``: requests that did not wait for the one before."""

    requests: Counter[str] = field(default_factory=Counter)
    read: int = 0
    written: int = 0
    beside: int = 0

    def side_by_side(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Count GETs of some ranges at once. Near ones come in one request, as obstore asks for them."""
        rows: list[list[int]] = []
        for offset, size in sorted(ranges):
            if rows and offset - rows[-1][1] <= COALESCED:
                rows[-1][1] = max(rows[-1][1], offset + size)
            else:
                rows.append([offset, offset + size])
        self.requests["GET"] += len(rows)
        self.beside += len(rows) - 1
        self.read += sum(end - begin for begin, end in rows)

    def row(self) -> dict[str, Any]:
        """Return it as JSON, with seconds and dollars."""
        counts = {kind: self.requests[kind] for kind in PRICES}
        return priced({**counts, "read": self.read, "written": self.written, "beside": self.beside})


def priced(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of requests and bytes with the seconds and dollars that they take."""
    seconds = sum(FIRST_BYTE[kind] * row[kind] for kind in PRICES) + (row["read"] + row["written"]) / BYTES_PER_S
    seconds -= FIRST_BYTE["GET"] * row.get("beside", 0)
    return {**row, "seconds": round(seconds, 3), "dollars": sum(PRICES[kind] * row[kind] for kind in PRICES)}


class CountedBucket(Store):
    """A bucket in memory that counts requests and bytes. Indexes are kept once read."""

    def __init__(self) -> None:
        self.seen = SeenGenerations()
        self.folders: dict[str, dict[str, bytes]] = {}
        self.registers: dict[str, Content] = {}
        self.cost = Traffic()
        self.cached: set[str] = set()  # indexes on the disk of the reader
        self.most_kept = MOST_KEPT  # bytes of an index; of larger ones ranges are read

    def make(self) -> None:
        """Do nothing: a bucket has no folders."""

    def put(self, name: str, data: bytes) -> bool:
        self._count("PUT", written=len(data))
        return self._folder(name).setdefault(object_names.last_part(name), data) == data

    def read(self, name: str, offset: int, size: int) -> bytes:
        data = self._whole(name)[offset : offset + size]
        self._count("GET", read=len(data))
        return data

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        data = self._whole(name)
        self.cost.side_by_side(ranges)
        return [data[offset : offset + size] for offset, size in ranges]

    def view(self, name: str) -> memoryview:
        data = self._whole(name)
        self._count("GET", read=len(data))
        return memoryview(data)

    def open(self, name: str) -> File:
        data, is_index = self._whole(name), object_names.folder_of(name) == object_names.INDEXES
        if is_index and name not in self.cached and len(data) > self.most_kept:
            return by_ranges(data, self.cost)
        if name not in self.cached:
            self._count("GET", read=len(data))
        if is_index:
            self.cached.add(name)
        return Held(data)

    def list(self, folder: str) -> dict[str, int]:
        found = {name: len(data) for name, data in self.folders.get(folder, {}).items()}
        self._count("LIST", max(1, -(-len(found) // LISTED)))
        return found

    def delete(self, name: str, *, lasting: bool = True) -> None:
        self._count("DELETE")
        self._folder(name).pop(object_names.last_part(name), None)

    def load(self, register: str, known: Content | None = None) -> Content | None:
        found = self.registers.get(register)
        self._count("GET", read=len(found.data) if found and found != known else 0)
        return found

    def swap(
        self, register: str, data: bytes, before: Content | None, wait: float = 0.0, spare: bool = False
    ) -> Content | None:
        self._count("PUT", written=len(data))
        if self.registers.get(register) == before:
            self.registers[register] = Content(data, os.urandom(8).hex())
        return self.registers.get(register)

    def stored(self) -> int:
        """Return the bytes of all objects."""
        return sum(len(data) for folder in self.folders.values() for data in folder.values())

    @contextmanager
    def counting(self) -> Iterator[Traffic]:
        """Count what is asked in this context alone."""
        before, self.cost = self.cost, Traffic()
        try:
            yield self.cost
        finally:
            self.cost = before

    def _count(self, kind: str, number: int = 1, *, read: int = 0, written: int = 0) -> None:
        self.cost.requests[kind] += number
        self.cost.read += read
        self.cost.written += written

    def _folder(self, name: str) -> dict[str, bytes]:
        return self.folders.setdefault(object_names.folder_of(name), {})

    def _whole(self, name: str) -> bytes:
        found = self._folder(name).get(object_names.last_part(name))
        if found is None:
            self._count("GET")
            raise FileNotFoundError(2, "no such object", name)
        return found


def by_ranges(data: bytes, cost: Traffic) -> File:
    """Return an index whose first bytes come now, and others once they are read."""

    def get(offset: int, size: int) -> bytes:
        cost.side_by_side([(offset, size)])
        return data[offset : offset + size]

    return RangedObject(len(data), get, memoryview(get(0, min(FRONT, len(data)))))


def sessions(first: int, count: int) -> list[NewSession]:
    """Return synthetic sessions of the numbers from ``first`` on."""
    own = np.random.default_rng(first).integers(0, 256, (count, OWN))
    prompt = np.random.default_rng(0).integers(0, 256, PROMPT)
    return [
        NewSession(f"s{n}", [row] if is_alone(n) else [prompt, row], "acme", time=1) for n, row in enumerate(own, first)
    ]


def is_alone(number: int) -> bool:
    """Return whether the session of this number has no prompt."""
    return number % ALONE == ALONE // 2


def opened(bucket: CountedBucket, key: Secret | None = None) -> OpenArchive:
    """Open the archive as a process that begins."""
    return opener.open_at(bucket, [BytesCodec()], key=key)


def night(bucket: CountedBucket, first: int) -> OpenArchive:
    """Put the sessions of a night, from the number ``first`` on, by a new process, and collect."""
    archive = opened(bucket)
    archive.writer.put(sessions(first, NIGHT))
    archive.indexes.write_if_due()
    Collector(archive.catalog, archive.writer, archive.indexes).run()
    return archive


def filled(count: int, key: Secret | None = None) -> CountedBucket:
    """Return a bucket with an archive of ``count`` sessions in packs that collect leaves alone, under one index."""
    bucket = CountedBucket()
    archive = opener.create(bucket, [BytesCodec()], key=key)
    for first in range(0, count, COMMIT):
        archive.writer.put(sessions(first, min(COMMIT, count - first)))
    archive.indexes.write()
    return bucket


def memory_of(work: Callable[[], object]) -> float:
    """Return the most memory in MB that Python and numpy took in a call."""
    tracemalloc.start()
    try:
        work()
        peak: int = tracemalloc.get_traced_memory()[1]
        return peak / 1e6
    finally:
        tracemalloc.stop()


def measured(count: int) -> dict[str, Any]:
    """Return costs, bytes and memory of an archive of ``count`` sessions."""
    begun = time.perf_counter()
    bucket = filled(count)
    row: dict[str, Any] = {"sessions": count, "modelled": False, "build_s": round(time.perf_counter() - begun, 1)}
    reader = Catalog(bucket)
    reader.refresh()
    row["packs"] = len(reader.listing.packs)
    row["indexes"], row["stored"] = len(reader.listing.indexes), bucket.stored()
    row["index_bytes"] = sum(map(len, bucket.folders[object_names.INDEXES].values()))
    row["manifest_bytes"] = sum(len(content.data) for content in bucket.registers.values())
    costs: dict[str, Traffic] = {}

    def get(archive: OpenArchive, number: int, max_age: float | None = None) -> None:
        with archive.catalog.one_look(max_age):
            version = archive.directory.version(f"s{number}", "acme")
            assert len(archive.reader.tower(version).tokens) == PROMPT * (not is_alone(number)) + OWN

    # A reader from cold to warm: nothing cached, then the indexes, then the open archive.
    # None of these sessions is in the first block of its pack, which would come with the header.
    bucket.cached.clear()
    with bucket.counting() as costs["get, nothing cached"]:
        get(opened(bucket), count // 2 + count // 7, math.inf)  # as a command does, whose look is that of the opening
    bucket.most_kept = 0
    bucket.cached.clear()
    with bucket.counting() as costs["get, index by ranges"]:
        get(opened(bucket), count // 2 + count // 7, math.inf)
    with bucket.counting() as costs["get without a prompt, index by ranges"]:
        get(opened(bucket), (count // 2 + count // 7) // ALONE * ALONE + ALONE // 2, math.inf)
    bucket.most_kept = MOST_KEPT
    reader.store.open(object_names.index(next(iter(reader.listing.indexes))))
    with bucket.counting() as costs["get, indexes cached"]:
        get(opened(bucket), count // 3, math.inf)
    archive = opened(bucket)
    get(archive, 0)
    with bucket.counting() as costs["get, archive open"]:
        get(archive, count // 4)
    archive.writer.put(sessions(count, 1))
    with bucket.counting() as costs["put of one"]:
        archive.writer.put(sessions(count + 1, 1))
    with bucket.counting() as costs["put of a thousand"]:
        archive.writer.put(sessions(count + 2, NIGHT))
        archive.indexes.write_if_due()
    # Nights: what one condemns the next one deletes.
    for number in (1, 2):
        night(bucket, count + 2 + number * NIGHT)
    with bucket.counting() as costs["night"]:
        last = night(bucket, count + 2 + 3 * NIGHT)
    with bucket.counting() as costs["verify"]:
        codecs = opened(bucket).codecs
        assert Verifier(Catalog(bucket), codecs, last.settings).run().sound
    # A sealed archive of that size, while it can be made in the time.
    if count <= SEALED:
        sealed = filled(count, KEY)
        with sealed.counting() as costs["erase of one"]:
            Archive(opened(sealed, KEY)).erase("s7", tenant="acme")
        row["erase_mb"] = round(memory_of(lambda: Archive(opened(sealed, KEY)).erase("s8", tenant="acme")), 2)
    row["costs"] = {name: cost.row() for name, cost in costs.items()}
    row["month_dollars"] = STORED * row["stored"] / 1e9
    row["reader_mb"] = round(memory_of(lambda: get(opened(bucket), 1)), 2)
    row["writer_mb"] = round(memory_of(lambda: opened(bucket).writer.put(sessions(2 * count + 10_000, 10))), 2)
    return row


class SyntheticEntries(Lookup):
    """Entries of so many sessions, each with a segment, in packs of `COMMIT`."""

    def __init__(self, count: int) -> None:
        self.names = [n.to_bytes(16, "big") for n in range(-(-count // COMMIT))]
        self.packs = dict.fromkeys(self.names, COMMIT * (OWN + 40))
        self.count = count

    def columns(self, section: int) -> tuple[U64, U64, U64]:
        """Return random keys, numbers of packs, and offsets of blocks of a hundred sessions, (N,) each."""
        count = self.count if section != index_file.MARKS else 0
        rows = np.arange(count, dtype=np.uint64)
        keys = np.random.default_rng(section).integers(0, 1 << index_file.KEY_BITS, count, np.uint64)
        return keys, rows // np.uint64(COMMIT), rows % np.uint64(COMMIT) // np.uint64(100) * np.uint64(100 * (OWN + 40))


def looked_up(count: int, looks: int = 20) -> dict[str, Any]:
    """Return what look-ups of a session and a segment ask of an index of so many, on average and at most."""
    entries = SyntheticEntries(count)
    data = index_file.build([entries], entries.packs)
    found = list[tuple[int, int]]()
    sections = index_file.SESSIONS, index_file.SEGMENTS  # of the session, and of its prompt
    wanted = [entries.columns(section)[0] for section in sections]
    wanted[1] = np.roll(wanted[1], count // 2)
    for row in np.random.default_rng(5).integers(0, count, looks).tolist():
        cost = Traffic()
        index = index_file.FileIndex(by_ranges(data, cost))
        for section, keys in zip(sections, wanted, strict=True):
            identity = (int(keys[row]) << 28).to_bytes(8, "big") + bytes(8)
            assert index.find(section, identity)
        found.append((cost.requests["GET"], cost.read))
    asked, read = (np.array(column) for column in zip(*found, strict=True))
    mean = {"GET": float(asked.mean()), "most_GET": int(asked.max()), "read": float(read.mean())}
    return {"sessions": count, "index_bytes": len(data), **mean}


def head_bytes(count: int, packs: float) -> int:
    """Return the bytes of the head of an index of so many sessions, each with a segment."""
    pages = 2 ** max(0, count.bit_length() - index_file.PAGE_BITS)
    return int(index_file.HEADER.size + index_file.PACK.size * packs + 8 * pages + index_file.CHECK)


def of_head(count: int, packs: float, size: float) -> dict[str, int]:
    """Return what a cold get asks for the head of an index of ``size`` bytes that is read by ranges."""
    head, front = head_bytes(count, packs), min(FRONT, round(size))
    table = round(index_file.PACK.size * packs)  # a head above the front is read in two parts
    far = [table, 8 * 2 ** max(0, count.bit_length() - index_file.PAGE_BITS)] if head > front else []
    return {"GET": 1 + len(far), "read": front + sum(far)}


def line(small: dict[str, Any], large: dict[str, Any], count: int) -> dict[str, Any]:
    """Return what a line through two rows says of ``count`` sessions. `STEADY` costs are those of the larger row.

    Where the index is read by ranges, a get asks what it asked of the larger one so read, with another head.
    """
    share: float = (count - small["sessions"]) / (large["sessions"] - small["sessions"])

    def at(before: float, after: float) -> float:
        return max(0.0, before + (after - before) * share)

    names = ("packs", "indexes", "stored", "index_bytes", "manifest_bytes", "month_dollars", "reader_mb", "writer_mb")
    row: dict[str, Any] = {"sessions": count, "modelled": True}
    row |= {name: round(at(small[name], large[name]), 4) for name in names}
    row["costs"] = {
        name: cost
        if name in STEADY
        else priced({key: round(at(small["costs"][name][key], cost[key]), 1) for key in COUNTED})
        for name, cost in large["costs"].items()
        if name in small["costs"]
    }
    if row["index_bytes"] <= MOST_KEPT:
        return row
    head = of_head(count, row["packs"], row["index_bytes"])
    before = of_head(large["sessions"], large["packs"], large["index_bytes"])
    for name in STEADY[:2]:
        cost = row["costs"][name]
        row["costs"][name] = priced({key: cost[key] + head.get(key, 0) - before.get(key, 0) for key in COUNTED})
    row["costs"]["get, nothing cached"] = row["costs"][STEADY[0]]
    return row


def main() -> None:
    """Measure, model, and print a line of JSON per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=SIZES, help="sizes of archives that are made")
    parser.add_argument("--indexes", type=int, nargs="+", help="sessions of indexes that are looked up alone")
    chosen = parser.parse_args()
    for count in chosen.indexes or ():
        print(json.dumps(looked_up(count)))
    if chosen.indexes:
        return
    sizes: Sequence[int] = sorted(chosen.sessions)
    for row in with_lines([measured(count) for count in sizes]):
        print(json.dumps({"prices": PRICED, **row}))


def with_lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows and those of larger archives. The last one made says how far off a line through those before is."""
    found = list(rows)
    if len(rows) > 2:
        guess = line(rows[-3], rows[-2], rows[-1]["sessions"])
        off = {
            name: round(guess["costs"][name]["dollars"] / cost["dollars"] - 1, 3)
            for name, cost in rows[-1]["costs"].items()
            if name in guess["costs"]
        }
        found[-1] = {**rows[-1], "line_off": off}
    return found + [line(rows[-2], rows[-1], count) for count in LARGER if len(rows) > 1]


if __name__ == "__main__":
    main()

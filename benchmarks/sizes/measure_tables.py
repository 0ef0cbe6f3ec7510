"""Measure tables: what the tables of logs (coding/log) come to per kind, beside zstd, and how fast they are.

    python -m pltz.benchmarks.sizes.measure_tables agents_validation.jsonl.zst

The input has a record with ``kind`` and ``text`` per log. One line of JSON per kind: bytes of logs, opaque bits,
columns and text; text and whole logs under zstd -19 with a window of 128 MiB, log by log; megabytes of logs per second
of processor time to split and to join. Each log is joined again and compared.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

from pltz.coding.log import table

WINDOW_LOG = 27
COLUMNS = ("raw", "opaque", "columns", "text", "text_zstd", "raw_zstd")


def logs(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield kind and bytes of each log."""
    with path.open("rb") as file:
        stream = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).stream_reader(file)
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            record = json.loads(line)
            yield record["kind"], record["text"].encode()


def packed(data: bytes) -> int:
    """Return the bytes of data under zstd -19 --long."""
    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=WINDOW_LOG, enable_ldm=True)
    return len(zstandard.ZstdCompressor(compression_params=parameters).compress(data)) if data else 0


def measure(data: bytes) -> tuple[list[int], float, float]:
    """Return the figures of `COLUMNS` for a log, and the seconds of a split and of a join.

    Raises:
        ValueError: the log did not come back.
    """
    start = time.process_time()
    found = table.split(data)
    middle = time.process_time()
    if table.join(found.columns, found.opaque, found.pieces, len(data)) != data:
        raise ValueError("a log did not come back")
    end = time.process_time()
    text = "\n".join(piece.text for piece in found.pieces).encode()
    sizes = [len(data), len(found.opaque), len(found.columns), len(text), packed(text), packed(data)]
    return sizes, middle - start, end - middle


def main(arguments: Iterable[str]) -> None:
    """See the head of this file."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * (len(COLUMNS) + 2))
    table.split(b"")  # learns the known lines
    for path in map(Path, arguments):
        for kind, data in logs(path):
            sizes, splitting, joining = measure(data)
            sums[kind] = [a + b for a, b in zip(sums[kind], [*sizes, splitting, joining], strict=True)]
    for kind, (*summed, splitting, joining) in sorted(sums.items()):
        speeds = {"split_MB_s": summed[0] / 1e6 / (splitting or 1), "join_MB_s": summed[0] / 1e6 / (joining or 1)}
        row = dict(zip(COLUMNS, map(int, summed), strict=True)) | {name: round(n, 1) for name, n in speeds.items()}
        print(json.dumps({"kind": kind, **row}))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Measure coders of logs: bytes, MB/s in and out, and memory, per kind of log and size, each in a process of its own.

    python -m pltz.benchmarks.sizes.measure_coders agents_train.jsonl.zst --size 0.1 --size 5 --size 70

The input has a record with ``kind`` and ``text`` per log. The logs of a kind are put one behind the other up to each
size; a kind that has fewer bytes is left out of it. All coders read a file and write one, and what comes back is
compared. pltz is a put into an archive in one thread, proof and sync included, and its bytes are those of the packs;
parity is another 10 %. Times are seconds of the processor after a first file, so without imports and tables; memory is
the peak of the process, of pltz with its bundle.
"""

from __future__ import annotations

import filecmp
import json
import lzma
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click

from pltz.benchmarks.sizes.measure_tables import WINDOW_LOG, logs
from pltz.benchmarks.speed.timing import timed

MB = 1_000_000
AT_ONCE = 1 << 20  # bytes


def by_zstd(source: Path, packed: Path, back: Path) -> Iterator[int]:
    """Code by zstd -19 --long."""
    import zstandard

    how = zstandard.ZstdCompressionParameters.from_level(19, window_log=WINDOW_LOG, enable_ldm=True)
    with source.open("rb") as one, packed.open("wb") as other:
        zstandard.ZstdCompressor(compression_params=how).copy_stream(one, other)
    yield packed.stat().st_size
    with packed.open("rb") as one, back.open("wb") as other:
        zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).copy_stream(one, other)


def by_xz(source: Path, packed: Path, back: Path) -> Iterator[int]:
    """Code by xz -9e."""
    with source.open("rb") as one, lzma.open(packed, "wb", preset=9 | lzma.PRESET_EXTREME) as other:
        shutil.copyfileobj(one, other, AT_ONCE)
    yield packed.stat().st_size
    with lzma.open(packed) as one, back.open("wb") as other:
        shutil.copyfileobj(one, other, AT_ONCE)


def by_brotli(source: Path, packed: Path, back: Path) -> Iterator[int]:
    """Code by brotli 11 with a window of 16 MiB."""
    import brotli

    coder, decoder = brotli.Compressor(quality=11, lgwin=24), brotli.Decompressor()
    with source.open("rb") as one, packed.open("wb") as other:
        other.writelines(coder.process(piece) for piece in iter(partial(one.read, AT_ONCE), b""))
        other.write(coder.finish())
    yield packed.stat().st_size
    with packed.open("rb") as one, back.open("wb") as other:
        other.writelines(decoder.process(piece) for piece in iter(partial(one.read, AT_ONCE), b""))


def by_pltz(source: Path, packed: Path, back: Path) -> Iterator[int]:
    """Put into an archive, and get from it."""
    from pltz.archive.archive import Archive
    from pltz.models.session.long_text import LongText
    from pltz.models.session.session import Session

    place = packed.with_suffix(".cold")
    with Archive.open(place, create=True, threads=1) as cold:
        cold.put("log", Session("text", LongText.of(source)))
    yield sum(path.stat().st_size for path in (place / "packs").rglob("*") if path.is_file())
    with Archive.open(place, threads=1) as cold, back.open("wb") as other:
        other.writelines(cold.get("log").session.pieces())


CODERS = {"pltz": by_pltz, "zstd -19 --long": by_zstd, "brotli 11": by_brotli, "xz -9e": by_xz}


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--size", "sizes", type=float, multiple=True, default=(0.1, 5.0), show_default=True, metavar="MB")
@click.option("--kind", "kinds", multiple=True, help="Only logs of this kind.  [default: all]")
@click.option("--coder", "coders", type=click.Choice([*CODERS]), multiple=True, help="Only this one.  [default: all]")
def main(data: Path, sizes: tuple[float, ...], kinds: tuple[str, ...], coders: tuple[str, ...]) -> None:
    """Print a table, and one line of JSON."""
    rows: list[dict[str, Any]] = []
    print(f"{'kind':12} {'MB':>6} {'coder':16} {'bytes':>12} {'ratio':>6} {'in':>7} {'out':>7} {'MB of memory':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in of_kinds(data, Path(folder), kinds, max(sizes)):
            for size in sizes:
                source = Path(folder) / "log.jsonl"
                if not cut(path, source, int(size * MB)):
                    continue
                for coder in coders or CODERS:
                    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                        row = {"kind": kind, "mb": size, "coder": coder} | pool.submit(measured, coder, source).result()
                    rows.append(row)
                    cells = f"{row['bytes']:12,} {row['ratio']:6.4f} {row['in']:7.2f} {row['out']:7.2f}"
                    print(f"{kind:12} {size:6g} {coder:16} {cells} {row['memory']:12}", flush=True)
    print(json.dumps({"data": str(data), "rows": rows}))


def of_kinds(data: Path, folder: Path, kinds: tuple[str, ...], most: float) -> list[tuple[str, Path]]:
    """Return each kind with a file of its logs, up to ``most`` MB of them."""
    found: dict[str, Path] = {}
    for kind, text in logs(data):
        path = found.setdefault(kind, folder / f"{kind}.all") if not kinds or kind in kinds else None
        if path and (not path.exists() or path.stat().st_size < most * MB):
            with path.open("ab") as file:
                file.write(text)
    return sorted(found.items())


def cut(path: Path, source: Path, size: int) -> bool:
    """Write the lines of a file up to a size; return whether it has so many bytes."""
    left = size
    with path.open("rb") as one, source.open("wb") as other:
        while left > 0 and (line := one.readline()):
            other.write(line)
            left -= len(line)
    return left <= 0


def measured(coder: str, source: Path) -> dict[str, Any]:
    """Code a file and decode it again."""
    code: Callable[[Path, Path, Path], Iterator[int]] = CODERS[coder]
    before = peak()
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "first"
        small.write_bytes(b'{"type": "user", "message": "What is loaded first is not counted."}\n')
        list(code(small, Path(folder) / "s.packed", Path(folder) / "s.back"))
        packed, back = Path(folder) / "packed", Path(folder) / "back"
        steps = code(source, packed, back)
        there, coded = timed(partial(next, steps))
        again, _ = timed(partial(next, steps, None))
        if not filecmp.cmp(source, back, shallow=False):
            raise SystemExit(f"{coder}: another file came back")
        size = source.stat().st_size
        rates = {"in": size / MB / there.busy, "out": size / MB / again.busy}
        return {"bytes": coded, "ratio": coded / size} | rates | {"memory": peak() - before}


def peak() -> int:
    """Return the megabytes that this process had at most, on Linux. `getrusage` has those of its parent in it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 // MB


if __name__ == "__main__":
    main()

"""Measure logs of coding agents as .pltz files, each alone and all in one, against zstd -19 and xz -9e.

    python -m pltz.benchmarks.sizes.measure_logs agents_validation.jsonl.zst
    python -m pltz.benchmarks.sizes.measure_logs agents_validation.jsonl.zst --bundle base --device cuda --archive

A record has a "kind" (claude-code, codex, ...) and a "text", the bytes of one log. Each is read as `pltz compress
--exact` reads it, coded with proof, decoded again and compared. All bytes of a file count. Beside it stands zstd -19
with a window of 2^27, with and without long-distance matching, whichever is shorter, and xz -9e: of each log alone and
of all in one stream. *Opaque* bytes are those of uuids, ids, hashes and
signatures, counted as bits: no coder shrinks them. r / z is the share of zstd's bytes, both less the opaque ones. kB/s
are those of the log per second of processor time of the whole encoding, the proof by decoding included.
"""

from __future__ import annotations

import json
import lzma
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import zstandard

from pltz.archive.archive import Archive
from pltz.archive.writing.put_request import PutRequest
from pltz.cli.bench import machine
from pltz.coding.codec import Codec
from pltz.coding.log import table
from pltz.datasets.given import as_sessions
from pltz.datasets.loaders import load
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import ModelError, UsageError

LEVEL, WINDOW = 19, 27
ONE = {"zstd": "zstd_one_stream", "xz": "xz_one_stream", "file": "one_file"}
COUNTED = "logs", "raw", "opaque", "zstd", "xz", "file", "encode_s", "decode_s", "encode_cpu_s"


@click.command()
@click.argument("data")
@click.option("--bundle", metavar="NAME|DIR", help="Bundle.  [default: the one that ships with pltz]")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of the bundle.")
@click.option("--threads", type=int, default=1, show_default=True, metavar="N", help="CPU threads.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Measure only logs of this kind.")
@click.option("--most", type=int, metavar="N", help="Measure only the first N logs.")
@click.option("--one-file/--no-one-file", default=True, help="Measure all logs in one file, too.")
@click.option("--archive", is_flag=True, help="Measure all logs as those of one tenant of an archive, too.")
def main(
    data: str,
    bundle: str | None,
    device: str,
    threads: int,
    kinds: tuple[str, ...],
    most: int | None,
    one_file: bool,
    archive: bool,
) -> None:
    """Print a table of bytes and seconds per kind, and one line of JSON. DATA: a JSONL file of logs."""
    loaded = Bundle.load(bundle)
    codec = Codec.load(loaded, device=device, threads=threads)
    logs = _logs(data, kinds)[:most]
    rows = [_measured(codec, kind, text) for kind, text in logs]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["kind"]].append(row)
        groups["all"].append(row)
    kinds_found = {kind: _summed(mine) for kind, mine in sorted(groups.items(), key=lambda item: item[0] == "all")}
    heads = "opaque", "zstd", "xz", "file"
    click.echo(f"{'kind':12} {'logs':>4} {'raw':>10} {' '.join(f'{head:>9}' for head in heads)} {'r/z':>6} {'kB/s':>6}")
    for kind, one in kinds_found.items():
        click.echo(
            f"{kind:12} {one['logs']:4} {one['raw']:10,} {' '.join(f'{one[head]:9,}' for head in heads)} "
            f"{one['share']:6.3f} {one['raw'] / 1000 / one['encode_cpu_s']:6.1f}"
        )
    stream = b"".join(text for _, text in logs)
    found: dict[str, Any] = {"kinds": kinds_found, "zstd_one_stream": _zstd(stream), "xz_one_stream": _xz(stream)}
    if one_file:
        start = time.perf_counter()
        found["one_file"] = len(_file(codec, [text for _, text in logs], independent=False))
        found["one_file_s"] = time.perf_counter() - start
        click.echo(f"all in one: {', '.join(f'{name} {found[key]:,}' for name, key in ONE.items())}")
    if archive:
        found["archive"] = _archive(loaded, device, threads, [text for _, text in logs])
        click.echo(f"archive: {', '.join(f'{name} {count:,}' for name, count in found['archive'].items())}")
    about = machine.describe(codec.coder, device, threads)
    click.echo(json.dumps({"data": data, "bundle": codec.bundle.id.hex(), **found, "logs": rows, **about}))


def _logs(data: str, kinds: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Return kind and bytes of each record. Raises UsageError."""
    found = []
    for number, line in enumerate(load(data, "jsonl"), 1):
        value = line.value if line.kind == "chat" else None
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise UsageError(f'{data}: expected a record with "kind" and "text" as session {number}')
        kind = str(value.get("kind", "log"))
        if not kinds or kind in kinds:
            found.append((kind, value["text"].encode("utf-8", "surrogatepass")))
    return found


def _sessions(text: bytes) -> list[Session]:
    return list(as_sessions(text, exact=True))


def _file(codec: Codec, texts: list[bytes], *, independent: bool) -> bytes:
    return codec.compress([one for text in texts for one in _sessions(text)], exact=True, independent=independent)


def _archive(bundle: Bundle, device: str, threads: int, texts: list[bytes]) -> dict[str, float]:
    """Return the bytes of an archive of logs after one put of all, after a shrink and its collections, and the seconds.

    Raises ModelError where a log does not come back.
    """
    names = [(f"log/{n}/{m}", one) for n, text in enumerate(texts) for m, one in enumerate(_sessions(text))]
    found = dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        with Archive.open(folder, create=True, bundle=bundle, device=device, threads=threads) as cold:
            used, began = time.process_time(), time.monotonic()
            coded = sum(put.size for put in cold.put_many([PutRequest(name, session) for name, session in names]))
            found |= {"put_cpu_s": time.process_time() - used, "put_s": time.monotonic() - began, "put_coded": coded}
            found["put_on_disk"] = _on_disk(folder)
            began = time.monotonic()
            for name, session in names:
                if cold.get(name).session != session:
                    raise ModelError("a log did not come back from an archive")
            found["get_s"] = time.monotonic() - began
            used = time.process_time()
            cold.shrink()
            found["shrink_cpu_s"] = time.process_time() - used
            cold.collect(), cold.collect()
            found["shrunk_on_disk"] = _on_disk(folder)
        with Archive.open(folder, bundle=bundle, device=device, threads=threads) as cold:
            if any(cold.get(name).session != session for name, session in names):
                raise ModelError("a log did not come back from an archive that was shrunk")
    return {name: round(value, 1) for name, value in found.items()}


def _on_disk(folder: str) -> int:
    """Return the bytes of an archive, its reserve left out."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and not path.name.startswith("reserve")]
    return sum(path.stat().st_size for path in files)


def _measured(codec: Codec, kind: str, text: bytes) -> dict[str, Any]:
    """Return the bytes and seconds of one log. Raises ModelError where it does not come back."""
    start, used = time.perf_counter(), time.process_time()
    data = _file(codec, [text], independent=True)
    middle, used = time.perf_counter(), time.process_time() - used
    back = b"".join(session.to_input_bytes() for session in codec.decompress(data))
    end = time.perf_counter()
    if back != text:
        raise ModelError(f"a log of kind {kind} did not come back")
    reader = Reader(data)
    return {
        "kind": kind,
        "raw": len(text),
        "opaque": len(table.split(text).opaque),
        "zstd": _zstd(text),
        "xz": _xz(text),
        "file": len(data),
        "kinds": [reader.info(number).content.kind for number in range(len(reader))],
        "encode_s": middle - start,
        "decode_s": end - middle,
        "encode_cpu_s": used,
    }


def _zstd(text: bytes) -> int:
    """Return the bytes of a text under zstd."""
    sizes = []
    for far in (False, True):
        parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, window_log=WINDOW, enable_ldm=far)
        sizes.append(len(zstandard.ZstdCompressor(compression_params=parameters).compress(text)))
    return min(sizes)


def _xz(text: bytes) -> int:
    """Return the bytes of a text under xz."""
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of rows, and the share of zstd's bytes without the opaque ones."""
    total = {name: sum(row.get(name, 1) for row in rows) for name in COUNTED}
    total["share"] = (total["file"] - total["opaque"]) / max(1, total["zstd"] - total["opaque"])
    return total


if __name__ == "__main__":
    main()

"""Measure a split of chats as one .pltz file, with and without neighbours, and as one archive of many tenants.

    python -m pltz.benchmarks.sizes.measure_split chat_test.jsonl.zst
    python -m pltz.benchmarks.sizes.measure_split chat_test.jsonl.zst --bundle base --device cuda
    python -m pltz.benchmarks.sizes.measure_split chat_test.jsonl.zst --part file --resume split.json

All bytes of a file count. Of an archive the bytes of packs and indexes count, less the names; its parity is told apart.
Every session is read back from both and compared. Beside them stands zstd -19 with the dictionary of the bundle (1 MB,
trained on the training split), each session alone without header or checksum. A source is a tenant.

With ``--resume`` each part is kept in a file as soon as it is measured, and a later run takes it from there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.archive import Archive
from pltz.archive.writing.put_request import PutRequest
from pltz.cli.bench import machine
from pltz.cli.bench.codec import compressors, corpus
from pltz.coding.codec import Codec
from pltz.models.bundle.bundle import Bundle
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import ModelError, UsageError
from pltz.plt_codec.lanes import LAYOUTS

if TYPE_CHECKING:
    from pltz.cli.bench.codec.corpus import SampleSession
    from pltz.plt_codec.lanes import LayoutName

PARTS = "zstd", "file", "alone", "archive"
RENDERING = "lean"
READ = 512  # sessions read at a time
_SAME = ("bundle", "data", "limit_bytes", "sessions", "layout")  # of a case that parts can be taken from


@click.command()
@click.argument("data")
@click.option("--bundle", metavar="NAME|DIR", help="Bundle.  [default: the one that ships with pltz]")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of the bundle.")
@click.option("--limit-bytes", default=300_000, show_default=True, metavar="N", help="Content bytes per source.")
@click.option("--commit", "commits", type=int, multiple=True, metavar="N", help="Also put so many sessions at a time.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Measure only this.")
@click.option("--layout", type=click.Choice(LAYOUTS), default="default", show_default=True, help="Layout of the file.")
@click.option("--threads", type=int, metavar="N", help="CPU threads.  [default: all cores]")
@click.option("--resume", metavar="FILE", help="Keep each part there, and skip those that it has.")
def main(
    data: str,
    bundle: str | None,
    device: str,
    limit_bytes: int,
    commits: tuple[int, ...],
    parts: tuple[str, ...],
    layout: LayoutName,
    threads: int | None,
    resume: str | None,
) -> None:
    """Print one line of JSON."""
    records = corpus.select(corpus.read(data), limit_bytes)
    loaded = Bundle.load(bundle)
    codec = Codec(loaded, loaded.coder(device, threads))
    case = {
        "benchmark": "split",
        "bundle": loaded.id.hex(),
        "data": Path(data).name,
        "limit_bytes": limit_bytes,
        "sessions": len(records),
        "tenants": len({record.source for record in records}),
        "content": sum(record.content_bytes for record in records),
        "layout": layout,
        "machine": machine.describe(codec.coder, device, threads),
    }
    kept = _Kept(None if resume is None else Path(resume), case)
    wanted = parts or PARTS
    if "zstd" in wanted:
        kept.measure("zstd_dictionary", lambda: by_zstd(records, loaded.zstd_dict))
    for part, independent in (("alone", True), ("file", False)):
        if part in wanted:
            kept.measure(f"file, independent {independent}", partial(by_file, codec, records, independent, layout))
    for commit in (None, *commits) if "archive" in wanted else ():
        kept.measure(f"archive, commit {commit}", partial(by_archive, loaded, device, records, commit))
    click.echo(json.dumps(kept.result()))


class _Kept:
    """The parts that were measured of one case, in a file where there is one.

    Raises:
        UsageError: the file has parts of another case.
    """

    def __init__(self, path: Path | None, case: dict[str, Any]) -> None:
        self._path, self._case = path, case
        self._parts: dict[str, Any] = {}
        if path is not None and path.exists():
            found = json.loads(path.read_bytes())
            if {key: found["case"].get(key) for key in _SAME} != {key: case[key] for key in _SAME}:
                raise UsageError(f"{path} has parts of another case ({found['case']}): name another file")
            self._parts = found["parts"]

    def measure(self, name: str, part: Callable[[], Any]) -> None:
        """Keep a part, measured where it was not kept before."""
        if name not in self._parts:
            self._parts[name] = part()
            if self._path is not None:
                new = self._path.with_suffix(".new")
                new.write_text(json.dumps({"case": self._case, "parts": self._parts}))
                new.replace(self._path)

    def result(self) -> dict[str, Any]:
        """Return the case and its parts; those of files and of archives as lists."""
        lists = {
            kind: [part for name, part in self._parts.items() if name.startswith(kind)] for kind in ("file", "archive")
        }
        rest = {name: part for name, part in self._parts.items() if not name.startswith(("file", "archive"))}
        return self._case | rest | {kind: found for kind, found in lists.items() if found}


def by_zstd(records: Sequence[SampleSession], dictionary: bytes) -> int:
    """Return the bytes of zstd -19 with a dictionary, decoded back. Raises ModelError where one came back changed."""
    peer = compressors.zstd_peer(dictionary)
    return sum(peer.size(compressors.rendered(record.session, RENDERING)) for record in records)


def by_file(
    codec: Codec, records: Sequence[SampleSession], independent: bool, layout: LayoutName = "default"
) -> dict[str, Any]:
    """Return the bytes of a file of all sessions, read back. Raises ModelError where one came back changed."""
    sessions = [record.session for record in records]
    data = codec.compress(sessions, independent=independent, layout=layout, verify=False)
    for before, after in zip(sessions, codec.decompress(data), strict=True):
        if changed := before.difference(after):
            raise ModelError(f"a session came back changed ({changed}): no figure of this run is valid")
    reader = Reader(data)
    behind: list[int] = []  # contexts of each session
    lost: list[int] = []  # sessions that damage to each takes
    for number in range(len(reader)):
        context = reader.info(number).context
        behind.append(0 if context is None else 1 + behind[context])
        lost.append(1)
    for number in reversed(range(len(reader))):
        if (context := reader.info(number).context) is not None:
            lost[context] += lost[number]
    return {
        "independent": independent,
        "bytes": len(data),
        "overhead": reader.overhead,
        "after_another": sum(map(bool, behind)),
        "decoded_for_one": round(1 + sum(behind) / len(behind), 3),
        "most_lost_by_one": max(lost),
    }


def by_archive(bundle: Bundle, device: str, records: Sequence[SampleSession], commit: int | None) -> dict[str, Any]:
    """Return the bytes of an archive of all sessions, read back. Raises ModelError where one came back changed.

    ``commit``: sessions per put; None: as many as a commit takes.
    """
    requests = [PutRequest(str(n), record.session, record.source) for n, record in enumerate(records)]
    with tempfile.TemporaryDirectory(prefix="pltz-bench-") as folder:
        cold = Archive.open(folder, create=True, model_ids=True, bundle=bundle, device=device)
        step = commit or len(requests)
        for begin in range(0, len(requests), step):
            for _ in cold.put_many(requests[begin : begin + step]):
                pass
        cold.parts.indexes.write()
        again = Archive.open(folder, bundle=bundle, device=device)
        sessions, versions = again.sessions, list(again.directory.ls())
        for begin in range(0, len(versions), READ):
            part = versions[begin : begin + READ]
            for version, tower in zip(part, again.parts.reader.towers(part), strict=True):
                if changed := records[int(version.name)].session.difference(sessions.session(tower)):
                    raise ModelError(f"a session came back changed ({changed}): no figure of this run is valid")
        if len(versions) != len(records):
            raise ModelError(f"{len(versions)} of {len(records)} sessions came back: no figure of this run is valid")
        stat = again.stat()
        parity = sum(file.stat().st_size for file in Path(folder, "parity").rglob("*") if file.is_file())
    names = sum(len(request.name) for request in requests)
    return {
        "commit": commit,
        "bytes": stat.pack_bytes + stat.index_bytes - names,
        "packs": stat.pack_bytes,
        "indexes": stat.index_bytes,
        "names": names,
        "parity": parity,
    }


if __name__ == "__main__":
    main()

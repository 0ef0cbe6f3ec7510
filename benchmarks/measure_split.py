"""Measure a split of chats as one .pltz file and as one archive of many tenants, with and without neighbours.

    python -m pltz.benchmarks.measure_split chat_test.jsonl.zst
    python -m pltz.benchmarks.measure_split chat_test.jsonl.zst --bundle base --device cuda

All bytes of a file count. Of an archive the bytes of packs and indexes count, less the names; its parity is told apart.
Every session is read back from both and compared. Beside them stands zstd -19 with the dictionary of the bundle (1 MB,
trained on the training split), each session alone without header or checksum. A source is a tenant.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.archive import Archive
from pltz.archive.sessions import PutRequest
from pltz.benchmarks import corpus, machine
from pltz.benchmarks.peers import compressors
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.codec import Codec
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.errors import ModelError

if TYPE_CHECKING:
    from pltz.benchmarks.corpus import SampleSession

RENDERING = "lean"
READ = 512  # sessions read at a time


@click.command()
@click.argument("data")
@click.option("--bundle", metavar="NAME|DIR", help="Bundle.  [default: the one that ships with pltz]")
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="Device of the bundle.")
@click.option("--limit-bytes", default=300_000, show_default=True, metavar="N", help="Content bytes per source.")
@click.option("--commit", "commits", type=int, multiple=True, metavar="N", help="Also put so many sessions at a time.")
def main(data: str, bundle: str | None, device: str, limit_bytes: int, commits: tuple[int, ...]) -> None:
    """Print one line of JSON."""
    records = corpus.select(corpus.read(data), limit_bytes)
    loaded = Bundle.load(bundle)
    codec = Codec(loaded, loaded.coder(device))
    result = {
        "benchmark": "split",
        "bundle": loaded.id.hex(),
        "data": Path(data).name,
        "limit_bytes": limit_bytes,
        "sessions": len(records),
        "tenants": len({record.source for record in records}),
        "content": sum(record.content_bytes for record in records),
        "zstd_dictionary": by_zstd(records, loaded.zstd_dict),
        "file": [by_file(codec, records, independent) for independent in (True, False)],
        "archive": [
            by_archive(loaded, device, records, neighbours, commit)
            for neighbours in (False, True)
            for commit in (None, *commits)
        ],
        "machine": machine.describe(codec.coder, device, None),
    }
    click.echo(json.dumps(result))


def by_zstd(records: Sequence[SampleSession], dictionary: bytes) -> int:
    """Return the bytes of zstd -19 with a dictionary, decoded back. Raises ModelError where one came back changed."""
    peer = compressors.zstd_peer(dictionary)
    return sum(peer.size(compressors.rendered(record.session, RENDERING)) for record in records)


def by_file(codec: Codec, records: Sequence[SampleSession], independent: bool) -> dict[str, Any]:
    """Return the bytes of a file of all sessions, read back. Raises ModelError where one came back changed."""
    sessions = [record.session for record in records]
    data = codec.compress(sessions, independent=independent, verify=False)
    for before, after in zip(sessions, codec.decompress(data), strict=True):
        if changed := before.difference(after):
            raise ModelError(f"a session came back changed ({changed}): no figure of this run is valid")
    reader = Reader(data)
    behind: list[int] = []
    for number in range(len(reader)):
        context = reader.info(number).context
        behind.append(0 if context is None else 1 + behind[context])
    return {
        "independent": independent,
        "bytes": len(data),
        "overhead": reader.overhead,
        "after_another": sum(map(bool, behind)),
        "decoded_for_one": round(1 + sum(behind) / len(behind), 3),
    }


def by_archive(
    bundle: Bundle, device: str, records: Sequence[SampleSession], neighbours: bool, commit: int | None
) -> dict[str, Any]:
    """Return the bytes of an archive of all sessions, read back. Raises ModelError where one came back changed.

    ``commit``: sessions per put; None: as many as a commit takes.
    """
    requests = [PutRequest(str(n), record.session, record.source) for n, record in enumerate(records)]
    with tempfile.TemporaryDirectory(prefix="pltz-bench-") as folder:
        cold = Archive.open(folder, create=True, bundle=bundle, device=device, neighbours=neighbours)
        step = commit or len(requests)
        for begin in range(0, len(requests), step):
            for _ in cold.put_many(requests[begin : begin + step]):
                pass
        cold.tower.write_index()
        again = Archive.open(folder, bundle=bundle, device=device)
        sessions, versions = again.sessions, list(again.tower.ls())
        for begin in range(0, len(versions), READ):
            part = versions[begin : begin + READ]
            for version, tower in zip(part, again.tower.towers(part), strict=True):
                if changed := records[int(version.name)].session.difference(sessions.session(tower)):
                    raise ModelError(f"a session came back changed ({changed}): no figure of this run is valid")
        if len(versions) != len(records):
            raise ModelError(f"{len(versions)} of {len(records)} sessions came back: no figure of this run is valid")
        stat = again.stat()
        parity = sum(file.stat().st_size for file in Path(folder, "parity").rglob("*") if file.is_file())
    names = sum(len(request.name) for request in requests)
    return {
        "neighbours": neighbours,
        "commit": commit,
        "bytes": stat.pack_bytes + stat.index_bytes - names,
        "packs": stat.pack_bytes,
        "indexes": stat.index_bytes,
        "names": names,
        "parity": parity,
    }


if __name__ == "__main__":
    main()

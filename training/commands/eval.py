"""``pltz bundle eval``: measure a bundle on any data, by real decoding.

It measures as ``pltz bench codec`` does, with two differences. It takes any files that ``pltz compress`` reads, not
only records. Its one peer is zstd with the bundle's own dictionary, which the bundle has to beat.
"""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pltz.cli.bench import machine
from pltz.cli.bench.codec import command as codec, compressors as peers, corpus
from pltz.cli.bench.codec.corpus import SampleSession
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import wanted
from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    from pltz.coding import Codec
    from pltz.training.data.records import LabelledSession

NO_LIMIT = 1 << 62  # bytes


@click.command(
    "eval",
    cls=Command,
    short_help="Measure a bundle on your own data.",
    examples=[
        "pltz bundle eval mini --data chats.jsonl",
        "pltz bundle eval ./my-bundle --data chats/ --data notes.txt --limit-bytes 300000 --json",
    ],
)
@click.argument("name", metavar="BUNDLE")
@click.option(
    "--data",
    "files",
    multiple=True,
    metavar="FILE|DIR",
    help="Sessions, in any form `pltz compress` reads (repeatable).  [default: the sample sessions]",
)
@click.option(
    "--limit-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Content bytes per source, at most.  [default: all]",
)
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
def evaluate(
    name: str,
    files: tuple[str, ...],
    limit_bytes: int | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure a bundle (by name or folder) on your own data.

    Every byte of the .pltz file counts, and every session is decoded back. The source of a record is its id up to the
    last "-", else the name of its file. Only the messages of a record with "messages" are coded. The peer is zstd -19
    with the bundle's dictionary, on each session alone, without magic numbers, checksums or lengths.
    """
    loaded = options.load_codec(name, device, threads)
    limit = NO_LIMIT if limit_bytes is None else limit_bytes
    result = {
        "benchmark": "bundle eval",
        "data": list(files) or ["sample sessions"],
        **measured(loaded, read(files), limit, shown=wanted(progress)),
        "limit_bytes": limit_bytes,
        "machine": machine.describe(loaded.coder, device, threads),
    }
    if as_json:
        write_text(json.dumps(result))
    else:
        write_text(codec.as_text(result))


def measured(loaded: "Codec", found: "Iterable[LabelledSession]", limit: int, *, shown: bool) -> dict[str, Any]:
    """Return the figures of a codec on records, at most ``limit`` content bytes per source. See `codec.figures`.

    Raises:
        UsageError: every session is longer than that.
    """
    from pltz.models import content_bytes

    records = corpus.select((SampleSession(r.source, r.session, content_bytes(r.session)) for r in found), limit)
    if not records:
        raise UsageError(f"no session of at most {limit} content bytes: give more data, or a higher limit")
    others, _ = peers.build(["zstd+dict"], loaded.bundle.zstd_dict)
    return {"limit_bytes": limit, **codec.figures(loaded, records, others, shown=shown)}


def read(files: Iterable[str]) -> "Iterator[LabelledSession]":
    """Yield the sessions of files with their sources, or the sample sessions where no files are named.

    Raises:
        UsageError: a file does not exist or does not hold what its name says.
    """
    from pltz.datasets import sample_path
    from pltz.training.data import records

    for file in list(files) or [str(sample_path())]:
        for session in records.load(file):
            found = records.record(session, file)
            yield found._replace(session=records.plain(session))

"""Measure rate and speed of pltz and of other coders on the same sessions in one run.

The field: general compressors (`peers`), context mixing (`context_mixing`) and llama-zip's method over our own weights
(`llama_zip`). Coders that are not installed are left out and named. Every size is of data that was decoded back and
compared. Speeds count the processor time of all threads and child processes, so that other work on the machine disturbs
them less. Peers code each session alone, in the leanest rendering. pltz codes all of them into one file, and every
byte of it counts.

Files (``--file``) are measured one by one, as texts. For each the table also says whether the frame keeps the promise
for data that no bundle was trained for: at most 1.02 times zstd -19 plus 16 bytes.

It ends with one line of JSON. ``python -m pltz.benchmarks.plots`` draws it.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pltz.archive.humanize import size
from pltz.benchmarks.peers import compressors as peers, context_mixing
from pltz.cli.bench import machine, shared
from pltz.cli.bench.codec import corpus, measure
from pltz.cli.bench.codec.compressors import Peer, rendered
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.plt_codec.errors import ModelError, UsageError

if TYPE_CHECKING:
    from pltz.cli.bench.codec.measure import SessionCost
    from pltz.coding.codec import Codec
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.session.session import Session
    from pltz.plt_codec.weights import Weights

LLAMA = "llama-zip"
SLOW = {"zpaq": context_mixing.zpaq_peer, "paq8px": context_mixing.paq8px_peer}
NAMES = (*peers.NAMES, *SLOW, LLAMA)
RENDERING = "lean"
FILE_COLUMNS = 4  # in the table; the line of JSON has all
PutRequest = TypeVar("PutRequest")
RULE = 1.02, 16  # a frame of any data takes at most this factor of zstd -19, plus so many bytes


@click.command(
    cls=Command,
    short_help="Bytes and speed, also next to context mixing and llama.cpp.",
    examples=[
        "python -m pltz.benchmarks field",
        "python -m pltz.benchmarks field --data chats.jsonl.zst --limit-bytes 30000 --peers zstd+dict,brotli,ppmd",
        "python -m pltz.benchmarks field --file alice29.txt --file enwik8 --file-bytes 100000 --json",
    ],
)
@shared.DATA
@shared.limit_bytes(3000, ": the slow peers code some kB per second")
@click.option("--file", "paths", multiple=True, metavar="FILE", help="Also measure this file (repeatable).")
@options.count("--file-bytes", 30_000, "Bytes of each file, from its start.")
@peers.option(NAMES)
@options.BUNDLE
@options.THREADS
@options.PROGRESS
@shared.JSON
def field(
    data: str | None,
    limit_bytes: int,
    paths: tuple[str, ...],
    file_bytes: int,
    names: str,
    bundle: str | None,
    threads: int | None,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure pltz next to zstd, brotli, xz, PPMd, context mixing and a float model in llama.cpp.

    zpaq needs the package zpaq, paq8px the command on the PATH, llama-zip's method pltz[llama]. They code a few
    thousand bytes per second, so the sessions are few by default. For more raise --limit-bytes, or name faster --peers.
    """
    records = corpus.select(corpus.read(data), limit_bytes)
    if not records:
        raise UsageError(f"no session of at most {limit_bytes} content bytes: raise --limit-bytes")
    codec = options.load_codec(bundle, "cpu", threads)
    coders, missing = field_of([name for name in names.split(",") if name], codec, wanted(progress))
    if missing:
        click.echo("not measured: " + "; ".join(f"{name}: {why}" for name, why in missing.items()), err=True)
    sessions = SessionGroup("sessions", [record.session for record in records])
    files = [read_file(path, file_bytes) for path in paths]
    found = {name: spent_by(coder, [sessions, *files]) for name, coder in coders.items()}
    result = {
        "benchmark": "field",
        "bundle": codec.bundle.id.hex(),
        "data": Path(data).name if data else "sample sessions",
        "limit_bytes": limit_bytes,
        "sources": len({record.source for record in records}),
        "sessions": len(records),
        "content_bytes": sessions.content,
        "coders": [about(name, coders[name].settings, found[name]) for name in found],
        "files": [file_about(*one) for one in zip(files, found["pltz"][1:], strict=True)],
        "missing": missing,
        "machine": machine.describe(codec.coder, "cpu", threads),
    }
    if not as_json:
        write_text(as_text(result) + "\n")
    write_text(json.dumps(result))


# ---- inputs and coders


@dataclass(frozen=True)
class SessionGroup:
    """Sessions that are measured together."""

    name: str
    sessions: "list[Session]"

    @property
    def content(self) -> int:
        """Return the bytes of content."""
        from pltz.models.session.session import content_bytes

        return sum(map(content_bytes, self.sessions))


@dataclass(frozen=True)
class Spent:
    """The result of a coder on a group: bytes, and processor seconds to encode and decode."""

    content: int  # bytes that were coded
    size: int
    encode_s: float
    decode_s: float
    costs: "tuple[SessionCost, ...]" = ()  # per session, for pltz only


@dataclass(frozen=True)
class FieldCoder:
    """A coder of the field: its settings, and a function that codes a group, decodes it and compares."""

    settings: str
    run: Callable[[SessionGroup], Spent]


def read_file(path: str, limit: int) -> SessionGroup:
    """Return the first bytes of a file as a text. Raises UsageError where it cannot be read."""
    from pltz.models.session.session import Session

    try:
        with Path(path).open("rb") as file:
            data = file.read(limit)
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    if not data:
        raise UsageError(f"{path} is empty: there is nothing to measure")
    return SessionGroup(Path(path).name, [Session("text", data)])


def field_of(names: Sequence[str], codec: "Codec", shown: bool) -> tuple[dict[str, FieldCoder], dict[str, str]]:
    """Return pltz and the chosen peers by name, and the reason for each that is missing.

    Raises:
        UsageError: an unknown name.
    """
    if unknown := [name for name in names if name not in NAMES]:
        raise UsageError(f"unknown peer {unknown[0]!r}: choose from {','.join(NAMES)}")
    coders = {"pltz": FieldCoder("one file, default layout", lambda group: by_pltz(group, codec, shown))}
    built, absent = peers.build([name for name in names if name != LLAMA], codec.bundle.zstd_dict, SLOW)
    for peer in built:
        coders[peer.name] = FieldCoder(
            peer.settings,
            lambda group, peer=peer: by_peer(group, peer, shown),  # type: ignore[misc]
        )
    missing = {name: "not installed" if name != "zstd+dict" else "the bundle has none" for name in absent}
    if LLAMA in names:
        from pltz.benchmarks.peers import llama_model

        if why := llama_model.unavailable(weights_of(codec)):
            missing[LLAMA] = why
        else:
            settings = "llama.cpp, Q8_0, one token at a time, one thread"
            coders[LLAMA] = FieldCoder(settings, lambda group: by_llama(group, codec, shown))
    return coders, missing


def weights_of(codec: "Codec") -> "Weights":
    """Return the weights of a codec's bundle."""
    bundle: Bundle = codec.bundle  # type: ignore[assignment]  # Codec.load gives a Bundle, the type says less
    return bundle.weights


# ---- measuring


def busy() -> float:
    """Return the processor seconds of all threads and of children that ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def watched(items: Iterable[PutRequest], bar: Progress) -> Iterator[PutRequest]:
    """Yield the items and count each when the consumer has finished it."""
    for item in items:
        yield item
        bar.add(1)


def by_pltz(group: SessionGroup, codec: "Codec", shown: bool) -> Spent:
    """Code all sessions into one file. Raises ModelError where one came back changed."""
    run = measure.run(codec, group.sessions, shown=shown)
    return Spent(group.content, len(run.data), run.encode_busy_s, run.decode_busy_s, tuple(run.costs))


def by_peer(group: SessionGroup, peer: Peer, shown: bool) -> Spent:
    """Code each session alone."""
    texts = [rendered(session, RENDERING) for session in group.sessions]
    with Progress(peer.name, unit="sessions", total=2 * len(texts), shown=shown) as bar:
        start = busy()
        coded = [peer.encode(text) for text in watched(texts, bar)]
        middle = busy()
        pairs = zip(coded, texts, strict=True)
        back = [peer.back(one, len(text)) for one, text in watched(pairs, bar)]
        end = busy()
    sizes = [peer.counted(*one) for one in zip(coded, texts, back, strict=True)]
    return Spent(group.content, sum(sizes), middle - start, end - middle)


def by_llama(group: SessionGroup, codec: "Codec", shown: bool) -> Spent:
    """Code each session alone, as its bundle tokens. Raises ModelError where one came back changed."""
    from pltz.benchmarks.peers import llama_model
    from pltz.benchmarks.peers.llama_zip import LlamaZip
    from pltz.models.session import transcript

    weights, tokenizer = weights_of(codec), codec.bundle.tokenizer
    room = weights.shape.block + weights.shape.memory
    with (
        llama_model.opened(weights, 1, room) as model,
        Progress(LLAMA, unit="sessions", total=2 * len(group.sessions), shown=shown) as bar,
    ):
        coder = LlamaZip(model, weights)
        start = busy()
        tokens = transcript.to_tokens_many(group.sessions, tokenizer)
        coded = [coder.encode(ids) for ids in watched(tokens, bar)]
        middle = busy()
        triples = zip(group.sessions, coded, tokens, strict=True)
        back = [
            transcript.from_tokens(session.kind, coder.decode(one, len(ids)), tokenizer)
            for session, one, ids in watched(triples, bar)
        ]
        end = busy()
    if any(a.difference(b) for a, b in zip(group.sessions, back, strict=True)):
        raise ModelError(f"{LLAMA}: a session came back changed: no figure of this run is valid")
    return Spent(group.content, sum(map(len, coded)), middle - start, end - middle)


# ---- reporting


def spent_by(coder: FieldCoder, groups: Sequence[SessionGroup]) -> list[Spent]:
    """Measure a coder on each group. One session is coded before the clock runs."""
    coder.run(SessionGroup("warm", groups[0].sessions[:1]))
    return [coder.run(group) for group in groups]


def about(name: str, settings: str, spent: Sequence[Spent]) -> dict[str, Any]:
    """Return a coder's figures for the sessions, which come first, and for each file."""
    first, *files = map(group_about, spent)
    frames = {"frame_bytes": sum(cost.frame_bytes for cost in spent[0].costs)} if spent[0].costs else {}
    return {"name": name, "settings": settings, **first, **frames, "files": files}


def group_about(spent: Spent) -> dict[str, Any]:
    """Return the rate, and the bytes of content per processor second."""
    return {
        "bytes": spent.size,
        "bits_per_byte": round(8 * spent.size / spent.content, 5),
        "encode_bytes_per_s": round(spent.content / spent.encode_s, 1),
        "decode_bytes_per_s": round(spent.content / spent.decode_s, 1),
    }


def file_about(file: SessionGroup, ours: Spent) -> dict[str, Any]:
    """Return a file's bytes, and whether its frame keeps the rule."""
    import zstandard

    data: bytes = file.sessions[0].value
    [cost] = ours.costs
    plain = len(zstandard.ZstdCompressor(level=19).compress(data))
    return {
        "name": file.name,
        "bytes": len(data),
        "frame_bytes": cost.frame_bytes,
        "by_model": cost.by_model,
        "zstd_19_bytes": plain,
        "within_rule": cost.frame_bytes <= RULE[0] * plain + RULE[1],
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the table, the files' rule, and the machine."""
    files = result["files"]
    shown = files[:FILE_COLUMNS]
    head = ["coder", "bytes", "bits/B", "encode", "decode", *(f"{file['name']} b/B" for file in shown)]
    lines = [
        [
            found["name"],
            f"{found['bytes']:,}",
            f"{found['bits_per_byte']:.3f}",
            f"{size(found['encode_bytes_per_s'])}/s",
            f"{size(found['decode_bytes_per_s'])}/s",
            *(f"{one['bits_per_byte']:.3f}" for one in found["files"][:FILE_COLUMNS]),
        ]
        for found in result["coders"]
    ]
    parts = [
        f"{result['sessions']:,} sessions of {result['sources']} sources, {size(result['content_bytes'])}",
        render(head, lines),
    ]
    if files:
        head = ["file", "bytes", "frame", "coded by", "zstd -19", f"{RULE[0]} x zstd + {RULE[1]}"]
        parts.append(render(head, [rule_cells(file) for file in files]))
    on = result["machine"]
    parts.append(f"speeds are bytes of content per processor second; {on['cpu']}, engine: {on['engine']}")
    return "\n\n".join(parts)


def rule_cells(file: dict[str, Any]) -> list[str]:
    """Return one line of the second table."""
    return [
        file["name"],
        f"{file['bytes']:,}",
        f"{file['frame_bytes']:,}",
        "model" if file["by_model"] else "fallback",
        f"{file['zstd_19_bytes']:,}",
        "kept" if file["within_rule"] else "BROKEN",
    ]

"""``pltz bench codec``: measure bytes and speed of the codec by source of sessions, next to general compressors.

It ends with one line of JSON that holds every figure of the table, exact, and the machine.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from pltz.archive.humanize import size
from pltz.cli.bench import machine, shared
from pltz.cli.bench.codec import compressors as peers, corpus, measure
from pltz.cli.bench.codec.compressors import Peer
from pltz.cli.bench.codec.corpus import SampleSession
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.cli.bench.codec.measure import SessionCost
    from pltz.coding.codec import Codec


@click.command(
    cls=Command,
    short_help="Bytes and speed, next to zstd.",
    examples=[
        "pltz bench codec",
        "pltz bench codec --data chats.jsonl.zst --limit-bytes 300000",
        "pltz bench codec --bundle ./my-bundle --data held-out/ --json",
    ],
)
@shared.DATA
@shared.limit_bytes(300_000)
@options.coder_options
@shared.JSON
def codec(
    data: str | None,
    limit_bytes: int,
    bundle: str | None,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Measure the codec and a bundle on sessions. The source of one is its id up to the last "-", or its file's name.

    All bytes of the .pltz file count. zstd -19, without and with the bundle's dictionary, codes each session alone,
    without magic numbers, checksums or lengths, in the rendering that suits it better. Every size, its and ours, is of
    data that was decoded back and compared.
    """
    shown = wanted(progress)
    records = corpus.select(corpus.read(data), limit_bytes)
    if not records:
        raise UsageError(f"no session of at most {limit_bytes} content bytes: raise --limit-bytes")
    loaded = options.load_codec(bundle, device, threads)
    others = [peers.zstd_peer(b""), *(peers.zstd_peer(one) for one in [loaded.bundle.zstd_dict] if one)]
    result = {
        "benchmark": "codec",
        "data": data or "sample sessions",
        "limit_bytes": limit_bytes,
        **figures(loaded, records, others, shown=shown),
        "machine": machine.describe(loaded.coder, device, threads),
    }
    if not as_json:
        write_text(as_text(result) + "\n")
    write_text(json.dumps(result))


def figures(
    loaded: "Codec", records: Sequence[SampleSession], others: Sequence[Peer], *, shown: bool = False
) -> dict[str, Any]:
    """Measure the codec and its peers on records, each decoded back and compared.

    The records of one source follow each other in ``records``.
    """
    sessions = [record.session for record in records]
    run = measure.run(loaded, sessions, shown=shown)
    sizes = [peer_sizes(peer, records, shown) for peer in others]
    return {
        "bundle": loaded.bundle.id.hex(),
        **rows(records, run.costs, sizes),
        "file_bytes": len(run.data),
        "encode_tokens_per_s": round(run.tokens / run.encode_s, 1),
        "decode_tokens_per_s": round(run.tokens / run.decode_s, 1),
        "peers": {found.peer.name: found.about() for found in sizes},
    }


@dataclass(frozen=True)
class PeerSizes:
    """The bytes that a peer needs for each session, in the rendering that suits it better."""

    peer: Peer
    rendering: str
    sizes: list[int]  # bytes of each session
    totals: dict[str, int]  # bytes by rendering

    def about(self) -> dict[str, Any]:
        """Return settings and totals."""
        return {"settings": self.peer.settings, "rendering": self.rendering, "totals": self.totals}


def peer_sizes(peer: Peer, records: Sequence[SampleSession], shown: bool) -> PeerSizes:
    """Run a peer over all sessions in each rendering, and keep the one with the smaller total."""
    found: dict[str, list[int]] = {}
    with Progress(peer.name, unit="sessions", total=len(records) * len(peers.RENDERINGS), shown=shown) as bar:
        for name in peers.RENDERINGS:
            found[name] = []
            for record in records:
                found[name].append(peer.size(peers.rendered(record.session, name)))
                bar.add(1)
    totals = {name: sum(sizes) for name, sizes in found.items()}
    best = min(totals, key=lambda name: totals[name])
    return PeerSizes(peer, best, found[best], totals)


def rows(
    records: Sequence[SampleSession], costs: "Sequence[SessionCost]", sizes: Sequence[PeerSizes]
) -> dict[str, Any]:
    """Return the figures of each source and of all. The records of one source follow each other in ``records``."""
    groups = {source: list(found) for source, found in groupby(range(len(records)), lambda i: records[i].source)}
    return {
        "total": row("total", range(len(records)), records, costs, sizes),
        "sources": [row(source, found, records, costs, sizes) for source, found in groups.items()],
    }


def row(
    name: str,
    chosen: Sequence[int],
    records: Sequence[SampleSession],
    costs: "Sequence[SessionCost]",
    sizes: Sequence[PeerSizes],
) -> dict[str, Any]:
    """Return the figures of some sessions, with sizes in bytes."""
    mine = [costs[i] for i in chosen]
    content = sum(records[i].content_bytes for i in chosen)
    tokens = sum(cost.tokens for cost in mine)
    total = sum(cost.file_bytes for cost in mine)
    others = {found.peer.name: sum(found.sizes[i] for i in chosen) for found in sizes}
    best = min(others, key=lambda peer: others[peer], default=None)
    return {
        "source": name,
        "sessions": len(mine),
        "content_bytes": content,
        "tokens": tokens,
        "pltz_bytes": round(total, 1),
        "bits_per_byte": ratio(8 * total, content),
        "bits_per_token": ratio(8 * total, tokens),
        "frame_overhead_bytes": ratio(total - sum(cost.frame_bytes for cost in mine), len(mine)),
        "fallback_sessions": sum(not (cost.by_model or cost.log) for cost in mine),
        "log_sessions": sum(cost.log for cost in mine),
        "peer_bytes": others,
        "best_peer": best,
        "best_peer_over_pltz": ratio(others[best], total) if best else None,
    }


def ratio(above: float, below: float) -> float | None:
    """Return a quotient to five places, or None where the divisor is zero."""
    return round(above / below, 5) if below else None


def as_text(result: dict[str, Any]) -> str:
    """Return the table, a line of speeds, and how to read them."""
    names = list(result["peers"])
    head = ["source", "sessions", "content", "pltz", "bits/B", "bits/tok", "frame B"]
    head += [f"{name} b/B" for name in names] + ["best peer", "times"]
    lines = [cells(found, names) for found in [*result["sources"], result["total"]]]
    on = result["machine"]
    speed = (
        f"encode {result['encode_tokens_per_s']:,.0f} tokens/s, decode {result['decode_tokens_per_s']:,.0f} "
        f"tokens/s on {on['device']} ({on['cpu']}, {on['cores']} cores; engine: {on['engine']})"
    )
    legend = (
        "bits/B: bits per byte of message content, all bytes of the file counted. frame B: bytes per session beside\n"
        "its frame. times: best peer's bytes over ours."
    )
    return f"{render(head, lines)}\n\n{speed}\n{legend}"


def cells(found: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return one line of the table."""
    content = found["content_bytes"]
    rates = [ratio(8 * found["peer_bytes"][name], content) for name in names]
    return [
        found["source"],
        f"{found['sessions']:,}",
        size(content),
        size(found["pltz_bytes"]),
        number(found["bits_per_byte"], 3),
        number(found["bits_per_token"], 2),
        number(found["frame_overhead_bytes"], 1),
        *(number(rate, 3) for rate in rates),
        found["best_peer"] or "-",
        number(found["best_peer_over_pltz"], 2),
    ]


def number(value: float | None, places: int) -> str:
    """Return a figure to some places, or - for None."""
    return "-" if value is None else f"{value:.{places}f}"

"""The stack end to end: a deployment in an archive and a store of KV, bytes at every level, milliseconds to each tier.

    python -m pltz.experiments stack                                # minutes on two cores
    python -m pltz.experiments stack --communities 5 --bots 20 --sessions 40

The case of Towers of Segments, tables 1 to 4: one platform, 50 communities, 500 bots, and sessions of real chats. All
goes into an archive, by token ids. Some sessions are thawed into stores with memory and disk and found there again. The
rebuilt KV is compared with that of a prefill. The run ends with one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from pltz.cli.bench import machine, shared
from pltz.cli.bench.codec import corpus
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.cli.ui.progress import Progress, wanted
from pltz.cli.ui.table import render
from pltz.coding.partners import DEFAULT_TARGET
from pltz.experiments.deployment import LEVELS, Deployment
from pltz.plt_codec.errors import ModelError

BATCH = 100  # sessions per put


@click.command(
    cls=Command,
    short_help="A deployment of 500 bots: bytes at every level, milliseconds to each tier.",
    examples=["python -m pltz.experiments stack --communities 5 --bots 20 --sessions 40 --json"],
)
@click.option("--target", "model", default=DEFAULT_TARGET, show_default=True, metavar="MODEL", help="The served model.")
@shared.DATA
@options.count("--communities", 50, "Communities, at most 50.")
@options.count("--bots", 500, "Bots, at most 500.")
@options.count("--sessions", 200, "Sessions; chats repeat where there are fewer.")
@options.count("--platform", 1024, "Tokens of the platform's prompt, at most.")
@options.count("--thaws", 12, "Sessions that are thawed.")
@options.coder_options
@shared.JSON
def stack(
    model: str, data: str | None, communities: int, bots: int, sessions: int, platform: int, thaws: int,
    bundle: str | None, threads: int | None, device: str, progress: bool | None, as_json: bool,
) -> None:  # fmt: skip
    """Fill an archive with a deployment, thaw sessions of it through every tier, and compare their KV."""
    from pltz.archive.archive import Archive
    from pltz.models.target.target import Target

    target = Target.load(model, device)
    chats = [record.session for record in corpus.read(data)]
    here = Deployment.made(
        target, chats, communities=communities, bots=bots, count=sessions, platform=platform
    )
    with tempfile.TemporaryDirectory(prefix="pltz-stack-") as folder:
        place = Path(folder) / "cold"
        cold = Archive.open(place, create=True, model_ids=True, bundle=bundle, threads=threads)
        start = time.perf_counter()
        coded = here.put_prompts(cold, target)
        coded[LEVELS[3]] = 0
        with Progress("put", unit="sessions", total=sessions, shown=wanted(progress)) as bar:
            for first in range(0, sessions, BATCH):
                last = min(first + BATCH, sessions)
                coded[LEVELS[3]] += here.put_sessions(cold, target, first, last)
                bar.add(last - first)
        put_s = time.perf_counter() - start
        files = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        chosen = sorted({n * sessions // thaws for n in range(thaws)})
        tiers = through_tiers(cold, target, here, chosen, Path(folder) / "warm")
    result: dict[str, Any] = {
        "benchmark": "stack", "target": Path(model).name, "dtype": str(target.model.dtype).removeprefix("torch."),
        "data": Path(data).name if data else "sample sessions", "distinct_chats": min(len(chats), sessions),
        "kv_per_token": target.token_bytes, "levels": levels(here, coded, target.token_bytes), "files": files,
        "put_s": put_s, "tiers": tiers, "machine": machine.describe(None, device, threads),
    }  # fmt: skip
    write_text(json.dumps(result) if as_json else f"{as_text(result)}\n\n{json.dumps(result)}")


def levels(here: Deployment, coded: dict[str, int], token: int) -> list[dict[str, Any]]:
    """Return segments, tokens and bytes of each level: KV, KV if each session had its own, and coded."""
    of_sessions = [here.tower(n) for n in range(len(here.chats))]
    return [
        {
            "level": level, "segments": len(segments), "tokens": sum(map(len, segments)),
            "kv_alone": token * sum(len(tower[n]) for tower in of_sessions),
            "kv": token * sum(map(len, segments)), "coded": coded[level],
        }
        for n, (level, segments) in enumerate(here.levels().items())
    ]  # fmt: skip


def through_tiers(
    cold: Any, target: Any, here: Deployment, chosen: Sequence[int], folder: Path
) -> list[dict[str, Any]]:
    """Return the median milliseconds to the KV of sessions from each tier. Raises ModelError where KV differs."""
    from pltz.kv.store.store import KVStore
    from pltz.kv.thaw.thawed import kv_difference
    from pltz.kv.thaw.thawer import Thawer

    tokens = 3 * sum(len(part) for n in chosen for part in here.tower(n))
    found: dict[str, list[float]] = {}
    thawer = Thawer(cold, target, KVStore.open(target, tokens))
    target.prefill(np.concatenate(here.tower(chosen[0])))  # the first pass pays for what all share
    for n in chosen:
        ids = np.concatenate(here.tower(n))
        began = time.perf_counter()
        exact, _ = target.prefill(ids)
        found.setdefault("a prefill", []).append(1e3 * (time.perf_counter() - began))
        alone = Thawer(cold, target, KVStore.open(target, tokens)).thaw(f"session/{n}")
        if not np.array_equal(alone.token_ids, ids) or kv_difference(exact, alone.cache) > 0.1:
            raise ModelError(f"session {n} did not come back: no figure of this run is valid")
        found.setdefault("cold, nothing hot", []).append(alone.timings["total"])
        for name in ("decode", "prefill"):
            found.setdefault(f"of it {name}", []).append(alone.timings[name])
    # A platform that runs: its prompts are hot, a chat is cold.
    for level, part in enumerate(LEVELS[:3]):
        for n in chosen:
            number = (0, here.community_of_bot(here.bot_of(n)), here.bot_of(n))[level]
            thawer.thaw(f"{part}/{number}")
    for n in chosen:
        found.setdefault("cold, prompts hot", []).append(thawer.thaw(f"session/{n}").timings["total"])
    stores = {
        "disk, in the page cache": KVStore.open(
            target, disk_bytes=target.token_bytes * tokens + (1 << 24), folder=folder, queue_bytes=1 << 40
        ),
        "host memory": KVStore.open(target, 16, tokens),
        "the target's memory": KVStore.open(target, tokens),
    }
    for tier, store in stores.items():
        filled = Thawer(cold, target, store)
        for n in chosen:
            filled.thaw(f"session/{n}")
        store.drain()
        missed = store.stats().miss_tokens
        for n in chosen:
            found.setdefault(tier, []).append(filled.thaw(f"session/{n}").timings["total"])
        if store.stats().miss_tokens - missed > 16 * len(chosen):
            raise ModelError(f"a session was not found in {tier}: no figure of this run is valid")
        store.close()
    return [{"tier": tier, "ms": statistics.median(ms), "most": max(ms)} for tier, ms in found.items()]


def as_text(result: dict[str, Any]) -> str:
    """Return the two tables."""
    names = "segments", "tokens", "kv_alone", "kv", "coded"
    sum_of = {name: sum(row[name] for row in result["levels"]) for name in names}
    rows = [
        [
            row["level"], f"{row['segments']:,}", f"{row['tokens']:,}", f"{row['kv_alone'] / 1e6:,.1f}",
            f"{row['kv'] / 1e6:,.1f}", f"{row['coded']:,}", f"{8 * row['coded'] / row['tokens']:.2f}",
            f"{row['coded'] / row['segments']:,.0f}",
        ]
        for row in (*result["levels"], {"level": "all", **sum_of})
    ]  # fmt: skip
    head = ["level", "segments", "tokens", "KV alone, MB", "KV shared, MB", "coded, B", "bits/token", "B each"]
    tiers = [[row["tier"], f"{row['ms']:,.1f}", f"{row['most']:,.1f}"] for row in result["tiers"]]
    note = f"All files of the archive: {result['files']:,} B. Put in {result['put_s']:,.0f} s, decoded and compared."
    return f"{render(head, rows)}\n\n{note}\n\n{render(['from', 'ms, median', 'most'], tiers)}"

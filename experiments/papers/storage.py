"""Rows of theorem 14 and of tables 1, 3 and 4: an archive of a deployment, its bytes and its thaws."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pltz.experiments.papers.row import TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.experiments.papers.work import Work

LAYERS_70B = 80  # 8 key heads of 128 each, 16 bits
KV_70B = LAYERS_70B * 2 * 8 * 128 * 2  # bytes per token
LAYERS_8B = 32  # the same heads
MACHINES = (
    ("32 GB, 8B", 32e9, LAYERS_8B, 3_000),
    ("128 GB, 8B", 128e9, LAYERS_8B, 20_000),
    ("256 GB, 70B", 256e9, LAYERS_70B, 5_000),
    ("1 TB, 70B", 1e12, LAYERS_70B, 25_000),
    ("4 TB, 70B", 4e12, LAYERS_70B, 100_000),
)  # of table 2: memory, and warm sessions in it


def rows(work: Work) -> list[PaperRow]:
    """Return the rows of theorems 14 and 23 and of tables 1, 3 and 4, of an archive that is made, and its thaws."""
    from pltz.archive.archive import Archive
    from pltz.kv.store.store import KVStore
    from pltz.kv.thaw.thawer import Thawer

    here, target, token = work.deployment, work.target, work.target.token_bytes
    counts = [work.count // 8, work.count // 2, work.count]
    levels = here.levels()
    prompts = sum(len(one) for level in list(levels.values())[:3] for one in level)
    with tempfile.TemporaryDirectory(prefix="pltz-bench-") as folder:
        place = Path(folder) / "cold"
        cold = Archive.open(place, create=True, bundle=work.bundle, threads=work.threads, model_ids=True)
        shared = sum(here.put_prompts(cold, target).values())
        before = _size(Path(folder))
        steps, own, done = [], 0, 0
        for count in counts:
            own += here.put_sessions(cold, target, done, count)
            done = count
            steps.append((count, (shared + own) / count, own / count, (_size(Path(folder)) - before) / count))
        found = [_shared(steps, shared), _table_4(work, shared, own)]
        found += [_per_session(work, own), _machines(work)]
        thawer = Thawer(cold, target, KVStore.open(target, 1 << 15))
        times = [thawer.thaw(f"session/{n}").timings for n in range(4)]
        again = [thawer.thaw(f"session/{n}").timings for n in range(4)]
    middle = {name: statistics.median(one[name] for one in times) for name in ("read", "decode", "prefill", "total")}
    warm = statistics.median(one["total"] for one in again)
    tokens = statistics.mean(sum(map(len, here.tower(n))) for n in range(len(times)))
    found.append(
        PaperRow(
            TOWERS, "10.5", "a thaw: read, decode, one prefill; then hot",
            "0.5 to 1, 5 to 15, 100 to 500 ms; then free",
            f"{tokens:,.0f} tokens, this machine: {middle['read']:.1f}, {middle['decode']:.0f}, "
            f"{middle['prefill']:.0f}, all {middle['total']:.0f} ms; again {warm:.1f} ms",
            verdict(middle["decode"] <= 15 and middle["total"] <= 515 and warm < 10, warm < middle["total"] / 10),
            "times are of this machine, a CPU unless --device says otherwise; what is read and what is hot is as said",
        )
    )  # fmt: skip
    kv_shared = (prompts + sum(map(len, here.chats))) * token / work.count
    kv_alone = sum(sum(map(len, here.tower(n))) for n in range(work.count)) * token / work.count
    floor = sum(map(len, here.chats)) * token / work.count
    found.append(
        PaperRow(
            TOWERS, "Theorem 14, KV", f"KV per session of {work.count}, each segment once", "own part + prompts / N",
            f"{kv_shared / 1e6:.2f} MB; own part {floor / 1e6:.2f}, unshared {kv_alone / 1e6:.2f}",
            verdict(abs(kv_shared - floor - prompts * token / work.count) < 1), "",
        )
    )  # fmt: skip
    return found


def _shared(steps: Sequence[tuple[int, float, float, float]], shared: int) -> PaperRow:
    """Return the row of theorem 14 and table 1 in coded bytes. ``steps``: N, all and own bytes each, and of files."""
    leaf = steps[-1][2]
    said = [leaf + shared / count for count, *_ in steps]
    off = max(abs(one[1] - two) / two for one, two in zip(steps, said, strict=True))
    pairs = zip(steps, said, strict=True)
    measured = "; ".join(f"N={one[0]}: {one[1]:,.0f} B, by the formula {two:,.0f}" for one, two in pairs)
    return PaperRow(
        TOWERS, "Theorem 14, Table 1", "coded bytes per session against N", "own bytes + prompts / N",
        f"{measured}; files add {steps[-1][3] - leaf:,.0f} B each", verdict(off < 0.1, off < 0.5),
        f"the mean of the first chats differs from that of all: the formula is off by {off:.0%} at most",
    )  # fmt: skip


def _table_4(work: Work, shared: int, own: int) -> PaperRow:
    here, token = work.deployment, work.target.token_bytes
    raw = sum(sum(map(len, here.tower(n))) for n in range(work.count)) * token
    tokens = sum(len(one) for level in here.levels().values() for one in level)
    ratio = raw / (shared + own)
    big = sum(sum(map(len, here.tower(n))) for n in range(work.count)) * KV_70B / (shared + own)
    return PaperRow(
        TOWERS, "Table 4", "KV of a deployment over its coded tokens", "850,000 times",
        f"{raw / 1e6:,.0f} MB to {shared + own:,} B: {ratio:,.0f} times; with 70B's KV {big:,.0f}; "
        f"{8 * (shared + own) / tokens:.2f} bits per token", verdict(big >= 850_000, big >= 425_000),
        "the ratio is that of the target's KV per token and of how many sessions share the prompts",
    )  # fmt: skip


def _per_session(work: Work, own: int) -> PaperRow:
    tokens = sum(map(len, work.deployment.chats)) / work.count
    size = own / work.count
    return PaperRow(
        TOWERS, "12.3, Corollary 33", "a session's own content", "100 to 500 B",
        f"{size:,.0f} B of {tokens:,.0f} tokens", verdict(size <= 500, size <= 1000), "",
    )  # fmt: skip


def _machines(work: Work) -> PaperRow:
    """Return the row of table 2: sessions in memory, by the tokens of one here and the bytes of pages of q4."""
    import torch

    from pltz.kv.pool.page_format import PageFormat

    here = work.deployment
    prompts = sum(len(one) for level in list(here.levels().values())[:3] for one in level)
    tokens = (prompts + sum(map(len, here.chats))) / work.count
    told, shares = [], []
    for name, memory, layers, said in MACHINES:
        pages = PageFormat("q4", layers, 8, 128, torch.bfloat16, work.rotary, torch.zeros(layers, 2, 8, 128))
        fit = memory / (tokens * pages.token_bytes)
        told.append(f"{name}: {fit:,.0f}")
        shares.append(fit / said)
    return PaperRow(
        TOWERS, "Table 2", "warm sessions in a machine's memory", ", ".join(f"{said:,}" for *_, said in MACHINES),
        f"{tokens:,.0f} tokens each with their share of the prompts, q4 pages, nothing else in memory: "
        + "; ".join(told), verdict(min(shares) >= 0.9, max(shares) >= 0.9),
        "its 6 MB per session of 8B are 178 tokens and its 40 MB of 70B 473: chats here are longer than the first",
    )  # fmt: skip


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and "parity" not in path.parts)

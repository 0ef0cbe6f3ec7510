"""Measure joint encoding: compression against loss, what the Poisson estimate says of it, and what it does to a server.

Thresholds are chosen on rows of their own (`Estimates`), so the estimate is compared with sessions that it has not
seen. Bytes are those of pages, tables and norms; a page has 16 bits per number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pltz.experiments.joint.fused_pool import BLOCK, FusedPool, FusedSession
from pltz.experiments.joint.similarity import Similarity, no_fusion, ratio
from pltz.kv.errors import PoolFull
from pltz.kv.pool.page_format import PageFormat
from pltz.models.target.cache import cache_argument
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch

    from pltz.experiments.kv_rows import KVRows

BFF, CENTRED, CFF = STRATEGIES = "bff", "bff, centred", "cff"
UNFUSED = 2.0  # no cosine is above it
ROUNDS = 3  # of timings, in turn
STEPS = 4  # tokens of a round


@dataclass(frozen=True)
class Setting:
    """Thresholds by layer. ``name``: one cosine for all, or the share of pairs that each layer is to fuse."""

    name: str
    thresholds: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Estimates:
    """Similarity of blocks on rows that are not measured: of several sessions, and of the chunks of one."""

    of_strategy: dict[str, list[Similarity]]

    @classmethod
    def of(cls, rows: KVRows, chunks: int) -> Estimates:
        """Return the estimates of rows. Raises UsageError for rows that are shorter than ``chunks`` blocks."""
        if rows.context // BLOCK < chunks:
            raise UsageError(f"expected contexts of at least {chunks} blocks of {BLOCK} tokens for {chunks} chunks")
        return cls({strategy: similarities(rows, strategy, chunks) for strategy in STRATEGIES})

    def settings(self, strategy: str, cosines: Sequence[float], shares: Sequence[float]) -> list[Setting]:
        """Return a setting for each cosine, the same in all layers, and one for each share of pairs, by layer."""
        layers = len(self.of_strategy[strategy][0].cosines)
        found = [Setting(f"{u:g}", (u,) * layers) for u in cosines]
        for share in shares:
            each = [one.thresholds(share) for one in self.of_strategy[strategy]]
            found.append(Setting(f"{share:.2%} of pairs", tuple(map(statistics.mean, zip(*each, strict=True)))))
        return found

    def gaussian(self, strategy: str, thresholds: Sequence[float]) -> list[float]:
        """Return the share of pairs expected above the threshold of each layer, by a Gaussian."""
        each = [one.gaussian(thresholds) for one in self.of_strategy[strategy]]
        return [statistics.mean(one) for one in zip(*each, strict=True)]

    def kernel(self, strategy: str, thresholds: Sequence[float]) -> list[float]:
        """Return the same by the density of equation 1."""
        each = [one.kernel(thresholds) for one in self.of_strategy[strategy]]
        return [statistics.mean(one) for one in zip(*each, strict=True)]


def pool_for(rows: KVRows, strategy: str, sessions: int = 1) -> FusedPool:
    """Return a pool of a strategy with room for the contexts of so many rows."""
    layers, _, heads, _, dim = rows.kvs[0].shape
    rotary = None if strategy == CFF else rows.rotary
    centre = PageFormat.of(rows.target, "q8").centre if strategy == CENTRED else None
    return FusedPool(layers, heads, dim, sessions * (rows.context // BLOCK * BLOCK), rotary, centre=centre)


def similarities(rows: KVRows, strategy: str, chunks: int) -> list[Similarity]:
    """Return how alike blocks are that a strategy compares: of all rows, or of the chunks of each."""
    pool = pool_for(rows, strategy)
    units = [_units(pool, kv) for kv in rows.kvs]
    return [Similarity.of(one.tensor_split(chunks, 1)) for one in units] if strategy == CFF else [Similarity.of(units)]


def fused(
    rows: KVRows, estimates: Estimates, strategy: str, setting: Setting, batch: int, chunks: int
) -> dict[str, Any]:
    """Return what a setting makes of the rows, fused in groups of ``batch`` or within each: bytes, loss, rates."""
    pool = pool_for(rows, strategy, len(rows.kvs))
    changed: list[torch.Tensor] = []
    held: list[FusedSession] = []
    for first in range(0, len(rows.kvs), batch):
        group = [pool.add("bench", kv) for kv in rows.kvs[first : first + batch]]
        pool.fuse(group, setting.thresholds, chunks=chunks if strategy == CFF else 0)
        changed += map(pool.kv, group)
        held += group
    elements = sum(kv.numel() for kv in rows.kvs)
    kl, top1 = rows.loss(changed)
    blocks = pool.layers * sum(one.tables.shape[1] for one in held)
    return {
        "strategy": strategy, "threshold": setting.name, "thresholds": list(setting.thresholds),
        "ratio": blocks / pool.held, "bits": 8 * pool.nbytes(held) / elements, "kl": kl, "top1": top1,
        **_rates(rows, estimates, strategy, setting, chunks),
    }  # fmt: skip


def _rates(rows: KVRows, estimates: Estimates, strategy: str, setting: Setting, chunks: int) -> dict[str, Any]:
    """Return pairs expected and found, and the compression of two runs, expected and found."""
    pool, blocks = pool_for(rows, strategy, 2), rows.context // BLOCK
    run = blocks // chunks if strategy == CFF else blocks
    seen = similarities(rows, strategy, chunks)
    above = [statistics.mean(one) for one in zip(*(s.above(setting.thresholds) for s in seen), strict=True)]
    by_gaussian, by_kernel = (f(strategy, setting.thresholds) for f in (estimates.gaussian, estimates.kernel))
    found: dict[str, Any] = {
        "pairs": [one * run**2 for one in above],
        "gaussian": [one * run**2 for one in by_gaussian],
        "kernel": [one * run**2 for one in by_kernel],
        "layers_that_fuse_nothing": sum(no_fusion(one, run, run) > 0.5 for one in by_gaussian),
        "two_expected": ratio(by_gaussian, run, run),
        "two_by_kernel": ratio(by_kernel, run, run),
    }
    if strategy != CFF:
        got = []
        for a, b in zip(rows.kvs[::2], rows.kvs[1::2], strict=False):
            pair = [pool.add("bench", kv) for kv in (a, b)]
            pool.fuse(pair, setting.thresholds)
            got.append(2 * pool.layers * blocks / pool.held)
            for one in pair:
                pool.release(one)
        found["two_found"] = statistics.mean(got)
    return found


def alike(rows: KVRows, cosine: float) -> float:
    """Return the share of blocks whose keys have a larger cosine with a block of another row."""
    import torch

    pool = pool_for(rows, BFF)
    units = torch.stack([_units(pool, kv) for kv in rows.kvs], 1)  # (layers, rows, blocks, r)
    owner = torch.arange(units.shape[1]).repeat_interleave(units.shape[2])
    shares = []
    for layer in units.flatten(1, 2):
        near = layer @ layer.mT > cosine
        shares.append(float((near & (owner[:, None] != owner[None])).any(1).double().mean()))
    return statistics.mean(shares)


def exact_sharing(rows: KVRows, batch: int) -> float:
    """Return how many times fewer blocks a trie of exact prefixes holds, for groups of ``batch`` rows."""
    left, count = 0, rows.context // BLOCK
    for first in range(0, len(rows.drawn), batch):
        group = rows.drawn[first : first + batch]
        left += len({row[: (n + 1) * BLOCK].tobytes() for row in group for n in range(count)})
    return len(rows.drawn) * count / left


def fill(pool: FusedPool, kvs: Sequence[torch.Tensor], thresholds: Sequence[float]) -> list[FusedSession]:
    """Return the sessions that fit in a pool, of as many as there are: whenever it is full, all of them are fused."""
    sessions: list[FusedSession] = []
    for kv in kvs:
        try:
            sessions.append(pool.add("bench", kv))
        except PoolFull:
            pool.fuse(sessions, thresholds)
            try:
                sessions.append(pool.add("bench", kv))
            except PoolFull:
                break
    return sessions


def served(rows: KVRows, settings: Sequence[Setting], room: int) -> list[dict[str, Any]]:
    """Return how many sessions fit where ``room`` of them fit unfused, what they lose, and tokens per second.

    All decode over the same code: pages of a layer are gathered, turned, and attended to by torch. The first row is
    the unfused pool. ``more``: whether there were no more sessions to put in.
    """
    from pltz.experiments.joint.fused_cache import fused_cache

    layers = len(rows.kvs[0])
    found: list[dict[str, Any]] = []
    pools = []
    for setting in (Setting("unfused", (UNFUSED,) * layers), *settings):
        pool = pool_for(rows, BFF, room)
        began = time.perf_counter()
        sessions = fill(pool, rows.kvs, setting.thresholds)
        seconds = time.perf_counter() - began
        kl, top1 = rows.loss([pool.kv(one) for one in sessions])
        pools.append((pool, sessions))
        found.append(
            {
                "threshold": setting.name, "sessions": len(sessions), "more": len(sessions) == len(rows.kvs),
                "kl": kl, "top1": top1, "fusing_s": seconds,
            }
        )  # fmt: skip
    times: list[list[float]] = [[] for _ in pools]
    for _ in range(ROUNDS):
        for n, (pool, sessions) in enumerate(pools):
            times[n].append(_decode_s(rows, fused_cache(pool, sessions), len(sessions)))
    for one, seconds_of in zip(found, times, strict=True):
        one["tokens_per_s"] = one["sessions"] * STEPS / statistics.median(seconds_of)
    found.append(_plain(rows, room))
    return found


def _plain(rows: KVRows, room: int) -> dict[str, Any]:
    """Return tokens per second over raw pages of the pool, read as they lie. The target attends so afterwards."""
    from pltz.kv.pool.batch_cache import BatchKVCache
    from pltz.kv.pool.block_pool import BlockPool
    from pltz.kv.pool.packed_session import PackedSession
    from pltz.kv.pool.page_attention import use_pages

    pool = BlockPool.of(rows.target, "raw", room * (rows.context + BLOCK))
    sessions = [PackedSession.of(kv, pool, keep=0) for kv in rows.kvs[:room]]
    use_pages(rows.target.model)
    times = []
    for _ in range(ROUNDS):
        cache = BatchKVCache.merge(sessions)
        times.append(_decode_s(rows, cache, room))
        cache.release()
    return {"threshold": "plain pages", "sessions": room, "tokens_per_s": room * STEPS / statistics.median(times)}


def _decode_s(rows: KVRows, cache: Any, count: int) -> float:
    """Return the seconds of decoding `STEPS` tokens of a batch."""
    import torch

    follow = torch.from_numpy(rows.drawn[:count, rows.context : rows.context + STEPS + 1].astype("int64"))
    model: Any = rows.target.model
    with torch.inference_mode():
        model(input_ids=follow[:, :1], **cache_argument(model, cache))
        began = time.perf_counter()
        for n in range(1, STEPS + 1):
            model(input_ids=follow[:, n : n + 1], **cache_argument(model, cache))
        return time.perf_counter() - began


def _units(pool: FusedPool, kv: torch.Tensor) -> torch.Tensor:
    """Return the unit directions of keys of a KV's blocks, (layers, blocks, r)."""
    import torch

    return torch.nn.functional.normalize(pool.directions(kv)[:, 0], dim=-1)

"""Rows of theorem 23: the product of single savings beside what all of them take together."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.experiments.papers.row import TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    import torch

    from pltz.experiments.papers.work import Work
    from pltz.kv.port.rotary import Rotary


def rows(work: Work) -> list[PaperRow]:
    """Return the rows of theorem 23: the product of single factors beside what all together take."""
    from pltz.kv.calibrate.measure import bits_of, watched
    from pltz.kv.kv_forms import row_forms
    from pltz.kv.port.codec import Span

    here, codec = work.deployment, row_forms(work.target)["q4"]
    raw = quantised = once = both = 0
    seen: set[bytes] = set()
    kept: list[torch.Tensor] = []
    for n in range(min(8, work.count)):
        tower = here.tower(n)
        ids = np.concatenate(tower).astype(np.int32)
        kv, mass = watched(work.target, ids)
        kept.append(kv)

        def packed(begin: int, end: int, kv: Any = kv, mass: Any = mass, ids: Any = ids) -> int:
            part = codec.encode(kv[:, :, :, begin:end], Span(ids[begin:end], begin, mass[begin:end]))
            return sum(bits_of(name, one) for name, one in part.items()) // 8

        raw += 2 * kv.numel()  # as in 16 bits
        quantised += packed(0, len(ids))
        begin = 0
        for segment in tower:
            end = begin + len(segment)
            name = ids[:end].tobytes()
            if name not in seen:
                seen.add(name)
                once += 2 * kv[:, :, :, begin:end].numel()
                both += packed(begin, end)
            begin = end
    q, t = raw / quantised, raw / once
    product, total = q * t, raw / both
    explained = statistics.mean(_by_previous(kv, work.rotary) for kv in kept)
    gain = 0.5 * math.log2(1 / max(1 - explained, 1e-9))
    bits = 16 / q
    d = bits / max(bits - max(gain, 0.0), 1e-9)
    return [
        PaperRow(
            TOWERS, "Theorem 23", "Q, P and T together against the product", "the product of the factors",
            f"Q {q:.2f}, P and T {t:.2f}: product {product:.2f}, measured {total:.2f}",
            verdict(False, total >= 0.85 * product),
            "P and T are one saving: what is stored once is counted once, so a factor for each would count it twice. "
            "Segments kept apart each pay for their finer first and most attended tokens",
        ),
        PaperRow(
            TOWERS, "Theorem 23, D", "delta coding to the token before", "30 times",
            f"it explains {explained:.0%} of keys and values: {gain:.2f} bits per element, {d:.2f} times after Q",
            verdict(d >= 30, d >= 10),
            "KV follows from the token exactly, but the vector before tells little of the next; prediction across "
            "layers tells more (the form predictive)",
        ),
    ]  # fmt: skip


def _by_previous(kv: torch.Tensor, rotary: Rotary) -> float:
    """Return the share of the variance of un-rotated keys, and of values, that the best gain on the last explains."""
    found = []
    for one in (rotary.turn(kv[:, 0], 0, back=True), kv[:, 1]):
        x = (one - one.mean(2, keepdim=True)).double()
        now, last = x[:, :, 1:], x[:, :, :-1]
        gain = (now * last).sum((2, 3)) / last.square().sum((2, 3)).clamp_min(1e-12)
        left = (now - gain[:, :, None, None] * last).square().sum((2, 3)) / now.square().sum((2, 3)).clamp_min(1e-12)
        found.append(1 - float(left.mean()))
    return statistics.mean(found)

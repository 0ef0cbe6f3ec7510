"""The row of 10.3: rare tokens give way to the most probable ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.cli.bench.papers.row import TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.cli.bench.papers.work import Work


def rows(work: Work) -> list[PaperRow]:
    """Return the row of 10.3: what tokens cost and lose where rare ones give way to the most probable ones."""
    from pltz.kv.calibrate.measure import prefilled

    told, kept, small = [], [], []
    before = _code_lengths(work, [row[: work.context] for row in work.drawn])
    for bits in (8, 14):
        changed, replaced = [], 0
        for row, cost in zip(work.drawn, before, strict=True):
            ids = row[: work.context].copy()
            rare = cost[0] > bits
            ids[1:][rare] = cost[1][rare]
            replaced += int(rare.sum())
            changed.append(ids)
        after = _code_lengths(work, changed)
        kl, same = work.loss([prefilled(work.target, ids) for ids in changed])
        share = replaced / (work.context - 1) / len(work.drawn)
        more = sum(float(one[0].sum()) for one in after) / sum(float(one[0].sum()) for one in before) - 1
        told.append(f"below 2^-{bits} ({share:.1%}): {more:+.0%} bits, KL {kl:.3f}, top-1 {same:.0%}")
        kept.append(more)
        small.append(kl)
    return [
        PaperRow(
            TOWERS, "10.3", "rare tokens replaced by probable ones, to rebuild KV alone", "shorter, with bounded drift",
            "; ".join(told) + ", by the target's own probabilities",
            verdict(max(kept) < 0 and max(small) < 0.01, min(kept) < 0),
            "rare tokens are what a chat is about: without them the next ones are harder to predict",
        )
    ]  # fmt: skip


def _code_lengths(work: Work, rows: Sequence[NDArray[Any]]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return of each row (T,) the target's code length of its ids but the first, in bits, and its likeliest ids."""
    import torch

    found = []
    for row in rows:
        ids = torch.from_numpy(row.astype(np.int64))[None].to(work.target.device)
        with torch.inference_mode():
            model: Any = work.target.model
            logits = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        bits = -logits.gather(-1, ids[0, 1:, None])[:, 0] / math.log(2)
        found.append((bits.cpu().numpy(), logits.argmax(-1).cpu().numpy().astype(np.int32)))
    return found

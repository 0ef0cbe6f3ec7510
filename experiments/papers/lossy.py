"""The row of 10.3: rare tokens give way to the most probable ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.experiments.papers.row import TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.experiments.papers.work import Work


def rows(work: Work) -> list[PaperRow]:
    """Return the row of 10.3: what tokens cost and lose where rare ones give way to the most probable ones."""
    from pltz.experiments.lossy.measure import Before, replaced

    before = Before.of(work, work.codec)
    found = [replaced(before, "at-once", bits) for bits in (8, 14)]
    told = [
        f"below 2^-{one['threshold']} ({one['replaced']:.1%}): {one['bits']:+.0%} bits, {one['bytes']:+.0%} coded "
        f"bytes, KL {one['kl']:.3f}, top-1 {one['top1']:.0%}"
        for one in found
    ]
    more = [max(one["bits"], one["bytes"]) for one in found]
    return [
        PaperRow(
            TOWERS, "10.3", "rare tokens replaced by probable ones, to rebuild KV alone", "shorter, with bounded drift",
            "; ".join(told), verdict(max(more) < 0 and max(one["kl"] for one in found) < 0.01, min(more) < 0),
            "rare tokens are what a chat is about: without them the next ones are harder to predict "
            "(`python -m pltz.experiments lossy`)",
        )
    ]  # fmt: skip

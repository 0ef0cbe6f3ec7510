"""The row of theorem 32: bytes per community after the nearest other one."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from pltz.experiments.papers.row import TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.experiments.papers.work import Work

MEASURED = 12  # of 50 communities are coded after their nearest


def rows(work: Work) -> list[PaperRow]:
    """Return the row of theorem 32: bytes per community after the nearest other one."""
    from pltz.cli.bench.codec import corpus
    from pltz.experiments.communities.communities import sampled
    from pltz.experiments.neighbours import nearest
    from pltz.models.session.session import Session

    def record(text: str) -> corpus.SampleSession:
        session = Session("chat", {"messages": [{"role": "system", "content": text}]})
        return corpus.SampleSession("communities", session, len(text.encode()))

    records = [record(one.prompt) for one in sampled().made]
    [tenant] = nearest.tenants_of(records, work.codec, least=20, most=1500, count=MEASURED)
    bundle: Any = work.codec.bundle
    near = nearest.nearest(tenant, bundle.weights.shape.memory, 3)
    size = nearest.measure(work.codec, tenant, near, 3)
    after, alone = (statistics.mean(one) for one in (size.chosen(3), size.alone))
    return [
        PaperRow(
            TOWERS, "Theorem 32", "bytes per community, of 5 groups", "50",
            f"{after:.0f} after the nearest, {alone:.0f} alone; {len(size.alone)} of 50",
            verdict(after <= 50, after <= 75),
            "a quarter of the sentences are the community's own, and those cost their full code length",
        )
    ]  # fmt: skip

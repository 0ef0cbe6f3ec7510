"""Rows of joint encoding: compression, loss, blocks that are alike, and the Poisson rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.cli.bench.papers.row import JOINT, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.cli.bench.papers.work import Work


def rows(work: Work) -> list[PaperRow]:
    """Return the rows of joint encoding: compression, loss, alike blocks, and the Poisson rate."""
    from pltz.cli.bench.papers.attention_error import fusion_bound
    from pltz.cli.bench.papers.joint_blocks import BLOCK, fuse

    whole = work.context // BLOCK * BLOCK
    kvs = [kv[:, :, :, :whole] for kv in work.kvs]
    found = {}
    for threshold in (0.99, 0.8, 0.7):
        one = fuse(kvs, work.rotary, threshold)
        changed = [kv.clone() for kv in work.kvs]
        for kv, new in zip(changed, one.kvs, strict=True):
            kv[:, :, :, :whole] = new
        found[threshold] = (one, *work.loss(changed))
    exact, high, low = (found[threshold] for threshold in (0.99, 0.8, 0.7))
    epsilon = fusion_bound(work.target, work.drawn[0][: work.context], 0.8)
    off = abs(low[0].found - low[0].expected) / max(low[0].found, 1)
    return [
        PaperRow(
            JOINT, "3, Figure 1", "blocks with a near one (cosine above 0.8) in another session", "94 %",
            f"{high[0].alike:.0%}; above 0.99, mostly shared prompts, {exact[0].alike:.0%}",
            verdict(high[0].alike >= 0.9, high[0].alike >= 0.5),
            "its workload is mathematics of one template; keys of one layer point alike whatever they say",
        ),
        PaperRow(
            JOINT, "Table 1", "compression and loss at 0.7 and 0.8", "2.98 times at -5 points; 1.6 at -0.7 (0.78)",
            f"{low[0].ratio:.2f} times at KL {low[1]:.2f}, top-1 {low[2]:.0%}; {high[0].ratio:.2f} at {high[1]:.2f}, "
            f"{high[2]:.0%}; 0.99: {exact[0].ratio:.2f} at {exact[1]:.4f}",
            verdict(high[1] < 0.01, high[1] < 0.05),
            "blocks that point alike differ in what matters; what fuses harmlessly is mostly what a trie shares "
            "already. The row on Q4 shows what the same bytes buy",
        ),
        PaperRow(
            JOINT, "Proposition 5.1", "pairs above 0.7 by the Poisson rate", "the count",
            f"{low[0].expected:,.0f} expected, {low[0].found:,} found", verdict(off < 0.1, off < 0.5),
            "cosines of a layer are not Gaussian",
        ),
        PaperRow(
            JOINT, "Proposition 5.3", "change of attention at 0.8", "<= 2 epsilon",
            f"epsilon {epsilon:.1f} at the median", verdict(epsilon < 1, True),
            "true, but it says something below 1 only: two distributions never differ by more than 2",
        ),
    ]  # fmt: skip

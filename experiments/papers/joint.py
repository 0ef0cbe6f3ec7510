"""Rows of joint encoding: compression, loss, blocks that are alike, and the Poisson rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pltz.experiments.papers.row import JOINT, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.experiments.papers.work import Work

CHUNKS = 8
COSINES = 0.99, 0.8, 0.7


def rows(work: Work) -> list[PaperRow]:
    """Return the rows of joint encoding: compression, loss, alike blocks, and the Poisson rate."""
    from pltz.experiments.joint.measure import BFF, CFF, Estimates, alike, fused
    from pltz.experiments.papers.attention_error import fusion_bound

    estimates = Estimates.of(work, CHUNKS)
    found = {
        (way, float(setting.name)): fused(work, estimates, way, setting, work.rows, CHUNKS)
        for way in (BFF, CFF)
        for setting in estimates.settings(way, COSINES, ())
    }
    exact, high, low = (found[BFF, cosine] for cosine in COSINES)
    chunks = found[CFF, 0.7]
    near, same = (alike(work, cosine) for cosine in (0.8, 0.99))
    epsilon = fusion_bound(work.target, work.drawn[0][: work.context], 0.8)
    expected, pairs = sum(low["gaussian"]), sum(low["pairs"])
    off = abs(pairs - expected) / max(pairs, 1e-9)
    return [
        PaperRow(
            JOINT, "3, Figure 1", "blocks with a near one (cosine above 0.8) in another session", "94 %",
            f"{near:.0%}; above 0.99, mostly shared prompts, {same:.0%}",
            verdict(near >= 0.9, near >= 0.5),
            "its workload is mathematics of one template; keys of one layer point alike whatever they say",
        ),
        PaperRow(
            JOINT, "Table 1", "compression and loss at 0.7 and 0.8", "2.98 times at -5 points; 1.6 at -0.7 (0.78)",
            f"{low['ratio']:.2f} times at KL {low['kl']:.2f}, top-1 {low['top1']:.0%}; {high['ratio']:.2f} at "
            f"{high['kl']:.2f}, {high['top1']:.0%}; 0.99: {exact['ratio']:.2f} at {exact['kl']:.4f}",
            verdict(high["kl"] < 0.01, high["kl"] < 0.05),
            "blocks that point alike differ in what matters; what fuses harmlessly is mostly what a trie shares "
            "already. The row on Q4 shows what the same bytes buy",
        ),
        PaperRow(
            JOINT, "Table 2", f"compression and loss of {CHUNKS} chunks of a session", "1.1 to 1.5 times, none to -2",
            f"at 0.7: {chunks['ratio']:.2f} times at KL {chunks['kl']:.3f}, top-1 {chunks['top1']:.0%}",
            verdict(chunks["kl"] < 0.01, chunks["kl"] < 0.05),
            "the chunks of a chat are no less different than chats are",
        ),
        PaperRow(
            JOINT, "Proposition 5.1", "pairs above 0.7 by the Poisson rate, of two sessions", "the count",
            f"{expected:,.0f} expected, {pairs:,.0f} found", verdict(off < 0.1, off < 0.5),
            "cosines of a layer are not Gaussian",
        ),
        PaperRow(
            JOINT, "Corollary 5.2", "compression of two sessions at 0.7", "by the rate",
            f"{low['two_expected']:.2f} times expected, {low['two_found']:.2f} found",
            verdict(abs(low["two_expected"] / low["two_found"] - 1) < 0.1),
            "it counts pairs, and a block fuses once, however many are like it",
        ),
        PaperRow(
            JOINT, "Proposition 5.3", "change of attention at 0.8", "<= 2 epsilon",
            f"epsilon {epsilon:.1f} at the median", verdict(epsilon < 1, True),
            "true, but it says something below 1 only: two distributions never differ by more than 2",
        ),
    ]  # fmt: skip

"""Rows on forms of KV: the Q4 of agents, low-rank budgets, and 4 bits per number of the tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.experiments.papers.row import LEARNED, MEMORY, TIERS, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.experiments.papers.work import Work

LAYERS_8B = 32  # 8 key heads of 128 each, 16 bits


def rows(work: Work) -> list[PaperRow]:
    """Return the rows about forms: the Q4 of agent-memory, and the low-rank budgets of the learnable paper."""
    from pltz.experiments.kv_peers import (
        PeerForm,
        budgets,
        int4_groups,
        low_rank,
        low_rank_by_layer,
        turboquant,
    )
    from pltz.kv.kv_forms import row_forms

    named: list[tuple[str, Any]] = [("q4", row_forms(work.target)["q4"])]
    changes = {"int4": int4_groups, "tq4": turboquant(4)}
    changes |= {f"even {n}": low_rank(n) for n in (2, 3, 4)}
    changes |= {f"by layer {n}": low_rank_by_layer(n) for n in (2, 3, 4)}
    lost = work.forms([*named, *((name, PeerForm(name, change)) for name, change in changes.items())])
    kept = np.mean([budgets(kv, 2) for kv in work.kvs], 0).reshape(-1, 2).sum(1)
    trend = float(np.corrcoef(np.arange(len(kept)), kept)[0, 1]) if len(kept) > 1 and kept.std() else 0.0
    token = {name: lost[name]["bits"] for name in ("int4", "q4", "tq4")}

    def told(name: str) -> str:
        return ", ".join(f"{lost[f'{name} {n}']['kl']:.2f}" for n in (2, 3, 4))

    gain = all(lost[f"by layer {n}"]["kl"] < lost[f"even {n}"]["kl"] for n in (2, 3, 4))
    small = lost["by layer 4"]["kl"] < 0.05
    return [
        PaperRow(
            MEMORY, "5.3", "what Q4 costs in quality", "1 % perplexity, of others",
            f"its groups of 64 with scale and zero: KL {lost['int4']['kl']:.4f}, top-1 {lost['int4']['top1']:.1%}, "
            f"{lost['int4']['change']:+.4f} bits per token; q4 of pltz {lost['q4']['kl']:.4f}, "
            f"{lost['q4']['top1']:.1%}",
            verdict(2 ** lost["int4"]["change"] - 1 <= 0.01), "",
        ),
        PaperRow(
            MEMORY, "3.2", "memory below 16 bits", "72 %",
            f"{1 - token['int4'] / 16:.1%} for its form, {1 - token['q4'] / 16:.1%} for q4 with its finer tokens",
            verdict(1 - token["int4"] / 16 >= 0.715),
            "its formula counts one scale per group, its figure two; its bytes are a quarter of its formula's",
        ),
        PaperRow(
            LEARNED, "Table 1", "KL at 2, 3 and 4 times, an even budget", "12 to 15 points of accuracy", told("even"),
            verdict(lost["even 2"]["kl"] > 0.05), "",
        ),
        PaperRow(
            LEARNED, "Table 1, adaptive", "KL at 2, 3 and 4 times, a budget by layer", "1 to 2 points of accuracy",
            told("by layer"), verdict(gain and small, gain),
            "the best basis of each row at the best budgets for squared error; what small directions say is lost",
        ),
        PaperRow(
            LEARNED, "5.1, abstract", "layers with the larger budget", "late ones (abstract), early ones (5.1)",
            f"dimensions by layer {', '.join(f'{one:.0f}' for one in kept)}: correlation with depth {trend:+.2f}",
            verdict(False, abs(trend) > 0.5),
            "the paper says both; squared error follows the variance, which here "
            f"{'grows' if trend > 0 else 'does not grow'} with depth",
        ),
        PaperRow(
            TIERS, "the numbers", "bytes per token of 8B with 4 bits", "34 KB, 3.76 times below FP16",
            f"{token['tq4'] / 8 * LAYERS_8B * 2 * 8 * 128 / 1e3:.1f} kB with these heads' norms, at KL "
            f"{lost['tq4']['kl']:.4f}",
            verdict(abs(token["tq4"] / 16 * 3.76 - 1) < 0.05, abs(token["tq4"] / 16 * 3.76 - 1) < 0.15),
            "a norm takes more of a small head",
        ),
    ]  # fmt: skip

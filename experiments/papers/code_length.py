"""Rows of proposition 27 and table 5: bits per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pltz.experiments.papers.row import TOWERS, PaperRow, verdict

if TYPE_CHECKING:
    from pltz.experiments.papers.work import Work


def rows(work: Work) -> list[PaperRow]:
    """Return the rows of proposition 27 and table 5: bits per token of the sessions by source."""
    from pltz.cli.bench.codec import corpus, measure
    from pltz.models.session import transcript

    records = [corpus.SampleSession("all", one, 0) for one in work.sessions[: max(8, work.count // 2)]]
    run = measure.run(work.codec, [one.session for one in records])
    talks = [one.session for one, cost in zip(records, run.costs, strict=True) if not cost.log]
    coded = work.codec.coder.encode([transcript.to_tokens(one, work.codec.bundle.tokenizer) for one in talks])
    ideal, size = sum(one.ideal_bits for one in coded), 8 * sum(len(one.data) for one in coded)
    bits = [8 * one.file_bytes / one.tokens for one in run.costs]
    mean = 8 * len(run.data) / run.tokens
    low, high = np.quantile(bits, [0.1, 0.9])
    return [
        PaperRow(
            TOWERS, "Proposition 27", "coded length over the model's code length", "O(1)",
            f"{(size - ideal) / len(coded):.1f} bits per session, {size / ideal - 1:.2%}",
            verdict((size - ideal) / len(coded) < 64), "",
        ),
        PaperRow(
            TOWERS, "Table 5", "bits per token: conservative, realistic, optimistic", "5.0, 3.0, 1.7",
            f"{mean:.2f} in the mean of {len(bits)} sessions, all bytes of the file; 90th percentile {high:.2f}, 10th "
            f"{low:.2f}", verdict(bool(mean <= 3 and high <= 5), bool(mean <= 5)),
            "sessions of a kind that the bundle has not learnt cost more",
        ),
    ]  # fmt: skip

"""Measure what replaced tokens save and lose: bits by the target, bytes of a file by the bundle, and drift of KV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.experiments.lossy.replacement import WAYS, code_lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.coding.codec import Codec
    from pltz.experiments.kv_rows import KVRows


@dataclass(frozen=True, eq=False)
class Before:
    """Contexts of rows as they are: the target's code length in bits, and the bundle's coded bytes."""

    rows: KVRows
    codec: Codec
    contexts: list[NDArray[np.int32]]
    bits: float
    size: int

    @classmethod
    def of(cls, rows: KVRows, codec: Codec) -> Before:
        """Return the contexts of rows."""
        contexts = [row[: rows.context] for row in rows.drawn]
        bits = float(code_lengths(rows.target, np.stack(contexts))[0].sum())
        return cls(rows, codec, contexts, bits, coded_bytes(rows, codec, contexts))


def replaced(before: Before, way: str, bits: float) -> dict[str, Any]:
    """Return what a way makes of the contexts of rows at a threshold.

    ``replaced``: share of tokens. ``bits``, ``bytes``: change of the target's code length, and of the bundle's coded
    bytes of the texts, each decoded back; -0.1 is a tenth less. ``kl``, ``top1``: of each row's next tokens on the KV
    of the changed context.
    """
    from pltz.kv.calibrate.measure import prefilled

    rows, contexts = before.rows, before.contexts
    changed = [WAYS[way](rows.target, ids, bits) for ids in contexts]
    length = float(code_lengths(rows.target, np.stack(changed))[0].sum())
    size = coded_bytes(rows, before.codec, changed)
    kl, top1 = rows.loss([prefilled(rows.target, ids) for ids in changed])
    return {
        "way": way, "threshold": bits, "replaced": float((np.stack(contexts) != np.stack(changed)).mean()),
        "bits": length / before.bits - 1, "bytes": size / before.size - 1, "kl": kl, "top1": top1,
    }  # fmt: skip


def coded_bytes(rows: KVRows, codec: Codec, contexts: list[NDArray[np.int32]]) -> int:
    """Return the bytes that a bundle codes the texts of ids in, each decoded back and compared."""
    from pltz.cli.bench.codec import measure
    from pltz.models.session.session import Session

    texts = [Session("text", rows.target.tokenizer.decode(ids.tolist()).encode()) for ids in contexts]
    return sum(cost.frame_bytes for cost in measure.run(codec, texts).costs)

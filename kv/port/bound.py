"""Bound: how much of what a target says may be lost by its KV, for a caller who takes small forms.

Two figures, in bits per token, are compared with the upper limits of a form's receipt: one for answers to what is new,
one for answers that come back to an early passage. Those lose more, and a caller who names no figure for them allows
RECALL times the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pltz.kv.port.receipt import Receipt
from pltz.plt_codec import UsageError

RECALL = 4.0  # times the loss in answers to what is new


@dataclass(frozen=True)
class Bound:
    """The most loss allowed, in bits per token. ``kl``: in new text. ``recall``: in text that repeats an early passage.

    >>> Bound.of(0.005), Bound.of(0.005, 0.01)
    (Bound(kl=0.005, recall=0.02), Bound(kl=0.005, recall=0.01))
    """

    kl: float
    recall: float

    @classmethod
    def of(cls, max_kl: float, max_kl_recall: float | None = None) -> Bound:
        """Return the bound of two arguments. Raises UsageError for one below zero or NaN, and for the second alone."""
        recall = RECALL * max_kl if max_kl_recall is None else max_kl_recall
        for name, value in (("max_kl", max_kl), ("max_kl_recall", recall)):
            if not value >= 0:
                raise UsageError(f"expected bits per token, 0 or more, as {name}, got {value}")
        if max_kl_recall and not max_kl:
            raise UsageError("max_kl_recall goes with max_kl: without it only exact KV is served")
        return cls(max_kl, recall)

    def keeps(self, receipt: Receipt | None) -> bool:
        """Return whether a form loses no more than this, by its receipt.

        A figure that was not measured keeps to infinity only, and no form that may lose something keeps to 0.
        """
        if not self.kl:
            return False
        most, recall = limits(receipt)
        return most <= self.kl and recall <= self.recall


def limits(receipt: Receipt | None) -> tuple[float, float]:
    """Return the most that a form loses, in bits per token: in new answers, and in recall. Infinity: not measured."""
    if receipt is None:
        return math.inf, math.inf
    return receipt.most, math.inf if receipt.most_recall is None else receipt.most_recall

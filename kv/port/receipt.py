"""Receipt: what a lossy form of KV was measured to lose, on held-out sessions, by the static-prefix protocol.

Rows differ in what they lose, by a factor of two and more, and the first tokens after a context lose most. So a bound
is compared with `Receipt.most`: the largest of the upper limits of the mean over beginnings of the rows (`spans`) and
over all of their tokens. A receipt holds for answers of 32 tokens and more, not only for those as long as its rows.

Those who come back to an early passage lose more: a form codes tokens coarsely that got little attention, and a later
question may be about exactly these. So a receipt has a second limit, `most_recall`, of answers that repeat them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from pltz.plt_codec import CorruptError

LEAST_ROWS = 8  # that a receipt is measured on: fewer tell too little of how much rows differ
QUANTILE = 2.326348  # of the normal distribution at 99 %
SHORTEST = 32  # tokens of the shortest beginning of a row that has a limit of its own
NEARLY = 1 - 1e-9  # of a limit: rounding
NOISE = 1e-6  # bits per token: a smaller loss is rounding, and the spread of its rows no more
LARGEST = 1 << 40  # number in a receipt: those of JSON may have any size


@dataclass(frozen=True)
class Receipt:
    """The measured loss of one form.

    ``form``: its name without a calibration. ``point``: its operating point, 0 where there is one only.
    ``context``: tokens whose KV was coded. ``rows``: sessions, or parts of them, that were held out; ``scored``:
    tokens scored after the contexts, of all rows together. ``bits``: per element of K and V, side data included.
    ``kl``, ``kl99``: mean and 99th percentile, in bits per token; ``kl_error``: the standard error of the mean over
    rows. ``most``: the upper limit of the loss, with which a bound is compared. ``top1``: share of tokens with the same
    most likely next token. ``change``: bits per token that the session's own text costs more. ``kl_recall``,
    ``most_recall``: mean and upper limit of the loss where early passages are repeated, or asked about, whichever loses
    more; None where that was not measured.

    >>> found = Receipt("q8", 0, 1536, 24, 4096, 8.3, 0.00004, 0.000004, 0.00006, 0.0005, 0.998, 0.0)
    >>> round(upper_limit(found.kl, found.kl_error, found.rows), 6) <= found.most
    True
    """

    form: str
    point: float
    context: int
    rows: int
    scored: int
    bits: float
    kl: float
    kl_error: float
    most: float
    kl99: float
    top1: float
    change: float
    kl_recall: float | None = None
    most_recall: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return its fields, for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, value: Any) -> Receipt:
        """Return the receipt of JSON. Raises CorruptError where fields are missing, others, or no numbers."""
        names = {field.name: field.type for field in fields(cls)}
        if not isinstance(value, dict) or set(value) != set(names):
            raise CorruptError(f"expected a receipt with the fields {', '.join(names)}")
        for name, kind in names.items():
            item = value[name]
            if item is None and kind == "float | None":
                continue
            right = type(item) in ((int, float) if "float" in kind else (int,) if kind == "int" else (str,))
            if not right or (kind != "str" and not abs(item) <= LARGEST):  # NaN is not
                raise CorruptError(f"expected a {kind} as {name} of a receipt, found {str(item)[:40]!r}")
        found = cls(**value)
        if min(found.kl, found.kl_error, found.kl99, found.bits, found.context, found.scored) < 0:
            raise CorruptError("a receipt with a loss or a size below zero")
        if found.rows < LEAST_ROWS:
            raise CorruptError(f"a receipt of {found.rows} rows: {LEAST_ROWS} are the fewest")
        if found.most < NEARLY * (least := upper_limit(found.kl, found.kl_error, found.rows)):
            raise CorruptError(f"a receipt of at most {found.most}, where its mean may be {least}")
        if (found.kl_recall is None) != (found.most_recall is None):
            raise CorruptError("a receipt with one of the two figures of recall")
        mean, most = found.kl_recall or 0.0, found.most_recall or 0.0
        if not 0 <= NEARLY * mean <= most:
            raise CorruptError(f"a receipt of recall of at most {most}, where its mean is {mean}")
        return found


def upper_limit(mean: float, error: float, rows: int) -> float:
    """Return the upper limit of a mean of rows, at 99 %: of its logarithm, as rows differ like log-normal numbers.

    >>> round(upper_limit(0.00004, 0.000004, 24), 6)
    5.1e-05
    >>> upper_limit(0.00000002, 0.0000007, 8) < NOISE
    True
    """
    return mean * math.exp(min(student(rows - 1) * error / max(mean, NOISE), 100.0)) if mean > 0 else 0.0


def spans(tokens: int) -> list[int]:
    """Return the numbers of first tokens whose limits count: doublings from SHORTEST, and all.

    >>> spans(511), spans(20)
    ([32, 64, 128, 256, 511], [20])
    """
    found = [tokens]
    while (half := 1 << (found[0] - 1).bit_length() - 1) >= SHORTEST:
        found.insert(0, half)
    return found


def student(degrees: int) -> float:
    """Return the 99 % quantile of Student's distribution for seven degrees of freedom or more, to 0.003.

    By the expansion of Fisher and Cornish (1960), four terms.

    >>> [round(student(n), 2) for n in (7, 23, 100)]
    [3.0, 2.5, 2.36]
    """
    z, n = QUANTILE, degrees
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def between(low: Receipt, high: Receipt, point: float) -> Receipt:
    """Return the receipt of a point between two measured ones: losses and bits are straight lines in their logarithm.

    >>> low = Receipt("f", -8, 1536, 24, 4096, 0.4, 0.004, 0.0004, 0.008, 0.04, 0.99, 0.0)
    >>> high = Receipt("f", -4, 1536, 24, 4096, 0.2, 0.009, 0.0009, 0.018, 0.09, 0.98, 0.0)
    >>> found = between(low, high, -6)
    >>> round(found.kl, 6), round(found.kl_error, 6), round(found.most, 6), round(found.bits, 4), found.most_recall
    (0.006, 0.0006, 0.012, 0.2828, None)
    """
    share = (point - low.point) / (high.point - low.point)

    def line(a: float, b: float) -> float:
        return a + (b - a) * share

    def curve(a: float, b: float) -> float:
        return math.exp(line(math.log(a), math.log(b))) if min(a, b) > 0 else line(a, b)

    def recall(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else curve(a, b)

    return Receipt(
        low.form, point, min(low.context, high.context), min(low.rows, high.rows), min(low.scored, high.scored),
        curve(low.bits, high.bits), curve(low.kl, high.kl), curve(low.kl_error, high.kl_error),
        curve(low.most, high.most), curve(low.kl99, high.kl99),
        line(low.top1, high.top1), line(low.change, high.change),
        recall(low.kl_recall, high.kl_recall), recall(low.most_recall, high.most_recall),
    )  # fmt: skip

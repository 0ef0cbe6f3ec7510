"""Receipt: what a lossy form of KV was measured to lose, on held-out sessions, by the static-prefix protocol.

Rows differ in what they lose, by a factor of two and more. So a receipt also tells how sure its mean is, and a bound
is compared with `Receipt.most`. Resampled from chats, where few rows lose ten times the mean, it is below the mean of
all in one of ten calibrations or fewer, where the mean of 24 rows is in more than half.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pltz.plt_codec.errors import CorruptError

LEAST_ROWS = 8  # that a receipt is measured on: fewer tell too little of how much rows differ
QUANTILE = 2.326348  # of the normal distribution at 99 %
LEAST = 1e-12  # below this a loss has no useful logarithm


@dataclass(frozen=True)
class Receipt:
    """The measured loss of one form.

    ``form``: its name without a calibration. ``point``: its operating point, 0 where there is one only.
    ``context``: tokens whose KV was coded. ``rows``: sessions, or parts of them, that were held out; ``scored``:
    tokens scored after the contexts, of all rows together. ``bits``: per element of K and V, side data included.
    ``kl``, ``kl99``: mean and 99th percentile, in bits per token; ``kl_error``: the standard error of the mean over
    rows. ``top1``: share of tokens with the same most likely next token. ``change``: bits per token that the
    session's own text costs more.

    >>> found = Receipt("q8-1", 0, 1536, 24, 4096, 8.3, 0.00004, 0.000004, 0.0005, 0.998, 0.0)
    >>> found.kl, round(found.most, 6)
    (4e-05, 5.1e-05)
    """

    form: str
    point: float
    context: int
    rows: int
    scored: int
    bits: float
    kl: float
    kl_error: float
    kl99: float
    top1: float
    change: float

    @property
    def most(self) -> float:
        """Return the upper limit of the mean loss: what a bound on the loss is compared with."""
        if not self.kl:
            return 0.0
        return self.kl * math.exp(min(student(self.rows - 1) * self.kl_error / self.kl, 100.0))

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
            right = type(item) in ((int, float) if kind == "float" else (int,) if kind == "int" else (str,))
            if not right or (kind != "str" and not math.isfinite(item)):
                raise CorruptError(f"expected a {kind} as {name} of a receipt, found {item!r}")
        found = cls(**value)
        if min(found.kl, found.kl_error, found.kl99, found.bits, found.context, found.scored) < 0:
            raise CorruptError("a receipt with a loss or a size below zero")
        if found.rows < LEAST_ROWS:
            raise CorruptError(f"a receipt of {found.rows} rows: {LEAST_ROWS} are the fewest")
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


def between(measured: Sequence[Receipt], point: float) -> Receipt:
    """Return the receipt of a point inside of the measured ones, which are of one form and ascend by point.

    Bits and losses are monotone cubics of the point in their logarithm, `top1` and `change` straight lines.

    >>> found = [Receipt("f", p, 1536, 9, 4096, 2.0**-p, 0.001 * 4.0**p, 0.0, 0.01, 1 - p / 8, 0.0) for p in (0, 1, 2)]
    >>> half = between(found, 0.5)
    >>> round(half.bits, 4), round(half.kl, 6), half.top1
    (0.7071, 0.002, 0.9375)
    """
    points = [r.point for r in measured]
    low = min(bisect_right(points, point), len(points) - 1) - 1
    left, right = measured[low], measured[low + 1]
    share = (point - left.point) / (right.point - left.point)

    def line(name: str) -> float:
        a, b = getattr(left, name), getattr(right, name)
        return float(a + (b - a) * share)

    def curve(name: str) -> float:
        return math.exp(cubic(points, [math.log(max(getattr(r, name), LEAST)) for r in measured], low, share))

    return Receipt(
        left.form, point, min(left.context, right.context), min(left.rows, right.rows),
        min(left.scored, right.scored), curve("bits"), curve("kl"), curve("kl_error"), curve("kl99"), line("top1"),
        line("change"),
    )  # fmt: skip


def cubic(x: Sequence[float], y: Sequence[float], low: int, share: float) -> float:
    """Return a monotone cubic through points, at ``share`` of the way from point ``low`` to the next.

    Fritsch and Carlson (1980), with the slopes of Fritsch and Butland (1984): between two points it never leaves their
    values.

    >>> [cubic([0, 1, 2, 3], [0, 0, 1, 1], n, 0.5) for n in range(3)]
    [0.0, 0.5, 1.0]
    """
    rise = [(y[n + 1] - y[n]) / (x[n + 1] - x[n]) for n in range(len(x) - 1)]

    def slope(n: int) -> float:
        if not 0 < n < len(rise):
            return rise[min(n, len(rise) - 1)]
        if rise[n - 1] * rise[n] <= 0:
            return 0.0
        before, after = x[n] - x[n - 1], x[n + 1] - x[n]
        a, b = 2 * after + before, after + 2 * before
        return (a + b) / (a / rise[n - 1] + b / rise[n])

    width = x[low + 1] - x[low]
    s = share
    return (
        y[low] * (1 + 2 * s) * (1 - s) ** 2 + y[low + 1] * s * s * (3 - 2 * s)
        + width * (slope(low) * s * (1 - s) ** 2 - slope(low + 1) * s * s * (1 - s))
    )  # fmt: skip

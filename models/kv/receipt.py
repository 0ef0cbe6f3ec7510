"""Receipt: what a lossy form of KV was measured to lose, on held-out sessions, by the static-prefix protocol.

Rows differ in what they lose, by a factor of two and more. So a receipt also tells how sure its mean is, and a bound
is compared with `Receipt.most`. Resampled from chats, where few rows lose ten times the mean, it is below the mean of
all in one of ten calibrations or fewer, where the mean of 24 rows is in more than half.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from pltz.plt_codec.errors import CorruptError

LEAST_ROWS = 8  # that a receipt is measured on: fewer tell too little of how much rows differ
QUANTILE = 2.326348  # of the normal distribution at 99 %


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


def between(low: Receipt, high: Receipt, point: float) -> Receipt:
    """Return the receipt of a point between two measured ones: losses and bits are straight lines in their logarithm.

    >>> low = Receipt("f", -8, 1536, 24, 4096, 0.4, 0.004, 0.0004, 0.04, 0.99, 0.0)
    >>> high = Receipt("f", -4, 1536, 24, 4096, 0.2, 0.009, 0.0009, 0.09, 0.98, 0.0)
    >>> found = between(low, high, -6)
    >>> round(found.kl, 6), round(found.kl_error, 6), round(found.bits, 4)
    (0.006, 0.0006, 0.2828)
    """
    share = (point - low.point) / (high.point - low.point)

    def line(a: float, b: float) -> float:
        return a + (b - a) * share

    def curve(a: float, b: float) -> float:
        return math.exp(line(math.log(a), math.log(b))) if min(a, b) > 0 else line(a, b)

    return Receipt(
        low.form, point, min(low.context, high.context), min(low.rows, high.rows), min(low.scored, high.scored),
        curve(low.bits, high.bits), curve(low.kl, high.kl), curve(low.kl_error, high.kl_error),
        curve(low.kl99, high.kl99), line(low.top1, high.top1), line(low.change, high.change),
    )  # fmt: skip

"""Receipt: what a lossy form of KV was measured to lose, on held-out sessions, by the static-prefix protocol."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from pltz.plt_codec.errors import CorruptError


@dataclass(frozen=True)
class Receipt:
    """The measured loss of one form.

    ``form``: its name without a calibration. ``point``: its operating point, 0 where there is one only.
    ``context``: tokens whose KV was coded; ``scored``: tokens scored after them, of all sessions together.
    ``bits``: per element of K and V, side data included. ``kl``, ``kl99``: mean and 99th percentile, in bits per
    token. ``top1``: share of tokens with the same most likely next token. ``change``: bits per token that the
    session's own text costs more.

    >>> Receipt("q8-1", 0, 1536, 4096, 8.3, 0.00004, 0.0005, 0.998, 0.0).kl
    4e-05
    """

    form: str
    point: float
    context: int
    scored: int
    bits: float
    kl: float
    kl99: float
    top1: float
    change: float

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
        if min(found.kl, found.kl99, found.bits, found.context, found.scored) < 0:
            raise CorruptError("a receipt with a loss or a size below zero")
        return found


def between(low: Receipt, high: Receipt, point: float) -> Receipt:
    """Return the receipt of a point between two measured ones: losses and bits are straight lines in their logarithm.

    >>> low = Receipt("f", -8, 1536, 4096, 0.4, 0.004, 0.04, 0.99, 0.0)
    >>> high = Receipt("f", -4, 1536, 4096, 0.2, 0.009, 0.09, 0.98, 0.0)
    >>> found = between(low, high, -6)
    >>> round(found.kl, 6), round(found.bits, 4)
    (0.006, 0.2828)
    """
    share = (point - low.point) / (high.point - low.point)

    def line(a: float, b: float) -> float:
        return a + (b - a) * share

    def curve(a: float, b: float) -> float:
        return math.exp(line(math.log(a), math.log(b))) if min(a, b) > 0 else line(a, b)

    return Receipt(
        low.form, point, min(low.context, high.context), min(low.scored, high.scored), curve(low.bits, high.bits),
        curve(low.kl, high.kl), curve(low.kl99, high.kl99), line(low.top1, high.top1), line(low.change, high.change),
    )  # fmt: skip

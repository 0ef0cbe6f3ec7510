"""Turn: the ids given to the model for one reply, and the ids that it replies with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch

ENDS = ("stop", "length", "cancelled", "error")


@dataclass(frozen=True)
class Sampling:
    """The way in which new ids are chosen. Raises UsageError for a value out of range.

    ``limit``: new ids at most; 0 only makes the ids hot. ``temperature``: 0 takes the likeliest id. ``top_p``: share of
    the probability from which is drawn. ``seed``: of the draws; None for another one each time.
    """

    limit: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise UsageError(f"expected a limit of at least 0 new tokens, got {self.limit}")
        if not 0 <= self.temperature <= 2:
            raise UsageError(f"expected a temperature from 0 to 2, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"expected top_p over 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise UsageError(f"expected a seed from 0 to 2**63 - 1, got {self.seed}")


@dataclass(eq=False)
class Turn:
    """One turn on its way through a `Scheduler`, which alone changes it.

    ``ids``: all ids that the model sees first, at least one. ``session``: name under which its KV is parked before and
    after; None parks nothing. ``halts``: called with each new id; True ends the turn. ``new``: ids so far.
    ``end``: "" while it runs, then one of ENDS. ``failure``: why, where the end is "error".
    """

    ids: Sequence[int]
    sampling: Sampling
    session: str | None = None
    halts: Callable[[int], bool] | None = None
    new: list[int] = field(default_factory=list)
    end: str = ""
    failure: str = ""
    cancelled: bool = False
    generator: torch.Generator | None = None

    @property
    def tokens(self) -> int:
        """Return the number of ids, given and new."""
        return len(self.ids) + len(self.new)


def choose(logits: torch.Tensor, turns: Sequence[Turn]) -> list[int]:
    """Return the next id of each turn by its sampling. ``logits``: (B, vocab)."""
    import torch

    found: list[int] = logits.argmax(1).tolist()
    for row, turn in enumerate(turns):
        sampling = turn.sampling
        if not sampling.temperature:
            continue
        if turn.generator is None:
            turn.generator = torch.Generator()
            if sampling.seed is None:
                turn.generator.seed()
            else:
                turn.generator.manual_seed(sampling.seed)
        # the largest is subtracted before the division, so that a tiny temperature does not overflow
        scores = logits[row].double().cpu()
        shares = torch.softmax((scores - scores.max()) / sampling.temperature, 0)
        if sampling.top_p < 1:
            ordered, places = shares.sort(descending=True)
            ordered[ordered.cumsum(0) - ordered >= sampling.top_p] = 0  # the first stays in any case
            shares = torch.zeros_like(shares).scatter(0, places, ordered)
        found[row] = int(torch.multinomial(shares, 1, generator=turn.generator))
    return found

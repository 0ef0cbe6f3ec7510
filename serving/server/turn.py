"""Turn: the ids given to the model for one reply, and the ids that it replies with, chosen by its sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    import torch

ENDS = ("stop", "length", "cancelled", "error")
MOST = 20  # likeliest ids that are told beside the chosen one


@dataclass(frozen=True)
class Sampling:
    """The way in which new ids are chosen. Raises UsageError for a value out of range.

    ``limit``: new ids at most; 0 only makes the ids hot. ``temperature``: 0 takes the likeliest id. ``top_p``: share of
    the probability from which is drawn. ``seed``: of the draws; None for another one each time. ``presence``: taken off
    the score of each id that the reply has. ``frequency``: the same, as often as it has it. ``bias``: ids, and what is
    added to their scores. ``top``: likeliest ids to tell of with each new one; None tells of no probability.
    """

    limit: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    top: int | None = None

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise UsageError(f"expected a limit of at least 0 new tokens, got {self.limit}")
        if not 0 <= self.temperature <= 2:
            raise UsageError(f"expected a temperature from 0 to 2, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"expected top_p over 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise UsageError(f"expected a seed from 0 to 2**63 - 1, got {self.seed}")
        if not (-2 <= self.presence <= 2 and -2 <= self.frequency <= 2):
            raise UsageError(f"expected penalties from -2 to 2, got {self.presence} and {self.frequency}")
        if not all(-100 <= one <= 100 for _, one in self.bias):
            raise UsageError("expected a bias from -100 to 100 for each id")
        if self.top is not None and not 0 <= self.top <= MOST:
            raise UsageError(f"expected 0 to {MOST} likeliest ids, got {self.top}")

    @property
    def plain(self) -> bool:
        """Return whether the likeliest id is taken, and nothing is told of it."""
        return not (self.temperature or self.presence or self.frequency or self.bias) and self.top is None

    def changed(self, scores: torch.Tensor, new: Sequence[int]) -> torch.Tensor:
        """Return the scores (vocab,) with bias and penalties. ``new``: ids of the reply so far."""
        import torch

        if not (self.bias or self.presence or self.frequency):
            return scores
        scores = scores.clone()
        if self.bias:
            ids, added = zip(*self.bias, strict=True)
            scores[list(ids)] += torch.tensor(added, dtype=scores.dtype)
        had, times = torch.tensor(new, dtype=torch.int64).unique(return_counts=True)
        scores[had] -= self.presence + self.frequency * times
        return scores


@dataclass(frozen=True)
class Likelihood:
    """The natural logarithm of an id's probability. ``top``: the likeliest ids there, with theirs."""

    logprob: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, scores: torch.Tensor, chosen: int, top: int) -> Likelihood:
        """Return that of a chosen id among the model's own scores (vocab,)."""
        import torch

        logs = torch.log_softmax(scores, 0)
        best = logs.topk(min(top, len(logs)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return cls(float(logs[chosen]), tuple(pairs))


@dataclass(eq=False)
class Turn:
    """One turn on its way through a `Scheduler`, which alone changes it.

    ``ids``: all ids that the model sees first, at least one. ``session``: name under which its KV is parked before and
    after; None parks nothing. ``halts``: called with each new id; True ends the turn. ``new``: ids so far.
    ``likelihoods``: of them, where they are asked for.
    ``end``: "" while it runs, then one of ENDS. ``failure``: why, where the end is "error".
    """

    ids: Sequence[int]
    sampling: Sampling
    session: str | None = None
    halts: Callable[[int], bool] | None = None
    new: list[int] = field(default_factory=list)
    likelihoods: list[Likelihood] = field(default_factory=list)
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
    found: list[int] = logits.argmax(1).tolist()
    for row, turn in enumerate(turns):
        sampling = turn.sampling
        if sampling.plain:
            continue
        scores = logits[row].double().cpu()
        changed = sampling.changed(scores, turn.new)
        if sampling.temperature:
            found[row] = _drawn(changed, turn)
        elif changed is not scores:
            found[row] = int(changed.argmax())
        if sampling.top is not None:
            del turn.likelihoods[len(turn.new) :]  # of a step that failed
            turn.likelihoods.append(Likelihood.of(scores, found[row], sampling.top))
    return found


def _drawn(scores: torch.Tensor, turn: Turn) -> int:
    """Return an id drawn by scores (vocab,)."""
    import torch

    sampling = turn.sampling
    if turn.generator is None:
        turn.generator = torch.Generator()
        if sampling.seed is None:
            turn.generator.seed()
        else:
            turn.generator.manual_seed(sampling.seed)
    # the largest is subtracted before the division, so that a tiny temperature does not overflow
    shares = torch.softmax((scores - scores.max()) / sampling.temperature, 0)
    if sampling.top_p < 1:
        ordered, places = shares.sort(descending=True)
        ordered[ordered.cumsum(0) - ordered >= sampling.top_p] = 0  # the first stays in any case
        shares = torch.zeros_like(shares).scatter(0, places, ordered)
    return int(torch.multinomial(shares, 1, generator=turn.generator))

"""Turn: the ids given to the model for one reply, and the ids that it replies with, chosen by its sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from pltz.plt_codec import UsageError

if TYPE_CHECKING:
    import torch

    from pltz.kv.port.codec import KVCodec

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

    def change(self, scores: torch.Tensor, new: Sequence[int]) -> None:
        """Add bias and penalties to the scores (vocab,). ``new``: ids of the reply so far."""
        import torch

        if self.bias:
            ids, added = zip(*self.bias, strict=True)
            scores[list(ids)] += scores.new_tensor(added)
        if self.presence or self.frequency:
            had, times = torch.tensor(new, dtype=torch.int64).unique(return_counts=True)
            scores[had.to(scores.device)] -= (self.presence + self.frequency * times).to(scores)


@dataclass(frozen=True)
class Likelihood:
    """The natural logarithm of an id's probability. ``top``: the likeliest ids there, with theirs."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(eq=False)
class Turn:
    """One turn on its way through a `Scheduler`, which alone changes it.

    ``ids``: all ids that the model sees first, at least one. ``session``: whose KV it begins with, and leaves; None
    leaves that of its prompt. ``halts``: called with each new id; True ends the turn. ``new``: ids so far.
    ``likelihoods``: of them, where they are asked for. ``lost``: a form that lost something of its beginning.
    ``tiers``: ids whose KV was there, by where it was: memory, host or disk. ``end``: "" while it runs, then one of
    ENDS. ``failure``: why, where the end is "error".
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
    random: Random | None = None
    lost: KVCodec | None = None
    tiers: Counter[str] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        """Return the number of ids, given and new."""
        return len(self.ids) + len(self.new)

    def draw(self) -> float:
        """Return the next number from 0 to below 1 of its seed."""
        self.random = self.random or Random(self.sampling.seed)
        return self.random.random()


def choose(logits: torch.Tensor, turns: Sequence[Turn]) -> list[int]:
    """Return the next id of each turn by its sampling. ``logits``: (B, vocab), on any device.

    Each way is computed there for all rows that take it. What a row draws does not depend on the others.
    """
    if all(turn.sampling.plain for turn in turns):
        greedy: list[int] = logits.argmax(1).tolist()
        return greedy
    own = logits.double()  # the model's: likelihoods are of these
    scores = own.clone()
    for row, turn in enumerate(turns):
        turn.sampling.change(scores[row], turn.new)
    found = scores.argmax(1)
    warm = [(row, turn) for row, turn in enumerate(turns) if turn.sampling.temperature]
    for cut in (False, True):
        rows = [row for row, turn in warm if (turn.sampling.top_p < 1) == cut]
        if rows:
            found[rows] = _drawn(scores[rows], [turns[row] for row in rows], cut)
    chosen: list[int] = found.tolist()
    told = [row for row, turn in enumerate(turns) if turn.sampling.top is not None]
    if told:
        _tell(own[told].log_softmax(1), [turns[row] for row in told], found[told])
    return chosen


def _drawn(scores: torch.Tensor, turns: Sequence[Turn], cut: bool) -> torch.Tensor:
    """Return ids drawn by scores, (B, vocab). ``cut``: by the likeliest of them that have a share of top_p."""
    heat = scores.new_tensor([turn.sampling.temperature for turn in turns])[:, None]
    # the largest is subtracted before the division, so that a tiny temperature does not overflow
    shares = ((scores - scores.amax(1, keepdim=True)) / heat).softmax(1)
    places = None
    if cut:
        most = scores.new_tensor([turn.sampling.top_p for turn in turns])[:, None]
        shares, places = shares.sort(1, descending=True)
        shares[shares.cumsum(1) - shares >= most] = 0  # the first stays in any case
    ends = shares.cumsum(1)
    drawn = scores.new_tensor([turn.draw() for turn in turns])[:, None] * ends[:, -1:]
    found = (ends <= drawn).sum(1, keepdim=True).clamp_(max=scores.shape[1] - 1)
    return (found if places is None else places.gather(1, found))[:, 0]


def _tell(logs: torch.Tensor, turns: Sequence[Turn], chosen: torch.Tensor) -> None:
    """Note the likelihoods of chosen ids. ``logs``: of all ids, (B, vocab)."""
    best = logs.topk(min(max(turn.sampling.top or 0 for turn in turns), logs.shape[1]), 1)
    own, ids, values = logs.gather(1, chosen[:, None])[:, 0].tolist(), best.indices.tolist(), best.values.tolist()
    for row, turn in enumerate(turns):
        del turn.likelihoods[len(turn.new) :]  # of a step that failed
        pairs = tuple(zip(ids[row], values[row], strict=True))
        turn.likelihoods.append(Likelihood(own[row], pairs[: turn.sampling.top]))

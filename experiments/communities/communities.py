"""Communities and bots of a deployment, their prompts made from real system prompts.

The case of the Towers paper, section 11.2: 50 communities in 5 groups, 500 bots. Each group has a real prompt. A
community has that of its group with a quarter of its sentences replaced by sentences of other real prompts, and its own
name. A bot has its community's prompt and some sentences of its own. A sentence is used again only when all have been.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pltz.plt_codec.errors import UsageError

GROUPS, COMMUNITIES, BOTS = 5, 50, 500
REPLACED = 4  # one sentence in so many is a community's own
OWN = 3  # sentences that a bot adds
LEAST, MOST = 12, 40  # sentences of a group's prompt
SHORT = 30  # characters below which a line is no sentence to draw
SEED = 7


@dataclass(frozen=True)
class Community:
    """The prompt of a community. ``shared``: that of its group; ``own``: the sentences that are not of its group."""

    prompt: str
    shared: str
    own: list[str]


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text, with what separates them."""
    return [part for part in re.split(r"(?<=[.!?\n])(?=\S)|(?<=[.!?] )", text) if part.strip()]


def named(number: int, text: str) -> str:
    """Return a prompt with the name of a community."""
    return f"You are the assistant of community {number}.\n{text}"


def community_of(bot: int) -> int:
    """Return the number of a bot's community. Every fifth and every tenth bot are of all groups alike."""
    return (bot + bot // COMMUNITIES) % COMMUNITIES


class Communities:
    """The communities and bots that are made from real system prompts; the same prompts make the same ones.

    ``made``: the communities, of which n is of group n modulo `GROUPS`. Raises UsageError where too few prompts are
    long enough.
    """

    def __init__(self, prompts: Sequence[str]) -> None:
        self._dice = random.Random(SEED)
        parts = [sentences(prompt) for prompt in prompts]
        groups = [part for part in parts if LEAST <= len(part) <= MOST][:GROUPS]
        others = {one for part in parts if part not in groups for one in part if len(one.strip()) >= SHORT}
        if len(groups) < GROUPS or len(others) < BOTS:
            raise UsageError(f"expected {GROUPS} prompts of {LEAST} to {MOST} sentences, and {BOTS} other sentences")
        self._others, self._left = sorted(others), list[str]()
        self.made = [self._community(number, groups[number % GROUPS]) for number in range(COMMUNITIES)]

    def bots(self) -> Iterator[str]:
        """Yield the prompts of all bots, those of each `community_of`."""
        for number in range(BOTS):
            own = "".join(self._draw() for _ in range(OWN))
            yield f"{self.made[community_of(number)].prompt}\n{own}"

    def _community(self, number: int, group: Sequence[str]) -> Community:
        parts = [self._draw() if self._dice.randrange(REPLACED) == 0 else one for one in group]
        own = [one for one, before in zip(parts, group, strict=True) if one is not before]
        return Community(named(number, "".join(parts)), "".join(group), own)

    def _draw(self) -> str:
        if not self._left:
            self._left = self._dice.sample(self._others, len(self._others))
        return self._left.pop()


def sampled() -> Communities:
    """Return the communities made from 39 real prompts, all under CC0, that no bundle was trained on."""
    from pltz.datasets.loaders import sample_path

    lines = sample_path().with_name("prompts.jsonl").read_bytes().splitlines()
    return Communities([str(json.loads(line)["text"]) for line in lines])

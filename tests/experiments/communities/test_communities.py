"""Communities: the prompts are the same each time, and near to those of their group."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pltz.coding.codec import Codec
from pltz.experiments.communities import measure_distances
from pltz.experiments.communities.communities import (
    BOTS,
    COMMUNITIES,
    GROUPS,
    OWN,
    Communities,
    Community,
    community_of,
    sentences,
)
from pltz.experiments.communities.measure_distances import matrix, parts
from pltz.plt_codec.errors import ModelError


def prompts() -> list[str]:
    return ["".join(f"Prompt {n:02} says sentence {m:02} here. " for m in range(20)) for n in range(40)]


def test_a_community_is_near_to_its_group_and_a_bot_has_its_prompt() -> None:
    found = Communities(prompts())
    assert [one.prompt for one in found.made] == [one.prompt for one in Communities(prompts()).made]
    assert len(found.made) == COMMUNITIES
    for number, one in enumerate(found.made):
        parts = sentences(one.prompt)[1:]
        kept = [part for part in parts if part.startswith(f"Prompt {number % GROUPS:02} ")]
        assert one.shared == prompts()[number % GROUPS] and len(parts) == 20
        assert len(kept) == 20 - len(one.own) and 8 <= len(kept) < 20
    bots = list(found.bots())
    assert len(bots) == BOTS
    for number, bot in enumerate(bots):
        assert bot.startswith(found.made[community_of(number)].prompt) and len(sentences(bot)) == 1 + 20 + OWN


# ---- The matrix of distances: every pair is coded, parts are those of the prompt, and the picture shows the groups


class Coder:
    """Takes a byte per token that is not in the context."""

    def __init__(self, lossy: bool = False) -> None:
        self.lossy, self.given = lossy, list[Any]()

    def encode(self, sequences: Any, contexts: Any) -> Any:
        self.given = list(sequences)
        known = [set() if c is None else set(np.asarray(c).tolist()) for c in contexts]
        rows = zip(sequences, known, strict=True)
        return [SimpleNamespace(data=bytes(sum(one not in there for one in t.tolist()))) for t, there in rows]

    def decode(self, items: Any) -> Any:
        return [one + self.lossy for one in self.given]


def codec(**how: bool) -> Any:
    return SimpleNamespace(coder=Coder(**how))


def test_every_session_is_coded_after_every_other_and_compared() -> None:
    tokens = [np.arange(4) + 500, np.arange(4) + 500, np.arange(5) + 509]
    assert matrix(codec(), tokens) == ([4, 4, 5], [[0, 0, 4], [0, 0, 4], [5, 5, 0]])
    with pytest.raises(ModelError, match="changed"):
        matrix(codec(lossy=True), tokens)


def test_parts_are_what_a_community_shares_and_what_it_has_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(codec: Codec, prompts: list[str]) -> list[Any]:
        return [np.array([500 + len(word) for word in one.split()]) for one in prompts]

    monkeypatch.setattr(measure_distances, "tokens_of", words)
    found = parts(codec(), [Community(prompt="a bb cccccc", shared="a bb ccc", own=["cccccc"])])
    assert found == {"after_group": [1], "copied": [0], "own": [1], "own_after_group": [1], "own_tokens": [1]}

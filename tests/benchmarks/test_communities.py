"""Communities: the prompts are the same each time, and near to those of their group."""

from __future__ import annotations

import pytest

from pltz.benchmarks.communities import BOTS, COMMUNITIES, GROUPS, sentences, sessions


def prompts() -> list[str]:
    return ["".join(f"Prompt {n} says sentence {m} here. " for m in range(20)) for n in range(40)]


def test_a_community_is_near_to_its_group_and_a_bot_has_its_prompt() -> None:
    made = list(sessions(prompts()))
    assert made == list(sessions(prompts())) and len(made) == COMMUNITIES + BOTS
    text = [str(one["messages"][0]["content"]) for one in made]  # type: ignore[index]
    for number in range(COMMUNITIES):
        own = sentences(text[number])[1:]
        kept = [one for one in own if one.startswith(f"Prompt {number % GROUPS} ")]
        assert len(own) == 20 and 8 <= len(kept) < 20
    for number in range(BOTS):
        assert text[COMMUNITIES + number].startswith(text[number % COMMUNITIES])


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(SystemExit, match="expected 5 prompts"):
        list(sessions(prompts()[:6]))

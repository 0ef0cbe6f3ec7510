"""Communities: the prompts are the same each time, and near to those of their group."""

from pltz.experiments.communities.communities import (
    BOTS,
    COMMUNITIES,
    GROUPS,
    OWN,
    Communities,
    community_of,
    sentences,
)


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
        assert bot.startswith(found.made[community_of(number)].prompt)
        assert len(sentences(bot)) == 1 + 20 + OWN

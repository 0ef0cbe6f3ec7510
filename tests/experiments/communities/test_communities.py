"""Communities: the prompts are the same each time, and near to those of their group."""

from __future__ import annotations

import json
from pathlib import Path

from pltz.experiments.communities.command import records
from pltz.experiments.communities.communities import (
    BOTS,
    COMMUNITIES,
    GROUPS,
    OWN,
    Communities,
    community_of,
    sampled,
    sentences,
)
from tests.cli.commands import Run


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


def test_the_prompts_that_ship_are_enough() -> None:
    assert len({one.prompt for one in sampled().made}) == COMMUNITIES
    sources = [one["id"].split("-")[0] for one in records()]
    assert (sources.count("communities"), sources.count("bots")) == (COMMUNITIES, BOTS)


def test_prompts_are_nearest_to_each_other(run: Run, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "communities.jsonl"
    path.write_bytes(run("communities").stdout_bytes)
    done = run("neighbours", "--data", path, "--sessions", 2, "--measure", "zstd", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["sources"]
    assert [row["source"] for row in found] == ["bots", "communities"]
    assert all(row["patched"] < row["zstd"] for row in found)

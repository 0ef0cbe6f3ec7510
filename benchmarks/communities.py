"""Prompts of communities and bots, made from real system prompts, as sessions for `pltz bench neighbours`.

    python -m pltz.benchmarks.communities prompts.jsonl > communities.jsonl
    pltz bench neighbours --data communities.jsonl --sessions 500 --most 4000

The case of the Towers paper, section 11.2: 50 communities in 5 groups, 500 bots. Each group has a real prompt. A
community has that of its group with a quarter of its sentences replaced by sentences of other real prompts, and its own
name. A bot has its community's prompt and some sentences of its own. The records of the input are {"text": ...}.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Sequence

GROUPS, COMMUNITIES, BOTS = 5, 50, 500
REPLACED = 4  # one sentence in so many is a community's own
OWN = 3  # sentences that a bot adds
LEAST, MOST = 12, 40  # sentences of a group's prompt
SEED = 7


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text, with what separates them."""
    return [part for part in re.split(r"(?<=[.!?\n])(?=\S)|(?<=[.!?] )", text) if part.strip()]


def sessions(prompts: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield the records of all communities and all bots. ``prompts``: real system prompts.

    Raises SystemExit where too few of them are long enough.
    """
    dice = random.Random(SEED)
    parts = [sentences(prompt) for prompt in prompts]
    groups = [part for part in parts if LEAST <= len(part) <= MOST][:GROUPS]
    others = [one for part in parts if part not in groups for one in part]
    if len(groups) < GROUPS or len(others) < BOTS:
        raise SystemExit(f"expected {GROUPS} prompts of {LEAST} to {MOST} sentences, and {BOTS} other sentences")
    made = []
    for number in range(COMMUNITIES):
        own = [dice.choice(others) if dice.randrange(REPLACED) == 0 else one for one in groups[number % GROUPS]]
        made.append(f"You are the assistant of community {number}.\n" + "".join(own))
        yield record("communities", number, made[-1])
    for number in range(BOTS):
        own = [dice.choice(others) for _ in range(OWN)]
        yield record("bots", number, made[number % COMMUNITIES] + "\n" + "".join(own))


def record(source: str, number: int, prompt: str) -> dict[str, object]:
    """Return a session that has a prompt alone."""
    return {"id": f"{source}-{number}", "messages": [{"role": "system", "content": prompt}]}


def main() -> None:
    """Print the records, one per line."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf8") as file:
        prompts = [json.loads(line)["text"] for line in file]
    for one in sessions([prompt for prompt in prompts if prompt.isascii()]):
        print(json.dumps(one))


if __name__ == "__main__":
    main()

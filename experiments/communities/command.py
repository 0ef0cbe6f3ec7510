"""Prompts of communities and bots, made from real system prompts, for `pltz.experiments neighbours --data`.

`experiments/communities/communities.py` says how they are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import write_text
from pltz.experiments.communities.communities import sampled


def records() -> Iterator[dict[str, Any]]:
    """Yield the prompts of all communities and all bots as records of chats that have a system prompt alone."""
    found = sampled()
    sources = {"communities": [one.prompt for one in found.made], "bots": list(found.bots())}
    for source, prompts in sources.items():
        for number, prompt in enumerate(prompts):
            yield {"id": f"{source}-{number}", "messages": [{"role": "system", "content": prompt}]}


@click.command(
    cls=Command,
    short_help="Write prompts of communities and bots as JSONL.",
    examples=["python -m pltz.experiments communities > communities.jsonl"],
)
def communities() -> None:
    """Write the prompts of 50 communities and 500 bots, made of real ones, a record per line."""
    for record in records():
        write_text(json.dumps(record, ensure_ascii=False) + "\n")

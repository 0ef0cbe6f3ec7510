"""Measure d_T between the prompts of 50 communities, as a matrix, and where the bytes of one go, by real decoding.

    python -m pltz.experiments.communities.measure_distances > distances.json

The distance of the Towers paper is the code length of one session given another. The prompts are coded alone and after
each other; every frame is decoded and compared. `python -m pltz.benchmarks.plots` draws the result.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pltz.cli.bench import machine
from pltz.coding.codec import Codec
from pltz.experiments.communities.communities import GROUPS, Community, named, sampled
from pltz.experiments.neighbours.nearest import coded
from pltz.models.session import transcript
from pltz.models.session.session import Session
from pltz.plt_codec.container.frame import context_of

if TYPE_CHECKING:
    from pltz.plt_codec.lanes import Tokens

ELSE = 999  # number of a community that is none of them


def matrix(codec: Codec, tokens: Sequence[Tokens]) -> tuple[list[int], list[list[int]]]:
    """Return the bytes of each sequence (T,) alone, and the bytes of each (rows) after each other (columns).

    Raises ModelError where one came back changed.
    """
    contexts = [None, *map(context_of, tokens)]
    sizes = iter(coded(codec, [one for one in tokens for _ in contexts], contexts * len(tokens)))
    rows = [[next(sizes) for _ in contexts] for _ in tokens]
    return [row[0] for row in rows], [row[1:] for row in rows]


def parts(codec: Codec, made: Sequence[Community]) -> dict[str, list[int]]:
    """Return the bytes of each community's parts.

    "after_group": its prompt after that of its group. "copied": the prompt of its group under its name, after the same
    one under another name. "own": its own sentences alone. "own_after_group": these after the prompt of its group.
    "own_tokens": their number. Raises ModelError where one came back changed.
    """
    prompts = tokens_of(codec, [one.prompt for one in made])
    shared = [named(number, one.shared) for number, one in enumerate(made)]
    copied = tokens_of(codec, shared)
    group = [context_of(one) for one in tokens_of(codec, [named(ELSE, one.shared) for one in made])]
    own = tokens_of(codec, ["".join(one.own) for one in made])
    found = coded(codec, [*prompts, *copied, *own, *own], [*group, *group, *[None] * len(own), *group])
    names = "after_group", "copied", "own", "own_after_group"
    rows = {name: found[n * len(made) : (n + 1) * len(made)] for n, name in enumerate(names)}
    return {**rows, "own_tokens": list(map(len, own))}


def tokens_of(codec: Codec, prompts: Sequence[str]) -> list[Tokens]:
    """Return each prompt, as a chat that has a system prompt alone, as tokens (T,)."""
    chats = [Session("chat", {"messages": [{"role": "system", "content": one}]}) for one in prompts]
    return [np.asarray(t) for t in transcript.to_tokens_many(chats, codec.bundle.tokenizer)]


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    codec = Codec.load(given.bundle, device=given.device, threads=1)
    made = sampled().made
    tokens = tokens_of(codec, [one.prompt for one in made])
    alone, after = matrix(codec, tokens)
    result = {
        "benchmark": "distances",
        "bundle": codec.bundle.id.hex(),
        "source": "communities",
        "groups": GROUPS,
        "tokens": [len(t) for t in tokens],
        "alone": alone,
        "after": after,
        "parts": parts(codec, made),
        "machine": machine.describe(codec.coder, given.device, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

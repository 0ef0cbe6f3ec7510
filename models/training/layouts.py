"""The cost of layouts and memories: coded bytes of held-out sessions under several, with one bundle.

    python -m pltz.models.training.layouts --data chat_validation.jsonl.zst --limit 100000

Coded bytes are those of frames that the coder really writes. Sessions are grouped by length, since a layout
that suits a long session is expensive for a short one. Prints a table and one JSON line. The default rule of
NUMERICS.md was chosen this way.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections import defaultdict
from typing import Any

from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session
from pltz.models.session.transcript import to_tokens_many
from pltz.models.training.prepare import read_lines
from pltz.plt_codec.engines.native.coder import NativeCoder
from pltz.plt_codec.weights import Weights

GROUPS = (0, 256, 512, 1024, 2048, 4096, 1 << 30)  # tokens
LAYOUTS: list[tuple[str, dict[str, int]]] = [
    ("default", {}),
    ("1 lane", {"lanes": 1, "steps": 4096}),
    ("2 lanes", {"lanes": 2, "steps": 2048}),
    ("4 lanes", {"lanes": 4, "steps": 1024}),
    ("8 lanes", {"lanes": 8, "steps": 512}),
    ("16 lanes", {"lanes": 16, "steps": 256}),
    ("32 lanes", {"lanes": 32, "steps": 128}),
    ("1 lane x 2048", {"lanes": 1, "steps": 2048}),
    ("16 lanes x 128", {"lanes": 16, "steps": 128}),
]
MEMORIES = (1, 512, 1024, 2048, 4096)  # positions of the block before that a block sees


def sessions(path: str, limit: int) -> list[Session]:
    """Return sessions of a records file, at most `limit` content bytes per source."""
    used: dict[str, int] = defaultdict(int)
    out = []
    for record in read_lines(path):
        source = record["id"].rsplit("-", 1)[0]
        size = sum(len(m["content"].encode()) for m in record["messages"])
        if used[source] + size <= limit:
            used[source] += size
            out.append(Session("chat", {"messages": record["messages"]}))
    return out


def main() -> None:
    """Run the command line described at the top of this file."""
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--limit", type=int, default=100_000)
    p.add_argument("--bundle", default=None)
    a = p.parse_args()
    bundle = Bundle.load(a.bundle)
    tokens = to_tokens_many(sessions(a.data, a.limit), bundle.tokenizer)
    groups = [[t for t in tokens if low < len(t) <= high] for low, high in itertools.pairwise(GROUPS)]
    result: dict[str, Any] = {"tokens": [sum(map(len, g)) for g in groups], "layouts": {}, "memories": {}}

    def measure(title: str, weights: Weights, options: dict[str, int], chosen: list[int]) -> list[int]:
        """Code the chosen groups, print a row of the table, and return the coded bytes of each."""
        coder = NativeCoder(weights)
        lanes, steps = options.get("lanes"), options.get("steps")
        coded = [coder.encode(groups[i], lanes=lanes, steps=steps) for i in chosen]
        found = [sum(len(e.data) for e in frames) for frames in coded]
        print(f"{title:24s} " + " ".join(f"{n:9d}" for n in found) + f"  {sum(found):9d}", flush=True)
        return found

    print(
        f"{'tokens a session <=':24s} " + " ".join(f"{h:9d}" for h in GROUPS[1:-1]) + "      more        all"
    )
    for title, options in LAYOUTS:
        result["layouts"][title] = measure(title, bundle.weights, options, list(range(len(groups))))
    print("memory, sessions of more than one block, default layout")
    for memory in MEMORIES:
        shape = dataclasses.replace(bundle.weights.shape, memory=memory)
        weights = Weights(shape, bundle.weights.tensors)
        result["memories"][memory] = measure(f"memory {memory}", weights, {}, [len(groups) - 1])
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""d_T: bytes of each session after each other one, as a matrix, by real decoding.

    python -m pltz.benchmarks.communities prompts.jsonl > communities.jsonl
    python -m pltz.benchmarks.measure_distances communities.jsonl --source communities > distances.json

The distance of the Towers paper is the code length of one session given another. The sessions of one source are coded
alone and after each other; every frame is decoded and compared. `python -m pltz.benchmarks.plots` draws the result.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from pltz.benchmarks import corpus, machine
from pltz.models.session import transcript
from pltz.models.session.codec import Codec
from pltz.plt_codec.errors import ModelError
from pltz.plt_codec.types import FrameItem, Tokens


def measure(codec: Codec, tokens: Sequence[Tokens]) -> tuple[list[int], list[list[int]]]:
    """Return the bytes of each sequence (T,) alone, and the bytes of each (rows) after each other (columns).

    Raises ModelError where one came back changed.
    """
    coder: Any = codec.coder  # that of a bundle takes contexts
    memory = codec.bundle.weights.shape.memory  # type: ignore[attr-defined]
    after = []
    for context in [None, *(one[:memory] for one in tokens)]:
        frames = coder.encode(tokens, contexts=[context] * len(tokens))
        items = [FrameItem(f.data, len(t), context=context) for f, t in zip(frames, tokens, strict=True)]
        if not all(map(np.array_equal, tokens, coder.decode(items))):
            raise ModelError("a session came back changed: no figure of this run is valid")
        after.append([len(f.data) for f in frames])
    return after[0], [list(row) for row in zip(*after[1:], strict=True)]


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--source", required=True, help="of the records, their id up to the last '-'")
    parser.add_argument("--groups", type=int, default=5, help="record n is of group n modulo this")
    parser.add_argument("--bundle")
    given = parser.parse_args()
    codec = Codec.load(given.bundle, threads=1)
    sessions = [r.session for r in corpus.read(given.data) if r.source == given.source]
    tokens = [np.asarray(t) for t in transcript.to_tokens_many(sessions, codec.bundle.tokenizer)]
    alone, after = measure(codec, tokens)
    result = {
        "benchmark": "distances",
        "bundle": codec.bundle.id.hex(),
        "source": given.source,
        "groups": given.groups,
        "tokens": [len(t) for t in tokens],
        "alone": alone,
        "after": after,
        "machine": machine.describe(codec.coder, "cpu", 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

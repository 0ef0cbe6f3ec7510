"""A look at texts before the model codes them: samples tell where zstd is shorter, so that nothing is coded in vain.

    samples = doubtful(literals, content, fast)      # None where the model surely wins: nearly all texts
    sizes = expected_sizes(coder, [(tokens, samples)])

The model takes 0.4 to 0.7 of the bytes of zstd for prose and code. It loses where nothing can be predicted: random
digits in base 10, 16 or 64 have short tokens, and zstd finds no repeats in them. And it may lose where so much is
repeated that zstd takes few bytes per token. Samples of both are coded with tokens before them. experiments/LOG.md
has the figures, "no work in vain".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pltz.plt_codec.lanes import Tokens

if TYPE_CHECKING:
    from pltz.coding.parts import Coder

LEAST = 1 << 11  # tokens left for the model from which a text is worth a look,
LEAST_REPEATING = 1 << 14  # and where it repeats itself
SHORT = 2.0  # bytes per token left for the model, below which these are short: prose and code have 2.2 to 4.6
NOTHING_REPEATED = 0.85  # of the entropy of single bytes: what zstd takes at least where it finds no repeats
REPEATED = 0.65  # bytes under zstd per token left for the model, below which zstd may win: the model takes 0.3 to 0.6


class Samples(NamedTuple):
    """The shape of the samples of a text.

    Attributes:
        most: at most so many,
        tokens: of so many tokens each,
        before: after so many others, so that they cost what they cost inside of the text,
        every: one per so many tokens of it.
    """

    most: int
    tokens: int
    before: int
    every: int


RANDOM = Samples(8, 1 << 8, 1 << 7, 1 << 11)  # they tell the bytes of random digits within 2 %
REPEATING = Samples(2, 1 << 11, 1 << 11, 1 << 13)  # those of logs within 15 %: with fewer before, up to 25 % too many


def doubtful(literals: int, content: bytes, fast: float) -> Samples | None:
    """Return the samples that tell whether the model codes a text in vain; None where it surely does not.

    Args:
        literals: tokens left for the model.
        content: bytes of the text.
        fast: bytes of it at a fast level of zstd.
    """
    if literals < LEAST:
        return None
    if literals >= LEAST_REPEATING and fast < REPEATED * literals:
        return REPEATING
    if len(content) < SHORT * literals and fast > NOTHING_REPEATED * entropy(content):
        return RANDOM
    return None


def entropy(content: bytes) -> float:
    """Return the bytes that a content takes at least where each of its bytes is coded for itself.

    >>> entropy(b"01" * 32), entropy(bytes(range(256)))
    (8.0, 256.0)
    """
    counts = np.bincount(np.frombuffer(content, np.uint8))
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / len(content))).sum() / 8)


def expected_sizes(coder: Coder, texts: Sequence[tuple[Tokens, Samples]]) -> list[float]:
    """Return the bytes that each text is expected to take, coded by the model. All samples are coded in one call.

    ``texts``: the tokens left for the model, (L,) each, and the samples to take.
    """
    taken = [_taken(*text) for text in texts]
    rows = [sample for samples in taken for sample in samples]
    if not rows:
        return []
    coded = coder.encode([tokens for _, tokens in rows], contexts=[before for before, _ in rows])
    sizes = iter([len(one.data) for one in coded])
    return [
        sum(next(sizes) for _ in samples) * len(tokens) / sum(len(sample) for _, sample in samples)
        for (tokens, _), samples in zip(texts, taken, strict=True)
    ]


def _taken(tokens: Tokens, samples: Samples) -> list[tuple[Tokens, Tokens]]:
    """Return samples of tokens (L,), each with those before it."""
    most, size, before, every = samples
    count = max(1, min(most, len(tokens) // every))
    starts = [(2 * n + 1) * len(tokens) // (2 * count) for n in range(count)]
    return [(tokens[max(0, start - before) : start], tokens[start : start + size]) for start in starts]

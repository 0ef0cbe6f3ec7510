"""The context of a sequence: known tokens that stand before it, coded with nothing (NUMERICS.md, "Context").

    context  c0 .. c(m-1)      one lane, m <= M steps, passed through the model for its keys and values alone
    sequence t0 .. t(T-1)      coded as ever, but its first block starts at position m and remembers the context

Why a copy in front: with the context's tokens before its own, a sequence's positions are indices, in both engines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import ContentError, UsageError
from pltz.plt_codec.types import MAX_TOKENS, Tokens
from pltz.plt_codec.weights import Shape

Ids = npt.NDArray[np.int64]
NOTHING: Ids = np.zeros(0, np.int64)


def checked(tokens: Tokens, vocab: int) -> Ids:
    """The ids as one row of int64. Raises ContentError for what is no row of ids below `vocab`."""
    ids = np.ascontiguousarray(tokens, np.int64)
    if np.ndim(tokens) != 1 or len(ids) >= MAX_TOKENS:
        shape = np.shape(tokens)
        raise ContentError(f"expected one row of fewer than {MAX_TOKENS} token ids, got shape {shape}")
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab):
        raise ContentError(f"expected token ids in 0..{vocab - 1}, got {ids.min()}..{ids.max()}")
    return ids


def remembered(context: Tokens | None, shape: Shape) -> Ids:
    """What counts of a context: its last M tokens, (m,) int64. Raises ContentError as `checked` does."""
    if context is None:
        return NOTHING
    if np.ndim(context) != 1:
        raise ContentError(f"expected one row of token ids as context, got shape {np.shape(context)}")
    return checked(np.asarray(context)[-shape.memory :] if shape.memory else NOTHING, shape.vocab)


def room(context: Ids, tokens: int) -> Ids:
    """The context and zeros for `tokens` ids, (m + tokens,): memory that nobody touched yet, so a count that lies costs none."""
    ids = np.zeros(len(context) + tokens, np.int64)
    ids[: len(context)] = context
    return ids


def each(contexts: Sequence[Tokens | None] | None, count: int, shape: Shape) -> list[Ids]:
    """What counts of the contexts of `count` sequences. Raises UsageError where they are not as many."""
    if contexts is None:
        return [NOTHING] * count
    if len(contexts) != count:
        raise UsageError(f"expected a context for each of {count} sequences, got {len(contexts)}")
    return [remembered(c, shape) for c in contexts]

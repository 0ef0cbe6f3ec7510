"""The context of a sequence: known tokens before it that are not coded themselves (NUMERICS.md, "Context").

    context  c0 .. c(m-1)      one lane, m <= M steps, passed through the model for its keys and values alone
    sequence t0 .. t(T-1)      coded as ever, but its first block starts at position m and remembers the context

The context's tokens are copied in front of a sequence's own, so its positions are indices, in both engines.
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
    """Return ids (T,) as a row of int64.

    Raises:
        ContentError: not one row of ids below `vocab`, or too many of them.
    """
    ids = np.ascontiguousarray(tokens, np.int64)
    if np.ndim(tokens) != 1 or len(ids) >= MAX_TOKENS:
        shape = np.shape(tokens)
        raise ContentError(f"expected one row of fewer than {MAX_TOKENS} token ids, got shape {shape}")
    if len(ids) and ids.view(np.uint64).max() >= vocab:  # one look; ids below 0 are the largest
        raise ContentError(f"expected token ids in 0..{vocab - 1}, got {ids.min()}..{ids.max()}")
    return ids


def remembered(context: Tokens | None, shape: Shape) -> Ids:
    """Return the part of a context that counts: its last M tokens, (m,) int64.

    Raises:
        ContentError: not one row of ids of the vocabulary.
    """
    if context is None:
        return NOTHING
    if np.ndim(context) != 1:
        raise ContentError(f"expected one row of token ids as context, got shape {np.shape(context)}")
    return checked(np.asarray(context)[-shape.memory :] if shape.memory else NOTHING, shape.vocab)


def room(context: Ids, tokens: int) -> Ids:
    """Return the context (m,) followed by zeros for `tokens` ids, (m + tokens,).

    The zeros are memory that nothing has touched yet, so a count that lies costs none.
    """
    ids = np.zeros(len(context) + tokens, np.int64)
    ids[: len(context)] = context
    return ids


def each(contexts: Sequence[Tokens | None] | None, count: int, shape: Shape) -> list[Ids]:
    """Return the part of each of `count` contexts that counts, (m,) int64 each.

    Raises:
        UsageError: there are not `count` contexts.
        ContentError: a context is not one row of ids of the vocabulary.
    """
    if contexts is None:
        return [NOTHING] * count
    if len(contexts) != count:
        raise UsageError(f"expected a context for each of {count} sequences, got {len(contexts)}")
    return [remembered(c, shape) for c in contexts]

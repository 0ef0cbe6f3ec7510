"""Proof by decoding: compare what segments decode to with their tokens, before anything is written.

    segments --codec--> bitstrings --decode--> tokens, compared --> numbers of those that do not come back
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from pltz.coding.codecs.codec import Coded
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.identity import MAX_POSITION
from pltz.plt_codec.types import Tokens

ABREAST = 32  # segments per comparison


def unproved(
    decode: Callable[[Sequence[Coded]], Sequence[Tokens]], coded: Sequence[Coded], wanted: Sequence[Tokens]
) -> list[int]:
    """Decode segments, and return the numbers of those that do not decode to the tokens wanted, (T,) each.

    ``decode``: that of their codec. Raises ContentError where an id is out of range.
    """
    try:
        found: list[Tokens | None] = [*decode(coded)]
    except CorruptError:  # which one it is
        found = [None] * len(coded)
        for n, one in enumerate(coded):
            with suppress(CorruptError):
                [found[n]] = decode([one])
    if len(found) != len(wanted):
        return [*range(len(wanted))]
    wrong: list[int] = []
    for begin in range(0, len(wanted), ABREAST):
        numbers = range(begin, min(begin + ABREAST, len(wanted)))
        rows, tokens = found[begin : begin + ABREAST], wanted[begin : begin + ABREAST]
        if not _equal(rows, tokens):
            wrong += [n for n in numbers if not _equal([found[n]], [wanted[n]])]
    return wrong


def _equal(found: Sequence[Tokens | None], wanted: Sequence[Tokens]) -> bool:
    """Return whether rows are equal. Rows of u32 are compared as one byte string, which calls numpy once."""
    if not _narrow(wanted):
        return all(a is not None and np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    plain = b"".join(tokens.data for tokens in wanted)
    if (most := np.frombuffer(plain, np.uint32).max(initial=0)) > MAX_POSITION:
        raise ContentError(f"expected token ids in 0..{MAX_POSITION}, found {most}")
    rows = [row for row in found if row is not None]
    if [*map(len, rows)] != [*map(len, wanted)]:
        return False
    return b"".join(row.data for row in rows) == plain if _narrow(rows) else all(map(np.array_equal, rows, wanted))


def _narrow(rows: Sequence[Tokens]) -> bool:
    """Return whether all rows are contiguous arrays of u32."""
    return all(type(row) is np.ndarray and row.dtype == np.uint32 and row.flags.c_contiguous for row in rows)

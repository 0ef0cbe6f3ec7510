"""Proof by decoding: compare what segments decode to with their tokens, before anything is written.

    segments --codec--> bitstrings --decode--> tokens, compared --> numbers of those that do not come back
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from pltz.coding.codecs.codec import Coded
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.workers import Later
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
    return _different(found, wanted)


class LaterProof:
    """A proof of segments whose bytes are still put together, by processes beside the model.

    Args:
        codec: of logs.
        coded: the segments.
        wanted: their bytes.
    """

    def __init__(self, codec: LogCodec, coded: Sequence[Coded], wanted: Sequence[bytes]) -> None:
        self._codec, self._coded, self._wanted = codec, coded, wanted
        try:
            self._found: list[Later | None] | None = codec.decode_begun(coded)
        except CorruptError:  # which one it is
            self._found = None

    def wrong(self) -> list[int]:
        """Return the numbers of the segments that do not decode to the bytes wanted."""
        wanted = [np.frombuffer(content, np.uint8) for content in self._wanted]
        if self._found is None:
            return unproved(self._codec.decode, self._coded, wanted)
        found: list[Tokens | None] = [None] * len(wanted)
        for n, later in enumerate(self._found):
            with suppress(CorruptError):
                found[n] = np.frombuffer(later.result() if later else b"", np.uint8)
        return _different(found, wanted)


def _different(found: Sequence[Tokens | None], wanted: Sequence[Tokens]) -> list[int]:
    """Return the numbers of the rows that differ; all where they are not as many."""
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

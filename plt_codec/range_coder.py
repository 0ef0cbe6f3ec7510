"""The entropy coder: a range coder in words of 32 bits, cut to whole bytes (FORMAT.md, "Frames").

It has a 64-bit state and 24-bit frequencies. The engines have it in C and CUDA. A range coder decodes in the order of
encoding, unlike ANS, so a sequence can be coded block after block without a second pass. The recurrence is

    scale = range >> 24;  lower += scale * cumulative;  range = scale * frequency
    while range < 2^32: emit the top word of lower (with carry), shift both by 32

The stream ends as early as the last state allows, such that zeros after it decode to the same symbols. That
is about one byte over the ideal length, where whole words cost four on average. A reader appends zeros. Words
once emitted stay, also where they are zero. So symbols that take more words than the stream has cannot come from it,
and a reader can tell (`most_words`): in whole numbers, the same on every machine.
"""

from __future__ import annotations

STATE, WORD = 8, 4  # bytes of coder state, and of a word


def most_words(size: int) -> int:
    """Return the words that a decoder may read of a stream of so many bytes: those of the state, and those emitted.

    A stream of n words emitted has at least 4 n - 1 bytes.

    >>> most_words(0), most_words(2), most_words(3), most_words(6), most_words(7)
    (2, 2, 3, 3, 4)
    """
    return (STATE + size + 1) // WORD


def shortest(lower: int, width: int, total: int) -> bytes:
    """Return the shortest bytes that, with zeros appended up to ``total``, are ``width`` or less above ``lower``."""
    size = max(0, total - STATE - 1)
    while (value := -(-lower >> (shift := 8 * (total - size)))) << shift >= lower + width:
        size += 1
    return value.to_bytes(size, "big")

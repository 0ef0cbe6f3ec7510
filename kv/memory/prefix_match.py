"""PrefixMatch: how much of a remembered text a new prompt begins with, in characters, and the tokens that can stay.

    remembered  The quick brown fox|
    prompt      The quick brown fox| jumps         extend: all of it stays
    prompt      The quick brown f|rog               partial: 80 % or more are the same
    prompt      The s|low                           diverge: nothing stays

Ids are not compared. An agent's own ids may spell a text otherwise than the tokenizer would. So the cut lies where
both spellings end a token after the same character. What follows is then spelled as the tokenizer spells it there.
Source: "Agent Memory Below the Prompt", algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pltz.models import Target

SAME = 0.8  # of the remembered characters, from which a part is kept
WITHIN = -1  # the end of an id that ends within a character
LONGEST = 16  # ids that may together be one character


@dataclass(frozen=True)
class PrefixMatch:
    """The relation of a prompt to a remembered text.

    ``kind``: "exact", "extend", "partial" or "diverge". ``characters``: that may be reused.
    """

    kind: str
    characters: int

    @classmethod
    def of(cls, remembered: str, prompt: str) -> PrefixMatch:
        """Compare two texts.

        >>> PrefixMatch.of("0123456789", "0123456789 and on")
        PrefixMatch(kind='extend', characters=10)
        >>> PrefixMatch.of("0123456789", "01234567, no")
        PrefixMatch(kind='partial', characters=8)
        >>> PrefixMatch.of("0123456789", "0123456")
        PrefixMatch(kind='diverge', characters=0)
        """
        if prompt == remembered:
            return cls("exact", len(prompt))
        if prompt.startswith(remembered):
            return cls("extend", len(remembered))
        same = common(remembered, prompt)
        return cls("partial", same) if same >= SAME * len(remembered) else cls("diverge", 0)


def common(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def cut(remembered: NDArray[np.int32], prompt: NDArray[np.int32], characters: int) -> tuple[int, int]:
    """Return how many remembered ids stay, and how many ids of the prompt they stand for.

    ``remembered``, ``prompt``: ends of ids, (T,). ``characters``: that are the same.

    >>> cut(np.array([2, 5, 9], np.int32), np.array([5, 7, 9], np.int32), 8)
    (2, 1)
    """
    shared = np.intersect1d(remembered, prompt)
    shared = shared[(shared > 0) & (shared <= characters)]
    if not len(shared):
        return 0, 0
    kept, done = (int(np.flatnonzero(ends == shared[-1])[-1]) + 1 for ends in (remembered, prompt))
    return kept, done


def spelled(target: Target, text: str) -> tuple[list[int], NDArray[np.int32]]:
    """Return the ids of a text as `Target.tokenize` does, and the characters up to the end of each, (T,).

    Raises ContentError where the tokenizer cannot take it.
    """
    ids = target.tokenize(text)
    if not getattr(target.tokenizer, "is_fast", False):  # one without offsets
        return ids, ends_of(target, ids, text)
    found = target.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    places = np.asarray(found["offset_mapping"], np.int32).reshape(-1, 2)
    if list(found["input_ids"]) != ids:
        return ids, ends_of(target, ids, text)
    following = np.append(places[1:, 0], np.int32(len(text)))
    return ids, np.where(following >= places[:, 1], places[:, 1], np.int32(WITHIN)).astype(np.int32)


def ends_of(target: Target, ids: Sequence[int], text: str) -> NDArray[np.int32]:
    """Return the characters of a text up to the end of each id, (T,), by decoding; for ids that a target generated.

    Ids that cannot be found in the text end within a character, so no cut is made there.
    """
    ends = np.full(len(ids), WITHIN, np.int32)
    at, first = 0, 0
    for n in range(len(ids)):
        before = list(ids[max(first - 1, 0) : first])  # some tokenizers drop a space at the beginning of a text
        piece = target.decode([*before, *ids[first : n + 1]])[len(target.decode(before)) if before else 0 :]
        if piece and "\ufffd" not in piece and text.startswith(piece, at):
            at, first = at + len(piece), n + 1
            ends[n] = at
        elif n - first >= LONGEST:
            break
    return ends

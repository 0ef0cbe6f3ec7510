"""Sketches: find the earlier sequences that share most with new ones, among very many, without reading them.

    tokens --every 4 in a row, hashed--> the SIZE smallest hashes   (bottom-k MinHash: a uniform sample of the 4-grams)

A session is coded in fewer bytes after another one that has much in common with it. Coding it after each of a thousand
to find that one out is too slow. A sketch of 260 bytes stands for each of them instead. The hashes of new sequences
are looked up in the sketches of all. The share found there, times the 4-grams that a sketch stands for, estimates the
number of 4-grams that both have. The real code length then decides among the few with the highest estimates.

Hashes are integers and wrap, so every machine makes the same sketches. A hash says whether a text has some four tokens,
so a sketch has to be kept as secret as the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

GRAM = 4  # tokens
SIZE = 64  # hashes per sketch
LEAST_HITS = 2  # hashes of a sketch that a new sequence has to have; one alone may be chance
LEAST_SHARED = 0.1  # of the 4-grams of a sequence: with less in common an earlier one is not tried
FANOUT = 4  # times as long as a run of sorted hashes is the one before it, at least; else both are joined
AT_ONCE = 1 << 21  # pairs of a sequence and a sketch that are counted at once: bounds memory
OWNER = np.uint64(0xFFFFFFFF)  # the bits of a tagged hash that say whose it is

Hashes = npt.NDArray[np.uint32]
Found = list[tuple[int, float]]  # sketches by number, and how many distinct 4-grams they share, estimated
Tagged = npt.NDArray[np.uint64]  # hashes, ascending, each with the number of its owner below it
_FACTORS = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5
_MIX = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Sketch(NamedTuple):
    """A sample of the 4-grams of a sequence.

    Attributes:
        grams: number of distinct hashes of the sequence.
        hashes: the smallest of them, ascending, (k,), k at most `SIZE`.
    """

    grams: int
    hashes: Hashes

    @classmethod
    def of(cls, hashes: Hashes, size: int = SIZE) -> Sketch:
        """Return the sketch of ``size`` hashes of a sequence with these distinct ones, (h,), ascending."""
        return cls(len(hashes), hashes[:size].copy())


def hashes_of(tokens: npt.NDArray[np.integer[Any]]) -> Hashes:
    """Return the distinct hashes of all 4-grams of a sequence (T,), ascending; none of fewer than four tokens.

    >>> len(hashes_of(np.arange(10))), len(hashes_of(np.zeros(10, int))), len(hashes_of(np.arange(3)))
    (7, 1, 0)
    """
    count = len(tokens) - GRAM + 1
    if count <= 0:
        return np.zeros(0, np.uint32)
    ids = np.asarray(tokens).astype(np.uint64)
    mixed = np.zeros(count, np.uint64)
    for place, factor in enumerate(_FACTORS):  # numpy wraps products of arrays without a word
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(_MIX[0])
        mixed += ids[place : place + count] * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(_MIX[1])
    hashes: Hashes = np.sort((mixed >> np.uint64(32)).astype(np.uint32))
    distinct: Hashes = hashes[np.concatenate([[True], hashes[1:] != hashes[:-1]])]
    return distinct


def least_shared(tokens: npt.NDArray[np.integer[Any]]) -> float:
    """Return how many distinct 4-grams an earlier sequence has to share with one, (T,), to be tried as its context."""
    return LEAST_SHARED * (len(tokens) - GRAM + 1)


class SketchIndex:
    """Sketches in memory, searched together. They are numbered from 0 in the order in which they were added.

    It holds 8 bytes for each hash. Not for several threads.
    """

    def __init__(self, sketches: Sequence[Sketch] = ()) -> None:
        self._scales = np.zeros(0)  # 4-grams of a sequence for each hash of its sketch
        self._runs: list[Tagged] = []
        self.add(sketches)

    def __len__(self) -> int:
        return len(self._scales)

    def add(self, sketches: Sequence[Sketch]) -> None:
        """Add sketches, many at once, which is faster."""
        run = _tagged([sketch.hashes for sketch in sketches], len(self))
        self._scales = np.append(self._scales, [sketch.grams / max(1, len(sketch.hashes)) for sketch in sketches])
        if not len(run):  # nothing finds them
            return
        while self._runs and len(self._runs[-1]) < FANOUT * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")  # of two that are sorted: a merge
        self._runs.append(run)

    def nearest_to(self, wanted: Hashes, count: int = 1, least: float = 0) -> Found:
        """Return at most ``count`` sketches that share most of these hashes, (h,), distinct and ascending, best first.

        Of equal ones the last added comes first. Sketches with fewer than `LEAST_HITS` hashes in common are left out,
        and those that share less than ``least``.
        """
        return self.nearest_to_each([wanted], [least], count)[0]

    def nearest_to_each(self, wanted: Sequence[Hashes], least: Sequence[float], count: int = 1) -> list[Found]:
        """Return what `nearest_to` returns for each row."""
        step = AT_ONCE // max(1, len(self)) or 1
        hits = chain.from_iterable(self._hits(wanted[at : at + step]) for at in range(0, len(wanted), step))
        return [self._best(*row, count) for row in zip(hits, least, strict=True)]

    def _hits(self, wanted: Sequence[Hashes]) -> npt.NDArray[np.int64]:
        """Return how many hashes of each row each sketch has, (rows, sketches)."""
        asked = _tagged(wanted, 0)
        hits = np.zeros(len(wanted) * len(self), np.int64)
        for run in self._runs:
            begin = run.searchsorted(asked & ~OWNER)
            there = np.flatnonzero(run[np.minimum(begin, len(run) - 1)] | OWNER == asked | OWNER)
            begin, here = begin[there], asked[there]
            length = run.searchsorted(here | OWNER, "right") - begin
            ends = np.cumsum(length)
            places = np.repeat(begin - ends + length, length) + np.arange(length.sum())
            rows = (here & OWNER).astype(np.int64) * len(self)
            hits += np.bincount((run[places] & OWNER).astype(np.int64) + np.repeat(rows, length), minlength=len(hits))
        return hits.reshape(len(wanted), len(self))

    def _best(self, hits: npt.NDArray[np.int64], least: float, count: int) -> Found:
        near = np.flatnonzero(hits >= LEAST_HITS)
        shared = hits[near] * self._scales[near]
        near, shared = near[shared >= least], shared[shared >= least]
        order = np.lexsort((-near, -shared))[:count]
        return [*zip(near[order].tolist(), shared[order].tolist(), strict=True)]


def _tagged(rows: Sequence[Hashes], first: int) -> Tagged:
    """Return the hashes of rows, (h,) each, together. The rows have numbers from ``first`` on."""
    if not rows:
        return np.zeros(0, np.uint64)
    owners = np.repeat(np.arange(first, first + len(rows), dtype=np.uint64), [len(row) for row in rows])
    return np.sort(np.concatenate(rows).astype(np.uint64) << np.uint64(32) | owners)

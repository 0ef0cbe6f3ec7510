"""Sketches: find the earlier sequences that share most with a new one, among very many, without reading them.

    tokens --every 4 in a row, hashed--> the SIZE smallest hashes   (bottom-k MinHash: a uniform sample of the 4-grams)

A session is coded in fewer bytes after another one that has much in common with it. Coding it after each of a thousand
to find that one out is too slow. A sketch of 260 bytes stands for each of them instead. The hashes of a new sequence
are looked up in the sketches of all. The share found there, times the 4-grams that a sketch stands for, estimates the
number of 4-grams that both have. The real code length then decides among the few with the highest estimates.

The search is compiled where there is a C compiler (`sketch.c`). Hashes are integers and wrap, so every machine makes
the same sketches. A hash says whether a text has some four tokens, so a sketch has to be kept as secret as the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

try:
    from pltz.coding import _sketch
except ImportError:  # there was no C compiler
    _sketch = None  # type: ignore[assignment]

GRAM = 4  # tokens
SIZE = 64  # hashes per sketch
LEAST_HITS = 2  # hashes of a sketch that a new sequence has to have; one alone may be chance
LEAST_SHARED = 0.1  # of the 4-grams of a sequence: with less in common an earlier one is not tried
PER_START = 8  # hashes of a run that one start stands for
RECENT = 8  # sketches that are kept unsorted for a while
FANOUT = 8  # times as long as a run of sorted hashes is the one before it, at least; else both are joined

Hashes = npt.NDArray[np.uint32]
Item = TypeVar("Item")
Numbers = npt.NDArray[np.uint32]
Run = tuple[Hashes, Numbers, Numbers]  # hashes, ascending, the sketch of each, and where their first bits begin
Runs = list[Run]
Recent = list[tuple[int, Hashes]]  # sketches in no run, with their numbers
Found = list[tuple[int, float]]  # sketches by number, and how much they share
Search = Callable[[Runs, Recent, list[Hashes], npt.NDArray[np.float64], int, int], list[Found]]
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


class Neighbour(NamedTuple):
    """A sketch that has something in common with a sequence.

    Attributes:
        number: number of the sketch, as `SketchIndex.add` returned it.
        shared: estimated number of distinct 4-grams that both have.
    """

    number: int
    shared: float


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

    It holds 9 bytes for each hash: 600 bytes for each sketch. Not for several threads.
    """

    def __init__(self, sketches: Sequence[Sketch] = ()) -> None:
        self._count = 0
        self._scales = np.zeros(RECENT)  # 4-grams of a sequence for each hash of its sketch; twice as long when full
        self._runs: Runs = []
        self._recent: Recent = []
        for sketch in sketches:
            self.add(sketch)

    def __len__(self) -> int:
        return self._count

    def add(self, sketch: Sketch) -> int:
        """Add a sketch and return its number."""
        number, self._count = self._count, self._count + 1
        if number == len(self._scales):
            self._scales = np.concatenate([self._scales, np.zeros(number)])
        self._scales[number] = sketch.grams / max(1, len(sketch.hashes))
        if not len(sketch.hashes):  # nothing finds it, and runs of no hashes would never be joined
            return number
        self._recent.append((number, sketch.hashes))
        if len(self._recent) == RECENT:
            self._runs.append(_run([hashes for _, hashes in self._recent], [number for number, _ in self._recent]))
            self._recent = []
            while len(self._runs) > 1 and len(self._runs[-2][0]) < FANOUT * len(self._runs[-1][0]):
                later, earlier = self._runs.pop(), self._runs.pop()
                self._runs.append(joined(earlier, later))
        return number

    def nearest_to(self, wanted: Hashes, count: int = 1) -> list[Neighbour]:
        """Return at most ``count`` sketches that share most of these hashes, (h,), distinct and ascending, best first.

        Of equal ones the last added comes first. Sketches with fewer than `LEAST_HITS` hashes in common are left out.
        """
        return self.nearest_to_each([wanted], count)[0]

    def nearest_to_each(self, wanted: list[Hashes], count: int = 1) -> list[list[Neighbour]]:
        """Return what `nearest_to` returns for each row. Other threads of Python run meanwhile."""
        found = found_by(self._runs, self._recent, wanted, self._scales, LEAST_HITS, min(count, self._count))
        return [[Neighbour(*one) for one in row] for row in found]


def found_here(
    runs: Runs,
    recent: Recent,
    wanted: list[Hashes],
    scales: npt.NDArray[np.float64],
    least: int,
    count: int,
) -> list[Found]:
    """Return the numbers of the nearest sketches and how much they share, for each row, as `sketch.c` does."""
    return [_found(runs, recent, row, scales, least, count) for row in wanted]


def _found(
    runs: Runs, recent: Recent, wanted: Hashes, scales: npt.NDArray[np.float64], least: int, count: int
) -> Found:
    owners = [np.zeros(0, np.uint32)]  # one for each hash that a sketch has in common with the sequence
    for hashes, owner, _ in runs:
        begin = np.searchsorted(hashes, wanted, "left")
        has = hashes[np.minimum(begin, len(hashes) - 1)] == wanted
        begin = begin[has]
        length = np.searchsorted(hashes, wanted[has], "right") - begin
        found = np.repeat(begin - np.cumsum(length) + length, length) + np.arange(length.sum())
        owners.append(owner[found])
    if recent and len(wanted):
        lengths = [len(hashes) for _, hashes in recent]
        joined = np.concatenate([hashes for _, hashes in recent])
        place = np.minimum(np.searchsorted(wanted, joined), len(wanted) - 1)
        numbers = np.array([number for number, _ in recent], np.uint32)
        owners.append(np.repeat(numbers, lengths)[wanted[place] == joined])
    near, hits = np.unique(np.concatenate(owners), return_counts=True)
    near, hits = near[hits >= least].astype(np.int64), hits[hits >= least]
    shared = hits * scales[near]
    order = np.lexsort((-near, -shared))[:count]
    return [(int(near[n]), float(shared[n])) for n in order]


compiled: Search | None = None if _sketch is None else _sketch.nearest
compiled_join = None if _sketch is None else _sketch.join
found_by = compiled or found_here


def _run(hashes: Sequence[Hashes], numbers: Sequence[int]) -> Run:
    """Return the hashes of sketches of these numbers, ascending, and the number of each."""
    owners = np.repeat(np.array(numbers, np.uint32), [len(one) for one in hashes])
    return _sorted(np.concatenate(hashes), owners)


def joined(earlier: Run, later: Run) -> Run:
    """Return two runs as one."""
    if compiled_join is None:
        return _sorted(*map(np.concatenate, zip(earlier[:2], later[:2], strict=True)))
    found = compiled_join(*earlier[:2], *later[:2], _bits(len(earlier[0]) + len(later[0])))
    hashes, owners, starts = (np.frombuffer(part, np.uint32) for part in found)
    return hashes, owners, starts


def _sorted(hashes: Hashes, owners: Numbers) -> Run:
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    return hashes, owners[order], starts_of(hashes)


def starts_of(hashes: Hashes) -> Numbers:
    """Return where the hashes, ascending, of each value of their first k bits begin, and their number: (2^k + 1,)."""
    bits = _bits(len(hashes))
    edges = np.arange(1 << bits, dtype=np.uint32) << np.uint32(32 - bits)
    return np.append(np.searchsorted(hashes, edges), len(hashes)).astype(np.uint32)


def _bits(count: int) -> int:
    """Return k. About `PER_START` of so many hashes have the same first bits, so a search begins near its end."""
    return max(1, (count // PER_START).bit_length())


class NearestItems(Generic[Item]):
    """Items found by their sketches: earlier sessions and logs of a file."""

    def __init__(self) -> None:
        self._index = SketchIndex()
        self._items: list[Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item, sketch: Sketch) -> None:
        """Add an item with this sketch."""
        self._index.add(sketch)
        self._items.append(item)

    def nearest_to(self, wanted: Hashes, least: float, count: int = 1) -> list[tuple[float, Item]]:
        """Return how many of these hashes, (h,), the nearest items share, and these, best first.

        At most ``count``, those that share ``least`` or more.
        """
        found = self._index.nearest_to(wanted, count) if self._items else []
        return self._as_items(found, least)

    def nearest_to_each(self, wanted: list[Hashes], least: Sequence[float]) -> list[list[tuple[float, Item]]]:
        """Return what `nearest_to` returns for each row, at most one item. Other threads of Python run meanwhile."""
        found = self._index.nearest_to_each(wanted) if self._items else [list[Neighbour]() for _ in wanted]
        return [self._as_items(*one) for one in zip(found, least, strict=True)]

    def _as_items(self, found: Sequence[Neighbour], least: float) -> list[tuple[float, Item]]:
        return [(one.shared, self._items[one.number]) for one in found if one.shared >= least]

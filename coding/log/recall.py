"""Recall: passages of a log that stood in it far before, taken out of a part of it. Spec: coding/FORMAT.md, "Recalls".

    content --Passages.recalled--> its own bytes, and where the passages that are left out stand in the log
    own bytes, recalls --filled--> content

A *passage* is what stands between two quotes, so a picture, the result of a tool or an id. A table and a text remember
some megabytes. What comes again behind them, at any distance, is found by a hash here, compared, and left out: a string
becomes an empty one, and a line of JSON stays one.

    >>> log = b'{"a": "a sentence that is said far apart"}\\n{"b": "a sentence that is said far apart"}\\n'
    >>> seen, begin = Passages(log), len(log) // 2
    >>> seen.recalled(log[:begin], 0, 0), seen.recalled(log[begin:], begin, begin).own
    (None, b'{"b": ""}\\n')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import Tokens

QUOTE, BACKSLASH, NEWLINE = b'"', 92, 10
NO_STARTS = [*b",:]}"]  # what stands behind a string that ends, so not within one
LEAST = 32  # bytes of a passage that is remembered: an id has 36
LONG = 1 << 10  # bytes from which it is left out also where the part has it twice, or is coded after others
MOST = 1 << 18  # passages that are remembered, 35 MB; of more the shorter ones are forgotten
SIZE = 12  # bytes of a recall
LENGTH_BITS = 27  # of a place that is remembered, its lowest: the bytes of the passage
STEP = 1 << 8  # bytes in which the end of a passage is looked for first

Source = Callable[[int, int], bytes]  # place in the log, bytes at most -> the passage that begins there


class LogBytes(Protocol):
    """Bytes that are in memory or not, at least those of a slice."""

    def __getitem__(self, place: slice, /) -> Any: ...


class Recalled(NamedTuple):
    """A content, its own bytes, which are what is coded of it, and its recalls, each of `SIZE` bytes."""

    content: bytes
    own: bytes
    recalls: bytes


class Passages:
    """The passages of a log so far, by their hashes. ``log``: all of it. A writer shows it one part after the other."""

    def __init__(self, log: LogBytes) -> None:
        self._log, self._least = log, LEAST
        self._places: dict[int, int] = {}  # hash of a passage -> its first place, and its bytes

    def recalled(self, content: bytes, begin: int, near: int) -> Recalled | None:
        """Return a part of the log without the passages that stood in it before; None where it has none.

        Args:
            content: the part, which is remembered from now on.
            begin: its place in the log.
            near: place from which on the log is remembered without this; ``begin``: it is not.
        """
        rows = _passages(content, self._least)
        times, least = Counter(row[3] for row in rows), 0 if near == begin else LONG
        numbers, sources, expected, behind = list[int](), list[int](), 0, 0
        for number, start, end, key in rows:
            place, size = self._places.get(key, -1) >> LENGTH_BITS, end - start
            if not 0 <= place < near or size < least or (times[key] > 1 and size < LONG):
                continue
            if bytes(self._log[place : place + size]) == content[start:end]:
                numbers.append(number)
                sources.append(place - expected - (start - behind))
                expected, behind = place + size, end
        self._remember(rows, begin)
        if not numbers:
            return None
        gaps = np.diff(np.array(numbers), prepend=-1).astype("<u4").view(np.uint8).reshape(-1, 4)
        deltas = np.array(sources, "<i8").view(np.uint8).reshape(-1, 8)
        recalls = np.concatenate([gaps, deltas], axis=1).T.tobytes()
        return Recalled(content, own_of(content, recalls), recalls)

    def add(self, content: bytes, begin: int) -> None:
        """Remember a part that is stored. ``begin``: its place in the log."""
        self._remember(_passages(content, self._least), begin)

    def source(self, place: int, most: int) -> bytes:
        """Return the passage at a place, as a `Source`."""
        return passage(self._log, place, most)

    def _remember(self, rows: list[tuple[int, int, int, int]], begin: int) -> None:
        places = self._places
        for _, start, end, key in rows:
            places.setdefault(key, (begin + start) << LENGTH_BITS | min(end - start, (1 << LENGTH_BITS) - 1))
        while len(places) > MOST:
            self._least *= 2
            mask = (1 << LENGTH_BITS) - 1
            places = self._places = {key: place for key, place in places.items() if place & mask >= self._least}


def filled(own: bytes, recalls: bytes, count: int, source: Source) -> bytes:
    """Return a content of ``count`` bytes by its own ones. Raises CorruptError where it is none."""
    places, deltas = _places(own, recalls)
    parts, at, expected, left, view = list[bytes | memoryview](), 0, 0, count - len(own), memoryview(own)
    for place, delta in zip(places.tolist(), deltas.tolist(), strict=True):
        start = expected + place - at + delta
        if start < 0 or not (found := source(start, left)):
            raise CorruptError(f"a log recalls no passage from byte {start}: the file is damaged")
        parts += [view[at:place], found]
        at, expected, left = place, start + len(found), left - len(found)
    if left:
        raise CorruptError(f"a log recalls {left} bytes too few: the file is damaged")
    return b"".join([*parts, view[at:]])


def padded(recalls: bytes, least: int) -> bytes:
    """Return recalls in ``least`` bytes at least, with some that say nothing: a frame may need them for its size."""
    planes = np.frombuffer(recalls, np.uint8).reshape(SIZE, -1)
    more = max(0, -(-least // SIZE) - planes.shape[1])
    return np.pad(planes, ((0, 0), (0, more))).tobytes()


def own_of(content: bytes, recalls: bytes) -> bytes:
    """Return the own bytes of a content: undoes `filled`, of a content that is right."""
    parts, at = list[bytes](), 0
    for place in _places(content, recalls)[0].tolist():
        parts.append(content[at:place])
        at = place + len(passage(content, place, len(content)))
    return b"".join([*parts, content[at:]])


def passage(log: LogBytes, place: int, most: int) -> bytes:
    """Return the passage at a place of a log, up to the next quote, without a backslash there.

    Raises CorruptError where none of at most ``most`` bytes ends there.
    """
    size = STEP
    while True:
        data = bytes(log[place : place + size])
        end = data.find(QUOTE)
        if end >= 0:
            end -= data[end - 1 : end] == b"\\"
        elif len(data) == size < most + 2:  # a backslash and the quote
            size *= 4
            continue
        if not 0 <= end <= most:
            raise CorruptError(f"a log recalls a passage from byte {place} that has no end: the file is damaged")
        return data[:end]


def _passages(content: bytes, least: int) -> list[tuple[int, int, int, int]]:
    """Return of each passage that may come again the number of the quote before it, its begin, its end and its hash."""
    data, quotes = np.frombuffer(content, np.uint8), _quotes(content)
    numbers = np.flatnonzero(np.diff(quotes) > least)
    begins, ends = quotes[numbers] + 1, quotes[numbers + 1]
    ends -= data[ends - 1] == BACKSLASH
    lines = np.flatnonzero(data == NEWLINE)
    within = np.searchsorted(lines, begins) == np.searchsorted(lines, ends)
    good = within & (data[ends - 1] != BACKSLASH) & ~np.isin(data[begins], NO_STARTS)
    places = zip(numbers[good].tolist(), begins[good].tolist(), ends[good].tolist(), strict=True)
    return [(number, begin, end, hash(content[begin:end])) for number, begin, end in places]


def _quotes(content: bytes) -> Tokens:
    return np.flatnonzero(np.frombuffer(content, np.uint8) == QUOTE[0])


def _places(content: bytes, recalls: bytes) -> tuple[Tokens, Tokens]:
    """Return where passages were left out, (k,), and the differences of recalls, (k,). Raises CorruptError."""
    gaps, quotes = _column(recalls, 0, "<u4"), _quotes(content)
    numbers = np.cumsum(gaps)[gaps > 0] - 1
    if len(numbers) and numbers[-1] >= len(quotes):
        raise CorruptError("a log recalls passages where it has no quotes: the file is damaged")
    return quotes[numbers] + 1, _column(recalls, 4, "<i8")[gaps > 0]


def _column(recalls: bytes, begin: int, kind: str) -> Tokens:
    """Return a number of each recall, (k,), whose bytes stand in planes from plane ``begin`` on."""
    planes = np.frombuffer(recalls, np.uint8).reshape(SIZE, -1)[begin : begin + np.dtype(kind).itemsize]
    return np.ascontiguousarray(planes.T).view(kind).ravel().astype(np.int64)

"""Long repeats in a token sequence, taken out as copies so that the model codes each once. Spec: FORMAT.md, "Copies".

`find` splits a sequence into literals and copies of earlier tokens, those of its past included: the context after
which it is coded. `pack` and `unpack` are the bytes of the copies. `literals` takes the copies out, and `expand` puts
them back. The model sees one block and the end of the one before. So it codes what an agent's log repeats from further
back as if it were new, and still pays token by token for repeats that it sees.

All runs of LEAST tokens are hashed by doubling, and the hashes sorted. So each position knows the last
earlier place of its run. From left to right, the longest of a few such places is taken. The time is that of
the sort. Nothing in Python runs per token, only per copy.

    >>> import numpy as np
    >>> tokens = np.concatenate([np.arange(50), [7], np.arange(50)])
    >>> copies = find(tokens)
    >>> copies, len(literals(tokens, copies))
    ([Copy(gap=51, length=50, distance=51)], 51)
    >>> bool((expand(literals(tokens, copies), unpack(pack(copies), 101)) == tokens).all())
    True
    >>> find(np.arange(10, 45), past=np.arange(50))
    [Copy(gap=0, length=35, distance=40)]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import MAX_BYTES, read_varint, write_varint
from pltz.plt_codec.zstd import Fallback

LEAST = 32  # tokens of a copy
PAST_LEAST = 32, 64  # tokens of the copies that are tried where some reach into the past
LONG = 512  # tokens of a copy, on average, which surely take more than naming it
FEW = 8  # copies: so many or more are packed
PLACES = 8  # earlier places tried per copy
PIECE = 64  # tokens compared at once, doubled while they match
NEIGHBOURS = 1 << 16  # compared at once
BASE = 0x9E3779B97F4A7C15  # of the polynomial hash, odd
MASK = (1 << 64) - 1

Tokens = npt.NDArray[Any]  # (T,) integers
NOTHING: Tokens = np.zeros(0, np.int64)


class Copy(NamedTuple):
    """A copy: after `gap` literals come `length` tokens that stood `distance` tokens before. It may overlap itself.

    The gap counts from the end of the copy before. The distance may reach into the past.
    """

    gap: int
    length: int
    distance: int


def find(tokens: Tokens, past: Tokens = NOTHING, least: int = LEAST) -> list[Copy]:
    """Return the copies of a sequence (T,) after its past (m,), in order; none if no run of ``least`` tokens repeats.

    ``least``: `LEAST` or a power of two above it.
    """
    tokens = np.concatenate([past, tokens]) if len(past) else tokens
    earlier = _earlier(tokens, least)
    starts = len(past) + np.flatnonzero(earlier[len(past) :] >= 0)
    found: list[Copy] = []
    end, distance = len(past), 0
    while (place := int(np.searchsorted(starts, end))) < len(starts):
        at = int(starts[place])
        length, distance = _longest(tokens, earlier, at, distance)
        found.append(Copy(at - end, length, distance))
        end = at + length
    return found


def _earlier(tokens: Tokens, least: int) -> npt.NDArray[np.int64]:
    """Return, for each start of a run of ``least`` tokens, the last place before it with the same run, or -1.

    Only neighbours among runs of equal hash are compared. So a run may be missed, but every place returned matches.
    """
    if len(tokens) <= least:
        return np.zeros(0, np.int64)
    hashes = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(BASE)
    hashes ^= hashes >> np.uint64(29)
    factor, width = BASE, 1
    while width < least:
        hashes = hashes[:-width] * np.uint64(factor) + hashes[width:]
        factor, width = factor * factor & MASK, 2 * width
    earlier = np.full(len(hashes), -1, np.int64)
    ordered = np.sort(hashes)  # a look at values alone, since most sequences repeat nothing
    if not (ordered[1:] == ordered[:-1]).any():
        return earlier
    del ordered
    order = np.argsort(hashes, kind="stable")
    for begin in range(0, len(order) - 1, NEIGHBOURS):
        part = order[begin : begin + NEIGHBOURS + 1]
        found = hashes[part]
        same = found[1:] == found[:-1]
        first, second = part[:-1][same], part[1:][same]
        equal = np.ones(len(first), bool)
        for i in range(least):
            equal &= tokens[first + i] == tokens[second + i]
        earlier[second[equal]] = first[equal]
    return earlier


def _longest(tokens: Tokens, earlier: npt.NDArray[np.int64], at: int, before: int) -> tuple[int, int]:
    """Return the length and distance of the longest match at a place.

    On a tie, `before`, the distance of the previous copy, wins.
    """
    best = (0, 0)
    if 0 < before <= at:
        best = (_match(tokens, at - before, at), before)
    place = int(earlier[at])
    for _ in range(PLACES):
        if place < 0:
            break
        length = _match(tokens, place, at)
        if length > best[0]:
            best = (length, at - place)
        place = int(earlier[place])
    return best


def _match(tokens: Tokens, first: int, second: int) -> int:
    """Return how many tokens from `first` on equal those from `second` on."""
    length, piece = 0, PIECE
    while True:
        a, b = (tokens[first + length : first + length + piece], tokens[second + length : second + length + piece])
        differ = np.flatnonzero(a[: len(b)] != b)
        if len(differ):
            return length + int(differ[0])
        length += len(b)
        if len(b) < piece:
            return length
        piece *= 2


def literals(tokens: Tokens, copies: Sequence[Copy]) -> Tokens:
    """Return the tokens (L,) that are left of a sequence (T,) without its copies."""
    if not copies:
        return tokens
    kept, end = [], 0
    for gap, length, _ in copies:
        kept.append(tokens[end : end + gap])
        end += gap + length
    return np.concatenate([*kept, tokens[end:]])


def expand(rest: Tokens, copies: Sequence[Copy], past: Tokens = NOTHING) -> Tokens:
    """Rebuild the sequence (T,) from its literals (L,), checked copies (`unpack`) and its past (m,)."""
    out = np.empty(len(past) + len(rest) + sum(copy.length for copy in copies), rest.dtype)
    out[: len(past)] = past
    taken, end = 0, len(past)
    for gap, length, distance in copies:
        out[end : end + gap] = rest[taken : taken + gap]
        taken, end = taken + gap, end + gap
        done = 0
        while done < length:  # a copy that overlaps itself doubles its finished part
            part = min(length - done, distance + done)
            out[end + done : end + done + part] = out[end - distance : end - distance + part]
            done += part
        end += length
    out[end:] = rest[taken:]
    return out[len(past) :]


def candidates(tokens: Tokens, past: Tokens, size: int) -> list[list[Copy]]:
    """Return copies that are worth a trial, none of them or several ways to take some out that begin in the past.

    ``size``: bytes of the sequence (T,), coded without its past. A model that sees the past takes a bit or two for a
    token that it sees again, and more for what follows a copy. So coding tells which way is the shortest.
    """
    ways: list[list[Copy]] = []
    for least in PAST_LEAST:
        copies = find(tokens, past, least)
        if copies not in ways and reach_back(copies) and may_save(copies, size, len(tokens)):
            ways.append(copies)
    return ways


def may_save(copies: Sequence[Copy], size: int, tokens: int) -> bool:
    """Return whether copies take less than half of their tokens' share of ``size`` bytes of ``tokens`` tokens."""
    return bool(copies) and 2 * len(pack(copies)) * tokens < size * sum(copy.length for copy in copies)


def surely_save(copies: Sequence[Copy]) -> bool:
    """Return whether copies, one at least, are so long that a sequence without them is surely shorter."""
    return sum(copy.length for copy in copies) >= LONG * len(copies)


def reach_back(copies: Sequence[Copy]) -> bool:
    """Return whether one of these copies begins in the past."""
    end = 0
    for gap, length, distance in copies:
        if distance > end + gap:
            return True
        end += gap + length
    return False


def pack(copies: Sequence[Copy]) -> bytes:
    """Return the bytes of one or more copies."""
    before, distances = 0, []
    for copy in copies:
        distances.append(0 if copy.distance == before else copy.distance)
        before = copy.distance
    columns = chain((c.gap for c in copies), (c.length - LEAST for c in copies), distances)
    raw = b"".join(map(write_varint, columns))
    if len(copies) < FEW:
        return write_varint(len(copies)) + raw
    packed = Fallback().compress(raw)
    return b"".join(map(write_varint, (len(copies), len(raw), len(packed)))) + packed


def end_of(data: bytes, at: int) -> int:
    """Return where the bytes of copies end that begin at ``data[at]``. Raises CorruptError where none begin there."""
    count, at = read_varint(data, at)
    if 0 < count < FEW:
        for _ in range(3 * count):
            _, at = read_varint(data, at)
        return at
    _, at = read_varint(data, at)
    length, at = read_varint(data, at)
    if not count or not 0 < length <= len(data) - at:
        raise CorruptError(f"{count} copies in {length} bytes cannot be in {len(data) - at}: the file is damaged")
    return at + length


def split(data: bytes, tokens: int, past: int = 0) -> tuple[list[Copy], bytes]:
    """Return the copies that a bitstring begins with, as `unpack` does, and what is behind. Raises CorruptError."""
    end = end_of(data, 0)
    return unpack(data[:end], tokens, past), data[end:]


def unpack(data: bytes, tokens: int, past: int = 0) -> list[Copy]:
    """Return the copies that `pack` wrote, for a sequence of `tokens` tokens after a past of `past`.

    Raises:
        CorruptError: no copies of such a sequence have these bytes.
    """
    count, offset = read_varint(data, 0)
    if not 0 < count * LEAST <= tokens:
        raise CorruptError(f"{count} copies do not fit {tokens} tokens: the file is damaged")
    raw = data[offset:] if count < FEW else _unpacked(data, offset, count)
    values, offset = [], 0
    for _ in range(3 * count):
        value, offset = read_varint(raw, offset)
        values.append(value)
    if offset != len(raw):
        raise CorruptError("expected nothing after the last copy, found more: the file is damaged")
    found: list[Copy] = []
    end = distance = 0
    for gap, length, far in zip(values[:count], values[count : 2 * count], values[2 * count :], strict=True):
        distance = far or distance
        end += gap
        if not 0 < distance <= past + end or end + length + LEAST > tokens:
            raise CorruptError(f"a copy of token {end} goes beyond its sequence: the file is damaged")
        found.append(Copy(gap, length + LEAST, distance))
        end += length + LEAST
    return found


def _unpacked(data: bytes, at: int, count: int) -> bytes:
    """Return the columns of many copies, packed at ``data[at]``."""
    size, at = read_varint(data, at)
    length, at = read_varint(data, at)
    if not 3 * count <= size <= 3 * MAX_BYTES * count or length != len(data) - at:
        raise CorruptError(f"{count} copies in {size} bytes, packed into {length}, do not fit: the file is damaged")
    return Fallback().decompress(data[at:], size)

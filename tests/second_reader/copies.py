"""Copies in a token sequence, as plt_codec/FORMAT.md describes them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.second_reader.fields import Damaged, Fields, fallback

LEAST_COPY, MANY_COPIES = 32, 8

Copy = tuple[int, int, int]  # literals before it, length, distance


def copies_of(fields: Fields, count: int, past: int) -> list[Copy]:
    """Return the copies at the front of a frame of so many tokens. ``past``: tokens before it, at most."""
    n = fields.varint()
    if not 1 <= n <= count // LEAST_COPY:
        raise Damaged(f"{n} copies in {count} tokens")
    columns = fields
    if n >= MANY_COPIES:
        size, coded = fields.varint(), fields.varint()
        if not 3 * n <= size <= 15 * n:
            raise Damaged("columns of copies of a wrong size")
        columns = Fields(fallback(fields.take(coded), size))
    gaps, lengths, distances = ([columns.varint() for _ in range(n)] for _ in range(3))
    if columns is not fields:
        columns.end()
    lengths = [length + LEAST_COPY for length in lengths]
    for place, distance in enumerate(distances):
        if not distance and not place:
            raise Damaged("a first copy without a distance")
        distances[place] = distance or distances[place - 1]
        if distances[place] > past + sum(gaps[: place + 1]) + sum(lengths[:place]):
            raise Damaged("a copy from before the beginning")
    if sum(gaps) + sum(lengths) > count:
        raise Damaged("copies beyond the count")
    return list(zip(gaps, lengths, distances, strict=True))


def joined(copies: Sequence[Copy], literals: Sequence[int], past: Sequence[int]) -> list[int]:
    """Return a sequence of its literals and copies. ``past``: what stands before it."""
    found, at = list(past), 0
    for gap, length, distance in copies:
        found += literals[at : at + gap]
        at += gap
        if distance > len(found):
            raise Damaged("a copy from before the beginning")
        for _ in range(length):
            found.append(found[-distance])
    return [*found[len(past) :], *literals[at:]]

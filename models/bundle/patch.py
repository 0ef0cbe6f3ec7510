"""A patch: the places where a session's real ids differ from the canonical ones, in a few bytes per place.

Canonical ids are those that the tokenizer makes of the text again (bridge.py). `diff` finds the places where
the real ones differ, in linear time. Each becomes an `Edit`: so many ids are the same, so many canonical ids
give way to real ones. An empty patch has no bytes. FORMAT.md specifies the bytes.

    >>> edits = list(diff([10, 20, 30], [10, 21, 22, 30]))
    >>> patch = encode_edits(edits)
    >>> edits, patch.hex(), apply_patch([10, 20, 30], patch, 300)
    ([Edit(start=1, drop=1, ids=[21, 22])], '0101021516', [10, 21, 22, 30])
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

WINDOW = 16  # ids a side in which equal ids are sought first; then four times as many, ...


@dataclass(frozen=True)
class Edit:
    """One difference: canonical ids [start, start + drop) are really `ids`."""

    start: int
    drop: int
    ids: Sequence[int]


def diff(canonical: Sequence[int], real: Sequence[int]) -> Iterator[Edit]:
    """Yield the edits that turn canonical into real ids, in order and apart from each other, in linear time."""
    i = j = 0
    i_end, j_end = len(canonical), len(real)
    while i_end and j_end and canonical[i_end - 1] == real[j_end - 1]:
        i_end, j_end = i_end - 1, j_end - 1
    while i < i_end or j < j_end:
        if i < i_end and j < j_end and canonical[i] == real[j]:
            i, j = i + 1, j + 1
            continue
        drop, take = _same_ids(canonical, i, i_end, real, j, j_end)
        yield Edit(i, drop, real[j : j + take])
        i, j = i + drop, j + take


def _same_ids(canonical: Sequence[int], i: int, i_end: int, real: Sequence[int], j: int, j_end: int) -> tuple[int, int]:
    """Return how far to go on both sides until some ids in a row agree, or to the ends.

    A window without a match grows fourfold. The match found then lies far on, so the work stays linear.
    """
    window, row = WINDOW, 2
    while True:
        left, right = canonical[i : min(i + window, i_end)], real[j : min(j + window, j_end)]
        found = _nearest(left, right, row)
        if found:
            return found
        if i + window >= i_end and j + window >= j_end:
            return i_end - i, j_end - j
        window, row = 4 * window, min(row + 1, 4)


def _nearest(left: Sequence[int], right: Sequence[int], row: int) -> tuple[int, int] | None:
    """Return the first places (a, b), a + b least, where `row` ids agree."""
    first: dict[tuple[int, ...], int] = {}
    for a in range(len(left) - row + 1):
        first.setdefault(tuple(left[a : a + row]), a)
    best: tuple[int, int] | None = None
    for b in range(len(right) - row + 1):
        if best and b >= sum(best):
            break
        a = first.get(tuple(right[b : b + row]), -1)
        if a >= 0 and (best is None or a + b < sum(best)):
            best = a, b
    return best


def encode_edits(edits: Sequence[Edit]) -> bytes:
    """Return the patch of edits; no bytes for none."""
    ends = [0, *(edit.start + edit.drop for edit in edits)]
    rows = ((edit.start - end, edit.drop, len(edit.ids), *edit.ids) for edit, end in zip(edits, ends, strict=False))
    return b"".join(write_varint(number) for row in rows for number in row)


def apply_patch(canonical: list[int], patch: bytes, size: int) -> list[int]:
    """Return the real ids for canonical ids. Work is bounded by the ids and the patch.

    Args:
        canonical: of ids below ``size``, the target's.
        patch: what `encode_edits` returned.
        size: the target's largest id plus one.

    Raises:
        CorruptError: the patch is damaged, or does not belong to these ids.
    """
    real, used, at = list[int](), 0, 0
    while at < len(patch):
        gap, at = read_varint(patch, at)
        drop, at = read_varint(patch, at)
        count, at = read_varint(patch, at)
        if gap + drop > len(canonical) - used or count > len(patch) - at:
            raise CorruptError(
                f"patch: expected an edit of the {len(canonical) - used} ids left, found one of {gap + drop} and "
                f"{count} new ones: the patch is damaged"
            )
        real += canonical[used : used + gap]
        used += gap + drop
        for _ in range(count):
            number, at = read_varint(patch, at)
            if number >= size:
                raise CorruptError(f"patch: expected ids below {size}, found {number}: the patch is damaged")
            real.append(number)
    return real + canonical[used:]

"""Sketches: the nearest of many sequences is found, and the same on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.coding.sketch import (
    LEAST_HITS,
    Sketch,
    SketchIndex,
    compiled,
    compiled_join,
    found_here,
    hashes_of,
    joined,
    starts_of,
)


def texts(count: int, length: int = 400) -> list[np.ndarray]:
    dice = np.random.default_rng(7)
    return [dice.integers(0, 16384, length) for _ in range(count)]


def sketch_of(tokens: np.ndarray) -> Sketch:
    return Sketch.of(hashes_of(tokens))


def mixed(parts: list[tuple[np.ndarray, int]]) -> np.ndarray:
    return np.concatenate([text[:length] for text, length in parts])


def test_hashes_do_not_depend_on_the_type_of_the_tokens() -> None:
    tokens = texts(1)[0]
    for kind in (np.int32, np.uint16, np.uint32, np.int64):
        assert np.array_equal(hashes_of(tokens), hashes_of(tokens.astype(kind)))


def test_hashes_are_those_of_exact_integers() -> None:
    factors = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5
    first, second, whole = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1
    tokens, wanted = texts(1)[0].tolist(), set[int]()
    for at in range(len(tokens) - 3):
        mixed = 0
        for place, factor in enumerate(factors):
            mixed ^= mixed >> 29
            mixed = (mixed * first + tokens[at + place] * factor) & whole
        mixed ^= mixed >> 31
        wanted.add((mixed * second & whole) >> 32)
    assert hashes_of(np.array(tokens)).tolist() == sorted(wanted)


def test_the_nearest_come_first_whether_sorted_in_or_not() -> None:
    earlier, new = texts(500), texts(501)[500]
    earlier[123], earlier[499], earlier[7] = (
        mixed([(new, 300), (earlier[1], 100)]),
        mixed([(earlier[2], 200), (new, 200)]),
        mixed([(new, 60), (earlier[3], 340)]),
    )
    index = SketchIndex([sketch_of(text) for text in earlier])
    assert [n.number for n in index.nearest_to(hashes_of(new), 5)] == [123, 499, 7]
    assert index.nearest_to(hashes_of(new), 1)[0].shared == pytest.approx(297, rel=0.25)
    assert index.nearest_to(hashes_of(texts(503)[502]), 3) == []


@pytest.mark.skipif(compiled is None, reason="built where there is a C compiler")
@pytest.mark.parametrize("count", [1, 5, 2000])
def test_the_compiled_search_finds_the_same(count: int) -> None:
    dice = np.random.default_rng(3)
    index = SketchIndex()
    for number in range(400):  # of few ids, so that sketches have many hashes in common, some as many as others
        row = dice.integers(0, 6, dice.integers(0, 300))
        index.add(Sketch.of(hashes_of(row), 40))
        if number % 7 == 0:
            wanted = [hashes_of(dice.integers(0, 6, 200)) for _ in range(number % 3)]
            found = index._runs, index._recent, wanted, index._scales, LEAST_HITS
            assert compiled
            assert compiled(*found, count) == found_here(*found, count)
            assert index.nearest_to_each(wanted, count) == [index.nearest_to(row, count) for row in wanted]
    assert compiled
    assert compiled([], [], [np.zeros(0, np.uint32)], np.zeros(1), LEAST_HITS, count) == [[]]


@pytest.mark.parametrize("sizes", [(0, 1), (5, 0), (9, 9), (3000, 70), (40, 9000)])
def test_two_runs_are_joined_as_sorted_anew(sizes: tuple[int, int]) -> None:
    """Equal hashes too, which keep their order; and starts say where the first bits of hashes begin."""
    dice = np.random.default_rng(4)
    parts = [np.sort(dice.integers(0, 1 << 32, n, np.uint64).astype(np.uint32) & 0xFFF00FFF) for n in sizes]
    runs = [(part, np.arange(len(part), dtype=np.uint32) + 100 * k, starts_of(part)) for k, part in enumerate(parts)]
    one = joined(*runs)
    order = np.argsort(np.concatenate(parts), kind="stable")
    assert np.array_equal(one[0], np.concatenate(parts)[order])
    assert np.array_equal(one[1], np.concatenate([run[1] for run in runs])[order])
    bits = (len(one[2]) - 1).bit_length() - 1
    assert len(one[2]) == (1 << bits) + 1
    assert np.array_equal(np.diff(one[2].astype(int)), np.bincount(one[0] >> (32 - bits), minlength=1 << bits))


@pytest.mark.skipif(compiled is None, reason="built where there is a C compiler")
def test_runs_that_do_not_fit_are_not_joined() -> None:
    some = np.arange(4, dtype=np.uint32)
    for rows, bits in (((some, some[:3], some, some), 3), ((some, some, some, some), 0), ((some,) * 4, 32)):
        with pytest.raises(ValueError, match="one owner per hash"):
            compiled_join(*rows, bits)


@pytest.mark.skipif(compiled is None, reason="built where there is a C compiler")
def test_the_compiled_search_refuses_arrays_that_do_not_fit() -> None:
    some, scales = np.arange(4, dtype=np.uint32), np.ones(9)
    starts = starts_of(some)
    assert compiled
    with pytest.raises(ValueError, match="not one owner per hash"):
        compiled([(some, some[:3], starts)], [], [some], scales, 1, 1)
    with pytest.raises(ValueError, match="that is not there"):
        compiled([(some, some, starts)], [], [some], scales[:3], 1, 1)
    with pytest.raises(ValueError, match="that is not there"):
        compiled([], [(9, some)], [some], scales, 1, 1)
    with pytest.raises(ValueError, match="another size"):
        compiled([], [], [some.astype(np.uint16)], scales, 1, 1)
    with pytest.raises(ValueError, match="too many runs"):
        compiled([], [(0, some)] * 200, [some], scales, 1, 1)
    for wrong in (starts[:0], starts[:1], np.append(starts, np.uint32(0))):
        with pytest.raises(ValueError, match="starts of a run"):
            compiled([(some, some, wrong)], [], [some], scales, 1, 1)
    beyond = np.full(3, 1 << 31, np.uint32)  # starts that lie find nothing, and read nothing behind the hashes
    assert compiled([(some, some, beyond)], [], [some], scales, 1, 9) == [[]]


def test_of_equal_ones_the_last_is_taken() -> None:
    text = texts(1)[0]
    index = SketchIndex([sketch_of(text)] * 200)
    assert [n.number for n in index.nearest_to(hashes_of(text), 3)] == [199, 198, 197]


def test_sequences_without_hashes_make_no_runs() -> None:
    rows = [np.zeros(3, int), *texts(1)]
    index = SketchIndex([sketch_of(rows[0])] * 5000)
    assert index.add(sketch_of(rows[1])) == 5000 and not index.nearest_to(hashes_of(rows[0]))
    assert [near.number for near in index.nearest_to(hashes_of(rows[1]))] == [5000]


def test_a_long_sequence_does_not_win_by_its_length_alone() -> None:
    short, long = texts(2, 5000)
    index = SketchIndex([sketch_of(mixed([(short, 200)])), sketch_of(long)])
    assert [n.number for n in index.nearest_to(hashes_of(mixed([(short, 200), (long, 100)])), 1)] == [0]


def test_sequences_without_four_tokens_are_near_to_nothing() -> None:
    index = SketchIndex([sketch_of(np.array([1, 2, 3]))])
    assert len(index) == 1
    assert index.nearest_to(hashes_of(np.array([1, 2, 3]))) == []
    assert SketchIndex().nearest_to(hashes_of(np.arange(50))) == []

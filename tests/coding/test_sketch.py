"""Sketches: the nearest of many sequences is found, and the same on every machine."""

import numpy as np
import pytest

from pltz.coding import sketch
from pltz.coding.sketch import LEAST_HITS, Sketch, SketchIndex, hashes_of


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
    assert [n for n, _ in index.nearest_to(hashes_of(new), 5)] == [123, 499, 7]
    assert index.nearest_to(hashes_of(new), 1)[0][1] == pytest.approx(297, rel=0.25)
    assert index.nearest_to(hashes_of(texts(503)[502]), 3) == []


@pytest.mark.parametrize("at_once", [1, 1 << 21])
def test_many_sketches_are_searched_as_each_by_itself(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Added one by one and together, of few ids, so that many hashes are shared, some by as many as others."""
    monkeypatch.setattr(sketch, "AT_ONCE", at_once)
    dice = np.random.default_rng(3)
    index, all = SketchIndex(), list[Sketch]()
    for size in (1, 1, 9, 40, 0, 3, 99):
        new = [Sketch.of(hashes_of(dice.integers(0, 6, dice.integers(0, 300))), 40) for _ in range(size)]
        index.add(new)
        all += new
        wanted = [hashes_of(dice.integers(0, 6, 200)) for _ in range(size % 5)]
        least = [float(dice.integers(0, 100)) for _ in wanted]
        for count in (1, 5, 2000):
            expected = [slow(all, *row, count) for row in zip(wanted, least, strict=True)]
            assert index.nearest_to_each(wanted, least, count) == expected
    assert any(expected) and len(index) == len(all)


def slow(sketches: list[Sketch], wanted: np.ndarray, least: float, count: int) -> list[tuple[int, float]]:
    hits = [len(np.intersect1d(one.hashes, wanted)) for one in sketches]
    shared = [n * (one.grams / max(1, len(one.hashes))) for n, one in zip(hits, sketches, strict=True)]
    near = [n for n, some in enumerate(hits) if some >= LEAST_HITS and shared[n] >= least]
    return [(n, shared[n]) for n in sorted(near, key=lambda n: (-shared[n], -n))[:count]]


def test_of_equal_ones_the_last_is_taken() -> None:
    text = texts(1)[0]
    assert [n for n, _ in SketchIndex([sketch_of(text)] * 200).nearest_to(hashes_of(text), 3)] == [199, 198, 197]


def test_sequences_without_hashes_make_no_runs() -> None:
    rows, index = [np.zeros(3, int), *texts(1)], SketchIndex()
    for _ in range(500):
        index.add([sketch_of(rows[0])])
    assert not index._runs
    index.add([sketch_of(rows[1])])
    assert len(index) == 501 and len(index._runs) == 1 and not index.nearest_to(hashes_of(rows[0]))
    assert [number for number, _ in index.nearest_to(hashes_of(rows[1]))] == [500]


def test_a_long_sequence_does_not_win_by_its_length_alone() -> None:
    short, long = texts(2, 5000)
    index = SketchIndex([sketch_of(mixed([(short, 200)])), sketch_of(long)])
    assert [n for n, _ in index.nearest_to(hashes_of(mixed([(short, 200), (long, 100)])), 1)] == [0]

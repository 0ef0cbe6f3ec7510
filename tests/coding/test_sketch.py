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


def test_hashes_do_not_depend_on_the_type_of_the_tokens() -> None:
    tokens = texts(1)[0]
    for kind in (np.int32, np.uint16, np.uint32, np.int64):
        assert np.array_equal(hashes_of(tokens), hashes_of(tokens.astype(kind)))


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


def test_sequences_without_hashes_make_no_runs() -> None:
    rows, index = [np.zeros(3, int), *texts(1)], SketchIndex()
    for _ in range(500):
        index.add([sketch_of(rows[0])])
    assert not index._runs
    index.add([sketch_of(rows[1])])
    assert len(index) == 501 and len(index._runs) == 1 and not index.nearest_to(hashes_of(rows[0]))
    assert [number for number, _ in index.nearest_to(hashes_of(rows[1]))] == [500]

"""Cluster: medoids by the bytes that they save. Archives with neighbours: writing/."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from pltz.archive.format.context import Context
from pltz.archive.format.ids import TENANT, Tokens
from pltz.archive.maintenance.cluster import NEAREST, _k_medoids, _medoids, _Session
from pltz.coding.codecs.codec import Plain, SegmentCodec
from pltz.coding.sketch import sketch_of

RANDOM = np.random.default_rng(5)


def session(name: int, codec: SegmentCodec, tokens: Tokens, *, pinned: bool = False, serves: bool = True) -> _Session:
    context = Context(TENANT, b"d" * 16, "acme", b"t" * 16, b"b" * 16, 1)
    return _Session([(bytes([name]), tokens)], sketch_of(tokens), codec, context, pinned, serves)


def kind(template: int, number: int) -> Tokens:
    """Return tokens most of which all sessions of a template have."""
    own = np.random.default_rng(1000 + number).integers(0, 60_000, 20)
    return np.concatenate([np.random.default_rng(template).integers(0, 60_000, 200), own]).astype("<u4")


def worth(saved: np.ndarray[tuple[int, int], np.dtype[np.float64]], chosen: list[int]) -> float:
    return float(saved[:, chosen].max(axis=1, initial=0).sum())


@pytest.mark.parametrize("seed", range(20))
def test_no_swap_makes_medoids_better(seed: int) -> None:
    random = np.random.default_rng(seed)
    saved = random.integers(0, 100, (12, 12)) * (random.random((12, 12)) < 0.4).astype(float)
    np.fill_diagonal(saved, 0)
    for count in range(1, 5):
        chosen = _k_medoids(saved, count)
        best = max(worth(saved, list(some)) for some in combinations(range(12), count))
        assert len(set(chosen)) == len(chosen) == count
        swapped = [[*chosen[:n], other, *chosen[n + 1 :]] for n in range(count) for other in range(12)]
        assert worth(saved, chosen) == max(worth(saved, one) for one in swapped) >= 0.85 * best


def test_a_swap_mends_a_greedy_choice() -> None:
    """The middle column serves everyone best alone; with two of them the outer ones do better without it."""
    saved = np.array([[9, 6, 0], [9, 6, 0], [0, 6, 9], [0, 6, 9], [8, 7, 0], [0, 7, 8]], float)
    saved = np.pad(saved, ((0, 0), (0, 3)))
    assert _k_medoids(saved, 1) == [1] and sorted(_k_medoids(saved, 2)) == [0, 2]


def test_nothing_that_saves_nothing_is_a_medoid() -> None:
    assert _k_medoids(np.zeros((5, 5)), 3) == [] == _k_medoids(np.zeros((0, 0)), 3)
    assert _k_medoids(np.eye(4)[[1, 1, 1, 1]], 3) == [1]


def test_each_kind_of_sessions_has_a_medoid(tower_codec: SegmentCodec) -> None:
    sessions = [session(n, tower_codec, kind(n % 3, n)) for n in range(12)]
    assert sorted(one.leaf[0] % 3 for one in _medoids(sessions, 3)) == [0, 1, 2]
    assert len(_medoids(sessions, 1)) == 1
    same = [session(n, tower_codec, kind(0, 0)) for n in range(4)]
    assert len(_medoids(same, 3)) == 2  # one serves the others, and one of these that one


def test_a_medoid_stays_where_another_is_hardly_better(tower_codec: SegmentCodec) -> None:
    for stays in range(6):
        sessions = [session(n, tower_codec, kind(0, n), pinned=n == stays) for n in range(6)]
        assert [one.leaf[0] for one in _medoids(sessions, 1)] == [stays]


def test_a_session_that_cannot_serve_is_no_medoid_and_is_served(tower_codec: SegmentCodec) -> None:
    for pinned in (False, True):
        sessions = [session(n, tower_codec, kind(0, n), pinned=pinned, serves=n == 5) for n in range(6)]
        assert [one.leaf[0] for one in _medoids(sessions, 6)] == [5]
    assert _medoids([session(n, tower_codec, kind(0, n), serves=False) for n in range(6)], 6) == []


def test_the_number_of_code_lengths_is_bounded(tower_codec: SegmentCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, encode = list[int](), type(tower_codec).encode

    def counted(self: SegmentCodec, batch: list[Plain]) -> list[bytes]:
        counts.append(len(batch))
        return encode(self, batch)

    monkeypatch.setattr(type(tower_codec), "encode", counted)
    unlike = [session(n, tower_codec, RANDOM.integers(0, 60_000, 200).astype("<u4")) for n in range(40)]
    assert _medoids(unlike, 4) == [] and sum(counts) == 0
    _medoids([session(n, tower_codec, kind(0, n)) for n in range(40)], 4)
    assert 0 < sum(counts) <= 40 * (NEAREST + 1)

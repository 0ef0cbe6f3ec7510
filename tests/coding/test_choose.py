"""The shortest of several ways: copies count where they are shorter and a reader takes them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pltz.coding.codecs import codec
from pltz.coding.codecs.codec import NO_MARK, BundleCodec, Plain, shortest
from pltz.coding.drafts import shorter_after, ways_after
from pltz.coding.workers import Workers
from pltz.plt_codec.repeats import Copy, candidates
from tests.coding.fake_coder import FakeBundle, FakeCoder

RANDOM = np.random.default_rng(3)
PASSAGE = RANDOM.integers(0, 1000, 200)


@pytest.fixture
def model(bundle: FakeBundle) -> BundleCodec:
    return BundleCodec(bundle, coder=FakeCoder(), reach=1024)


def test_a_way_that_no_reader_takes_does_not_count(model: BundleCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Plain(PASSAGE, PASSAGE[:150])
    ways = [plain, *ways_after(model, plain, 250, candidates(plain.tokens, plain.above, 250))]
    monkeypatch.setattr(codec, "copies_fit", lambda tokens, data: False)
    assert not shortest(model, [(0, way) for way in ways])[0][1].copies


def test_a_context_has_to_save_more_than_naming_it_takes(model: BundleCodec) -> None:
    plain = Plain(np.concatenate([PASSAGE, [1, 2, 3]]), PASSAGE)
    workers = Workers(SimpleNamespace(candidates=lambda rows: [candidates(*row) for row in rows]))
    data, way = shorter_after(model, [(plain, 254)], 2, workers)[0]
    assert way.copies and len(data) < 20
    trials = [(plain, len(data) + saved) for saved in (2, 3)]
    assert shorter_after(model, trials, 2, workers) == {1: (data, way)}
    plain = replace(plain, above=NO_MARK)  # whole, it saves nothing
    assert not shorter_after(model, [(plain, 254)], 2, workers)


def test_both_ways_are_coded_only_where_it_is_not_clear_which_one_wins(model: BundleCodec) -> None:
    def ways(tokens: int, copied: int, copies: int, size: int) -> list[bool]:
        row, each = RANDOM.integers(0, 1000, tokens), copied // copies
        taken = [Copy(n and 1, each, 1) for n in range(copies)]
        return [bool(way.copies) for way in ways_after(model, Plain(row, PASSAGE), size, [taken])]

    assert ways(400, 300, 1, 200) == [True]  # 55 bytes spared for 7
    assert ways(400, 160, 4, 100) == [False]  # 15 for 27
    assert ways(400, 80, 2, 200) == [False, True]  # 15 for 13
    assert ways(3000, 2900, 1, 2000) == [False, True]  # perhaps too many tokens for a reader

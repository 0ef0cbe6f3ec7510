"""The shortest of several ways: copies count where they are shorter and a reader takes them."""

import numpy as np
import pytest

from pltz.coding import choose
from pltz.coding.choose import Trial, shorter_after, shortest, ways_after
from pltz.coding.codecs.codec import NO_MARK, BundleCodec, BytesCodec, Coded, Plain
from pltz.coding.codecs.modes import COPIES
from tests.coding.fake_coder import FakeBundle, FakeCoder

PASSAGE = np.random.default_rng(3).integers(0, 1000, 200)


@pytest.fixture
def model(bundle: FakeBundle) -> BundleCodec:
    return BundleCodec.over(bundle, FakeCoder(), 1024)


def test_copies_out_of_a_context_are_tried_and_win(model: BundleCodec) -> None:
    plain = Plain(np.concatenate([PASSAGE, [1, 2, 3]]), PASSAGE)
    ways = ways_after(model, plain, 254)
    assert ways[0] is plain and len(ways) > 1
    data, best = shortest(model, [(7, way) for way in ways])[7]
    assert best.copies and best.literals == 3 and len(data) < 20
    assert model.decode([Coded(data, 203, PASSAGE, COPIES)])[0].tolist() == plain.tokens.tolist()


def test_a_way_that_no_reader_takes_does_not_count(model: BundleCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = ways_after(model, Plain(PASSAGE, PASSAGE[:150]), 250)
    monkeypatch.setattr(choose, "copies_fit", lambda tokens, data: False)
    assert not shortest(model, [(0, way) for way in ways])[0][1].copies


def test_a_context_has_to_save_more_than_naming_it_takes(model: BundleCodec) -> None:
    plain = Plain(np.concatenate([PASSAGE, [1, 2, 3]]), PASSAGE)
    found = shorter_after(model, [Trial(plain, 254, 2)])
    data, way = found[0]
    assert way.copies and len(data) < 20
    trials = [Trial(plain, len(data) + saved, 2) for saved in (2, 3)]
    assert shorter_after(model, trials) == {1: (data, way)}
    assert shorter_after(model, [Trial(plain, 254, 2, copied=True)]) == found
    assert not shorter_after(model, [Trial(plain, 254, 2, copied=False)])  # whole, it saves nothing here


def test_a_codec_without_copies_has_one_way() -> None:
    plain = Plain(np.zeros(300, np.uint8), NO_MARK)
    assert ways_after(BytesCodec(), plain, 100) == [plain]
    assert shortest(BytesCodec(), []) == {}

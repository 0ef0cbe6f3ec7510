"""One rule says who may be a neighbour, for files and archives, and how much work trials may take."""

import math

import numpy as np
import pytest

from pltz.archive.writing import candidates
from pltz.coding import neighbours
from pltz.coding.neighbour_rule import GRANTED, LONGEST, PROOF, SAVED_UP, TRIAL, NeighbourRule, TrialCredit
from pltz.coding.sketch import NearestItems, hashes_of

ROW = np.random.default_rng(5).integers(0, 60_000, 400)


def test_files_and_archives_have_one_rule() -> None:
    file, archive = neighbours.RULE, candidates.RULE
    assert file.in_a_row == archive.in_a_row == 3
    assert file.most_behind() == archive.most_behind() == 2
    assert archive.most_behind(fast=True) == archive.most_behind(shared=True) == 0
    assert file.granted == math.inf and archive.granted == GRANTED


def test_what_of_a_candidate_is_read() -> None:
    rule = NeighbourRule(3)
    count, read = rule.read_of([ROW[:100], ROW[100:250], ROW[250:]], 200)
    assert count == 2 and np.array_equal(read, ROW[:200])
    assert rule.read_of([ROW], 1000)[0] == 1 and np.array_equal(rule.read_of([ROW], 1000)[1], ROW)
    assert len(rule.read_of([np.resize(ROW, LONGEST)], 1024)[1]) == 1024
    assert len(rule.read_of([np.resize(ROW, LONGEST + 1)], 1024)[1]) == 0
    assert len(rule.read_of([np.resize(ROW, LONGEST), ROW], 1 << 20)[1]) == 0


def test_the_nearest_of_several_sources_that_may_serve() -> None:
    rule, near, nearer = NeighbourRule(3), NearestItems[str](), NearestItems[str]()
    near.add("half", rule.sketch(hashes_of(ROW[:200])))
    nearer.add("most", rule.sketch(hashes_of(ROW[:360])))
    grams, sources = hashes_of(ROW), [near.nearest_to, nearer.nearest_to]
    for order in (sources, sources[::-1]):
        found = rule.nearest(ROW, grams, order)
        assert found is not None and found[1] == "most"
        found = rule.nearest(ROW, grams, order, {"most"})
        assert found is not None and found[1] == "half"
        assert rule.nearest(ROW, grams, order, {"most", "half"}) is None
    far = np.concatenate([ROW[:30], np.arange(70_000, 71_000)])
    assert rule.nearest(far, hashes_of(far), sources) is None, "less than a tenth is shared"


@pytest.mark.parametrize("rounds", [1, 10])
def test_trials_take_what_was_granted_at_their_place(rounds: int) -> None:
    credit = TrialCredit[str](NeighbourRule(3))
    made = 0
    for _ in range(rounds):
        credit.grant({"a": 1000, "b": 10_000})
        while credit.take("a", 100):
            made += 1
    most = (SAVED_UP + rounds * GRANTED * 1000) / (TRIAL + PROOF)
    assert most - 100 <= 100 * made <= most


def test_those_that_share_most_are_tried_and_vain_ones_cost_no_proof() -> None:
    credit = TrialCredit[str](NeighbourRule(3, granted=0.0))
    credit.grant({"a": 1000})
    proposed = [("little", "a", 100, 20.0), ("all", "a", 200, 200.0), ("much", "a", 60, 50.0)]
    assert credit.affordable(proposed) == ["all", "much"]
    assert not credit.take("a", 100)
    credit.give_back("a", 200)
    assert credit.take("a", 100) and PROOF * 200 > (TRIAL + PROOF) * 100

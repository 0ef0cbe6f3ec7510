"""The rule says who may be a neighbour: the nearest of several sources that may serve."""


import numpy as np

from pltz.coding.neighbour_rule import NeighbourRule
from pltz.coding.sketch import NearestItems, hashes_of

ROW = np.random.default_rng(5).integers(0, 60_000, 400)


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

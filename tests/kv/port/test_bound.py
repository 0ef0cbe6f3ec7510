"""Bounds on the loss: what a form with and without a receipt of recall is found by."""

from dataclasses import replace

import pytest

from pltz.experiments.compose.raw_codec import RAW
from pltz.kv.port.bound import RECALL, Bound, limits
from pltz.kv.port.codec import loss, recall_loss, serves
from pltz.kv.port.receipt import Receipt, between
from pltz.plt_codec.errors import UsageError
from tests.kv.store.test_store import Rounded

INF = float("inf")
MEASURED = Receipt("f", 0, 1536, 24, 4096, 0.7, 0.003, 0.0003, 0.005, 0.03, 0.99, 0.0, 0.016, 0.03)
BEFORE = replace(MEASURED, kl_recall=None, most_recall=None)  # of a measurement without recall


def test_recall_is_bounded_by_four_times_the_loss_where_nobody_says_otherwise() -> None:
    assert RECALL == 4 and Bound.of(0.005) == Bound(0.005, 0.02) and Bound.of(INF) == Bound(INF, INF)
    assert not Bound.of(0.005).keeps(MEASURED), "0.03 is more than 0.02"
    assert Bound.of(0.0075).keeps(MEASURED) and Bound.of(0.005, 0.03).keeps(MEASURED)
    assert not Bound.of(0.0049, INF).keeps(MEASURED) and not Bound.of(0.005, 0.029).keeps(MEASURED)


def test_a_receipt_without_recall_is_refused_by_every_bound_on_it() -> None:
    assert limits(BEFORE) == (0.005, INF) and limits(None) == (INF, INF)
    assert not Bound.of(0.005).keeps(BEFORE) and not Bound.of(INF, 1e9).keeps(BEFORE)
    assert Bound.of(0.005, INF).keeps(BEFORE), "the caller says that recall does not matter"
    assert not Bound.of(0.005, INF).keeps(None) and Bound.of(INF).keeps(None)
    assert between(replace(BEFORE, point=-4), replace(MEASURED, point=4), 0).most_recall is None


def test_zero_serves_exact_forms_only() -> None:
    lossless = replace(MEASURED, kl=0.0, kl_error=0.0, most=0.0, kl_recall=0.0, most_recall=0.0)
    assert not Bound.of(0.0).keeps(lossless) and serves(RAW, Bound.of(0.0)) and loss(RAW) == recall_loss(RAW) == 0
    assert (loss(Rounded()), recall_loss(Rounded())) == (0.01, 0.03)
    assert serves(Rounded(), Bound.of(0.01)) and not serves(Rounded(), Bound.of(0.01, 0.02))


@pytest.mark.parametrize("given", [(-0.1,), (float("nan"),), (0.1, -1.0), (0.1, float("nan")), (0.0, 0.1)])
def test_bounds_that_are_none_are_refused(given: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="max_kl"):
        Bound.of(*given)

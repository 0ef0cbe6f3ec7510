"""Recency first; among the similarly recent, age."""


from hypothesis import given, strategies as st

from pltz.kv.store.eviction_policy import BAND, priority

times = st.floats(0, 1e9)


def test_what_was_used_a_band_later_stays() -> None:
    now = 1e6
    assert priority(now, used=now - 10, born=now - 10) > priority(now, used=now - 4 * BAND, born=0)


def test_among_the_similarly_recent_the_older_one_stays() -> None:
    now = 1e6
    assert priority(now, used=now - 50, born=0) > priority(now, used=now - 1, born=now - 1)


def test_of_the_same_age_the_one_used_last_stays() -> None:
    now = 1e6
    assert priority(now, used=now - 1, born=now - 101) > priority(now, used=now - 2, born=now - 102)


@given(times, times, times, times, times)
def test_a_parent_never_ranks_below_its_child(now: float, used: float, born: float, a: float, b: float) -> None:
    parent = priority(now, used + a, max(0.0, born - b))
    assert parent >= priority(now, used, born)

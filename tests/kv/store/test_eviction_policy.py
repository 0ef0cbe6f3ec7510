"""Recency first; among the similarly recent, age. The order is made once for many segments that leave."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from pltz.archive import NO_SEGMENT
from pltz.kv.store import store as module
from pltz.kv.store.eviction_policy import priority
from pltz.kv.store.store import HotStore
from tests.kv.store.conftest import SPACE, Blocks, Clock

times = st.floats(0, 1e9)


def test_among_the_similarly_recent_the_older_one_stays() -> None:
    now = 1e6
    assert priority(now, used=now - 50, born=0) > priority(now, used=now - 1, born=now - 1)


@given(times, times, times, times, times)
def test_a_parent_never_ranks_below_its_child(now: float, used: float, born: float, a: float, b: float) -> None:
    parent = priority(now, used + a, max(0.0, born - b))
    assert parent >= priority(now, used, born)


COUNT = 400


@pytest.mark.parametrize("large", [False, True])
def test_many_small_segments_leave_without_a_look_at_all_for_each(
    large: bool, blocks: Blocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One large segment takes the place of all, or each new small one that of the oldest."""
    room = COUNT * blocks(0).size
    store = HotStore.open(room, clock=clock)
    ranked = list[int]()

    def counted(*args: Any) -> Any:
        ranked.append(1)
        return priority(*args)

    monkeypatch.setattr(module, "priority", counted)
    for number in range(COUNT):
        clock.now += 100
        assert store.insert(SPACE, blocks.name(number), NO_SEGMENT, blocks(number))
    clock.now += 100
    tokens = (room - blocks(0, 0).size) // (blocks(0, 1).size - blocks(0, 0).size)
    for number in range(1 if large else COUNT):
        clock.now += 100
        block = blocks(COUNT + number, tokens if large else 4)
        assert store.insert(SPACE, blocks.name(COUNT + number), NO_SEGMENT, block)
        if not large:
            assert store.parent(SPACE, blocks.name(number)) is None, "the oldest left"
    assert store.stats().tiers["device"].blocks == (1 if large else COUNT)
    assert len(ranked) < 12 * COUNT

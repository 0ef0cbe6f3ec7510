"""Segments leave a full store in an order that is made once for many of them."""

from __future__ import annotations

from typing import Any

import pytest

from pltz.kv.store import store as module
from pltz.kv.store.eviction_policy import priority
from pltz.kv.store.store import HotStore
from pltz.plt_codec.identity import NONE
from tests.kv.store.conftest import SPACE, Blocks, Clock

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
        assert store.insert(SPACE, blocks.name(number), NONE, blocks(number))
    clock.now += 100
    tokens = (room - blocks(0, 0).size) // (blocks(0, 1).size - blocks(0, 0).size)
    for number in range(1 if large else COUNT):
        clock.now += 100
        assert store.insert(SPACE, blocks.name(COUNT + number), NONE, blocks(COUNT + number, tokens if large else 4))
        if not large:
            assert store.parent(SPACE, blocks.name(number)) is None, "the oldest left"
    assert store.stats().tiers["device"].blocks == (1 if large else COUNT)
    assert len(ranked) < 12 * COUNT

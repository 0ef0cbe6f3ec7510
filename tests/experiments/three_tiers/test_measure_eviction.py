"""The replay of a trace by each order, and the shares of attention that a target gives."""

from __future__ import annotations

import numpy as np
import pytest

from pltz.datasets import sample_sessions
from pltz.experiments.three_tiers.measure_eviction import (
    ORDERS,
    BlockTable,
    ReplayedTurn,
    replay,
    trace,
    turns_of,
)
from pltz.kv.store.eviction_policy import priority
from pltz.models.target.target import Target


def test_nothing_is_missing_where_all_fits_and_everything_where_nothing_does() -> None:
    chats = [[ReplayedTurn(2, np.array([0.5, 0.1])), ReplayedTurn(4, np.array([0.4, 0.1, 0.1, 0.0]))] for _ in range(3)]
    requests = sorted((float(100 * turn + chat), chat, turn) for chat in range(3) for turn in range(2))
    for order in ORDERS.values():
        assert set(replay(chats, requests, 12, order).values()) == {0.0}
        assert replay(chats, requests, 2, order)["missing_blocks"] == 100.0


def test_each_order_evicts_by_its_own() -> None:
    """Two chats are known; the third one needs two blocks, and one of four must stay."""
    chats = [[ReplayedTurn(2, np.array(shares))] * 2 for shares in ([0.9, 0.0], [0.2, 0.1], [0.5, 0.5])]
    requests = [(0.0, 0, 0), (50.0, 1, 0), (51.0, 2, 0), (60.0, 0, 1)]
    found = {name: replay(chats, requests, 3, order)["missing_attention"] for name, order in ORDERS.items()}
    assert found == {"lru": 100.0, "lindy": 100.0, "mass": 0.0, "band-mass": 0.0, "ends": 0.0}


def test_bands_are_those_of_the_store() -> None:
    blocks = BlockTable.of([[ReplayedTurn(50, np.zeros(50))]])
    blocks.used[:] = np.linspace(0, 7000, 50)
    assert blocks.band(7000.0).tolist() == [priority(7000.0, used, 0.0).band for used in blocks.used]


def test_the_largest_mass_up_to_the_end_of_each_chat() -> None:
    blocks = BlockTable.of([[ReplayedTurn(3, np.zeros(3))], [ReplayedTurn(2, np.zeros(2))]])
    blocks.mass[:] = [0.1, 0.5, 0.2, 0.3, 0.9]
    assert blocks.mass_to_end() == pytest.approx([0.5, 0.5, 0.2, 0.9, 0.9])


def test_a_trace_has_each_turn_once_and_in_order() -> None:
    chats = [[ReplayedTurn(1, np.ones(1))] * n for n in (2, 5, 3)]
    requests = trace(chats, 7)
    assert requests == sorted(requests) == trace(chats, 7) and requests != trace(chats, 8)
    for number, turns in enumerate(chats):
        assert [turn for _, chat, turn in requests if chat == number] == list(range(len(turns)))


@pytest.mark.slow
def test_shares_are_those_of_the_attention_before_a_reply() -> None:
    target = Target.load("mini-llama", dtype="float32")
    target.model.set_attn_implementation("eager")
    chat = next(one for one in sample_sessions() if one.kind == "chat" and len(one.value["messages"]) >= 4)
    turns = turns_of(target, chat.value["messages"], 1024)
    assert len(turns) >= 2
    for turn in turns:
        assert turn.shares.shape == (turn.needed,) and (turn.shares >= 0).all() and 0.05 < turn.shares.sum() < 1.001

"""The replay of a trace by each order, and the shares of attention that a target gives."""

import numpy as np
import pytest

from pltz.datasets import sample_sessions
from pltz.experiments.three_tiers.measure_eviction import ORDERS, ReplayedTurn, replay, turns_of
from pltz.models.target.target import Target


def test_nothing_is_missing_where_all_fits_and_everything_where_nothing_does() -> None:
    chats = [[ReplayedTurn(2, np.array([0.5, 0.1])), ReplayedTurn(4, np.array([0.4, 0.1, 0.1, 0.0]))] for _ in range(3)]
    requests = sorted((float(100 * turn + chat), chat, turn) for chat in range(3) for turn in range(2))
    for order in ORDERS.values():
        assert set(replay(chats, requests, 12, order).values()) == {0.0}
        assert replay(chats, requests, 2, order)["missing_blocks"] == 100.0


@pytest.mark.slow
def test_shares_are_those_of_the_attention_before_a_reply() -> None:
    target = Target.load("mini-llama", dtype="float32")
    target.model.set_attn_implementation("eager")
    chat = next(one for one in sample_sessions() if one.kind == "chat" and len(one.value["messages"]) >= 4)
    turns = turns_of(target, chat.value["messages"], 1024)
    assert len(turns) >= 2
    for turn in turns:
        assert turn.shares.shape == (turn.needed,) and (turn.shares >= 0).all() and 0.05 < turn.shares.sum() < 1.001

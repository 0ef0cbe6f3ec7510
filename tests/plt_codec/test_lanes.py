"""Blocks, lanes and steps (plt_codec/lanes.py)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.lanes import (
    FAST,
    LANE_MARK,
    Layout,
    TokenBlock,
    default_lanes,
    layout_of,
    turn_layout,
)

BLOCK = 4096


@given(st.integers(1, 3000), st.integers(1, 64))
def test_every_token_is_predicted_once(tokens: int, lanes: int) -> None:
    block = TokenBlock(0, tokens, min(lanes, tokens))
    predicted = block.targets()[block.predicting()]
    assert sorted(predicted.tolist()) == list(range(tokens))


@given(st.integers(1, 500), st.integers(1, 32))
def test_an_input_is_the_token_before_in_its_lane(tokens: int, lanes: int) -> None:
    block = TokenBlock(0, tokens, min(lanes, tokens))
    ids = np.arange(1000, 1000 + tokens)
    inputs = block.inputs(ids, 7)
    assert inputs[0, 0] == 7 and (inputs[0, 1:] == LANE_MARK).all()
    assert (inputs[1:] == ids[block.targets()[1:] - 1]).all()


def test_the_example_of_the_docstring() -> None:
    block = TokenBlock(0, 5, 2)
    assert block.steps == 3 and block.full == 1
    assert block.targets().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert [block.active(s) for s in range(3)] == [2, 2, 1]


@given(st.integers(1, 20000))
def test_default_rule_bounds_the_steps(tokens: int) -> None:
    blocks = list(Layout().blocks(tokens, BLOCK))
    assert sum(b.tokens for b in blocks) == tokens
    assert all(b.tokens == BLOCK and b.lanes == 16 and b.steps == 256 for b in blocks[:-1])
    assert blocks[-1].steps <= 512


def test_default_rule_keeps_short_sessions_in_one_lane() -> None:
    assert [default_lanes(t, BLOCK) for t in (1, 512, 513, 1024, 1025, 4095, 4096)] == [1, 1, 2, 2, 4, 8, 16]


def test_explicit_layout_cuts_blocks_of_lanes_times_steps() -> None:
    blocks = list(Layout(4, 10).blocks(85, BLOCK))
    assert [(b.start, b.tokens, b.lanes) for b in blocks] == [(0, 40, 4), (40, 40, 4), (80, 5, 4)]


@given(st.integers(0, 20000), st.none() | st.tuples(st.integers(1, 64), st.integers(1, 250)))
def test_the_extent_is_that_of_the_blocks(tokens: int, shape: tuple[int, int] | None) -> None:
    layout = Layout(*shape) if shape else Layout()
    blocks = list(layout.blocks(tokens, BLOCK))
    lanes = max((b.lanes for b in blocks), default=0)
    assert layout.extent(tokens, BLOCK) == (len(blocks), lanes, sum(b.steps for b in blocks))


@pytest.mark.parametrize("lanes, steps", [(0, 4), (65, 4), (4, 0), (4, None), (64, 1024)])
def test_impossible_layouts_are_refused(lanes: int, steps: int | None) -> None:
    with pytest.raises(UsageError):
        Layout(lanes, steps)


@given(st.integers(0, 20000))
def test_the_fast_rule_bounds_the_steps_of_what_is_long(tokens: int) -> None:
    layout = layout_of(tokens, True)
    assert layout == (FAST if tokens > 2048 else Layout()) and layout_of(tokens, False) == Layout()
    blocks = list(layout.blocks(tokens, BLOCK))
    assert sum(b.tokens for b in blocks) == tokens
    assert tokens <= 2048 or all(b.steps <= 128 for b in blocks)


def test_a_turn_takes_few_steps() -> None:
    for tokens in range(1, 6000):
        layout = turn_layout(tokens)
        assert (layout == Layout()) == (tokens <= 48)
        blocks = list(layout.blocks(tokens, 4096))
        assert len(blocks) == -(-tokens // 2048) and max(b.lanes for b in blocks) <= 16
        most = 48 if tokens <= 192 else 96 if tokens <= 1536 else 128
        assert max(b.steps for b in blocks) <= most

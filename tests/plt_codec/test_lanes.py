"""Blocks, lanes and steps (plt_codec/lanes.py)."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.lanes import LANE_MARK, Layout, TokenBlock, layout_of


@given(st.integers(1, 3000), st.integers(1, 64))
def test_every_token_is_predicted_once(tokens: int, lanes: int) -> None:
    block = TokenBlock(0, tokens, min(lanes, tokens))
    assert sorted(block.targets()[block.predicting()].tolist()) == list(range(tokens))


@given(st.integers(1, 500), st.integers(1, 32))
def test_an_input_is_the_token_before_in_its_lane(tokens: int, lanes: int) -> None:
    block = TokenBlock(0, tokens, min(lanes, tokens))
    ids = np.arange(1000, 1000 + tokens)
    inputs = block.inputs(ids, 7)
    assert inputs[0, 0] == 7 and (inputs[0, 1:] == LANE_MARK).all()
    assert (inputs[1:] == ids[block.targets()[1:] - 1]).all()


@given(st.integers(1, 20000))
def test_the_default_layout_bounds_the_steps(tokens: int) -> None:
    blocks = list(layout_of(tokens).blocks(tokens))
    assert sum(b.tokens for b in blocks) == tokens
    assert len(blocks) == 1 or all(b.tokens == 2048 and b.lanes == 8 and b.steps == 256 for b in blocks[:-1])
    assert max(b.steps for b in blocks) <= (512 if tokens <= 4096 else 256)


def test_the_default_layout_has_the_fewest_lanes_of_512_steps() -> None:
    assert [layout_of(t).lanes for t in (1, 512, 513, 1024, 1025, 3000, 4096, 4097)] == [1, 1, 2, 2, 3, 6, 8, 8]


@given(st.integers(0, 20000), st.builds(Layout, st.integers(1, 64), st.integers(1, 250)))
def test_the_extent_is_that_of_the_blocks(tokens: int, layout: Layout) -> None:
    blocks = list(layout.blocks(tokens))
    lanes = max((b.lanes for b in blocks), default=0)
    assert layout.extent(tokens) == (len(blocks), lanes, sum(b.steps for b in blocks))


@pytest.mark.parametrize("lanes, steps", [(0, 4), (65, 4), (4, 0), (64, 1024)])
def test_impossible_layouts_are_refused(lanes: int, steps: int) -> None:
    with pytest.raises(UsageError):
        Layout(lanes, steps)


def test_the_fast_layout_takes_few_steps() -> None:
    for tokens in range(1, 6000):
        blocks = list(layout_of(tokens, fast=True).blocks(tokens))
        assert len(blocks) == -(-tokens // 4096) and max(b.lanes for b in blocks) <= (16 if tokens <= 2048 else 32)
        most = 48 if tokens <= 192 else 96 if tokens <= 1536 else 128
        assert max(b.steps for b in blocks) <= most

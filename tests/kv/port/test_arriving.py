"""Parts that arrive: nothing is seen before it is there, and damage is heard by all who wait."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from pltz.kv.engines import streams
from pltz.kv.engines.streams import Section, sections_there
from pltz.kv.port.arriving import ArrivingParts, wait
from pltz.plt_codec.errors import CorruptError
from tests.kv.engines.test_streams import drawn

PATIENCE = 180  # seconds


def parts() -> dict[str, torch.Tensor]:
    return {"kv.type": torch.empty(0), "kv.a": torch.arange(4, dtype=torch.int16), "kv.b": torch.arange(10)}


def test_a_part_is_there_when_its_last_byte_is() -> None:
    arriving = ArrivingParts(parts())
    assert list(arriving) == list(parts()) and len(arriving) == 3 and arriving.size == 88
    assert arriving["kv.type"].shape == (0,)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: arriving["kv.a"])
        arriving.arrive(7)
        assert not asked.done() and arriving.wait("kv.a", 3) == 3
        arriving.arrive(8 + 8 * 4 + 3)
        assert torch.equal(asked.result(PATIENCE), parts()["kv.a"])
    assert arriving.wait("kv.b", 2) == 4 and not arriving.complete
    arriving.arrive(5)
    assert arriving.wait("kv.b", 4) == 4, "it never goes back"
    arriving.arrive(1000)
    assert arriving.complete and arriving.wait("kv.b", 1000) == 10
    with pytest.raises(KeyError):
        arriving.wait("kv.c")


def test_all_who_wait_hear_of_damage_and_what_came_before_it_stays() -> None:
    arriving = ArrivingParts(parts())
    arriving.arrive(16)
    with ThreadPoolExecutor(2) as pool:
        asked: list[Any] = [pool.submit(lambda: arriving["kv.b"]), pool.submit(lambda: wait(arriving))]
        arriving.fail("a bad chunk")
        arriving.fail("another")
        for one in asked:
            with pytest.raises(CorruptError, match="a bad chunk"):
                one.result(PATIENCE)
    assert arriving.failed and not arriving.complete and torch.equal(arriving["kv.a"], parts()["kv.a"])
    assert arriving.wait("kv.b", 1) == 1


def coded(tokens: int, layers: int, width: int) -> dict[str, torch.Tensor]:
    q, classes, tables = drawn(tokens, layers, width)
    made = streams.encode(q, classes, tables, -3)
    return {
        "kv.ends": torch.from_numpy(made.ends.astype(np.int32)),
        "kv.states": torch.from_numpy(made.states.view(np.int32).copy()),
        "kv.words": torch.from_numpy(made.words.view(np.int16).copy()),
    }


@pytest.mark.parametrize(("tokens", "layers", "width"), [(33, 9, 1000), (40, 10, 2080), (70, 3, 64), (0, 9, 1000)])
def test_sections_are_yielded_once_their_words_are_there(tokens: int, layers: int, width: int) -> None:
    whole = coded(tokens, layers, width)
    expected = list(sections_there(whole, layers, width))
    assert [one.first for one in expected] == [0, *(one.last for one in expected[:-1])]
    assert expected[-1].last == layers and expected[-1].end == len(whole["kv.words"])
    assert len(expected) == streams.sections(layers, width)
    arriving = ArrivingParts(whole)
    before = whole["kv.ends"].nbytes + whole["kv.states"].nbytes
    arriving.arrive(before + 2 * expected[0].end)
    found: list[Section] = []
    with ThreadPoolExecutor(1) as pool:
        rest = sections_there(arriving, layers, width)
        found.append(next(rest))
        coming = pool.submit(lambda: list(rest))
        if len(expected) > 1 and expected[1].end > expected[0].end:
            assert not coming.done()
        arriving.arrive(arriving.size)
        found += coming.result(PATIENCE)
    assert found == expected


@pytest.mark.parametrize("change", [lambda ends: ends + 1, lambda ends: -ends, lambda ends: ends.flip(0)])
def test_ends_that_cannot_be_are_refused_before_anything_is_read(change: Any) -> None:
    whole = coded(33, 9, 1000)
    with pytest.raises(CorruptError):
        list(sections_there(whole | {"kv.ends": change(whole["kv.ends"])}, 9, 1000))

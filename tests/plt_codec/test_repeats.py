"""Copies: what is taken out comes back, in linear time; bytes that no copies have are refused by name."""

import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, strategies as st

from pltz.plt_codec import repeats as copies
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.repeats import FEW, LEAST, NOTHING, Copy, end_of, expand, find, literals, pack, reach_back, unpack
from pltz.plt_codec.varint import write_varint
from pltz.plt_codec.zstd import Fallback
from tests.watch import memory_below

Ids = npt.NDArray[np.int64]


def there_and_back(tokens: Ids, past: Ids = NOTHING) -> list[Copy]:
    found = find(tokens, past)
    rest = literals(tokens, found)
    assert len(rest) + sum(copy.length for copy in found) == len(tokens)
    if found:
        assert all(copy.length >= LEAST for copy in found) and unpack(pack(found), len(tokens), len(past)) == found
    assert (expand(rest, found, past) == tokens).all()
    return found


@st.composite
def repetitive(draw: st.DrawFn) -> Ids:
    """Sequences made of a few pieces, some of them again and again, a few tokens changed."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    pieces = [
        rng.integers(0, draw(st.sampled_from([1, 2, 1000])), n) for n in draw(st.lists(st.integers(0, 90), max_size=5))
    ]
    order = draw(st.lists(st.integers(0, 4), max_size=12))
    whole = np.concatenate([np.zeros(0, np.int64), *(pieces[i] for i in order if i < len(pieces))]).astype(np.int64)
    for at in draw(st.lists(st.integers(0, 400), max_size=4)):
        if at < len(whole):
            whole[at] = 5
    return whole


@given(repetitive())
@example(np.zeros(0, np.int64))
@example(np.zeros(LEAST, np.int64))
@example(np.zeros(LEAST + 1, np.int64))
@example(np.zeros(5000, np.int64))
@example(np.tile(np.arange(7), 40))
def test_what_is_taken_out_comes_back(tokens: Ids) -> None:
    there_and_back(tokens)


@given(repetitive(), repetitive())
@example(np.zeros(LEAST - 1, np.int64), np.zeros(1, np.int64))
@example(np.zeros(LEAST, np.int64), np.zeros(LEAST, np.int64))
@example(np.zeros(0, np.int64), np.zeros(LEAST, np.int64))
def test_what_is_taken_out_of_a_sequence_with_a_past_comes_back(tokens: Ids, past: Ids) -> None:
    there_and_back(tokens, past)
    assert len(there_and_back(tokens[:40], tokens[:LEAST])) > 0 or len(tokens) < LEAST


def test_copies_reach_into_the_past_and_out_of_it() -> None:
    past = np.random.default_rng(0).integers(0, 9999, 400)
    assert there_and_back(past[100:150], past) == [Copy(0, 50, 300)]
    tokens = np.concatenate([[10_000], past[-30:], [10_000], past[-30:], [10_001], past[:LEAST]])
    found = there_and_back(tokens, past)
    assert found == [Copy(1, 61, 31), Copy(1, LEAST, 463)]
    assert reach_back(found) and reach_back(found[:1]) and not reach_back([Copy(31, 30, 31)])
    assert not reach_back(find(np.tile(past, 2), past[: LEAST - 1]))


def test_the_longest_of_several_places_is_taken() -> None:
    page = np.random.default_rng(0).integers(0, 9999, 400)
    tokens = np.concatenate([page, [1], page[:60], [2], page])
    assert there_and_back(tokens) == [Copy(401, 60, 401), Copy(1, 400, 462)]


def test_a_run_is_one_copy_of_itself() -> None:
    assert there_and_back(np.full(3000, 9)) == [Copy(1, 2999, 1)]
    assert there_and_back(np.tile([1, 2, 3], 500)) == [Copy(3, 1497, 3)]


def test_an_edit_keeps_the_distance() -> None:
    """After a changed token the text goes on as before: the second copy's distance costs a zero."""
    page = np.random.default_rng(0).integers(0, 9999, 400)
    changed = page.copy()
    changed[200] = 10_000
    found = there_and_back(np.concatenate([page, changed]))
    assert found == [Copy(400, 200, 400), Copy(1, 199, 400)] and len(pack(found)) <= 12


def test_equal_hashes_of_different_runs_are_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "BASE", 0)  # every hash is 0
    tokens = np.random.default_rng(0).integers(0, 9999, 300)
    assert find(tokens) == []
    there_and_back(np.tile(tokens, 2))


def test_time_is_linear() -> None:
    """A million tokens of the worst kinds, within seconds: a quadratic search would take hours."""
    rng = np.random.default_rng(0)
    page = rng.integers(0, 9999, 1000)
    noisy = np.tile(page, 1000)
    noisy[rng.integers(0, len(noisy), 5000)] = 10_000
    for tokens in (np.zeros(1_000_000, np.int64), noisy, rng.integers(0, 2, 1_000_000)):
        start, found = time.process_time(), find(tokens)
        assert (expand(literals(tokens, found), found) == tokens).all() and time.process_time() - start < 30


# ---- hostile bytes


def packed(
    gaps: list[int], lengths: list[int], distances: list[int], *, count: int | None = None, tail: bytes = b""
) -> bytes:
    """Copies written by hand; lengths less LEAST."""
    raw = b"".join(map(write_varint, [*gaps, *lengths, *distances])) + tail
    head = write_varint(len(gaps) if count is None else count)
    if len(gaps) < FEW:
        return head + raw
    stored = Fallback().compress(raw)
    return head + write_varint(len(raw)) + write_varint(len(stored)) + stored


GOOD = ([40, 3], [0, 8], [40, 0])


def test_copies_by_hand() -> None:
    assert unpack(packed(*GOOD), 200) == [Copy(40, 32, 40), Copy(3, 40, 40)]
    assert unpack(packed([0], [0], [100]), 32, 100) == [Copy(0, 32, 100)]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x01",
        packed([], [], []),
        packed(*GOOD)[:-1],
        packed(*GOOD) + b"\x00",
        packed(*GOOD, tail=b"\x00"),
        packed(*GOOD, count=3),
        packed(*GOOD, count=1),
        packed([0], [0], [1]),  # nothing stands before it
        packed([40], [0], [0]),  # no copy before it
        packed([40], [0], [41]),
        packed([40], [129], [40]),  # 40 + 161 tokens of 200
        packed([169], [0], [1]),
        packed([40] * 7, [0] * 7, [1] * 7),  # 7 copies of 32 do not fit 200
        packed([1 << 31], [0], [1]),
        packed([40], [(1 << 32) - 1], [1]),
        b"\x06\xff\xff\xff\xff\x0f\x00",
    ],
    ids=range(17),
)
def test_bytes_that_no_copies_have_are_refused(bad: bytes) -> None:
    with pytest.raises(CorruptError):
        unpack(bad, 200)


MANY = ([2, *[0] * 8], [8] * 9, [2, *[0] * 8])


@pytest.mark.parametrize(
    "bad",
    [
        packed(*MANY)[:-1],
        packed(*MANY) + b"\0",
        packed(*MANY, tail=b"\0"),
        packed(*MANY, count=10),
        packed(*MANY, count=8),
        b"\x09\x1a" + packed(*MANY)[2:],
        b"\x09\xff\xff\xff\xff\x0f" + packed(*MANY)[2:],  # 4 GB of columns
        b"\x09\x1b\xff\xff\xff\xff\x0f" + packed(*MANY)[3:],
    ],
    ids=range(8),
)
def test_bytes_that_no_packed_copies_have_are_refused(bad: bytes) -> None:
    with pytest.raises(CorruptError):
        unpack(bad, 400)


@given(st.binary(max_size=60))
@example(b"\0")
@example(packed(*MANY)[:-1])
def test_any_bytes_have_copies_that_end_in_them_or_are_refused(data: bytes) -> None:
    try:
        end = end_of(data, 0)
    except CorruptError:
        return
    assert 0 < end <= len(data)


def test_a_distance_beyond_the_past_is_refused() -> None:
    far = packed([2], [0], [103])
    with pytest.raises(CorruptError, match="a copy of token 2 goes beyond its sequence"):
        unpack(far, 200, 100)
    assert unpack(far, 200, 101) == [Copy(2, 32, 103)]


def test_memory_to_find_copies_is_bounded_per_token() -> None:
    """A sequence where every run repeats took 58 bytes per token: all pairs of places were compared at once."""
    tokens = np.tile(np.random.default_rng(1).integers(32, 16384, 5000), 100).astype(np.int32)
    with memory_below(32 * len(tokens)):
        assert len(find(tokens)) == 1

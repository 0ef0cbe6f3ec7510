"""`ids.c` copies ids out of a list, an array or a tensor's memory, and refuses anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

_ids: Any = pytest.importorskip("pltz.serving.eviction._ids", reason="built where there is a C compiler")
copy_ids, copy_memory = _ids.copy_ids, _ids.copy_memory


class Sly(int):
    """An integer that changes its list when it is read."""

    def __index__(self) -> int:
        raise AssertionError("nothing of the caller's may run")


@given(st.lists(st.integers(0, (1 << 30) - 1), max_size=200))
def test_plain_integers_are_copied(ids: list[int]) -> None:
    room = bytearray(4 * len(ids))
    assert copy_ids(ids, [room]) is True
    assert np.frombuffer(room, "<u4").tolist() == ids


@given(
    st.lists(st.integers(0, (1 << 31) - 1), max_size=50),
    st.integers(0, 3),
    st.sampled_from(["i4", "i8", "u4", "u8"]),
)
def test_integers_become_32_bit_ones(ids: list[int], more: int, kind: str) -> None:
    room = bytearray(4 * (len(ids) + more))
    assert copy_ids(np.array(ids, kind), [room]) is True
    assert np.frombuffer(room, "<u4").tolist() == ids + [0] * more


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=50), st.sampled_from(["i4", "i8"]))
def test_memory_is_copied_where_all_of_it_are_ids(ids: list[int], kind: str) -> None:
    held, room = np.array(ids, kind), bytearray(4 * len(ids))
    fits = all(one >= 0 for one in ids)
    assert copy_memory(held.ctypes.data, held.itemsize, len(ids), [room]) is fits
    assert not fits or np.frombuffer(room, "<u4").tolist() == ids


@pytest.mark.parametrize(
    ("place", "width", "count", "room", "error"),
    [
        (0, 8, 4, bytearray(15), ValueError),
        (0, 2, 4, bytearray(16), ValueError),
        (4, 8, 3, bytearray(16), ValueError),
        (0, 8, -1, bytearray(16), ValueError),
        (0, 8, 1 << 70, bytearray(16), OverflowError),
        (0, 8, 4, b"1234567812345678", TypeError),
        (0, "8", 4, bytearray(16), TypeError),
    ],
)
def test_memory_is_not_touched_where_the_call_is_wrong(
    place: int, width: Any, count: int, room: Any, error: type[Exception]
) -> None:
    held = np.arange(4)
    with pytest.raises(error):
        copy_memory(held.ctypes.data + place, width, count, [room])
    with pytest.raises(TypeError):
        copy_memory(held.ctypes.data, 8, 4)


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1, -1]),
        np.array([1 << 31, 1]),
        np.array([1, -(1 << 63)]),
        np.array([1, 2], ">i8"),
        np.array([1, 1 << 63], np.uint64),
        np.array([1, -2], np.int32),
        np.array([1, 1 << 31], np.uint32),
        np.array([1, 2], np.int16),
        np.array([1.0, 2.0]),
        np.array([[1, 2]]),
        np.array(1),
        np.arange(8)[::2],
        np.frombuffer(bytes(17), np.int64, 2, 1),
        b"12345678",
        np.array([1, 2], "S0"),
    ],
)
def test_other_arrays_are_left_to_python(ids: Any) -> None:
    assert copy_ids(ids, [bytearray(64)]) is False


@pytest.mark.parametrize(
    "item", [-1, 1 << 30, 1 << 31, 1 << 80, -(1 << 80), 1.0, True, None, "1", np.int64(1), Sly(1), [1]]
)
def test_anything_else_is_left_to_python(item: object) -> None:
    assert copy_ids([1, 2, item], [bytearray(12)]) is False


@given(st.lists(st.integers(0, (1 << 30) - 1), max_size=200), st.integers(1, 40), st.booleans())
def test_one_room_is_filled_after_the_other(ids: list[int], size: int, is_list: bool) -> None:
    rooms = [bytearray(4 * size) for _ in range(0, len(ids), size)]
    assert copy_ids(ids if is_list else np.array(ids, "i8"), rooms) is True
    assert np.frombuffer(b"".join(rooms), "<u4")[: len(ids)].tolist() == ids


@pytest.mark.parametrize("at", [0, 4, 9])
@pytest.mark.parametrize("is_list", [True, False])
def test_what_is_wrong_is_found_in_every_room(at: int, is_list: bool) -> None:
    ids = [5] * 10
    ids[at] = -1
    assert copy_ids(ids if is_list else np.array(ids), [bytearray(20), bytearray(20)]) is False


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([1], [bytearray(3)]), ValueError),
        (([1], []), ValueError),
        (([1, 2, 3], [bytearray(7), bytearray(7)]), ValueError),
        (([1], bytearray(4)), TypeError),
        (([1], [b"1234"]), TypeError),
        (([1], (bytearray(4),)), TypeError),
        (((1,), [bytearray(4)]), TypeError),
        ((np.arange(4), [bytearray(15)]), ValueError),
        ((np.arange(4), [b"1234567812345678"]), TypeError),
        (([1],), TypeError),
        (([1], None), TypeError),
    ],
)
def test_room_is_checked_before_it_is_used(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        copy_ids(*arguments)

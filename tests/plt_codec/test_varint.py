"""A varint has one form, and every other is refused."""

import pytest
from hypothesis import given, strategies as st

from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import MAX_VALUE, read_varint, write_varint


@given(st.integers(0, MAX_VALUE), st.binary(max_size=3), st.binary(max_size=3))
def test_what_is_written_is_read_and_nothing_more(value: int, before: bytes, after: bytes) -> None:
    encoded = write_varint(value)
    assert read_varint(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@given(st.binary(max_size=7))
def test_any_bytes_are_the_one_form_of_a_value_or_refused(data: bytes) -> None:
    try:
        value, end = read_varint(data, 0)
    except CorruptError:
        return
    assert write_varint(value) == data[:end]


@pytest.mark.parametrize("data", ["", "80", "8000", "ffffffff10", "ffffffffff01"])
def test_other_forms_are_refused(data: str) -> None:
    with pytest.raises(CorruptError, match="varint"):
        read_varint(bytes.fromhex(data), 0)

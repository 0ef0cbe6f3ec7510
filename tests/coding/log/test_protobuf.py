"""Messages of Protocol Buffers become values and the same bytes again; what is no message is left alone."""

import pytest
from hypothesis import given, settings, strategies as st

from pltz.coding.log.protobuf import read_message, write_message
from tests.examples import examples


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=9), st.sampled_from([b"", b"\x08\x01", b"\x0a\x12\x08\x05\x2a\x0e", b"\x12\x03abc\x12\x01a"]))
def test_any_bytes_come_back_or_are_no_message(data: bytes, head: bytes) -> None:
    message = read_message(head + data)
    assert message is None or write_message(message) == head + data


def test_text_numbers_bits_and_messages_are_told_apart() -> None:
    inner = bytes.fromhex("0801120c") + bytes(range(128, 140))
    data = b"\x08\x96\x01\x12" + bytes([len(inner)]) + inner + b"\x1a\x05model\x1a\x05model\x25\x00\x00\x00\x01"
    assert read_message(data) == {
        "1:0": 150, "2:2": {"1:0": 1, "2:2": bytes(range(128, 140))}, "3:2": "model", "3:2-3": "model",
        "4:5": b"\x00\x00\x00\x01",
    }


@pytest.mark.parametrize(
    "message", [[], {"a": 1}, {"1:0": "a"}, {"1:0": -1}, {"1:0": True}, {"1:5": b"abc"}, {"1:2": 1.5}, {"1:2": None}]
)
def test_what_no_message_has_is_refused(message: object) -> None:
    with pytest.raises(ValueError, match=r"message|varint|number"):
        write_message(message)

"""A session is equal to another only where every value, type and order is the same."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pltz.models.session.session import KINDS, Session
from pltz.plt_codec.errors import ContentError, CorruptError, UsageError
from tests.models.session.test_json_value import values

sessions = (
    values.map(lambda value: Session("chat", value))
    | st.binary().map(lambda value: Session("text", value))
    | st.lists(st.integers(0, 2**31 - 1)).map(lambda value: Session("ids", value))
)


@pytest.mark.parametrize("a, b", [
    (Session("chat", [1]), Session("chat", [1.0])), (Session("chat", [1]), Session("chat", [True])),
    (Session("chat", [0.0]), Session("chat", [-0.0])),
    (Session("chat", {"a": 1, "b": 2}), Session("chat", {"b": 2, "a": 1})),
    (Session("chat", "a"), Session("text", b"a")), (Session("text", b"a"), Session("text", b"b")),
    (Session("ids", [1]), Session("ids", [1, 2])), (Session("ids", []), Session("chat", [])),
])
def test_equality_is_strict(a: Session, b: Session) -> None:
    assert a != b and a.difference(b) and a != "another type"


def test_ids_are_a_read_only_int32_array() -> None:
    given_ids = np.array([1, 2, 3], np.int32)
    session = Session("ids", given_ids)
    given_ids[0] = 9
    assert session.value.dtype == np.int32 and session.value.tolist() == [1, 2, 3]
    with pytest.raises(ValueError):
        session.value[0] = 5


@pytest.mark.parametrize("value", [[1.5], [[1, 2]], [[1], [2, 3]], "ab", [True], None, [None]])
def test_ids_of_another_type_are_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        Session("ids", value)


@pytest.mark.parametrize("value", [[-1], [2**31], np.array([2**64 - 1], np.uint64)])
def test_ids_out_of_range_are_refused(value: Any) -> None:
    with pytest.raises(ContentError):
        Session("ids", value)


def test_a_text_is_bytes_and_a_kind_is_known() -> None:
    with pytest.raises(UsageError, match="found str"):
        Session("text", "not bytes")
    with pytest.raises(UsageError, match="found 'image'"):
        Session("image", b"")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    "kind, data",
    [("chat", b""), ("chat", b"{"), ("chat", b"\xff"), ("chat", b"NaN"), ("ids", b"abc"), ("ids", b"\xff" * 4)],
)
def test_damaged_bytes_are_refused(kind: Any, data: bytes) -> None:
    with pytest.raises(CorruptError):
        Session.from_bytes(kind, data)


@given(value=values)
def test_a_chat_is_one_line_of_json(value: Any) -> None:
    session = Session("chat", value)
    try:
        line = session.to_json_line()
    except ContentError:  # a pair of separate surrogates: JSON has no form for it
        assert any(0xD800 <= ord(char) < 0xDC00 for char in json.dumps(value, ensure_ascii=False))
        return
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and Session.from_json_line(line) == session


def test_a_line_is_utf8_unless_a_surrogate_stands_alone() -> None:
    assert Session("chat", {"a": "\u00e9"}).to_json_line() == '{"a":"\u00e9"}\n'.encode()
    assert Session("chat", ["\u00e9\ud800"]).to_json_line() == b'["\\u00e9\\ud800"]\n'
    with pytest.raises(ContentError, match="surrogates"):
        Session("chat", ["\ud83d\ude00"]).to_json_line()


@pytest.mark.parametrize("line", [b'{"a":1,"a":2}', b" [NaN] ", b"-0", b"9" * 5000, b"[" * 5000 + b"]" * 5000])
def test_a_line_that_json_would_change_is_kept_as_it_is(line: bytes) -> None:
    session = Session.from_json_line(line)
    assert session == Session("text", line) and session.to_json_line() == line + b"\n"


@pytest.mark.parametrize("line, words", [
    (b'{"a":', "at column 6"), (b"", "at column 1"), (b'{"a":1}\n}', "at line 2 column 1"),
    (b'"\xff"', "expected UTF-8, found byte 0xff at 1"), (b'{"a":"\t"}', "control character"),
])
def test_a_bad_line_says_where(line: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Session.from_json_line(line)


@given(data=st.binary())
def test_any_bytes_are_a_session_or_a_named_error(data: bytes) -> None:
    readers: list[Callable[[bytes], Session]] = [
        Session.from_json_line,
        *(lambda data, kind=kind: Session.from_bytes(kind, data) for kind in KINDS),
    ]
    for read in readers:
        try:
            read(data)
        except (UsageError, CorruptError):
            pass

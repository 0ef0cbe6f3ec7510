"""JSON values are kept exactly or refused, never changed."""

import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pltz.models.session.json_value import MAX_DEPTH, check, difference, dump, parse
from pltz.plt_codec.errors import ContentError

strings = st.text(st.characters(exclude_categories=()))  # lone surrogates too
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(strings, inner), max_leaves=12)


@given(a=values, b=values)
def test_no_difference_means_the_same_text(a: Any, b: Any) -> None:
    assert (difference(a, b) is None) == (dump(a) == dump(b))


@pytest.mark.parametrize("a, b, place", [
    (1, 1.0, "at the top: expected 1, found 1.0"), (1, True, "at the top: expected 1, found True"),
    (0.0, -0.0, "at the top: expected 0.0, found -0.0"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "at the top: expected the keys ['a', 'b'], found ['b', 'a']"),
    ({"a": [0, {"b": None}]}, {"a": [0, {"b": False}]}, "at .a[1].b: expected NoneType, found False"),
    ([1], [1, 2], "at the top: expected [1], found [1, 2]"), ([1], (1,), "at the top: expected [1], found tuple"),
])
def test_difference_names_the_place(a: Any, b: Any, place: str) -> None:
    assert difference(a, b) == place


@pytest.mark.parametrize("text", [
    '{"a":1,"a":2}', '[{"a":{"b":1,"b":1}}]', "NaN", "[Infinity]", "-Infinity", "1e999", "-1e999", "1e-999",
    "1e-99999999999999999999", "0e99999999999999999999", "1.00000000000000000001",
    "123456789012345678901234567890.0", "0." + "1" * 100, "-0", "9" * 4200, "9" * 4320, "9" * 100_000,
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 100_000 + "]" * 100_000,
], ids=lambda text: text[:24])
def test_a_text_that_would_change_is_refused(text: str) -> None:
    with pytest.raises(ContentError):
        parse(text)


@pytest.mark.parametrize(
    "text", ["1.50", "1E5", "-0.0", "5e-324", "1.7976931348623157e308", "9" * 3900, "1e22", "0.1", '"\\ud800"']
)
def test_other_spellings_of_a_value_pass(text: str) -> None:
    assert difference(parse(text), json.loads(text)) is None


def test_the_deepest_value_passes() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert dump(parse(text)) == text


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nul", "'a'", "1 2"])
def test_what_is_not_json_is_told_apart(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse(text)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 2}, OrderedDict(a=1), b"bytes", {"a": {1, 2}}, float("nan"), [float("inf")], 1 << 13_001, CYCLE],
    ids=str,
)
def test_only_plain_json_is_written(value: Any) -> None:
    with pytest.raises(ContentError):
        check(value)
    with pytest.raises(ContentError):
        dump(value)

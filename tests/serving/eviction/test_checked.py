"""Settings are checked by the annotations of their dataclass, and each refusal names the setting."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from pltz.plt_codec.errors import UsageError
from pltz.serving.eviction.checked import Limits, Word, checked


@dataclass(frozen=True)
class TableSettings:
    name: Word
    rows: Annotated[int, Limits(1, 32)] = 8
    share: Annotated[float, Limits(0, 1)] | None = None
    kind: Literal["raw", "q4"] = "raw"
    exact: bool = True
    tags: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    other: tuple[int, ...] = ()


def test_what_is_right_is_taken() -> None:
    given: dict[str, Any] = {"name": "a", "rows": 32, "share": 1, "kind": "q4", "exact": False}
    given |= {"tags": {"k": "v"}, "paths": ["p"], "other": (1,)}
    assert checked(TableSettings, given, "here") == TableSettings(**given)
    assert checked(TableSettings, {"name": "a", "share": None}, "here") == TableSettings("a")


@pytest.mark.parametrize(("given", "words"), [
    ({}, "here: expected name, found none"), ({"name": "a", "row": 1}, "here: expected exact, .*, found 'row'"),
    ({"name": ""}, "expected name as a word, found an empty one"),
    ({"name": 5}, "expected name as a string, found 5, a int"), ({"name": None}, "expected name as a string"),
    ({"rows": 33}, "expected rows from 1 to 32, found 33"),
    ({"rows": True}, "expected rows as a whole number, found True, a bool"),
    ({"rows": 1.0}, "expected rows as a whole number"), ({"share": float("nan")}, "expected share from 0 to 1"),
    ({"share": "1"}, "expected share as a number"), ({"kind": ["q4"]}, "expected kind as raw or q4"),
    ({"exact": 1}, "expected exact as true or false"), ({"tags": {"k": 1}}, "expected strings in tags"),
    ({"tags": ["k"]}, "expected strings in tags"), ({"paths": "p"}, "expected strings in paths"),
    ({"paths": {"p": "q"}}, "expected strings in paths"),
])
def test_what_is_wrong_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        checked(TableSettings, given if not given or "name" in given else {"name": "a"} | given, "here")

"""Settings checked by the annotations of their dataclass: types, limits and words, each refusal by the setting's name.

    @dataclass(frozen=True)
    class Settings:
        rows: Annotated[int, Limits(1, 32)] = 8
        kind: Literal["raw", "q4"] = "raw"

        def __post_init__(self) -> None:
            check(self)

    checked(Settings, {"rows": 40}, "the table")     # UsageError: the table: expected rows from 1 to 32, found 40
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from math import inf
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pltz.plt_codec import UsageError

TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """The least and the largest value of a number, or the least length of a text."""

    least: float
    most: float = inf


Word = Annotated[str, Limits(1)]
Positive = Annotated[int, Limits(1)]


def checked(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """Return settings made of a mapping. Raises UsageError that names an unknown or missing key, or a bad value."""
    known = {one.name: one for one in fields(cls)}  # type: ignore[arg-type]  # a dataclass
    try:
        if unknown := sorted(map(str, given.keys() - known.keys())):
            raise UsageError(f"expected {', '.join(sorted(known))}, found {unknown[0]!r}")
        for name, one in known.items():
            if name not in given and one.default is MISSING and one.default_factory is MISSING:
                raise UsageError(f"expected {name}, found none")
        made = cls(**given)
        check(made)
        return made
    except UsageError as exc:
        raise UsageError(f"{where}: {exc}") from exc


def check(settings: Any) -> None:
    """Check the fields that are annotated by plain types, limits, words, and rows or tables of strings.

    Raises UsageError.
    """
    for name, kind in get_type_hints(type(settings), include_extras=True).items():
        _check(name, getattr(settings, name), kind)


def _check(name: str, value: Any, kind: Any) -> None:
    if type(None) in get_args(kind):
        if value is None:
            return
        [kind] = [one for one in get_args(kind) if one is not type(None)]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"expected {name} as {' or '.join(get_args(kind))}, found {value!r}")
        return
    if get_origin(kind) in (Mapping, tuple) and get_args(kind)[-1] in (str, ...):
        table = get_origin(kind) is Mapping
        strings = value.values() if table and isinstance(value, Mapping) else value
        if isinstance(value, Mapping) != table or not isinstance(value, Mapping | list | tuple):
            strings = [None]
        if get_args(kind)[0] is str and not all(isinstance(one, str) for one in strings):
            raise UsageError(f"expected strings in {name}, found {value!r}"[:200])
        return
    limits = None
    if get_origin(kind) is Annotated:
        kind, limits = get_args(kind)
    if kind not in TYPES:
        return
    # "false" is no boolean, true is no number, and a whole number is taken where a number is expected
    right = isinstance(value, (int, float) if kind is float else kind)
    if not right or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"expected {name} as {TYPES[kind]}, found {value!r}, a {type(value).__name__}")
    if limits is None:
        return
    if kind is str:
        if len(value) < limits.least:
            raise UsageError(f"expected {name} as a word, found an empty one: leave it out, or fill it in")
    elif not limits.least <= value <= limits.most:
        most = f"to {limits.most:g}" if limits.most < inf else "up"
        raise UsageError(f"expected {name} from {limits.least:g} {most}, found {value}")

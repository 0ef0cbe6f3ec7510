"""Checks of the arguments that a caller gives: one of a wrong type is a `UsageError` that names it.

    text(name=7)    UsageError: expected a string as name, found int (7)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import SIZE

SHOWN = 40  # characters of a wrong value
LEAST_ID = 4  # bytes of an id that name a version of a session


def text(**given: object) -> None:
    """Check that each argument is a string. Raises UsageError."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise _wrong("a string", name, value)


def path(**given: object) -> None:
    """Check that each argument is a path: a string or an object of a path. Raises UsageError."""
    for name, value in given.items():
        if not isinstance(value, str | os.PathLike):
            raise _wrong("a path", name, value)


def text_or_none(**given: object) -> None:
    """Check that each argument is a string or None. Raises UsageError."""
    text(**{name: value for name, value in given.items() if value is not None})


def number_or_none(**given: object) -> None:
    """Check that each argument is a whole number or None. Raises UsageError."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise _wrong("a whole number", name, value)


def version_or_none(version: object) -> None:
    """Check that a version is None, a whole number, or an id: 4 to 16 bytes. Raises UsageError."""
    if not isinstance(version, bytes):
        number_or_none(version=version)
    elif not LEAST_ID <= len(version) <= SIZE:
        raise UsageError(f"expected {LEAST_ID} to {SIZE} bytes of the id of a version, got {len(version)}")


def seconds(**given: Any) -> float:
    """Return the one argument as seconds, checked to be a number from 0 up. Raises UsageError."""
    [(name, value)] = given.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise _wrong("seconds, 0 or more,", name, value)
    return float(value)


def share(**given: Any) -> None:
    """Check that each argument is a number from 0 to 1. Raises UsageError."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise _wrong("a share, 0 to 1,", name, value)


def tags(value: object) -> None:
    """Check that tags are None, or a mapping of strings to strings. Raises UsageError."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise _wrong("a mapping of strings to strings", "tags", value)
    for key, word in value.items():
        if not isinstance(key, str) or not isinstance(word, str):
            raise _wrong("strings", "keys and values of tags", key if not isinstance(key, str) else word)


def names(value: Any) -> list[str]:
    """Return one name or an iterable of names as a list, each once, in their order. Raises UsageError."""
    if isinstance(value, str):
        return [value]
    try:
        found = list(dict.fromkeys(value))
    except TypeError:
        raise _wrong("a name or several", "names", value) from None
    for name in found:
        text(names=name)
    return found


def _wrong(expected: str, name: str, value: object) -> UsageError:
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
    return UsageError(f"expected {expected} as {name}, found {type(value).__name__} ({shown})")

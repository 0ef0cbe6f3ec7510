"""Checks of the arguments that a caller gives: one of a wrong type is a `UsageError` that names it.

    text(name=7)    UsageError: expected a string as name, found int (7)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pltz.plt_codec.errors import UsageError
from pltz.plt_codec.identity import SIZE

SHOWN = 40  # characters of a wrong value
LEAST_ID = 4  # bytes of an id that name a version of a session


def _want(expected: str, fits: Callable[[Any], bool], **given: Any) -> None:
    """Check that each argument fits. Raises UsageError."""
    for name, value in given.items():
        if not fits(value):
            raise _wrong(expected, name, value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


# each takes arguments by name, and raises UsageError about the first that does not fit
text = partial(_want, "a string", lambda value: isinstance(value, str))
text_or_none = partial(_want, "a string", lambda value: value is None or isinstance(value, str))
path = partial(_want, "a path", lambda value: isinstance(value, str | os.PathLike))
number_or_none = partial(_want, "a whole number", lambda value: value is None or _is_whole(value))
share = partial(_want, "a share, 0 to 1,", lambda value: _is_number(value) and 0 <= value <= 1)
_seconds = partial(_want, "seconds, 0 or more,", lambda value: _is_number(value) and value >= 0)


def version_or_none(version: object) -> None:
    """Check that a version is None, a whole number, or an id: 4 to 16 bytes. Raises UsageError."""
    if not isinstance(version, bytes):
        number_or_none(version=version)
    elif not LEAST_ID <= len(version) <= SIZE:
        raise UsageError(f"expected {LEAST_ID} to {SIZE} bytes of the id of a version, got {len(version)}")


def seconds(**given: Any) -> float:
    """Return the one argument as seconds, checked to be a number from 0 up. Raises UsageError."""
    [value] = given.values()
    _seconds(**given)
    return float(value)


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

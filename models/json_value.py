"""JSON values kept exactly: parsing that refuses to change anything, writing, strict comparison.

Python's parser quietly takes ``{"a":1,"a":2}`` (drops one), ``NaN``, ``1e999`` (infinity), ``-0`` (0) and
``0.12345678901234567890`` (rounds). ``parse`` refuses each with ContentError, so that what it returns can
be written again and means what the text meant. ``1.50`` and ``1.5`` are the same value and both pass.

``==`` calls 1, 1.0 and True equal and ignores the order of keys; ``difference`` does not:

    difference({"a": 1}, {"a": 1.0})  ->  'at .a: expected 1, found 1.0'
"""

import json
import math
from decimal import Decimal, InvalidOperation
from typing import Any

from pltz.plt_codec.errors import ContentError

MAX_DEPTH = 200  # nested lists and objects: far below Python's limit, which depends on the caller's stack
MAX_INT_BITS = 13_000  # below Python's default limit of 4300 decimal digits
MAX_INT_CHARS = 4_000  # what MAX_INT_BITS can take, rounded up
MAX_FLOAT_CHARS = 64  # characters of a number with a fraction; the longest shortest form takes 24

_Path = tuple["_Path", object] | None


def parse(text: str) -> Any:
    """The value of a JSON text.

    Raises json.JSONDecodeError where it is not JSON, ContentError where the value would not come back.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_int,
            parse_float=_float,
            parse_constant=_constant,
        )
    except RecursionError as exc:
        raise ContentError(f"expected at most {MAX_DEPTH} nested lists and objects, found more") from exc
    check(value)
    return value


def dump(value: Any) -> str:
    """The compact JSON text of a value, which ``parse`` reads back to an equal value.

    Raises ContentError for anything that is not plain JSON.
    """
    check(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check(value: Any) -> None:
    """Raise ContentError, with the place, unless value is plain JSON within the limits above."""
    stack: list[tuple[Any, int, _Path]] = [(value, 0, None)]
    while stack:
        item, depth, path = stack.pop()
        kind = type(item)
        if kind is dict or kind is list:
            if depth == MAX_DEPTH:
                raise ContentError(f"expected at most {MAX_DEPTH} nested lists and objects, found more")
            if kind is dict and any(type(key) is not str for key in item):
                raise ContentError(f"expected keys that are strings, found another {_at(path)}")
            pairs = item.items() if kind is dict else enumerate(item)
            stack.extend((child, depth + 1, (path, key)) for key, child in pairs)
        elif kind is float:
            if not math.isfinite(item):
                raise ContentError(f"expected finite numbers, found {item} {_at(path)}")
        elif kind is int:
            if item.bit_length() > MAX_INT_BITS:
                raise ContentError(f"expected integers up to {MAX_INT_BITS} bits, found more {_at(path)}")
        elif not (kind is str or kind is bool or item is None):
            raise ContentError(f"expected a JSON value, found {kind.__module__}.{kind.__name__} {_at(path)}")


def difference(expected: Any, found: Any) -> str | None:
    """Where two JSON values differ in type, value, sign of zero or order of keys; None where nowhere."""
    stack: list[tuple[Any, Any, _Path]] = [(expected, found, None)]
    while stack:
        a, b, path = stack.pop()
        if type(a) is not type(b) or (isinstance(a, (dict, list)) and len(a) != len(b)):
            return f"{_at(path)}: expected {_short(a)}, found {_short(b)}"
        if isinstance(a, dict):
            if list(a) != list(b):
                return f"{_at(path)}: expected the keys {_short(list(a))}, found {_short(list(b))}"
            stack.extend((a[key], b[key], (path, key)) for key in reversed(a))
        elif isinstance(a, list):
            stack.extend((a[i], b[i], (path, i)) for i in reversed(range(len(a))))
        elif a != b or (isinstance(a, float) and repr(a) != repr(b)):
            return f"{_at(path)}: expected {_short(a)}, found {_short(b)}"
    return None


def _at(path: _Path) -> str:
    """A place for a message, as in ``at .messages[2].content``."""
    steps: list[str] = []
    while path is not None:
        path, key = path
        steps.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return f"at {''.join(reversed(steps)) or 'the top'}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, list)) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ContentError("expected each key once in an object, found one twice")
    return value


def _int(text: str) -> int:
    if text == "-0":
        raise ContentError("expected numbers that come back, found the integer -0")
    if len(text) > MAX_INT_CHARS:
        raise ContentError(f"expected integers of at most {MAX_INT_BITS} bits, found {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text) if len(text) <= MAX_FLOAT_CHARS else math.inf
    try:
        kept = math.isfinite(value) and Decimal(repr(value)) == Decimal(text)
    except InvalidOperation:  # an exponent of 19 digits
        kept = False
    if not kept:
        raise ContentError(f"expected numbers that a double holds, found {text[:40]}")
    return value


def _constant(text: str) -> Any:
    raise ContentError(f"expected finite numbers, found {text}")

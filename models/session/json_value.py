"""JSON values kept exactly: parsing that refuses to change anything, writing, strict comparison.

Python's parser quietly takes ``{"a":1,"a":2}`` (drops one), ``NaN``, ``1e999`` (infinity), ``-0`` (0) and
``0.12345678901234567890`` (rounds). ``parse`` refuses each with ContentError. So a value that it returns can
be written again and means what the text meant. ``1.50`` and ``1.5`` are the same value and both pass.

``==`` calls 1, 1.0 and True equal and ignores the order of keys; ``difference`` does not:

    difference({"a": 1}, {"a": 1.0})  ->  'at .a: expected 1, found 1.0'
"""

import itertools
import json
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from pltz.plt_codec.errors import ContentError, LimitError
from pltz.plt_codec.limits import MAX_BYTES, check_bytes

MAX_DEPTH = 200  # nested lists and objects: far below Python's limit, which depends on the caller's stack
MAX_VALUES = 1 << 21  # per session: a value takes up to some 250 bytes of memory, twice where it is verified
BLOCK = 1 << 20  # bytes of a text whose values are counted at once
SHORT = 16  # characters: shorter strings do not count for the size, a role is one byte in the plain form
MAX_INT_BITS = 13_000  # below Python's default limit of 4300 decimal digits
MAX_INT_CHARS = 4_000  # decimal digits of MAX_INT_BITS, rounded up
MAX_FLOAT_CHARS = 64  # characters of a number with a fraction; the longest shortest form takes 24


def parse(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        json.JSONDecodeError: the text is not JSON.
        ContentError: the value would not come back.
        LimitError: the value is over a limit above. The number of values is known before any of them is made.
    """
    if len(text) > MAX_VALUES and sum(map(text.count, ",[{")) >= MAX_VALUES:
        _check_count(text)
    try:
        value = _DECODER.decode(text)
    except RecursionError as exc:
        raise _too_deep() from exc
    if len(text) > MAX_VALUES or text.count("[") + text.count("{") > MAX_DEPTH:  # else it is within all limits
        check(value)
    return value


def dump(value: Any) -> str:
    """Return the compact JSON text of a value, which ``parse`` reads back to an equal value.

    Raises:
        ContentError: the value is not plain JSON.
        LimitError: the value is over a limit above.
    """
    check(value)
    return compact(value)


compact: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Return the text of a value that was checked, as ``dump``."""


def check(value: Any) -> None:
    """Refuse a value that is not plain JSON or is over a limit above.

    Memory does not grow with the value: one iterator per open list or object.

    Raises:
        ContentError: something is not plain JSON; the message says where.
        LimitError: the value is over a limit.
    """
    keys: list[object] = []  # of the open lists and objects
    rows: list[Iterator[tuple[object, Any]]] = [iter([(None, value)])]
    count, size = 1, 0
    while rows:
        for key, item in rows[-1]:
            kind = type(item)
            if kind is str:
                size += len(item) if len(item) > SHORT else 0
            elif kind is dict or kind is list:
                if len(rows) > MAX_DEPTH:
                    raise _too_deep()
                count += len(item)
                if count > MAX_VALUES:
                    raise _too_many(count)
                for name in item if kind is dict else ():
                    if type(name) is not str:
                        raise ContentError(f"expected keys that are strings, found another {_at([*keys, key])}")
                    size += len(name) if len(name) > SHORT else 0
                keys.append(key)
                rows.append(iter(item.items() if kind is dict else enumerate(item)))
                break
            elif kind is float:
                if not math.isfinite(item):
                    raise ContentError(f"expected finite numbers, found {item} {_at([*keys, key])}")
            elif kind is int:
                if item.bit_length() > MAX_INT_BITS:
                    where = _at([*keys, key])
                    raise ContentError(f"expected integers up to {MAX_INT_BITS} bits, found more {where}")
                size += item.bit_length() >> 2 if item.bit_length() > 64 else 0
            elif not (kind is bool or item is None):
                where = _at([*keys, key])
                raise ContentError(f"expected a JSON value, found {kind.__module__}.{kind.__name__} {where}")
        else:
            rows.pop()
            if keys:
                keys.pop()
        if size > MAX_BYTES:
            check_bytes(size)


def difference(expected: Any, found: Any) -> str | None:
    """Return where two JSON values differ in type, value, sign of zero or order of keys; None if nowhere."""
    keys: list[object] = []
    rows: list[Iterator[tuple[object, Any, Any]]] = [iter([(None, expected, found)])]
    while rows:
        for key, a, b in rows[-1]:
            if type(a) is not type(b) or (isinstance(a, (dict, list)) and len(a) != len(b)):
                return f"{_at([*keys, key])}: expected {_short(a)}, found {_short(b)}"
            if isinstance(a, dict):
                if any(map(operator.ne, a, b)):
                    where = _at([*keys, key])
                    return f"{where}: expected the keys {_short(list(a))}, found {_short(list(b))}"
                keys.append(key)
                rows.append(zip(a, a.values(), b.values(), strict=True))
                break
            if isinstance(a, list):
                keys.append(key)
                rows.append(zip(itertools.count(), a, b, strict=False))
                break
            if a != b or (isinstance(a, float) and repr(a) != repr(b)):
                return f"{_at([*keys, key])}: expected {_short(a)}, found {_short(b)}"
        else:
            rows.pop()
            if keys:
                keys.pop()
    return None


def _at(keys: Sequence[object]) -> str:
    """Return a place for a message, as in ``at .messages[2].content``; the first key is that of the top."""
    steps = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys[1:]]
    return f"at {''.join(steps) or 'the top'}"


def _too_deep() -> LimitError:
    return LimitError(f"expected at most {MAX_DEPTH} nested lists and objects, found more: keep the session as text")


def _too_many(found: int) -> LimitError:
    return LimitError(
        f"expected at most {MAX_VALUES} JSON values in a session, found {found} or more: split the session, "
        "or keep it as text"
    )


def _check_count(text: str) -> None:
    """Count the values of a JSON text in blocks, without making them.

    A value follows each comma, and each bracket that opens a list or object which is not empty.

    Raises:
        LimitError: there are too many values.
    """
    data = text.encode("utf-8", "surrogatepass").replace(b"\\\\", b"").replace(b'\\"', b"")
    count, quotes, last = 1, 0, b""
    for start in range(0, len(data), BLOCK):
        block = np.frombuffer(data[start : start + BLOCK], np.uint8)
        marks = block == ord('"')
        inside = (np.cumsum(marks) + quotes) & 1
        quotes += int(marks.sum())
        outside = block[marks | ((inside == 0) & (block > ord(" ")))].tobytes()
        count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        seam = last + outside
        count -= seam.count(b"[]") + seam.count(b"{}")
        last = outside[-1:] or last
    if count > MAX_VALUES:
        raise _too_many(count)


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
    if len(text) > MAX_INT_CHARS or (value := int(text)).bit_length() > MAX_INT_BITS:
        raise ContentError(f"expected integers of at most {MAX_INT_BITS} bits, found {len(text)} digits")
    return value


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


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant)

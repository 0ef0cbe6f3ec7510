"""Lines of a log: the JSON values in them, as far as they can be read.

    b'{"a":1}\\n\\0\\0{"b":2}{"c":3}\\n{"d": "cut'      ->      {"a": 1}, {"b": 2}, {"c": 3}; 2 odd lines

Agents die within a line, two of them write at once, and file systems leave blocks of NUL. A log is kept byte for byte
whatever it holds. Who reads it takes the records that are whole: also those behind NUL, two on one line, and those with
bytes that are no UTF-8. A line that is no JSON by itself is *odd*.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pltz.models.session.long_text import LongText
from pltz.models.session.session import Session

BOM = b"\xef\xbb\xbf"
WIDE = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # byte order marks, and the encoding of what follows
BLANK = " \t\r\n\0"
ODD: Final = "odd-lines"  # tag of a log with lines that are no JSON
FEW: Final = 64  # odd lines before the first others, after which it is no log of lines
_DECODER = json.JSONDecoder(strict=False)


def narrow(data: bytes) -> bytes:
    """Return a log in UTF-8 and without a byte order mark; bytes that are neither UTF-8 nor UTF-16 as they are."""
    if data[:2] in WIDE:
        return data[: len(data) // 2 * 2].decode("utf-16", "replace").encode("utf-8", "replace")
    return data.removeprefix(BOM)


def values(data: bytes) -> Iterator[Any]:
    """Yield the values in the lines of a log.

    >>> list(values(b'\\xef\\xbb\\xbf{"a":1}\\r\\n\\n{"b":2}{"c":3}\\n{"d": "cut'))
    [{'a': 1}, {'b': 2}, {'c': 3}]
    """
    for line in narrow(data).split(b"\n"):
        found, _ = values_of(line)
        yield from found


def values_of(line: bytes) -> tuple[list[Any], bool]:
    """Return the values in one line, and whether it is odd.

    >>> values_of(b'{"a":1}'), values_of(b' '), values_of(b'{"a":1}{"b'), values_of(b'\\0\\0')
    (([{'a': 1}], False), ([], False), ([{'a': 1}], True), ([], True))
    """
    if not line or line.isspace():
        return [], False
    try:
        return [json.loads(line)], False
    except (ValueError, RecursionError):
        pass
    text = line.decode("utf-8", "replace").strip(BLANK)
    found = list[Any]()
    while text[:1] in ("{", "["):  # a number or a word in what is broken tells nothing
        try:
            value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            break
        text = text[end:].lstrip(BLANK)
        if text[:1] in (",", ":"):  # an item of a document of many lines
            break
        found.append(value)
    return found, True


def tags_of_odd(session: Session) -> dict[str, str]:
    """Return the tag that says how many lines of a log are odd; none where no line is, or it is no log of lines.

    >>> tags_of_odd(Session("text", b'{"a":1}\\n{"b')), tags_of_odd(Session("text", b"# words\\n"))
    ({'odd-lines': '1'}, {})
    """
    if session.kind != "text" or isinstance(session.value, LongText):
        return {}
    odd, lines = 0, 0
    for line in narrow(session.value).split(b"\n"):
        found, is_odd = values_of(line)
        odd, lines = odd + is_odd, lines + any(isinstance(value, dict) for value in found)
        if odd > 2 * lines + FEW:  # a document, or a text
            return {}
    return {ODD: str(odd)} if odd and lines else {}

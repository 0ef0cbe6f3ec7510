"""Spellings of JSON: the ways in which programs write the same values as different bytes.

A text is taken apart only if one of the spellings below gives it back from its values. Spec: models/FORMAT.md,
"Spellings". The bytes of an input that holds one value are its *writing*: a spelling and a line end, one number for
both, 0 for the bytes that pltz writes by itself.

    writing_of(b'{"a": 1}\\n', {"a": 1}, 0)     # 10, of Python's json.dumps
    written({"a": 1}, 10)                        # b'{"a": 1}\\n'
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from pltz.plt_codec.errors import CorruptError

Json = Any  # str, int, Number, bool, None, NaN and infinities as float, lists and dicts of them

GO: Final = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}
MARKED: Final = re.compile(r'"\\u0000(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"')


class Number(str):
    """A number with a point or an exponent: NUL and its digits as written, since programs write floats differently.

    >>> spell([Number("\\0" + "1.10")], 0)
    '[1.10]'
    """

    __slots__ = ()


class Spelling(NamedTuple):
    """One way to write JSON."""

    spaced: bool = False  # ", " and ": "; else "," and ":"
    indent: int | str | None = None  # as json.dumps takes it; then lines end in "," and keys in ": "
    ascii: bool = False  # non-ASCII as \\uXXXX
    go: bool = False  # <, >, &, U+2028 and U+2029 as \\uXXXX, as Go's encoding/json does
    slash: bool = False  # "/" as "\\/", as PHP does

    def encoder(self) -> json.JSONEncoder:
        """Return the encoder that writes so."""
        separators = (",", ": ") if self.indent is not None else (", ", ": ") if self.spaced else (",", ":")
        return json.JSONEncoder(
            ensure_ascii=self.ascii, separators=separators, indent=self.indent, check_circular=False
        )


SPELLINGS: Final = (
    Spelling(),
    Spelling(spaced=True),
    Spelling(ascii=True),
    Spelling(spaced=True, ascii=True),
    Spelling(go=True),
    Spelling(slash=True, ascii=True),
    Spelling(slash=True),
    Spelling(indent=2),
    Spelling(indent=2, ascii=True),
    Spelling(indent=4),
    Spelling(indent=4, ascii=True),
    Spelling(indent="\t"),
    Spelling(indent="\t", ascii=True),
    Spelling(indent=2, go=True),
    Spelling(indent="\t", go=True),
    Spelling(indent=2, slash=True, ascii=True),
)
LINES: Final = tuple(i for i, s in enumerate(SPELLINGS) if s.indent is None)
DOCUMENTS: Final = tuple(i for i, s in enumerate(SPELLINGS) if s.indent is not None)
PADS: Final = tuple("\t" if s.indent == "\t" else " " for s in SPELLINGS)
ENCODERS: Final = tuple(s.encoder() for s in SPELLINGS)


def number_of(text: str) -> Number:
    """Return a number as written."""
    return Number("\0" + text)


DECODER: Final = json.JSONDecoder(parse_float=number_of)


def spell(value: Json, number: int, most: int | None = None) -> str:
    """Return a value written in spelling ``number``.

    ``most``: characters, where there is a bound. Raises CorruptError above it.
    """
    if most is None:
        text = ENCODERS[number].encode(value)
    else:
        pieces = list[str]()
        for piece in ENCODERS[number].iterencode(value):
            if (most := most - len(piece)) < 0:
                raise CorruptError("a value that its indented writing would swell: the file is damaged")
            pieces.append(piece)
        text = "".join(pieces)
    if '"\\u0000' in text:
        text = MARKED.sub(r"\1", text)
    spelling = SPELLINGS[number]
    if spelling.go:
        text = text.translate(GO)
    if spelling.slash:
        text = text.replace("/", "\\/")
    return text


def shifted(text: str, number: int, depth: int) -> str:
    """Return JSON text with all lines but the first indented by ``depth`` characters more.

    >>> shifted(spell([1], 7), 7, 2)
    '[\\n    1\\n  ]'
    """
    return text.replace("\n", "\n" + PADS[number] * depth) if depth else text


def parse(text: str) -> Json:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or nested too deeply to be taken apart.
    """
    try:
        return DECODER.decode(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def spelling_of(text: str, value: Json, numbers: tuple[int, ...], first: int, depth: int = 0) -> int | None:
    """Return the number of the spelling that gives ``text`` back from its value, or None.

    Args:
        text: JSON.
        value: what `parse` made of it.
        numbers: the spellings to try.
        first: the one to try first.
        depth: how far lines after the first are indented more than those of a document.
    """
    try:
        for number in (first, *(n for n in numbers if n != first)):
            if shifted(spell(value, number), number, depth) == text:
                break
        else:
            return None
        if SPELLINGS[number].ascii and "\\ud" in text:
            spell(value, 0).encode()  # half a surrogate pair is no text
    except (UnicodeEncodeError, RecursionError, ValueError):
        return None
    return number


ENDS: Final = (b"\n", b"\r\n", b"")  # of a value's bytes
WRITINGS: Final = 1 + len(SPELLINGS) * len(ENDS)  # their numbers are below this
SWELLS, FREE = 32, 1 << 16  # characters of an indented writing, per character without blanks, and beside
PYTHON: Final = (3, 1)  # spellings of Python's json.dumps, which are tried before the others


def written(value: Json, writing: int) -> bytes:
    """Return the bytes of a value in a writing, from 1 on.

    Raises UnicodeEncodeError for a lone surrogate, and CorruptError for a value that no writer writes so: few bytes,
    nested deeply, would become many by their indents.
    """
    number, end = divmod(writing - 1, len(ENDS))
    most = None if number in LINES else _most(value)
    return spell(value, number, most).encode() + ENDS[end]


def _most(value: Json) -> int:
    """Return the most characters of a value in an indented writing."""
    return FREE + SWELLS * len(spell(value, 0))


def writing_of(data: bytes, value: Json, first: int) -> int:
    """Return the writing, from 1 on, that gives the bytes of a value back, or 0 where none does.

    ``first``: the one to try first, that of the value before it: one file is written by one program.
    """
    end = 1 if data.endswith(b"\r\n") else 0 if data.endswith(b"\n") else 2
    try:
        text = data.removesuffix(ENDS[end]).decode()
    except UnicodeDecodeError:
        return 0
    known = (first - 1) // len(ENDS) if first else PYTHON[0]
    numbers = DOCUMENTS if "\n" in text else (*PYTHON, *(n for n in LINES if n not in PYTHON))
    number = spelling_of(text, value, numbers, known if known in numbers else numbers[0])
    if number in DOCUMENTS and len(text) > _most(value):
        return 0
    return 0 if number is None else 1 + number * len(ENDS) + end

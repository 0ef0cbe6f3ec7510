"""Table: the lossless split of an agent's log into packed columns, opaque bits and text, and its inverse.

A log of a coding agent is a table with text in it: keys, ids, times and counters between what was said, much of it
said twice. `split` takes the table out, so that a language model codes the text and nothing else.

    content bytes --split--> columns | opaque bits | pieces of text in reading order
    content bytes <--join--- columns | opaque bits | pieces of text

The columns are decisions of an adaptive arithmetic coder (bit_coder.py). Its models learn, on both sides, from lines of
known agents (known.table) and from the parts above, in the order of a tower: a reader joins these first, and splits
nothing. Any bytes can be split: lines that are no JSON are text. Spec: FORMAT.md.

    >>> line = b'{"type":"user","text":"hello","uuid":"00112233-4455-6677-8899-aabbccddeeff"}'
    >>> table = split(line)
    >>> table.pieces[0].text.split()[-1], len(table.opaque)
    ('hello', 16)
    >>> join(table.columns, table.opaque, table.pieces, len(line)) == line
    True
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from pltz.coding.log.above import REACH, Above
from pltz.coding.log.bit_coder import BitReader, BitWriter
from pltz.coding.log.joiner import Joiner
from pltz.coding.log.kept import Kept
from pltz.coding.log.past import Past
from pltz.coding.log.splitter import Splitter
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint
from pltz.plt_codec.versions import Readers

VERSION: Final = 1
VERSIONS: Final = Readers("the table of a log", {VERSION: Joiner})
END: Final = b"\xff"  # of a piece in bytes: no byte of UTF-8
PASTS: Final = Kept[tuple[Past, int]](1 << 26, lambda kept: kept[1])  # pasts that were left, and their bytes, about
PAST: Final = 1 << 21  # bytes of the past after the known lines, at most


class TextPiece(NamedTuple):
    """A piece of text, in reading order. It may be empty."""

    voice: int  # 0 user, 1 assistant, 2 tool, 3 system, 4 tool call, 5 other; a hint, not needed to join
    text: str


class Table(NamedTuple):
    """The parts that a log was split into."""

    columns: bytes  # packed
    opaque: bytes  # stored as they are
    pieces: list[TextPiece]


@contextmanager
def uncollected() -> Iterator[None]:
    """While the context lasts, look for no garbage in cycles: tables leave none, and it took a tenth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@uncollected()
def split(data: bytes, above: Above | None = None) -> Table:
    """Split the bytes of a log, or of a part of one.

    Args:
        data: any bytes; lines of JSON and JSON documents are taken apart.
        above: the part above it in the same log, or a log like it. `join` needs the same.
    """
    past = _past(above)
    found = _split(past, data)
    _leave(Above.of(data, above), past)
    return found


def join(
    columns: bytes, opaque: bytes, pieces: Sequence[TextPiece | str], count: int, above: Above | None = None
) -> bytes:
    """Undo `split`.

    Args:
        columns, opaque: as `split` returned them.
        pieces: of text, with or without voices.
        count: bytes of the log; no more than this is ever made.
        above: what `split` was given as ``above``, or the same made of tables.

    Raises:
        CorruptError: the parts are not those of a log of ``count`` bytes.
        VersionError: the columns are of another version.
    """
    texts = [piece if isinstance(piece, str) else piece.text for piece in pieces]
    return content_of(Above.made_of(columns, opaque, text_of(texts), count, above))


@uncollected()
def content_of(part: Above) -> bytes:
    """Return the content of a part that is made of its table. Raises as `join`."""
    past = _past(part.up)
    content = _joined(past, part)
    _leave(part, past)
    return content


def text_of(pieces: Iterable[str]) -> bytes:
    """Return a text: pieces in UTF-8, each with `END` behind it."""
    return b"".join(piece.encode("utf-8", "surrogatepass") + END for piece in pieces)


def looks_like_log(data: bytes) -> bool:
    """Return whether a split is worth trying: lines of JSON objects, or one JSON document of many lines."""
    head = data[:4096].lstrip()
    return head[:1] in (b"{", b"[") and b'":' in head


def _past(above: Above | None) -> Past:
    """Return the past after the known lines and a part of a log, for one who goes on with it."""
    left, past, at = list[Above](), None, above
    while at and past is None:
        if kept := PASTS.get(at.key):
            past = kept[0].copy()
        else:
            left.append(at)
            at = at.up
    past = past or _known().copy()
    for part in reversed(left):
        _joined(past, part) if part.table else _split(past, part.content)
    if above and left:
        _leave(above, past)
        past = past.copy()
    return past


def _leave(part: Above, past: Past) -> None:
    """Keep the past after a part, perhaps for the next one."""
    if part.size <= REACH:
        PASTS.put(part.key, (past, PAST + 2 * part.size))


def _split(past: Past, data: bytes) -> Table:
    splitter = Splitter(past, writer := BitWriter())
    splitter.content(data)
    pieces = [TextPiece(speaker, "\n".join(lines)) for speaker, lines in splitter.pieces]
    return Table(bytes([VERSION]) + writer.finish(), bytes(splitter.opaque), pieces)


def _joined(past: Past, part: Above) -> bytes:
    columns, opaque, text = part.table or (b"", b"", b"")
    if not columns:
        raise CorruptError("expected the columns of a log, found no bytes: the file is damaged")
    read = VERSIONS[columns[0]]
    return read(past, BitReader(columns[1:]), opaque, pieces_of(text), part.count).content(part.count)


def pieces_of(text: bytes) -> list[str]:
    """Return the pieces of a text. Raises CorruptError."""
    if text and not text.endswith(END):
        raise CorruptError("the text of a log ends within a piece: the file is damaged")
    try:
        return [piece.decode("utf-8", "surrogatepass") for piece in text.split(END)[:-1]]
    except UnicodeDecodeError as exc:
        raise CorruptError(f"expected UTF-8 in the text of a log: {exc}") from exc


@cache
def _known() -> Past:
    """Return the past after the known lines, to be copied: faster than to learn them each time."""
    return learn((files(__package__) / "known.table").read_bytes())[0]


def learn(known: bytes) -> tuple[Past, bytes]:
    """Return the past after known lines, and the lines. ``known``: their table, of an empty past (FORMAT.md)."""
    count, at = read_varint(known, 0)
    columns, at = read_varint(known, at)
    opaque, at = read_varint(known, at)
    middle, end, past = at + columns, at + columns + opaque, Past()
    return past, _joined(past, Above.made_of(known[at:middle], known[middle:end], known[end:], count))


def teach(lines: bytes) -> bytes:
    """Return the table of known lines: undoes `learn`."""
    columns, opaque, pieces = _split(Past(), lines)
    sizes = map(write_varint, (len(lines), len(columns), len(opaque)))
    return b"".join([*sizes, columns, opaque, text_of(piece.text for piece in pieces)])

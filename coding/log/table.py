"""Table: the lossless split of an agent's log into packed columns, opaque bits and text, and its inverse.

A log of a coding agent is a table with text in it: keys, ids, times and counters between what was said, much of it
said twice. `split` takes the table out, so that a language model codes the text and nothing else.

    content bytes --split--> columns | opaque bits | pieces of text in reading order
    content bytes <--join--- columns | opaque bits | pieces of text

The columns are decisions of an adaptive arithmetic coder (bit_coder.py). Its models learn, on both sides, from lines of
known agents (known.table) and from the bytes above. Any bytes can be split: lines that are no JSON are text.
Spec: FORMAT.md.

    >>> line = b'{"type":"user","text":"hello","uuid":"00112233-4455-6677-8899-aabbccddeeff"}'
    >>> table = split(line)
    >>> table.pieces[0].text.split()[-1], len(table.opaque)
    ('hello', 16)
    >>> join(table.columns, table.opaque, table.pieces, len(line)) == line
    True
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from pltz.coding.log.bit_coder import BitLearner, BitReader, BitWriter
from pltz.coding.log.joiner import Joiner
from pltz.coding.log.kept import Kept
from pltz.coding.log.past import Past
from pltz.coding.log.splitter import Splitter
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint
from pltz.plt_codec.versions import Readers

VERSION: Final = 7
VERSIONS: Final = Readers("the table of a log", {VERSION: Joiner})
END: Final = b"\xff"  # of a piece in bytes: no byte of UTF-8
PASTS: Final = Kept[bytes](1 << 26, len)  # copies of pasts: making one anew takes 25 times as long as its copy


class TextPiece(NamedTuple):
    """A piece of text, in reading order. It may be empty."""

    voice: int  # 0 user, 1 assistant, 2 tool, 3 system, 4 tool call, 5 other; a hint, not needed to join
    text: str


class Table(NamedTuple):
    """The parts that a log was split into."""

    columns: bytes  # packed
    opaque: bytes  # stored as they are
    pieces: list[TextPiece]


def split(data: bytes, above: bytes = b"", *, remember: bool = False) -> Table:
    """Split the bytes of a log.

    Args:
        data: any bytes; lines of JSON and JSON documents are taken apart.
        above: the bytes before them in the same log, or of a log like it. `join` needs the same.
        remember: the data will be the bytes above others; with nothing above it.
    """
    writer = BitWriter()
    past = _past(above)
    splitter = Splitter(past, writer)
    splitter.content(data)
    if remember and data and not above:
        PASTS.put(data, pickle.dumps(past))
    pieces = [TextPiece(speaker, "\n".join(lines)) for speaker, lines in splitter.pieces]
    return Table(bytes([VERSION]) + writer.finish(), bytes(splitter.opaque), pieces)


def join(
    columns: bytes, opaque: bytes, pieces: Sequence[TextPiece | str], count: int, above: bytes = b""
) -> bytes:
    """Undo `split`.

    Args:
        columns, opaque: as `split` returned them.
        pieces: of text, with or without voices.
        count: bytes of the log; no more than this is ever made.
        above: the bytes that `split` was given as ``above``.

    Raises:
        CorruptError: the parts are not those of a log of ``count`` bytes.
        VersionError: the columns are of another version.
    """
    if not columns:
        raise CorruptError("expected the columns of a log, found no bytes: the file is damaged")
    read = VERSIONS.of(columns[0])
    texts = [piece if isinstance(piece, str) else piece.text for piece in pieces]
    return read(_past(above), BitReader(columns[1:]), opaque, texts, count).content(count)


def looks_like_log(data: bytes) -> bool:
    """Return whether a split is worth trying: lines of JSON objects, or one JSON document of many lines."""
    head = data[:4096].lstrip()
    return head[:1] in (b"{", b"[") and b'":' in head


def _past(above: bytes) -> Past:
    """Return the past of a log after the known lines and the bytes above."""
    if not above:
        return _copied(_known())
    if (known := PASTS.get(above)) is None:
        past = _copied(_known())
        Splitter(past, BitLearner()).content(above)
        PASTS.put(above, known := pickle.dumps(past))
    return _copied(known)


def _copied(data: bytes) -> Past:
    collecting = gc.isenabled()
    gc.disable()  # nothing of what is loaded is garbage, and looking for it took two thirds of the time
    try:
        past: Past = pickle.loads(data)
    finally:
        if collecting:
            gc.enable()
    return past


@cache
def _known() -> bytes:
    """Return a copy, to be copied once more, of the past after the known lines: faster than to learn them each time."""
    return pickle.dumps(learn((files(__package__) / "known.table").read_bytes())[0])


def learn(known: bytes) -> tuple[Past, bytes]:
    """Return the past after known lines, and the lines. ``known``: their table, of an empty past (FORMAT.md)."""
    count, at = read_varint(known, 0)
    columns, at = read_varint(known, at)
    opaque, at = read_varint(known, at)
    texts = [piece.decode() for piece in known[at + columns + opaque :].split(END)[:-1]]
    past, bits = Past(), BitReader(known[at + 1 : at + columns])
    joiner = VERSIONS.of(known[at])(past, bits, known[at + columns : at + columns + opaque], texts, count)
    return past, joiner.content(count)


def teach(lines: bytes) -> bytes:
    """Return the table of known lines: undoes `learn`."""
    splitter = Splitter(Past(), writer := BitWriter())
    splitter.content(lines)
    columns = bytes([VERSION]) + writer.finish()
    texts = ["\n".join(piece).encode() + END for _, piece in splitter.pieces]
    sizes = map(write_varint, (len(lines), len(columns), len(splitter.opaque)))
    return b"".join([*sizes, columns, splitter.opaque, *texts])

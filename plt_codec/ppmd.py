"""PPMd bytes: text by prediction from its last few bytes, variant H as in 7-zip (ppmd.c). Spec: FORMAT.md.

    primer --> model, kept --past--> model of both, and the range of the coder --text--> stream

Of the text of logs it takes 78 % of the bytes of zstd -19, at twice its speed, and reads as slowly as it writes. A
model that has seen the primer is kept, and its copy learns the past: neither puts anything out. So a short text costs
the copy, a tenth of a millisecond, and a past about what the same bytes of text cost.

    >>> text = b"the same words and other words, the same words again and again. " * 9
    >>> coded = encode(text)
    >>> len(coded) < 80, decode(coded, len(text)) == text
    (True, True)
    >>> len(encode(b"other words, the same words again", text)) < len(encode(b"other words, the same words again"))
    True
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from pltz.plt_codec import _ppmd
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.varint import read_varint, write_varint

ORDER = 16  # bytes of context: 1.4 % fewer bytes than 8, 0.2 % fewer than 12, in the time of 12
MEMORY = 160 << 20  # bytes of a model at most, of which it touches some 25 per byte that it has seen
SLICE, PAST = 1 << 22, 1 << 18  # bytes of a text that are coded at once, and of what is before it that count
PER_BYTE, SPARE = 1 << 12, 16  # bytes of text at most per byte of stream and so many
FILE = Path(__file__).with_name("primer.ppmd")  # the primer of logs, as PPMd bytes without one, after its size
NO_PRIMER = b""
OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a fork gets a copy
KEPT = 1 << 20  # bytes of text and past up to which a thread keeps its memory

_threads = threading.local()


def encode(text: bytes, past: bytes = b"", primer: bytes | None = None) -> bytes:
    """Return the PPMd bytes of a text that stands after a past. ``primer``: None: that of logs."""
    if len(text) <= SLICE:
        return encode_many([(past, text)], primer)[0]
    before = [past, *(text[at - PAST : at] for at in range(SLICE, len(text), SLICE))]
    coded = (encode(text[n * SLICE :][:SLICE], past, primer) for n, past in enumerate(before))
    return b"".join(write_varint(len(one)) + one for one in coded)


def encode_many(rows: Sequence[tuple[bytes, bytes]], primer: bytes | None = None) -> list[bytes]:
    """Return what `encode` does of each past and text: of many short ones in two thirds of the time."""
    chosen = [(past[-PAST:], text) for past, text in rows if 0 < len(text) <= SLICE]
    most = max((len(past) + len(text) for past, text in chosen), default=0)
    streams = iter(_ppmd.encode(_memory(most), _model(primer), chosen))
    found = [next(streams) if 0 < len(text) <= SLICE else text and encode(text, past, primer) for past, text in rows]
    return [text if one is None else one for one, (_, text) in zip(found, rows, strict=True)]


def decode(coded: bytes, count: int, past: bytes = b"", primer: bytes | None = None) -> bytes:
    """Undo `encode`.

    Args:
        coded: the bytes that `encode` returned.
        count: bytes of the text; no more than this is ever produced.
        past, primer: as for `encode`.

    Raises:
        CorruptError: the bytes are not PPMd bytes of exactly ``count`` bytes.
    """
    if count <= SLICE:
        return decode_many([(past, coded, count)], primer)[0]
    found, at = bytearray(), 0
    for begin in range(0, count, SLICE):
        size, at = read_varint(coded, at)
        found += decode(coded[at : at + size], min(SLICE, count - begin), bytes(found[-PAST:]) or past, primer)
        at += size
    if at != len(coded):
        raise CorruptError(f"the slices of a text end at byte {at} of {len(coded)}: the file is damaged")
    return bytes(found)


def decode_many(rows: Sequence[tuple[bytes, bytes, int]], primer: bytes | None = None) -> list[bytes]:
    """Return what `decode` does of each past, PPMd bytes and count. Raises CorruptError where one is damaged."""
    chosen = [(past[-PAST:], coded, count) for past, coded, count in rows if len(coded) < count <= SLICE]
    for _, coded, count in rows:
        if count <= SLICE and not count / PER_BYTE - SPARE <= len(coded) <= count:
            raise CorruptError(f"a text of {count} bytes cannot be in {len(coded)} PPMd bytes: the file is damaged")
    try:
        most = max((len(past) + count for past, _, count in chosen), default=0)
        texts = iter(_ppmd.decode(_memory(most), _model(primer), chosen))
    except ValueError as exc:
        raise CorruptError(f"PPMd bytes do not decode ({exc}): the file is damaged") from exc
    return [
        decode(coded, count, past, primer) if count > SLICE else coded if len(coded) == count else next(texts)
        for past, coded, count in rows
    ]


@cache
def primer() -> bytes:
    """Return the text that the model of logs has seen."""
    data = FILE.read_bytes()
    return decode(data[4:], int.from_bytes(data[:4], "little"), primer=NO_PRIMER)


@cache
def _model(seen: bytes | None) -> bytes:
    return _ppmd.trained(_memory(0), ORDER, primer() if seen is None else seen)


def _memory(count: int) -> mmap.mmap:
    """Return memory of a model, of which no more than about what so many bytes need is ever there."""
    if count > KEPT:
        memory = mmap.mmap(-1, MEMORY, OWN)
        with suppress(AttributeError, OSError):  # large pages: 4 MiB are written 9 % faster and read 25 %
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory
    if not hasattr(_threads, "memory"):
        _threads.memory = mmap.mmap(-1, MEMORY, OWN)
    kept: mmap.mmap = _threads.memory
    return kept

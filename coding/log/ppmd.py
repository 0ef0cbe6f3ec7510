"""PPMd bytes: text by prediction from its last few bytes, variant H as in 7-zip (`PPMd`, 7zFormat). Spec: FORMAT.md.

    text after a past --pyppmd--> stream of both, without what the past alone puts out --> order, memory, the rest

Of the text of logs it takes 84 % of the bytes of zstd -19, at twice its speed, and reads as slowly as it writes. A
model is primed by coding the past first, which a reader does once more.

`pyppmd` is held to what it does rightly. An encoder loses bytes where one call puts out more than 32 KiB, and never
gives back the buffer that it was handed: it gets 1,024 bytes per call, out of a few buffers that stay. A decoder that
comes to the end of its input, as of a damaged frame, waits in a thread for more, and what it does when it is dropped
there is undefined: it gets more zeros than it can take first. It never gives back what it has not read: few bytes. An
encoder loses its 20 KB of tables, which is why none is made for nothing.

    >>> text = b"the same words and other words, the same words again and again. " * 9
    >>> coded = encode(text)
    >>> len(coded) < 90, decode(coded, len(text)) == text
    (True, True)
    >>> len(encode(b"other words again", text)) < len(encode(b"other words again"))
    True
"""

from __future__ import annotations

import threading

import pyppmd

from pltz.plt_codec.errors import CorruptError

ORDER = 16  # bytes of context: 1.4 % fewer bytes than 8, 0.2 % fewer than 12, in the time of 12
MIN_ORDER, MAX_ORDER = 2, 64
MIN_MEMORY, MAX_MEMORY = 20, 28  # base-2 logarithms of bytes, MAX_MEMORY of a reader
MOST_MEMORY = 27  # of a writer: it holds a text of 4 MB, which is that of a log of 16 MB
MEMORY_PER_BYTE = 32  # bytes of memory that a model needs per byte that it has seen, at most about
PER_BYTE, SPARE = 1 << 12, 16  # bytes of text at most per byte of PPMd bytes and so many
MORE = 1 << 16  # bytes that a decoder makes at most of zeros: twice its first block, which it must not end in
STEP = 4  # bytes of input at most per byte of text: each of its escapes was paid by a byte before it (FORMAT.md)
SIZES = (1 << 10, 1 << 5, 1)  # bytes of the buffers that an encoder gets

_buffers = threading.local()


def encode(text: bytes, past: bytes = b"") -> bytes:
    """Return the PPMd bytes of a text that stands after a past."""
    if not text:
        return b""
    log = (MEMORY_PER_BYTE * (len(past) + len(text)) - 1).bit_length()
    log = min(MOST_MEMORY, max(MIN_MEMORY, log))
    coder = pyppmd.Ppmd7Encoder(ORDER, 1 << log)
    begun = len(_fed(coder, past)) if past else 0
    stream = _fed(coder, text) + coder.flush()
    coded = bytes([ORDER, log]) + (stream if begun else stream[1:])
    return coded if len(coded) <= len(text) else b"\0" + text


def decode(coded: bytes, count: int, past: bytes = b"") -> bytes:
    """Undo `encode`.

    Args:
        coded: the bytes that `encode` returned.
        count: bytes of the text; no more than this and the past is ever produced.
        past: as for `encode`.

    Raises:
        CorruptError: the bytes are not PPMd bytes of exactly ``count`` bytes.
    """
    if not count or coded[:1] == b"\0":
        if len(coded) != count + bool(count):
            raise CorruptError(f"expected a text of {count} bytes, found {len(coded)}: the file is damaged")
        return coded[1:]
    order, log = coded[:2] if len(coded) > 2 else (0, 0)
    if not (MIN_ORDER <= order <= MAX_ORDER and MIN_MEMORY <= log <= MAX_MEMORY):
        raise CorruptError(f"PPMd bytes begin with order {order} and memory {log}: the file is damaged")
    if count > PER_BYTE * (len(coded) + SPARE):
        raise CorruptError(f"a text of {count} bytes cannot be in {len(coded)} PPMd bytes: the file is damaged")
    begun = _fed(pyppmd.Ppmd7Encoder(order, 1 << log), past) if past else b""
    stream = (begun or b"\0") + coded[2:]
    if stream[1:5] == b"\xff\xff\xff\xff":
        raise CorruptError("PPMd bytes begin as no coder begins: the file is damaged")
    total = len(past) + count
    coder = pyppmd.Ppmd7Decoder(order, 1 << log)
    try:
        found: bytes = coder.decode(stream + bytes(SPARE), total)
        if coder.needs_input:  # it may wait for more in a thread, which ends with what it gets here
            coder.decode(bytes(STEP * (MORE + MAX_ORDER)), MORE)
            found = b""
    except ValueError as exc:
        raise CorruptError("PPMd bytes do not decode: the file is damaged") from exc
    if len(found) != total or not coder.eof or len(coder.unused_data) != SPARE or not found.startswith(past):
        raise CorruptError(f"expected PPMd bytes of a text of {count} bytes, found others: the file is damaged")
    return found[len(past) :]


def _fed(coder: pyppmd.Ppmd7Encoder, data: bytes) -> bytes:
    """Return what an encoder puts out for data."""
    put, at = list[bytes](), 0
    for size in SIZES:
        buffer = vars(_buffers).setdefault(str(size), bytearray(size))
        while at + size <= len(data):
            buffer[:] = data[at : at + size]
            put.append(coder.encode(buffer))
            at += size
    return b"".join(put)

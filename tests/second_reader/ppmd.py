"""PPMd bytes, as plt_codec/FORMAT.md describes them, with the library `pyppmd`, which has the sources of 7-zip."""

from functools import cache
from pathlib import Path

import pyppmd

from tests.second_reader.fields import Fields, refuse

ORDER, MEMORY = 16, 1 << 29
SLICE, PAST = 1 << 22, 1 << 18  # bytes of a text that are coded at once, and of what is before it that count


def by_ppmd(data: bytes, count: int, past: bytes = b"", primer: bytes | None = None) -> bytes:
    """Return the text of PPMd bytes after a past. ``primer``: None: that of logs."""
    if count > SLICE:
        fields, found = Fields(data), b""
        while left := count - len(found):
            found += by_ppmd(fields.sized(), min(SLICE, left), found or past, primer)
        fields.end()
        return found
    if len(data) == count:
        return data
    refuse(len(data) > count or count > 4096 * (len(data) + 16), "a text that PPMd bytes cannot have")
    known = (of_logs() if primer is None else primer) + past[-PAST:]
    low, stream = coded(known), data.ljust(4, b"\0")
    whole = int.from_bytes(low + bytes(len(stream) - 4)) + int.from_bytes(stream)
    behind = whole.to_bytes(len(low) + len(stream)) + bytes(4 * len(known + data))
    found = pyppmd.Ppmd7Decoder(ORDER, MEMORY).decode(behind[4:], len(known) + count)[len(known) :]
    high = coded(known + found)
    left = len(high) - len(low)
    own = int.from_bytes(high) - int.from_bytes(low + bytes(left)) + (1 << 24) - 1
    refuse(len(found) != count or (own >> 24).to_bytes(left + 1).removesuffix(b"\0") != data, "a stream of no writer")
    return bytes(found)


def coded(text: bytes) -> bytes:
    """Return what 7-zip's coder puts out for a text: 0, and low when it ends."""
    coder = pyppmd.Ppmd7Encoder(ORDER, MEMORY)
    return b"".join(coder.encode(text[at : at + 1024]) for at in range(0, len(text), 1024)) + bytes(coder.flush())


@cache
def of_logs() -> bytes:
    """Return the primer of logs."""
    fields = Fields((Path(__file__).parents[2] / "plt_codec/primer.ppmd").read_bytes())
    count = fields.number(4)
    return by_ppmd(fields.rest(), count, primer=b"")

"""Packed files by their names: read as what is in them, and written again so that their agent reads them.

    a.jsonl.zst   frames of zstd: the first line alone, then lines of 64 KiB. An agent that adds a frame for each batch
                  of events refuses a log that is one frame.
    a.jsonl.gz    gzip
    a.txt         as it is; so is what is packed already

The bytes of a packed file are not kept, only its content: where its frames ended is not known any more.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, cast

import zstandard

from pltz.datasets.byte_input import GZIP_MAGIC, WINDOW, ZSTD_MAGIC
from pltz.datasets.file_names import PACKED

FRAME: Final = 1 << 16  # bytes of lines in a frame, at least


def _kind(name: str) -> str:
    """Return the suffix of what packs a file; none where nothing does."""
    return next((end for end in PACKED if name.endswith(end)), "")


def packed(name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a file of this name with this content, in pieces.

    >>> b"".join(packed("a.txt", [b"as it ", b"is"]))
    b'as it is'
    >>> [zstandard.decompress(frame) for frame in packed("a.jsonl.zst", [b"{}\\n[]", b"\\n[1]\\n"])]
    [b'{}\\n', b'[]\\n[1]\\n']
    """
    source = iter(pieces)
    first = next(source, b"")
    kind, content = _kind(name), itertools.chain([first], source)
    if not kind or first.startswith((ZSTD_MAGIC, GZIP_MAGIC)):
        yield from content
    elif kind == ".gz":
        packer = zlib.compressobj(wbits=31)
        yield from map(packer.compress, content)
        yield packer.flush()
    else:
        yield from map(zstandard.ZstdCompressor(write_checksum=True).compress, _frames(content))


def _frames(content: Iterable[bytes]) -> Iterator[bytes]:
    waiting, least = bytearray(), 1  # the first line is a frame
    for piece in content:
        waiting += piece
        while end := waiting.find(b"\n", least - 1) + 1:
            yield bytes(waiting[:end])
            del waiting[:end]
            least = FRAME
    if waiting:
        yield bytes(waiting)


def open_unpacked(path: Path, stored: bytes) -> IO[bytes]:
    """Open a file so that it reads as its content. ``stored``: the first bytes of what it is compared with.

    Reading it raises what `DAMAGED` has where the file is damaged or torn.
    """
    kind = "" if stored.startswith((ZSTD_MAGIC, GZIP_MAGIC)) else _kind(path.name)
    if not kind:
        return path.open("rb")
    if kind == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    return cast("IO[bytes]", unpacker.stream_reader(path.open("rb"), read_across_frames=True, closefd=True))


DAMAGED: Final = (zstandard.ZstdError, EOFError, gzip.BadGzipFile, zlib.error)

"""Passages: the lines that a log quotes, hashed, so that logs which quote the same are found without reading them.

    content bytes --cut at quotes and line ends, also escaped ones--> lines --crc32 of the long ones--> hashes

Agents put the same instructions, manuals and files into log after log. The hashes of a log stand for them in a sketch
(coding/sketch.py). Where the lines are cut depends on the content alone, so a passage has the same hashes wherever it
stands. Hashes that a sketch shares tell which earlier log is nearest, and a fast zstd whether it is worth it: short
keys and ids are in no hash, and not every line that is shared saves much.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import zstandard

from pltz.coding.sketch import Hashes, Sketch
from pltz.plt_codec.zstd import FAST_LEVEL, LDM_LOG, Fallback, window_log

HASHES = 256  # of a sketch
LEAST_SHARED = 0.01  # of the passages of a log: with less in common an earlier log is not looked at
LEAST_GAIN = 0.04  # of the bytes of a log under a fast zstd
LONGER = 8  # times as long as a log what is read before it may be,
ALWAYS = 1 << 18  # or so many bytes
LOOKED = 1 << 22  # bytes at the end of an earlier log that are looked at

T = TypeVar("T")
_CUTS: Final = re.compile(rb'\\+[nrt]|\\*"|\n| (?=[cw])')  # long lines within, too
_SHORTEST = 32  # bytes of a passage
_AT_ONCE = 1 << 20  # bytes that are cut at once


def passages_of(content: bytes) -> Hashes:
    """Return the distinct hashes of the passages of a log, ascending, (h,).

    >>> log = b'{"text": "a line that is also in another log\\\\nthis line, though, is in the first log alone"}'
    >>> other = log.replace(b"though", b"however")
    >>> len(passages_of(log)), len(np.intersect1d(passages_of(log), passages_of(other)))
    (2, 1)
    """
    parts = (content[at : at + _AT_ONCE] for at in range(0, len(content), _AT_ONCE))  # pieces of all take much memory
    found = [[zlib.crc32(line) for line in _CUTS.split(part) if len(line) >= _SHORTEST] for part in parts]
    return np.unique(np.concatenate([np.zeros(0, np.uint32), *(np.array(row, np.uint32) for row in found)]))


def sketch_of_passages(hashes: Hashes) -> Sketch:
    """Return the sketch of a log with these passages, (h,)."""
    return Sketch.of(hashes, HASHES)


def most_before(size: int) -> int:
    """Return how many bytes may be read before a log of so many bytes can be."""
    return max(ALWAYS, LONGER * size)


def worth_most(content: bytes, earlier: Sequence[T], content_of: Callable[[T], bytes]) -> T | None:
    """Return the earlier log after which a fast zstd makes a log smallest, or None where none is worth it."""
    if not earlier:
        return None
    alone = Fallback().fast_size(content)
    sizes = [_size_after(content_of(one)[-LOOKED:], content) for one in earlier]
    size, best = min(zip(sizes, range(len(earlier)), strict=True))
    return earlier[best] if size < (1 - LEAST_GAIN) * alone else None


def _size_after(before: bytes, content: bytes) -> int:
    """Return the bytes of a content after another, at a fast level of zstd."""
    log = window_log(len(content))
    known = zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    parameters = zstandard.ZstdCompressionParameters.from_level(FAST_LEVEL, window_log=log, enable_ldm=log > LDM_LOG)
    return len(zstandard.ZstdCompressor(dict_data=known, compression_params=parameters).compress(content))

"""Sources: passages that segments of logs recall from those above them (coding/FORMAT.md, "Recalls").

    sources = Sources(catalog)
    sources.of(parent, decode)(1_234_567, 300_000)     # the passage at a byte of the log that ends in a segment

A segment is decoded when something of it is recalled, and stays in a temporary file: so each once, and memory holds
none. What it recalls itself is decoded while it waits. Where `WAITING` wait for each other already, all are decoded in
a row from the root on, and none waits.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from typing import IO, TYPE_CHECKING

from pltz.archive.errors import LostError
from pltz.archive.format.ids import NO_SEGMENT, Tokens
from pltz.archive.format.index_file import SEGMENTS
from pltz.coding.codecs.codec import as_bytes
from pltz.coding.log.recall import Source, passage
from pltz.models.session.long_text import LongText
from pltz.plt_codec.errors import CorruptError, PltzError, UsageError

if TYPE_CHECKING:
    from pltz.archive.catalog.catalog import Catalog

WAITING = 2  # segments that wait in memory for what they recall, some 25 MB each


class Sources:
    """The contents of segments that others recall passages of. One thread uses it at a time. ``size``: their bytes."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog, self.size = catalog, 0
        self._places: dict[bytes, tuple[bytes, int]] = {NO_SEGMENT: (NO_SEGMENT, 0)}  # parent, and end in the log
        self._kept: dict[bytes, int] = {}  # place in the file
        self._waiting = 0

    @cached_property
    def _file(self) -> IO[bytes]:
        return tempfile.TemporaryFile()

    def keep(self, segment: bytes, tokens: Tokens) -> None:
        """Keep a segment that was decoded, (T,). Raises UsageError where there is no room."""
        if segment in self._kept:
            return
        try:
            self._file.write(as_bytes(tokens))
            self._file.flush()
        except OSError as exc:
            where = tempfile.gettempdir()
            raise UsageError(f"no room for a log in {where}: {exc.strerror} (set TMPDIR)") from exc
        self._kept[segment] = self.size
        self.size += len(tokens)

    def of(self, parent: bytes, decode: Callable[[bytes], Tokens | PltzError]) -> Source:
        """Return what gives the passages of a log that ends in a segment.

        ``decode``: returns a segment of it, (T,), or why it cannot be read.
        """
        path, ends = list[bytes](), list[int]()

        def source(place: int, most: int) -> bytes:
            if not path:
                path.extend(self._path(parent))
                ends.extend(self._places[name][1] for name in path)
            number = bisect_right(ends, place)
            if number == len(ends):
                raise CorruptError(f"a log recalls byte {place}, which is not before it: damaged")
            for name in path[0 if self._waiting == WAITING else number : number + 1]:
                if name not in self._kept:
                    self._waiting += 1
                    try:
                        answer = decode(name)
                    finally:
                        self._waiting -= 1
                    if isinstance(answer, PltzError):
                        raise answer
                    self.keep(name, answer)
            kept, begin = self._kept[path[number]], ends[number - 1] if number else 0
            content = LongText(self._file, "a log", kept + ends[number] - begin)
            return passage(content, kept + place - begin, most)

        return source

    def _path(self, leaf: bytes) -> list[bytes]:
        """Return the segments of a tower, from the root on, and note their places. Raises LostError, StoreError."""
        path, left, at = list[bytes](), dict[bytes, tuple[bytes, int]](), leaf
        while at not in self._places:
            found = self._catalog.lookup.find(SEGMENTS, at)
            if not found or at in left:
                raise LostError(f"segment {at.hex()} is damaged or gone: see pltz archive repair")
            left[at] = found[0].record.parent, found[0].record.tokens
            at = found[0].record.parent
        for name, (up, size) in reversed(left.items()):
            self._places[name] = up, self._places[up][1] + size
        while leaf != NO_SEGMENT:
            path.append(leaf)
            leaf = self._places[leaf][0]
        return path[::-1]

"""EarlierLogs: for each log of a file, an earlier one that it may be coded after.

    text of a log --sketch--> nearest earlier log --fast zstd, alone and after it--> context, or none

What several logs say, a prompt or a file that agents read again and again, is then stored once per file. Sketches
(coding/sketch.py) tell which earlier log is nearest, and two runs of a fast zstd whether it is worth it. So each log is
coded once. A reader of one log decodes its context too, so this is not much longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pltz.coding.sketch import Sketch, SketchIndex, hashes_of
from pltz.plt_codec.container.columns import MOST_CONTEXTS
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.coding.log.log_coder import Text

HASHES = 1024  # of a sketch
TRIED = 2  # of the nearest logs
LEAST_SHARED = 0.05  # of the 4-grams of a text: with less in common it is not looked at
LEAST_GAIN = 0.04  # of the bytes of a text under a fast zstd
LONGER = 8  # times as long as a log its context may be,
ALWAYS = 1 << 18  # or so many bytes
KEPT = 1 << 26  # bytes of earlier logs that are kept


@dataclass(frozen=True, eq=False)
class EarlierLog:
    """A log of a file.

    Attributes:
        number: its number in the file.
        content: its bytes.
        text: bytes of its text.
        depth: number of contexts that stand behind it, one behind the other.
    """

    number: int
    content: bytes
    text: bytes
    depth: int


class EarlierLogs:
    """The earlier logs of a file that can be a context, the latest ones within a budget."""

    def __init__(self) -> None:
        self._logs: list[EarlierLog] = []
        self._index = SketchIndex()
        self._size = 0

    def context(self, number: int, content: bytes, text_of: Callable[[bytes], Text]) -> EarlierLog | None:
        """Return the earlier log that a log is worth coding after, or None; the log is a candidate from now on.

        Args:
            number: of the log in the file.
            content: its bytes.
            text_of: gives their text (`LogCoder.text`).
        """
        text = text_of(content)
        found = self._worth(content, text)
        one = EarlierLog(number, content, text.data, 1 + found.depth if found else 0)
        if one.depth < MOST_CONTEXTS:
            self._add(one, text)
        return found

    def _worth(self, content: bytes, text: Text) -> EarlierLog | None:
        grams = len(text.tokens)
        near = [one for one in self._index.nearest(text.tokens, TRIED) if one.shared >= LEAST_SHARED * grams]
        most = max(ALWAYS, LONGER * len(content))
        logs = [self._logs[one.number] for one in near if len(self._logs[one.number].content) <= most]
        if not logs:
            return None
        alone = Fallback().fast_size(text.data)
        sizes = [Fallback.after(log.text).fast_size(text.data) for log in logs]
        size, best = min(zip(sizes, range(len(logs)), strict=True))
        return logs[best] if size < (1 - LEAST_GAIN) * alone else None

    def _add(self, one: EarlierLog, text: Text) -> None:
        size = len(one.content) + len(one.text)
        if self._size + size > KEPT:  # forget all: the sketches of a few cannot be taken out
            self._logs, self._index, self._size = [], SketchIndex(), 0
        hashes = hashes_of(text.tokens)
        self._index.add(Sketch(len(hashes), hashes[:HASHES].copy()))
        self._logs.append(one)
        self._size += size

"""Parts of large logs: put before the whole, so that a put that is cut off goes on behind them.

    before = put_parts(writer, sessions, pace)          # each part is durable, as segments without a version
    receipts = writer.put(sessions)                     # the rest, and the versions
    with_parts(before, receipts[0])                     # one receipt for all of a log

A part that is stored is not coded again: the next put of the log finds its segments by their ids. Nothing names them
until then, so a collector frees them once it would free what was forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pltz.archive.writing.new_session import CommitReceipt, NewSession
from pltz.archive.writing.pace import Pace
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.logs import LogCodec

LOG_PART = 1 << 20  # bytes after which a log is cut at a line end: a part is coded in half a minute by a CPU, and kept
PACKED_PART = 1 << 24  # the same where zstd codes the text: quicker, and with more to look back on


class StoredPart(NamedTuple):
    """A part of a log that is durable. ``size``: bytes of its content."""

    size: int
    receipt: CommitReceipt


def line_ends(content: bytes, begin: int, zstd_above: int | None = None) -> list[int]:
    """Return where the new part of a log is cut, so that a put that is cut off goes on there.

    The bytes up to there alone decide it, so that a log that grew meanwhile is cut in the same places. The last part
    has half the bytes of another, at least.

    ``zstd_above``: of a log that zstd codes, the bytes above which it does. Each part has more.
    """
    part = LOG_PART if zstd_above is None else max(PACKED_PART, 2 * (zstd_above + 1))
    ends = list[int]()
    while len(content) - begin >= part + part // 2:
        begin = content.find(b"\n", begin + part) + 1
        if not 0 < begin <= len(content) - part // 2:
            break
        ends.append(begin)
    return ends


def put_parts(
    writer: ArchiveWriter,
    sessions: Iterable[NewSession],
    pace: Pace,
    coding: Callable[[int, int], None] | None = None,
) -> Iterator[StoredPart]:
    """Put the beginnings of large logs, each longer by what a commit should have, and yield each part.

    They are segments without a version until the whole is put: what is cut off is never taken for all of a log.

    ``coding``: as in `Archive.put_many`. Raises the errors of `ArchiveWriter.put`.
    """
    for cut in sessions:
        if not isinstance(cut.codec, LogCodec):
            continue
        size = 0
        for count, part in enumerate(cut.segments[:-1], 1):
            if len(part) >= LOG_PART:
                size += len(part)
            if size and size >= pace.limit:
                if coding:
                    coding(1, size)
                began = time.monotonic()
                [receipt] = writer.put([replace(cut, segments=cut.segments[:count], begins=True)])
                yield StoredPart(size, receipt)
                pace.took(size if receipt.new else 0, time.monotonic() - began)
                size = 0


def with_parts(before: Iterable[StoredPart], last: CommitReceipt) -> CommitReceipt:
    """Return the receipt of a session together with those of its parts, if it was put in parts."""
    parts = [one.receipt for one in before if one.receipt[:3] == last[:3]]
    if not parts:
        return last
    coded: Sequence[bytes] = [*(data for one in parts for data in one.coded), *last.coded]
    return last._replace(
        new=last.new + sum(one.new for one in parts), size=last.size + sum(one.size for one in parts), coded=coded
    )

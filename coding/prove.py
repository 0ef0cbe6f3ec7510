"""Proof by decoding: compare what segments decode to with their tokens, before anything is written.

    segments --codec--> bitstrings --decode--> tokens, compared --> numbers of those that do not come back
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from pltz.coding.codecs.codec import Coded
from pltz.coding.workers import WhenAsked
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.types import Tokens

if TYPE_CHECKING:
    from pltz.coding.decoder import SessionDecoder
    from pltz.coding.parts import Progress
    from pltz.coding.workers import Executor, Later

TOGETHER = 1 << 24  # bytes of content from which a thread proves what waits, side by side
FAST_TOGETHER = 1 << 23  # the same in the fast layout, where a batch waits less for its longest segment
LONG = (
    1 << 14
)  # tokens of a segment from which on it is proved apart from shorter ones, which would wait for it


def unproved(
    decode: Callable[[Sequence[Coded]], Sequence[Tokens]], coded: Sequence[Coded], wanted: Sequence[Tokens]
) -> list[int]:
    """Decode segments by their codec, and return the numbers of those that do not give the tokens wanted, (T,) each."""
    try:
        found: list[Tokens | None] = [*decode(coded)]
    except CorruptError:  # which one it is
        found = [None] * len(coded)
        for n, one in enumerate(coded):
            with suppress(CorruptError):
                [found[n]] = decode([one])
    return _different(found, wanted)


class ProofSegment(NamedTuple):
    """A segment to prove.

    Attributes:
        number: of its session.
        coded: as it is decoded.
        wanted: its tokens, (T,), or the bytes of a log.
    """

    number: int
    coded: Coded
    wanted: Tokens | bytes


def begin_proof(decoder: SessionDecoder, segments: Sequence[ProofSegment], progress: Progress | None) -> Later:
    """Decode segments of the model and of logs, and return the numbers of the sessions that do not come back, to come.

    The bytes of logs are still put together by processes.

    ``progress``: called with the number of the model's tokens decoded since the last call.
    """
    by_model = [one for one in segments if not isinstance(one.wanted, bytes)]
    logs = [one for one in segments if isinstance(one.wanted, bytes)]
    wrong = _wrong(partial(decoder.model.decode, progress=progress), by_model)
    contents: Sequence[Callable[[], bytes]] = ()
    try:
        contents = decoder.logs.decode_begun([one.coded for one in logs]) if logs else ()
    except CorruptError:  # which one it is
        return WhenAsked(set, (wrong | _wrong(decoder.logs.decode, logs),))
    return WhenAsked(_joined, (wrong, logs, contents))


def _wrong(decode: Callable[[Sequence[Coded]], Sequence[Tokens]], segments: Sequence[ProofSegment]) -> set[int]:
    """Decode segments, and return the numbers of the sessions that do not come back."""
    bad = unproved(decode, [one.coded for one in segments], [*map(_tokens, segments)]) if segments else ()
    return {segments[n].number for n in bad}


def _joined(wrong: set[int], logs: Sequence[ProofSegment], contents: Sequence[Callable[[], bytes]]) -> set[int]:
    """Return the numbers that are wrong, and those of the logs whose bytes differ."""
    found: list[Tokens | None] = [None] * len(logs)
    for n, content in enumerate(contents):
        with suppress(CorruptError):
            found[n] = np.frombuffer(content(), np.uint8)
    return wrong | {logs[n].number for n in _different(found, [*map(_tokens, logs)])}


def _tokens(segment: ProofSegment) -> Tokens:
    """Return the tokens of a segment, (T,), those of a log its bytes."""
    return np.frombuffer(segment.wanted, np.uint8) if isinstance(segment.wanted, bytes) else segment.wanted


class Proof:
    """A proof of segments of one batch or several, which an executor decodes together: it takes as long as the longest.

    Attributes:
        segments: to be decoded.
        size: bytes of content of their batches.
    """

    def __init__(self, executor: Executor, progress: Progress | None) -> None:
        self.segments: list[ProofSegment] = []
        self.size = 0
        self._executor, self._progress = executor, progress
        self._decoded: Later | None = None

    @property
    def sent(self) -> bool:
        """Return whether the segments are being decoded: none are added any more."""
        return self._decoded is not None

    def send(self) -> None:
        """Have the segments decoded, once."""
        if self._decoded is None:
            self._decoded = self._executor.submit("prove", self.segments, self._progress)

    def result(self) -> Later:
        """Return the numbers of the sessions that do not come back, to come. Raises what decoding them raised."""
        self.send()
        return cast("Later", cast("Later", self._decoded).result())


def _different(found: Sequence[Tokens | None], wanted: Sequence[Tokens]) -> list[int]:
    """Return the numbers of the rows that differ; all where they are not as many."""
    if len(found) != len(wanted):
        return [*range(len(wanted))]
    pairs = enumerate(zip(found, wanted, strict=True))
    return [n for n, (one, tokens) in pairs if one is None or not np.array_equal(one, tokens)]

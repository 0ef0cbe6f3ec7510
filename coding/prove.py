"""Proof by decoding: compare what segments decode to with their tokens, before anything is written.

    segments --codec--> bitstrings --decode--> tokens, compared --> numbers of those that do not come back
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from pltz.coding.codecs.codec import Coded
from pltz.coding.codecs.logs import LogCodec
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.identity import MAX_POSITION
from pltz.plt_codec.types import Tokens

if TYPE_CHECKING:
    from pltz.coding.coder_thread import CoderThread
    from pltz.coding.decoder import SessionDecoder
    from pltz.coding.parts import Progress

TOGETHER = 1 << 24  # bytes of content from which a thread proves what waits, side by side
FAST_TOGETHER = 1 << 23  # the same in the fast layout, where a batch waits less for its longest segment
LONG = 1 << 14  # tokens of a segment from which on it is proved apart from shorter ones, which would wait for it
ABREAST = 32  # segments per comparison


def unproved(
    decode: Callable[[Sequence[Coded]], Sequence[Tokens]], coded: Sequence[Coded], wanted: Sequence[Tokens]
) -> list[int]:
    """Decode segments, and return the numbers of those that do not decode to the tokens wanted, (T,) each.

    ``decode``: that of their codec. Raises ContentError where an id is out of range.
    """
    try:
        found: list[Tokens | None] = [*decode(coded)]
    except CorruptError:  # which one it is
        found = [None] * len(coded)
        for n, one in enumerate(coded):
            with suppress(CorruptError):
                [found[n]] = decode([one])
    return _different(found, wanted)


class LogProof:
    """A proof of segments of logs, decoded by the model, whose bytes are still put together by processes.

    Args:
        codec: of logs.
        coded: the segments.
        wanted: their bytes.
    """

    def __init__(self, codec: LogCodec, coded: Sequence[Coded], wanted: Sequence[bytes]) -> None:
        self._wanted = [np.frombuffer(content, np.uint8) for content in wanted]
        self._found: Sequence[Callable[[], bytes]] = []
        self._wrong: list[int] | None = None
        try:
            self._found = codec.decode_begun(coded)
        except CorruptError:  # which one it is
            self._wrong = unproved(codec.decode, coded, self._wanted)

    def wrong(self) -> list[int]:
        """Return the numbers of the segments that do not decode to the bytes wanted."""
        if self._wrong is None:
            found: list[Tokens | None] = [None] * len(self._wanted)
            for n, content in enumerate(self._found):
                with suppress(CorruptError):
                    found[n] = np.frombuffer(content(), np.uint8)
            self._found, self._wrong = [], _different(found, self._wanted)
        return self._wrong


@dataclass(eq=False)
class BatchProof:
    """A proof of one batch of segments, under way.

    Attributes:
        coded: segments of the model.
        wanted: their tokens, (T,) each.
        logs: segments of logs.
        contents: their bytes.
    """

    coded: Sequence[Coded]
    wanted: Sequence[Tokens]
    logs: Sequence[Coded] = ()
    contents: Sequence[bytes] = ()
    _send: Callable[[], None] | None = None
    _done: Future[None] = field(default_factory=Future)
    _wrong: list[int] = field(default_factory=list)
    _wrong_logs: Callable[[], list[int]] = list

    def result(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the segments of the model, and of logs, that do not come back.

        Raises what decoding them raised.
        """
        if self._send:
            if not self._done.done():
                self._send()
            self._done.result()
        return self._wrong, self._wrong_logs()


def prove(proofs: Sequence[BatchProof], decoder: SessionDecoder, progress: Progress | None) -> None:
    """Decode the segments of proofs side by side, and compare. The bytes of logs are compared later.

    ``progress``: called with the number of the model's tokens decoded since the last call. Raises as their results.
    """
    ends = [0, *accumulate(len(one.coded) for one in proofs)]
    coded, wanted = [c for one in proofs for c in one.coded], [w for one in proofs for w in one.wanted]
    wrong = unproved(partial(decoder.model.decode, progress=progress), coded, wanted) if coded else []
    for one, (begin, end) in zip(proofs, pairwise(ends), strict=True):
        one._wrong = [n - begin for n in wrong if begin <= n < end]
    ends = [0, *accumulate(len(one.logs) for one in proofs)]
    if ends[-1]:
        logs = LogProof(decoder.logs, [c for one in proofs for c in one.logs], [c for p in proofs for c in p.contents])
        for one, (begin, end) in zip(proofs, pairwise(ends), strict=True):
            one._wrong_logs = partial(_within, logs, begin, end)


def _within(logs: LogProof, begin: int, end: int) -> list[int]:
    return [n - begin for n in logs.wrong() if begin <= n < end]


class ProofThreads:
    """Threads, each with a decoder of its own, which prove segments beside the caller.

    A thread that is free takes all that wait, from `TOGETHER` bytes on, or sooner where the caller asks for one of
    them. They are decoded side by side and take as long as the longest one, so the caller has threads of their own for
    long ones.

    Args:
        threads: with the decoders.
        stop: set where the proofs are asked for no more.
        fast: whether segments are in the fast layout.
    """

    def __init__(
        self, threads: Sequence[CoderThread[SessionDecoder]], stop: threading.Event, *, fast: bool = False
    ) -> None:
        self._threads, self._stop, self._together = threads, stop, FAST_TOGETHER if fast else TOGETHER
        self._lock = threading.Lock()
        self._waiting: list[BatchProof] = []
        self._size = 0
        self._due = False  # whether the first thread that is free is to take what waits

    def begin(self, proof: BatchProof, size: int) -> None:
        """Take a batch of so many bytes of content to be proved."""
        proof._send = self.send
        with self._lock:
            self._waiting.append(proof)
            self._size += size
        if self._size >= self._together:
            self.send()

    def send(self) -> None:
        """Have what waits proved by the first thread that is free."""
        with self._lock:
            due, self._due = self._due, bool(self._waiting)
            asked = self._due and not due
        for thread in self._threads if asked else ():
            thread.submit(self._prove, self._stop).add_done_callback(self._ended)

    def _ended(self, call: Future[None]) -> None:
        """Hand the error of a thread that could not begin, such as one without memory for a coder, to what waits."""
        if (error := call.exception()) is None:
            return
        with self._lock:
            proofs, self._waiting, self._size, self._due = self._waiting, [], 0, False
        for one in proofs:
            one._done.set_exception(error)

    def _prove(self, decoder: SessionDecoder, told: Progress | None) -> None:
        with self._lock:
            if not self._due:  # another thread was free sooner
                return
            proofs, self._waiting, self._size, self._due = self._waiting, [], 0, False
        try:
            prove(proofs, decoder, told)
        except BaseException as exc:  # noqa: BLE001 - for whoever asks for the result
            for one in proofs:
                one._done.set_exception(exc)
        else:
            for one in proofs:
                one._done.set_result(None)


def _different(found: Sequence[Tokens | None], wanted: Sequence[Tokens]) -> list[int]:
    """Return the numbers of the rows that differ; all where they are not as many."""
    if len(found) != len(wanted):
        return [*range(len(wanted))]
    wrong: list[int] = []
    for begin in range(0, len(wanted), ABREAST):
        numbers = range(begin, min(begin + ABREAST, len(wanted)))
        rows, tokens = found[begin : begin + ABREAST], wanted[begin : begin + ABREAST]
        if not _equal(rows, tokens):
            wrong += [n for n in numbers if not _equal([found[n]], [wanted[n]])]
    return wrong


def _equal(found: Sequence[Tokens | None], wanted: Sequence[Tokens]) -> bool:
    """Return whether rows are equal, compared as one. Rows of u32 are compared as bytes."""
    rows = [row for row in found if row is not None]
    if not _narrow(wanted):
        same = [*map(len, rows)] == [*map(len, wanted)]
        return same and np.array_equal(np.concatenate(rows), np.concatenate(wanted))
    plain = b"".join(tokens.data for tokens in wanted)
    if (most := np.frombuffer(plain, np.uint32).max(initial=0)) > MAX_POSITION:
        raise ContentError(f"expected token ids in 0..{MAX_POSITION}, found {most}")
    if [*map(len, rows)] != [*map(len, wanted)]:
        return False
    return b"".join(row.data for row in rows) == plain if _narrow(rows) else all(map(np.array_equal, rows, wanted))


def _narrow(rows: Sequence[Tokens]) -> bool:
    """Return whether all rows are contiguous arrays of u32."""
    return all(type(row) is np.ndarray and row.dtype == np.uint32 and row.flags.c_contiguous for row in rows)

"""Proof by decoding: compare what segments decode to with their tokens, before anything is written.

    segments --codec--> bitstrings --decode--> tokens, compared --> numbers of those that do not come back
"""

from __future__ import annotations

import threading
from collections import deque
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
from pltz.coding.workers import Later
from pltz.plt_codec.errors import ContentError, CorruptError
from pltz.plt_codec.identity import MAX_POSITION
from pltz.plt_codec.types import Tokens

if TYPE_CHECKING:
    from pltz.coding.coder_thread import CoderThread
    from pltz.coding.decoder import SessionDecoder
    from pltz.coding.parts import Progress

TOGETHER = 8  # batches that wait, proved side by side
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
        self._found: Sequence[Later | None] = []
        self._wrong: list[int] | None = None
        try:
            self._found = codec.decode_begun(coded)
        except CorruptError:  # which one it is
            self._wrong = unproved(codec.decode, coded, self._wanted)

    def wrong(self) -> list[int]:
        """Return the numbers of the segments that do not decode to the bytes wanted."""
        if self._wrong is None:
            found: list[Tokens | None] = [None] * len(self._wanted)
            for n, later in enumerate(self._found):
                with suppress(CorruptError):
                    found[n] = np.frombuffer(later.result() if later else b"", np.uint8)
            self._found, self._wrong = [], _different(found, self._wanted)
        return self._wrong


@dataclass(eq=False)
class Proof:
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
    _done: Future[None] | None = None
    _error: BaseException | None = None
    _wrong: list[int] = field(default_factory=list)
    _wrong_logs: Callable[[], list[int]] = list

    def result(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the segments of the model, and of logs, that do not come back.

        Raises what decoding them raised.
        """
        if self._done:
            self._done.result()
        if self._error:
            raise self._error
        return self._wrong, self._wrong_logs()


def prove(proofs: Sequence[Proof], decoder: SessionDecoder, progress: Progress | None) -> None:
    """Decode the segments of proofs side by side, and compare. The bytes of logs are compared later.

    ``progress``: called with the number of the model's tokens decoded since the last call. Raises as `Proof.result`.
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


class ProofThread:
    """A thread with a decoder of its own, which proves batches beside the caller.

    What waits is decoded together: a batch takes as long as its longest session.

    Args:
        thread: with the decoder.
        stop: set where the proofs are asked for no more.
    """

    def __init__(self, thread: CoderThread[SessionDecoder], stop: threading.Event) -> None:
        self._thread, self._stop = thread, stop
        self._waiting: deque[Proof] = deque()

    def begin(self, proof: Proof) -> None:
        """Begin a proof."""
        self._waiting.append(proof)
        proof._done = self._thread.submit(self._prove_waiting, self._stop)

    def _prove_waiting(self, decoder: SessionDecoder, told: Progress) -> None:
        proofs = list[Proof]()
        while self._waiting and len(proofs) < TOGETHER:
            proofs.append(self._waiting.popleft())
        try:
            prove(proofs, decoder, told)
        except BaseException as exc:
            for one in proofs:
                one._error = exc
            raise


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
    """Return whether rows are equal. Rows of u32 are compared as one byte string, which calls numpy once."""
    if not _narrow(wanted):
        return all(a is not None and np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    plain = b"".join(tokens.data for tokens in wanted)
    if (most := np.frombuffer(plain, np.uint32).max(initial=0)) > MAX_POSITION:
        raise ContentError(f"expected token ids in 0..{MAX_POSITION}, found {most}")
    rows = [row for row in found if row is not None]
    if [*map(len, rows)] != [*map(len, wanted)]:
        return False
    return b"".join(row.data for row in rows) == plain if _narrow(rows) else all(map(np.array_equal, rows, wanted))


def _narrow(rows: Sequence[Tokens]) -> bool:
    """Return whether all rows are contiguous arrays of u32."""
    return all(type(row) is np.ndarray and row.dtype == np.uint32 and row.flags.c_contiguous for row in rows)

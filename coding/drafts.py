"""Drafts: sessions on their way into frames, and the work that a coder does on them.

    draft --model, with copies out of it or as it is--> frame
          --log coder---------------------------------> frame
          --model, after earlier sessions-------------> frame, where it is shorter

    frame --decode, compare--> whether the session comes back

`DraftCoder` is what an executor owns (workers.py): its methods run here, or in a thread with a coder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from pltz.coding.codecs.codec import NO_MARK, Coded, Plain, SegmentCodec, copies_fit, different, shortest, unproved
from pltz.coding.log.log_coder import BYTES_PER_TOKEN
from pltz.coding.neighbours import NAME_BYTES
from pltz.coding.workers import WhenAsked, Workers
from pltz.plt_codec import repeats
from pltz.plt_codec.container.frame import COPIES, Frame, Kind, Method, content_check
from pltz.plt_codec.errors import CorruptError
from pltz.plt_codec.lanes import Tokens
from pltz.plt_codec.repeats import Copy

if TYPE_CHECKING:
    from pltz.coding.decoder import SessionDecoder
    from pltz.coding.host_work import Prepared
    from pltz.coding.log.above import Above
    from pltz.coding.neighbours import Earlier
    from pltz.coding.options import CodingOptions
    from pltz.coding.parts import Progress
    from pltz.coding.workers import Executor, Later
    from pltz.models.bundle.tokenizer import Ids
    from pltz.models.session.session import Session

TOGETHER = 1 << 24  # bytes of content from which a thread proves what waits, side by side
FAST_TOGETHER = 1 << 23  # the same in the fast layout, where a batch waits less for its longest segment
LONG = 1 << 14  # tokens of a segment from which on it is proved apart from shorter ones, which would wait for it
BESIDE = 16  # segments whose copies a process looks for in one call
COPIED, PER_COPY = 0.37, 6.7  # copies spare this part of their tokens' bytes beyond the model, less so many each
DOUBT = 4  # bytes within which this, fitted to chats (experiments/LOG.md), tells nothing


@dataclass(frozen=True)
class SessionDraft:
    """Session ``number`` on its way into a frame.

    Attributes:
        ready: the session, prepared.
        context: of a log, the earlier one that it is coded after, if any.
        split: of a log, its table to come.
    """

    number: int
    session: Session
    ready: Prepared
    context: Earlier | None = None
    split: Later | None = None

    @property
    def tokens(self) -> Ids:
        """Return its tokens, (T,); it has some."""
        assert self.ready.tokens is not None
        return self.ready.tokens

    @property
    def copies(self) -> Sequence[Copy]:
        """Return the copies that are surely worth taking out."""
        copies = self.ready.copies
        return copies if copies and repeats.surely_save(copies) else ()

    @property
    def above(self) -> Above | None:
        """Return what a log is coded after."""
        return self.context.part if self.context else None

    @property
    def work(self) -> int:
        """Return the tokens that the model codes, of a log about, for progress."""
        if self.ready.log:
            return len(self.ready.content) // BYTES_PER_TOKEN
        return 0 if self.ready.tokens is None else len(self.tokens) - sum(copy.length for copy in self.copies)

    def by_bytes(self, data: bytes, method: Method = Method.BYTES) -> Frame:
        """Return the frame of its bytes, under zstd or as a log, which alone may have a context."""
        kind, content = Kind[self.session.kind.upper()], self.ready.content
        check = content_check(kind, method, len(content), content)
        context = self.context.number if self.context and method is Method.LOG else None
        return Frame(kind, method, len(content), check, data, context=context, writing=self.session.writing)

    def by_model(self, data: bytes, way: Plain) -> Frame:
        """Return the frame of its tokens, coded in a way."""
        kind, tokens = Kind[self.session.kind.upper()], self.tokens
        check = content_check(kind, Method.MODEL, len(tokens), self.session.value if kind is Kind.IDS else tokens)
        return Frame(
            kind, Method.MODEL, len(tokens), check, data, way.fast, self.ready.patch, bool(way.copies),
            writing=self.session.writing,
        )  # fmt: skip


class Proposed(NamedTuple):
    """A session that is coded after an earlier one too: its draft, its frame alone, and what is proposed."""

    draft: SessionDraft
    frame: Frame
    earlier: Earlier


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


class DraftCoder:
    """A coder of drafts and a prover of frames.

    Args:
        decoder: with the coder.
        workers: processes beside it.
    """

    def __init__(self, decoder: SessionDecoder, workers: Workers) -> None:
        self._decoder, self._workers = decoder, workers

    def rest(self) -> None:
        """Give back the memory that the coder keeps from call to call."""
        self._decoder.rest()

    def code(
        self, drafts: Sequence[SessionDraft], options: CodingOptions, progress: Progress | None
    ) -> list[Frame | None]:
        """Return the frame of each draft by the model, or as a log; None where it has none, or none that fits.

        Tokens are coded whole, and without their copies where that may be shorter.
        """
        rows = [draft for draft in drafts if draft.ready.tokens is not None]
        ways = [Plain(row.tokens, NO_MARK, row.copies, options.layout == "fast") for row in rows]
        coded = self._encoded(ways, progress)
        again = {
            n: replace(way, copies=row.ready.copies)
            for n, (row, way, data) in enumerate(zip(rows, ways, coded, strict=True))
            if row.ready.copies and not way.copies and repeats.may_save(row.ready.copies, len(data), len(way.tokens))
        }
        for n, data in zip(again, self._encoded([*again.values()], None), strict=True):
            if len(data) < len(coded[n]):
                coded[n], ways[n] = data, again[n]
        frames = {row.number: row.by_model(data, way) for row, data, way in zip(rows, coded, ways, strict=True)}
        logs = [draft for draft in drafts if draft.ready.log]
        if logs:
            pairs = [(draft.ready.content, draft.above) for draft in logs]
            begun = [draft.split for draft in logs]
            found = self._decoder.logs.encode_begun(pairs, begun, fast=options.layout == "fast")
            frames |= {draft.number: draft.by_bytes(one, Method.LOG) for draft, one in zip(logs, found, strict=True)}
        return [frame if (frame := frames.get(draft.number)) and frame.fits else None for draft in drafts]

    def _encoded(self, ways: list[Plain], progress: Progress | None) -> list[bytes]:
        return self._decoder.model.encode(ways, progress=progress) if ways else []

    def code_after(self, proposed: Sequence[Proposed]) -> dict[int, tuple[Frame, Tokens]]:
        """Code sessions after the earlier ones that are proposed; all trials begun before are done.

        Each is coded once, after all its contexts, as soon as it is settled which these are.

        Returns:
            By number, the frame of each session that gets shorter, and its context, (m,).
        """
        found: dict[int, tuple[Frame, Tokens]] = {}
        left = {one.draft.number: one for one in proposed}
        while left:  # at most `MOST_CONTEXTS` times
            ready = [one for one in left.values() if one.earlier.settled(left)]
            plain = [Plain(o.draft.tokens, o.earlier.behind(), o.frame.unpacked(), o.frame.fast) for o in ready]
            trials = [(way, len(one.frame.data)) for way, one in zip(plain, ready, strict=True)]
            shorter = shorter_after(self._decoder.model, trials, NAME_BYTES, self._workers)
            for n, one in enumerate(ready):
                frame = None
                if n in shorter:
                    data, way = shorter[n]
                    context = cast("Earlier", one.earlier.context).number
                    frame = replace(one.frame, data=data, copied=bool(way.copies), context=context)
                if frame and frame.fits:
                    found[one.draft.number] = frame, plain[n].above
                else:
                    one.earlier.context = None
                del left[one.draft.number]
        return found

    def prove(self, segments: Sequence[ProofSegment], progress: Progress | None) -> Later:
        """Decode segments of the model and of logs, and return the numbers of sessions that do not come back, to come.

        The bytes of logs are still put together by processes.

        ``progress``: called with the number of the model's tokens decoded since the last call.
        """
        by_model = [one for one in segments if not isinstance(one.wanted, bytes)]
        logs = [one for one in segments if isinstance(one.wanted, bytes)]
        wrong = _wrong(partial(self._decoder.model.decode, progress=progress), by_model)
        contents: Sequence[Callable[[], bytes]] = ()
        try:
            contents = self._decoder.logs.decode_begun([one.coded for one in logs]) if logs else ()
        except CorruptError:  # which one it is
            return WhenAsked(set, (wrong | _wrong(self._decoder.logs.decode, logs),))
        return WhenAsked(_joined, (wrong, logs, contents))


def ways_after(codec: SegmentCodec, plain: Plain, size: int, found: Sequence[Sequence[Copy]]) -> list[Plain]:
    """Return the ways to code a segment after the context ``plain.above``: as it is, with copies out of that, or both.

    Both are worth their time only where it is not clear beforehand which one is shorter (`COPIED`, `PER_COPY`).

    Args:
        size: bytes of its shortest bitstring so far.
        found: the copies, as `repeats.candidates` gives them.
    """
    if not found or not codec.mode & COPIES:
        return [plain]
    copies, tokens = found[0], len(plain.tokens)
    copied = replace(plain, copies=copies)
    gain = COPIED * size * (1 - copied.literals / tokens) - PER_COPY * len(copies)
    if gain <= -DOUBT:
        return [plain]
    sure = gain >= DOUBT and copies_fit(tokens, repeats.pack(copies))
    return [copied] if sure else [plain, copied]


def shorter_after(
    codec: SegmentCodec, trials: Sequence[tuple[Plain, int]], field: int, workers: Workers
) -> dict[int, tuple[bytes, Plain]]:
    """Code segments after contexts, and return the bitstring and way of each that saves more than naming its context.

    By its number in ``trials``. Raises ContentError.

    Args:
        codec: of the segments.
        trials: segments after their contexts, with the copies that they have without, and bytes without.
        field: bytes that naming a context takes.
        workers: with `HostWork`, which looks for copies.
    """
    rows = [(plain.tokens, plain.above, size) for plain, size in trials]
    parts = [rows[at : at + BESIDE] for at in range(0, len(rows), BESIDE)]
    results = [workers.submit("candidates", part, now=True) for part in parts]
    found = chain.from_iterable(one.result() for one in results)
    ways = [ways_after(codec, *trial, one) for trial, one in zip(trials, found, strict=True)]
    best = shortest(codec, [(n, way) for n, row in enumerate(ways) for way in row])
    return {n: won for n, won in best.items() if len(won[0]) < trials[n][1] - field}


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
    return wrong | {logs[n].number for n in different(found, [*map(_tokens, logs)])}


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

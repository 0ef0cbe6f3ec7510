"""Drafts: sessions on their way into frames, and the work that a coder does on them.

    draft --model, with copies out of it or as it is--> frame
          --log coder---------------------------------> frame
          --model, after earlier sessions-------------> frame, where it is shorter

`DraftCoder` is what an executor owns (workers.py): its methods run here, or in a thread with a coder of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

from pltz.coding.choose import shorter_after
from pltz.coding.codecs.codec import NO_MARK, Plain
from pltz.coding.log.log_coder import BYTES_PER_TOKEN
from pltz.coding.neighbours import NAME_BYTES
from pltz.coding.prove import ProofSegment, begin_proof
from pltz.plt_codec import repeats
from pltz.plt_codec.container.frame import Frame, Kind, Method, content_check

if TYPE_CHECKING:
    from pltz.coding.decoder import SessionDecoder
    from pltz.coding.host_work import Prepared
    from pltz.coding.log.above import Above
    from pltz.coding.neighbours import Earlier
    from pltz.coding.options import CodingOptions
    from pltz.coding.parts import Progress, Tokens
    from pltz.coding.workers import Later, Workers
    from pltz.models.bundle.tokenizer import Ids
    from pltz.models.session.session import Session
    from pltz.plt_codec.repeats import Copy


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
        return self.ready.copies if repeats.surely_save(self.ready.copies) else ()

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
        """Return the frame of its bytes, under zstd or as a log."""
        kind, content = Kind[self.session.kind.upper()], self.ready.content
        check = content_check(kind, method, len(content), content)
        context = self.context.number if self.context else None
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
            if not way.copies and repeats.may_save(row.ready.copies, len(data), len(way.tokens))
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
        """Decode segments, as `begin_proof`."""
        return begin_proof(self._decoder, segments, progress)

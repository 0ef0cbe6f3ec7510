"""Codec: sessions to the bytes of a .pltz file and back, every frame decoded before it is acknowledged.

    session --transcript, bridge--> bundle tokens ------------------> model--> frame
                                                  --repeats cut out-> model--> frame    the shortest goes into the file
            --plain bytes, zstd----------------------------------------------> frame
    log     --plain bytes, log coder-----------------------------------------> frame

The shortest of the three frames goes into the file. The log of an agent (`log_look.is_log`) has one, which says by
which of its methods it was coded (log/log_coder.py). The bytes of a frame are the bitstring of a segment codec
(codecs/), as an archive has them. `Codec` joins these codecs, over one bundle and one engine, with the container;
decoder.py is the way back.

Sessions are taken in batches, since the engine is fast only when many sequences run side by side. With
``verify`` each model frame is decoded again and the whole session compared before the bytes are handed out.

Three methods are needed. The model sees some thousand tokens back, so long repeats in a log of hundreds of
kilobytes are taken out as copies (plt_codec/repeats.py). Data that the model does not
know at all may be shorter under zstd. Opaque content (images) has no tokens at all.

    codec = Codec.load()
    data = codec.compress([Session("text", b"hello")])
    assert codec.decompress(data) == [Session("text", b"hello")]
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Literal, Unpack, cast, overload

import numpy as np

from pltz.coding.choose import NO_SIZE, Trial, may_be_shorter, shorter_after
from pltz.coding.codecs.codec import NO_MARK, Blocks, Plain
from pltz.coding.decoder import OnError, SessionDecoder, coded_of, named
from pltz.coding.expected_time import Expect
from pltz.coding.log import log_coder
from pltz.coding.log.log_look import is_log
from pltz.coding.neighbour_rule import NAME_BYTES
from pltz.coding.neighbours import Earlier, Grams, Neighbours
from pltz.coding.options import CodingKeywords, CodingOptions
from pltz.coding.parts import PhasedProgress, begin
from pltz.coding.prepare import tokens_for_model
from pltz.coding.prove import unproved
from pltz.models.session import transcript
from pltz.models.session.session import Session, content_bytes
from pltz.plt_codec import repeats as copies
from pltz.plt_codec.container.file import Writer, pack
from pltz.plt_codec.container.frame import Frame, Kind, content_check, file_layout
from pltz.plt_codec.container.header import Header
from pltz.plt_codec.errors import (
    ContentError,
    CorruptError,
    ModelError,
    PltzError,
    TokenizerMismatch,
)
from pltz.plt_codec.lanes import FAST, FAST_ABOVE, MAX_BLOCK, MAX_STEPS, Layout, default_lanes
from pltz.plt_codec.types import Encoded

if TYPE_CHECKING:
    from pltz.coding.parts import Coder, Parts, Progress, TokenBridge, Tokens
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.bundle.tokenizer import Ids
    from pltz.plt_codec.lanes import LayoutName


BATCH_TOKENS = 1 << 20  # tokens coded side by side; bounds memory, large enough to keep any engine busy
LOG_BATCH = 1 << 22  # bytes of logs coded side by side
GROUP = 64  # sessions tokenised in one call, fewer where they are long:
GROUP_BYTES = 1 << 22  # of content, or one session


@dataclass(frozen=True)
class ModelResult:
    """The model's result for a session of ``tokens`` tokens.

    ``encoded`` holds all of them, or those that ``copies`` left over: all but ``copied``.
    """

    tokens: int
    encoded: Encoded
    copies: bytes = b""
    copied: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of both, and of the head of a frame with copies."""
        return len(self.encoded.data) + (len(self.copies) + 1 if self.copies else 0)


@dataclass(frozen=True)
class _TokenisedSession:
    """Session ``number`` on its way into a frame. ``tokens`` None: it has none and goes to the fallback.

    ``log``: it goes to the log coder.
    """

    number: int
    session: Session
    tokens: Ids | None
    content: bytes
    patch: bytes = b""
    log: bool = False


class Codec(SessionDecoder):
    """A codec of sessions to .pltz bytes and back, with one bundle.

    One thread uses it at a time.

    Args:
        bundle: tokenizer, dictionary and identity.
        coder: the token coder over this bundle's engine.
        note: called, in order, with the model's result for each session that has tokens. The session's frame
            may still be the fallback's.

    ``expect``: called with the expected seconds before a batch of many tokens is coded (`expected_time`);
    None by default.
    """

    def __init__(self, bundle: Parts, coder: Coder, note: Callable[[ModelResult], None] | None = None) -> None:
        super().__init__(bundle, coder)
        self._note = note
        self.expect: Expect | None = None

    @classmethod
    def load(
        cls,
        bundle: str | os.PathLike[str] | Bundle | None = None,
        *,
        device: str = "cpu",
        threads: int | None = None,
    ) -> Codec:
        """Return the codec of a bundle, by name, folder or loaded; None is the bundle that ships with pltz.

        Raises:
            UsageError: no such bundle or device.
            ModelError: the bundle cannot be used.
        """
        from pltz.models.bundle.bundle import Bundle

        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        return cls(loaded, loaded.coder(device, threads))

    # ---- sessions -> bytes

    def compress(
        self,
        sessions: Iterable[Session],
        *,
        bridge: TokenBridge | None = None,
        target_fingerprint: bytes | None = None,
        exact: bool = False,
        dropped: bool = False,
        **options: Unpack[CodingKeywords],
    ) -> bytes:
        """Return a .pltz file of these sessions. The arguments and errors are those of `compress_into`."""
        sink = io.BytesIO()
        self.compress_into(
            sink,
            sessions,
            bridge=bridge,
            target_fingerprint=target_fingerprint,
            exact=exact,
            dropped=dropped,
            **options,
        )
        return sink.getvalue()

    def compress_into(
        self,
        sink: BinaryIO,
        sessions: Iterable[Session],
        *,
        bridge: TokenBridge | None = None,
        target_fingerprint: bytes | None = None,
        exact: bool = False,
        dropped: bool = False,
        **options: Unpack[CodingKeywords],
    ) -> int:
        """Write a .pltz file of these sessions, in batches, and return how many there were.

        The file is whole when this returns. Any earlier stop leaves a file that every reader refuses.

        Args:
            sink: binary file; written front to back.
            bridge: to the tokenizer that sessions of ids belong to; None: they are bundle tokens.
            target_fingerprint: 16 bytes of the target the sessions are frozen for; None: any.
            exact: the sessions in a row are the bytes of an input (`Session.to_input_bytes`); the file says so.
            dropped: signatures were left out of the sessions; the file says so.
            options: see `CodingOptions`.

        Raises:
            UsageError: the layout is unknown, or combined with lanes or steps.
            ContentError: a session cannot be coded; OpaqueContentError for an image, audio or file part.
            TokenizerMismatch: ids without a bridge that are not ids of the bundle.
            ModelError: a frame did not decode to its session.
        """
        chosen = CodingOptions(**options)
        writer = Writer(sink, self._header(bridge, target_fingerprint, exact=exact, dropped=dropped))
        for frame in self._each(sessions, bridge, chosen, None if chosen.independent else Neighbours()):
            writer.add(_sound(frame))
        writer.finish()
        return len(writer)

    @overload
    def compress_many(
        self,
        sessions: Iterable[Session | PltzError],
        *,
        bridge: TokenBridge | None = None,
        target_fingerprint: bytes | None = None,
        errors: Literal["raise"] = "raise",
        **options: Unpack[CodingKeywords],
    ) -> Iterator[bytes]: ...

    @overload
    def compress_many(
        self,
        sessions: Iterable[Session | PltzError],
        *,
        bridge: TokenBridge | None = None,
        target_fingerprint: bytes | None = None,
        errors: OnError,
        **options: Unpack[CodingKeywords],
    ) -> Iterator[bytes | PltzError]: ...

    def compress_many(
        self,
        sessions: Iterable[Session | PltzError],
        *,
        bridge: TokenBridge | None = None,
        target_fingerprint: bytes | None = None,
        errors: OnError = "raise",
        **options: Unpack[CodingKeywords],
    ) -> Iterator[bytes | PltzError]:
        """Yield a .pltz file for each session, in their order, coded side by side as in one file.

        Sessions are read as they are needed, a batch ahead. Memory is bounded by a batch and its largest
        session. The engine starts a batch's long sessions first, and starts the next one when one ends.

        Args:
            sessions: any iterable. An exception among them is passed on as the result in its place.
            errors: "raise" the first error, which names its session, or "return" it, a PltzError, in place of
                the file.
            bridge, target_fingerprint, options: as in `compress_into`.

        Raises:
            PltzError: as `compress_into`; with errors="return" only errors about no single session.
        """
        chosen = CodingOptions(**options)
        header = self._header(bridge, target_fingerprint)
        for frame in self._each(sessions, bridge, chosen):
            if errors == "return" and not isinstance(frame, Frame):
                yield frame
            else:
                yield pack(header, [_sound(frame)])

    def _each(
        self,
        sessions: Iterable[Session | PltzError],
        bridge: TokenBridge | None,
        options: CodingOptions,
        earlier: Neighbours | None = None,
    ) -> Iterator[Frame | PltzError]:
        """Yield the frame of each session, or its error, coded batch by batch.

        ``earlier``: where the sessions are those of one file and may be coded after each other.
        """
        bridge = None if bridge is None or bridge.identity else bridge
        for drafts in self._batches(sessions, bridge, options):
            yield from self._frames(drafts, bridge, options, earlier)

    def _header(
        self,
        bridge: TokenBridge | None,
        target_fingerprint: bytes | None,
        *,
        exact: bool = False,
        dropped: bool = False,
    ) -> Header:
        return Header(
            contract=self.bundle.contract,
            bundle_id=self.bundle.id,
            tokenizer_fingerprint=None if bridge is None or bridge.identity else bridge.fingerprint,
            target_fingerprint=target_fingerprint,
            exact=exact,
            dropped=dropped,
        )

    def _batches(
        self, sessions: Iterable[Session | PltzError], bridge: TokenBridge | None, options: CodingOptions
    ) -> Iterator[list[_TokenisedSession | PltzError]]:
        """Yield all sessions tokenised, in lists of about BATCH_TOKENS tokens.

        The error of a session that cannot be coded stands in its place.
        """
        batch: list[_TokenisedSession | PltzError] = []
        start = tokens = 0
        for group in _groups(sessions):
            for draft in self._drafts(group, start, bridge, options):
                batch.append(draft)
                tokens += _work(draft) if isinstance(draft, _TokenisedSession) else 0
            start += len(group)
            if tokens >= BATCH_TOKENS:
                yield batch
                batch, tokens = [], 0
        if batch:
            yield batch

    def _drafts(
        self, group: list[Session | PltzError], start: int, bridge: TokenBridge | None, options: CodingOptions
    ) -> list[_TokenisedSession | PltzError]:
        """Tokenise a group in one call.

        If that fails, tokenise one by one, to name the session that cannot be coded.
        """
        good = [session for session in group if isinstance(session, Session)]
        if len(good) == len(group) and not (bridge and any(session.kind == "ids" for session in good)):
            try:
                contents = [session.to_bytes() for session in good]
                if any(map(options.by_zstd, contents)) or any(map(is_log, good, contents)):
                    raise ContentError("not all of the group are for the model")
                tokens = transcript.to_tokens_many(good, self.bundle.tokenizer)
                return [_TokenisedSession(*found) for found in zip(itertools.count(start), good, tokens, contents)]
            except (ContentError, TokenizerMismatch):
                pass
        drafts: list[_TokenisedSession | PltzError] = []
        for number, session in enumerate(group, start):
            try:
                if isinstance(session, PltzError):
                    raise session
                drafts.append(self._draft(number, session, bridge, options))
            except PltzError as exc:
                drafts.append(named("session", number, exc))
        return drafts

    def _draft(
        self, number: int, session: Session, bridge: TokenBridge | None, options: CodingOptions
    ) -> _TokenisedSession:
        content = session.to_bytes()  # raises if over a limit, before anything is made of it
        if is_log(session, content):
            if not options.keep_opaque:
                transcript.refuse_opaque(session)
            return _TokenisedSession(number, session, None, content, log=True)
        by_zstd = options.by_zstd(content)
        if session.kind == "ids" and bridge is not None:
            tokens, patch = (None, b"") if by_zstd else bridge.to_bundle(session.value)
            return _TokenisedSession(number, session, tokens, content, patch)
        found = tokens_for_model(session, self.bundle.tokenizer, by_zstd=by_zstd, keep_opaque=options.keep_opaque)
        return _TokenisedSession(number, session, found, content)

    def _frames(
        self,
        drafts: list[_TokenisedSession | PltzError],
        bridge: TokenBridge | None,
        options: CodingOptions,
        earlier: Neighbours | None,
    ) -> list[Frame | PltzError]:
        """Return the shorter frame of each draft, checked to give the session back; an error is passed on."""
        good = [draft for draft in drafts if isinstance(draft, _TokenisedSession)]
        if options.progress:
            begin(options.progress, "encode", sum(map(_work, good)))
        logs, above = self._logs([draft for draft in good if draft.log], options, earlier)
        coded = self._encode(good, options, logs)
        if earlier is not None:
            above |= self._follow(good, coded, options, earlier)
        changed = self._changed(good, coded, bridge, options, above)
        frames = iter(changed.get(draft.number, frame) for draft, frame in zip(good, coded, strict=True))
        return [next(frames) if isinstance(draft, _TokenisedSession) else draft for draft in drafts]

    def _logs(
        self, drafts: Sequence[_TokenisedSession], options: CodingOptions, earlier: Neighbours | None
    ) -> tuple[dict[int, Frame], dict[int, Tokens]]:
        """Return the frame of each log, and the bytes above it where it has a context, (m,), by number."""
        frames: dict[int, Frame] = {}
        above: dict[int, Tokens] = {}
        phased = isinstance(options.progress, PhasedProgress)
        for batch in _log_batches(drafts):
            contexts = {d.number: earlier.logs.context(d.number, d.content) for d in batch} if earlier else {}
            pairs = [(d.content, c.content if (c := contexts.get(d.number)) else b"") for d in batch]
            small = [not options.by_zstd(draft.content) for draft in batch]
            for draft, data in zip(batch, self.logs.encode_by(pairs, small), strict=True):
                context = contexts.get(draft.number)
                frame = _byte_frame(draft, data, log=True, context=context.number if context else None)
                frames[draft.number] = frame if frame.fits else self._fallback_frame(draft)
                if context and frame.fits:
                    above[draft.number] = np.frombuffer(context.content, np.uint8)
            if options.progress and (phased or not options.verify):
                options.progress(sum(map(_work, batch)))
        return frames, above

    def _encode(
        self, drafts: list[_TokenisedSession], options: CodingOptions, logs: Mapping[int, Frame]
    ) -> list[Frame]:
        """Return the shortest frame of each draft. ``logs``: those of logs, by number."""
        plain = [
            Plain(draft.tokens, NO_MARK, layout=_blocks(len(draft.tokens), options))
            for draft in drafts
            if draft.tokens is not None
        ]
        taken = [copies.find(one.tokens) for one in plain]
        # the time is told before the work
        if self.expect:
            again = sum(replace(p, copies=t).literals for p, t in zip(plain, taken, strict=True) if t)
            by = partial(_layout, name=options.layout)
            seconds = self.model.expected(plain, more=again, verify=options.verify, layout=by)
            if seconds is not None:
                self.expect(seconds)
        # each session whole, and without its copies: the shorter counts
        phased = isinstance(options.progress, PhasedProgress)  # others count each token once, where it is verified
        whole = self.model.measured(plain, progress=options.progress if phased or not options.verify else None)
        cut = self._cut(plain, taken, [data for data, _ in whole], options)
        best = iter([cut.get(i, ModelResult(len(plain[i].tokens), one)) for i, (_, one) in enumerate(whole)])
        frames = []
        for draft in drafts:
            if draft.log:
                frames.append(logs[draft.number])
                if self._note:
                    self._note(_log_result(frames[-1]))
                continue
            if draft.tokens is None:
                frames.append(self._fallback_frame(draft))
                continue
            # the model's frame, or the fallback where that is no longer
            coded = next(best)
            frame = _model_frame(draft, draft.tokens, coded, options)
            size = len(frame.encode()) if frame.fits else NO_SIZE
            if may_be_shorter(self.plain, [np.frombuffer(draft.content, np.uint8)], size):
                other = self._fallback_frame(draft)
                frame = frame if size <= len(other.data) else other
            frames.append(frame)
            if self._note:
                self._note(coded)
        return frames

    def _cut(
        self,
        plain: Sequence[Plain],
        taken: Sequence[list[copies.Copy]],
        whole: Sequence[bytes],
        options: CodingOptions,
    ) -> dict[int, ModelResult]:
        """Return, by number, the sequences that are shorter with their long repeats taken out."""
        tried = [
            i
            for i, (one, repeated, data) in enumerate(zip(plain, taken, whole, strict=True))
            if copies.may_save(repeated, len(data), len(one.tokens))
        ]
        ways = [replace(plain[i], copies=taken[i]) for i in tried]
        ways = [replace(way, layout=_blocks(way.literals, options)) for way in ways]
        coded = self.model.measured(ways) if ways else []
        cut = {
            i: ModelResult(len(way.tokens), one, copies.pack(way.copies), len(way.tokens) - way.literals)
            for i, way, (_, one) in zip(tried, ways, coded, strict=True)
        }
        return {i: one for i, one in cut.items() if one.size < len(whole[i])}

    def _follow(
        self,
        drafts: list[_TokenisedSession],
        frames: list[Frame],
        options: CodingOptions,
        earlier: Neighbours,
    ) -> dict[int, Tokens]:
        """Code sessions after earlier ones, and replace the frames that get shorter.

        A session is tried after its nearest one. Where that serves and has a context itself, the session is coded once
        more, after all of them.

        Returns:
            The context of each session that has one, (m,), by its number.
        """
        tried: dict[int, Earlier] = {}
        for at, (draft, frame) in enumerate(zip(drafts, frames, strict=True)):
            if draft.tokens is None or not frame.kind.by_model:
                continue
            one = earlier.propose(draft.number, draft.tokens, Grams.of(draft.tokens))
            if one.context is not None:
                tried[at] = one
        # each after its nearest one alone; what does not gain has no context
        contexts = {at: one.behind(1) for at, one in tried.items()}
        found = self._after(drafts, frames, tried, contexts, options)
        for at in tried.keys() - found.keys():
            tried[at].context = None
        left = {tried[at].number: at for at in found}
        # then after the contexts of that one too, once it is settled which these are
        while left:  # at most `MOST_CONTEXTS` times
            ready = {at for at in left.values() if tried[at].settled(left)}
            again = {at: tried[at].behind() for at in sorted(ready)}
            again = {at: context for at, context in again.items() if len(context) != len(contexts[at])}
            shorter = self._after(drafts, frames, tried, again, options, found)
            for at in again.keys() - shorter.keys():
                tried[at].context = None
                del found[at]
            found |= shorter
            contexts |= again
            left = {number: at for number, at in left.items() if at not in ready}
        for at, frame in found.items():
            frames[at] = frame
        return {drafts[at].number: contexts[at] for at in found}

    def _after(
        self,
        drafts: list[_TokenisedSession],
        frames: list[Frame],
        tried: dict[int, Earlier],
        contexts: dict[int, Tokens],
        options: CodingOptions,
        before: Mapping[int, Frame] | None = None,
    ) -> dict[int, Frame]:
        """Return the frames of sessions after contexts, (m,), where they are shorter, by their place in ``drafts``.

        Args:
            before: the frames of the same sessions after a part of these contexts. Where one has copies from its
                context, so has the new one, and else neither.
        """
        rows, trials = [*contexts], list[Trial]()
        for at in rows:
            plain = Plain(_tokens(drafts[at]), contexts[at], frames[at].unpacked())
            copied = None if before is None else copies.reach_back(before[at].unpacked())
            trials.append(Trial(plain, len(frames[at].data), NAME_BYTES, copied))
        shorter = shorter_after(self.model, trials, partial(_blocks, options=options))
        found: dict[int, Frame] = {}
        for n, (data, way) in shorter.items():
            at, number = rows[n], cast("Earlier", tried[rows[n]].context).number
            lanes, steps = _kept_layout(way.literals, options, (frames[at].lanes, frames[at].steps))
            frame = replace(
                frames[at], data=data, lanes=lanes, steps=steps, copied=bool(way.copies), context=number
            )
            if frame.fits:
                found[at] = frame
        return found

    def _fallback_frame(self, draft: _TokenisedSession) -> Frame:
        plain = Plain(np.frombuffer(draft.content, np.uint8), NO_MARK)
        return _byte_frame(draft, self.plain.encode([plain])[0])

    def _changed(
        self,
        drafts: list[_TokenisedSession],
        frames: list[Frame],
        bridge: TokenBridge | None,
        options: CodingOptions,
        above: Mapping[int, Tokens],
    ) -> dict[int, ModelError]:
        """Decode frames and compare them with their sessions; return, by number, an error for each that changed.

        Fallback frames are always checked, since they cost next to nothing.

        ``above``: by number, the tokens (m,) that a session was coded after. The frames of these are compared in their
        turn.
        """
        pairs = zip(drafts, frames, strict=True)
        chosen = [pair for pair in pairs if options.verify or not pair[1].has_tokens]
        by_model = [pair for pair in chosen if pair[1].kind.by_model]
        logs = [pair for pair in chosen if pair[1].log]
        if options.verify and options.progress:
            tokens_coded = sum(frame.coded for _, frame in by_model)
            begin(options.progress, "verify", tokens_coded + sum(_work(draft) for draft, _ in logs))
        # frames of the model are decoded side by side, logs in batches
        found: dict[int, ModelError] = {}
        known = {draft.number: frame for draft, frame in logs}
        rows = [[(draft, known[draft.number]) for draft in batch] for batch in _log_batches([d for d, _ in logs])]
        others = [pair for pair in chosen if not pair[1].has_tokens]
        for number, batch in enumerate([by_model, *rows, others]):
            wanted = [_wanted(draft) if frame.has_tokens else None for draft, frame in batch]
            wrong = self._wrong(batch, wanted, above, None if number else options.progress)
            for n, (draft, frame) in enumerate(batch):
                changed = "it does not decode" if n in wrong else self._difference(draft, frame, wanted[n], bridge)
                if changed:
                    found[draft.number] = ModelError(
                        f"session {draft.number} does not come back from its frame ({changed}): nothing was kept"
                    )
            if options.progress and 0 < number <= len(rows):
                options.progress(sum(_work(draft) for draft, _ in batch))
        return found

    def _wrong(
        self,
        batch: Sequence[tuple[_TokenisedSession, Frame]],
        wanted: Sequence[Tokens | None],
        above: Mapping[int, Tokens],
        progress: Progress | None,
    ) -> list[int]:
        """Return the numbers of frames of one codec that do not decode to the tokens wanted, (T,) each, if any."""
        tokens = [one for one in wanted if one is not None]
        if not tokens:
            return []
        coded = [coded_of(frame, above.get(draft.number, NO_MARK)) for draft, frame in batch]
        return unproved(partial(self.codec_of(batch[0][1]).decode, progress=progress), coded, tokens)

    def _difference(
        self, draft: _TokenisedSession, frame: Frame, tokens: Tokens | None, bridge: TokenBridge | None
    ) -> str | None:
        """Return how a session differs from its frame, which decodes to tokens (T,); None where it does not."""
        if tokens is not None and frame.kind is Kind.CHAT:
            return None  # `transcript.to_tokens` has proved that these tokens give this chat
        try:
            return draft.session.difference(self._restore(frame, tokens, draft.number, bridge)[0]) or None
        except CorruptError as exc:
            return str(exc)


def _wanted(draft: _TokenisedSession) -> Tokens:
    """Return the tokens of a draft, or its bytes where it has none, (T,)."""
    return np.frombuffer(draft.content, np.uint8) if draft.tokens is None else draft.tokens


def _work(draft: _TokenisedSession) -> int:
    """Return the tokens of a draft, of a log about, for progress."""
    if draft.log:
        return len(draft.content) // log_coder.BYTES_PER_TOKEN
    return 0 if draft.tokens is None else len(draft.tokens)


def _log_batches(drafts: Sequence[_TokenisedSession]) -> Iterator[list[_TokenisedSession]]:
    """Yield runs of about `LOG_BATCH` bytes of content, or of one log."""
    batch: list[_TokenisedSession] = []
    size = 0
    for draft in drafts:
        batch.append(draft)
        size += len(draft.content)
        if size >= LOG_BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _byte_frame(draft: _TokenisedSession, data: bytes, *, log: bool = False, context: int | None = None) -> Frame:
    """Return the frame of a session that is coded as bytes."""
    kind = Kind[f"{draft.session.kind.upper()}_FALLBACK"]
    check = content_check(kind, len(draft.content), draft.content)
    return Frame(kind, len(draft.content), check, data, context=context, log=log)


def _log_result(frame: Frame) -> ModelResult:
    """Return the result of a log, of which the model coded a part."""
    tokens = log_coder.parse(frame.data).coded_tokens if frame.log else 0
    return ModelResult(tokens, Encoded(frame.data, 8.0 * len(frame.data), 0))


def _layout(tokens: int, name: LayoutName) -> Layout:
    """Return the layout of a sequence of a file. The fast one has at most 512 steps per block, the other 2048."""
    if name == "default" or tokens <= MAX_STEPS:
        return file_layout(tokens)
    return FAST if tokens > FAST_ABOVE else Layout(default_lanes(tokens, MAX_BLOCK), MAX_STEPS)


def _blocks(literals: int, options: CodingOptions) -> Blocks:
    """Return the lanes and steps in which so many tokens are coded; the engine fills in a missing one."""
    if options.lanes or options.steps:
        return options.lanes, options.steps
    layout = _layout(literals, options.layout)
    return layout.lanes, layout.steps


def _kept_layout(literals: int, options: CodingOptions, coded: Blocks) -> Blocks:
    """Return the lanes and steps that a frame has to name: none where the layout is that of every file.

    ``coded``: those in which the engine coded a frame with these options.
    """
    if options.lanes or options.steps:
        return coded
    layout = _layout(literals, options.layout)
    return (None, None) if layout == file_layout(literals) else (layout.lanes, layout.steps)


def _groups(sessions: Iterable[Session | PltzError]) -> Iterator[list[Session | PltzError]]:
    """Yield runs of at most GROUP sessions and about GROUP_BYTES of content."""
    group: list[Session | PltzError] = []
    size = 0
    for session in sessions:
        group.append(session)
        size += content_bytes(session) if isinstance(session, Session) else 0
        if len(group) == GROUP or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _tokens(draft: _TokenisedSession) -> Ids:
    assert draft.tokens is not None
    return draft.tokens


def _sound(frame: Frame | PltzError) -> Frame:
    if isinstance(frame, PltzError):
        raise frame
    return frame


def _model_frame(draft: _TokenisedSession, tokens: Tokens, coded: ModelResult, options: CodingOptions) -> Frame:
    kind = Kind[draft.session.kind.upper()]
    content = draft.session.value if kind is Kind.IDS else tokens
    check = content_check(kind, len(tokens), content)
    one, literals = coded.encoded, len(tokens) - coded.copied
    lanes, steps = _kept_layout(literals, options, (one.lanes, one.steps))
    return Frame(kind, len(tokens), check, coded.copies + one.data, lanes, steps, draft.patch, bool(coded.copies))

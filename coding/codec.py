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
import marshal
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, BinaryIO, Generic, NamedTuple, TypeVar, Unpack, cast

from pltz.coding import look
from pltz.coding.choose import NO_SIZE, Trial, shorter_after
from pltz.coding.codecs.codec import NO_MARK, Plain, coded_of
from pltz.coding.coder_thread import Call, CoderThread
from pltz.coding.decoder import SessionDecoder, named
from pltz.coding.host_work import HostWork, Prepared
from pltz.coding.log import log_coder
from pltz.coding.log.above import Above
from pltz.coding.neighbours import NAME_BYTES, SETTLED, Earlier, Grams, Neighbours
from pltz.coding.options import CodingKeywords, CodingOptions
from pltz.coding.parts import Doubling, PhasedProgress, begin
from pltz.coding.prove import LONG, BatchProof, ProofThreads, prove
from pltz.coding.workers import START_BYTES, Later, Workers, ahead, helpers
from pltz.models.session.session import Session
from pltz.plt_codec import repeats as copies
from pltz.plt_codec.container.file import Writer
from pltz.plt_codec.container.frame import Frame, Kind, Method, content_check
from pltz.plt_codec.container.header import Header
from pltz.plt_codec.errors import (
    CorruptError,
    ModelError,
    PltzError,
)
from pltz.plt_codec.zstd import may_reach

if TYPE_CHECKING:
    from pltz.coding.parts import Coder, Parts, Progress, TokenBridge, Tokens
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.bundle.tokenizer import Ids


T = TypeVar("T")
R = TypeVar("R")

BATCH_BYTES = 1 << 22  # of content coded side by side; bounds memory, large enough to keep a CPU busy
SMALL_BATCH = 1 << 22  # the same on a device where threads code and prove beside each other: proofs join what waits
THREADS = 4  # that prove beside the caller, each with a coder: half of them long sessions
LARGE_BATCH = 1 << 24  # the same beside processes alone: a batch takes as long as its longest session
LEAST_BYTES = 1 << 10  # of content that a session counts for, however few it has: a batch holds more than that of each
LOOKED = 128  # sessions whose neighbours are looked for at once
GROUP = 64  # sessions tokenised in one call, fewer where they are long:
GROUP_BYTES = 1 << 19  # of content, or one session


class Depth(NamedTuple):
    """The number of batches that are begun ahead of each stage, where processes or threads have a part of the work."""

    draft: int = 0
    code: int = 0
    frame: int = 0
    trial: int = 0
    proof: int = 0


INLINE, PROCESSES, DEVICE = Depth(), Depth(1, 1, 0, 1, 1), Depth(4, 3, 2, 0, 16)


class _ModelResult(NamedTuple):
    """The bitstring of a session by the model, and the way in which it was coded."""

    data: bytes
    way: Plain


class _Group(NamedTuple):
    """Sessions that are prepared in one call, and their bytes of content, about."""

    sessions: list[Session]
    size: int


@dataclass(frozen=True)
class _Draft:
    """Session ``number`` on its way into a frame.

    Attributes:
        ready: the session, prepared.
        context: the earlier log that it is coded after, if any.
        split: of a log, its draft to come.
    """

    number: int
    session: Session
    ready: Prepared
    context: Earlier | None = None
    split: Later | None = None

    @property
    def above(self) -> Above | None:
        """Return what a log is coded after."""
        return self.context.part if self.context else None


@dataclass
class _Batch:
    """Sessions coded side by side.

    Attributes:
        groups: all of them, until they are drafts.
        start: number of the first.
        size: their bytes of content, about.
        prepared: results of a process for each group, to come.
        drafts: the prepared sessions.
        coded: of these, by the model, to come.
        made: frames of these by the model; None: that of zstd is to be taken.
        frames: the shortest ones.
        packed: by number, the bytes of those that zstd may make shorter, to come.
        tried: the trials after earlier sessions, to come, once it is proposed which ones.
        proofs: of those in ``proving``, to come.
        proving: for each proof, drafts and frames of the model, and of logs.
    """

    groups: list[_Group]
    start: int
    size: int = 0
    prepared: list[Later] = field(default_factory=list)
    drafts: list[_Draft] = field(default_factory=list)
    coded: Later | None = None
    made: list[Frame | None] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    packed: dict[int, Later] = field(default_factory=dict)
    tried: Later | None = None
    proofs: list[BatchProof] = field(default_factory=list)
    proving: list[tuple[list[tuple[_Draft, Frame]], list[tuple[_Draft, Frame]]]] = field(default_factory=list)


@dataclass(frozen=True)
class _ModelOutput:
    """The output of the model for a batch, in its order: results of drafts with tokens, and frames of logs."""

    model: list[_ModelResult]
    logs: list[bytes]


class _Inline(Generic[T]):
    """An executor without a thread, which runs each call at once.

    Args:
        owned: what calls are given.
        progress: that calls tell.
    """

    def __init__(self, owned: T, progress: Progress | None = None) -> None:
        self._owned, self._progress = owned, progress

    def submit(self, call: Call[T, R], stop: threading.Event) -> Future[R]:
        """Run a call. Raises what it raises."""
        future: Future[R] = Future()
        future.set_result(call(self._owned, self._progress))
        return future


class _Proving(NamedTuple):
    """Threads that prove short sessions, and those that prove long ones."""

    short: ProofThreads
    long: ProofThreads


@dataclass(frozen=True)
class _Call:
    """One call of the codec.

    Attributes:
        bridge: None where ids need none.
        earlier: the sessions before, where they may be coded after each other.
        stop: set where the call ends, however it does.
        encoding: what codes: a thread beside the caller, where the device has threads.
        proposing: what looks for earlier sessions to code others after.
        trying: what codes them so.
        proving: threads that prove; None where the device has no threads.
        trials: the last ones that were begun, with their runs.
    """

    bridge: TokenBridge | None
    options: CodingOptions
    earlier: Neighbours | None
    stop: threading.Event
    encoding: CoderThread[SessionDecoder] | _Inline[SessionDecoder]
    proposing: CoderThread[None] | _Inline[None]
    trying: CoderThread[SessionDecoder] | _Inline[SessionDecoder]
    proving: _Proving | None = None
    trials: deque[tuple[int, Later]] = field(default_factory=deque)

    @property
    def progress(self) -> Progress | None:
        """Return the progress that is told of tokens as they are coded: None with threads, which tell of batches."""
        return None if self.proving else self.options.progress

    @cached_property
    def alone(self) -> CodingOptions:
        """Return the options of preparing a session."""
        return replace(self.options, independent=self.earlier is None, progress=None)

    @property
    def counts_coded(self) -> bool:
        """Return whether the tokens that are coded are counted; if not, those that are proved are."""
        return isinstance(self.options.progress, PhasedProgress) or not self.options.verify


@dataclass(frozen=True)
class _Threads:
    """Threads beside the caller, each with a coder, but for the one that proposes. What encodes comes first."""

    encoding: CoderThread[SessionDecoder]
    proposing: CoderThread[None]
    trying: CoderThread[SessionDecoder]
    proving: Sequence[CoderThread[SessionDecoder]]

    @classmethod
    def of(cls, decoder: SessionDecoder) -> _Threads:
        """Return those of the twins of a decoder."""
        urgent = partial(decoder.twin, urgent=True)
        proving = [CoderThread(decoder.twin) for _ in range(THREADS)]
        return cls(CoderThread(urgent), CoderThread(lambda: None), CoderThread(urgent), proving)

    def settle(self) -> None:
        """Wait until no call runs, and give back what coders keep, in the order in which threads pass on work."""
        self.encoding.settle(SessionDecoder.rest)
        self.proposing.settle()
        for thread in (self.trying, *self.proving):
            thread.settle(SessionDecoder.rest)


class Codec(SessionDecoder):
    """A codec of sessions to .pltz bytes and back, with one bundle.

    One thread uses it at a time.

    Args:
        bundle: tokenizer, dictionary and identity.
        coder: the token coder over this bundle's engine.
        workers: processes beside the model, for inputs of `START_BYTES` or more. Files are the same for any number.

    ``threaded``: False for no threads.
    """

    def __init__(self, bundle: Parts, coder: Coder, *, workers: int = 0) -> None:
        self._work = HostWork(bundle.tokenizer, bundle.zstd_dict)
        self.workers = Workers(self._work, max(0, workers))
        super().__init__(bundle, coder, self.workers)
        self._threads = _Threads.of(self) if isinstance(coder, Doubling) else None
        self.threaded = True

    @classmethod
    def load(
        cls,
        bundle: str | os.PathLike[str] | Bundle | None = None,
        *,
        device: str = "cpu",
        threads: int | None = None,
        workers: int | None = None,
    ) -> Codec:
        """Return the codec of a bundle, by name, folder or loaded; None is the bundle that ships with pltz.

        Args:
            bundle: its name or folder, or the bundle.
            device: of the model.
            threads: of the engine on a CPU; None: all cores.
            workers: processes beside the model; None: one per core but one, or per thread, at most `workers.MOST`.

        Raises:
            UsageError: no such bundle or device.
            ModelError: the bundle cannot be used.
        """
        from pltz.models.bundle.bundle import Bundle

        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        return cls(loaded, loaded.coder(device, threads), workers=helpers(threads) if workers is None else workers)

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
            UsageError: the layout is unknown.
            ContentError: a session cannot be coded; OpaqueContentError for an image, audio or file part.
            TokenizerMismatch: ids without a bridge that are not ids of the bundle.
            ModelError: a frame did not decode to its session.
        """
        chosen, sessions = CodingOptions(**options), iter(sessions)
        first = [*itertools.islice(sessions, 2)]  # one alone has no neighbour
        earlier = None if chosen.independent or len(first) < 2 else Neighbours()
        writer = Writer(sink, self._header(bridge, target_fingerprint, exact=exact, dropped=dropped))
        for frame in self._each(itertools.chain(first, sessions), bridge, chosen, earlier):
            writer.add(frame)
        return writer.finish()

    def _each(
        self,
        sessions: Iterable[Session],
        bridge: TokenBridge | None,
        options: CodingOptions,
        earlier: Neighbours | None,
    ) -> Iterator[Frame]:
        """Yield the frame of each session, coded batch by batch. ``earlier``: None: each session is coded alone."""
        bridge = None if bridge is None or bridge.identity else bridge
        large, groups = self._staffed(_groups(sessions))
        stop = threading.Event()
        inline = _Inline[SessionDecoder](self, options.progress)
        run = _Call(bridge, options, earlier, stop, inline, _Inline(None), inline)
        if large and self._threads and self.threaded:
            fast, half = options.layout == "fast", THREADS // 2
            short, long = self._threads.proving[:half], self._threads.proving[half:]
            proving = _Proving(ProofThreads(short, stop, fast=fast), ProofThreads(long, stop, fast=fast))
            run = replace(
                run, encoding=self._threads.encoding, proposing=self._threads.proposing, trying=self._threads.trying,
                proving=proving,
            )  # fmt: skip
        most, depth = (LARGE_BATCH, PROCESSES) if self.workers.on else (BATCH_BYTES, INLINE)
        if run.proving:
            most, depth = SMALL_BATCH, DEVICE

        def weight(batch: _Batch) -> int:
            return max(1, batch.size // most)

        batches: Iterator[_Batch] = (self._begun(batch, run) for batch in _batches(groups, most))
        for stage, count in ((self._drafted, depth.draft), (self._coding, depth.code), (self._framed, depth.frame)):
            batches = map(partial(stage, run=run), ahead(batches, count, weight))
        tried = self._all_tried(ahead(batches, depth.trial, weight), run)
        try:
            for batch in ahead(tried, depth.proof, weight, depth.proof):
                yield from self._proved(batch, run)
        finally:
            stop.set()
            if self._threads:
                self._threads.settle()

    def _staffed(self, groups: Iterator[_Group]) -> tuple[bool, Iterator[_Group]]:
        """Return whether there are `START_BYTES` or more, so that processes were asked for, and all groups."""
        taken: list[_Group] = []
        size = 0
        if self.workers.count or self._threads:
            for group in groups:
                taken.append(group)
                size += group.size
                if size >= START_BYTES:
                    self.workers.on = self.workers.count > 0
                    break
        return size >= START_BYTES, itertools.chain(taken, groups)

    def _header(
        self,
        bridge: TokenBridge | None,
        target_fingerprint: bytes | None,
        *,
        exact: bool = False,
        dropped: bool = False,
    ) -> Header:
        return Header(
            contract=self.model.contract,
            bundle_id=self.bundle.id,
            tokenizer_fingerprint=None if bridge is None or bridge.identity else bridge.fingerprint,
            target_fingerprint=target_fingerprint,
            exact=exact,
            dropped=dropped,
        )

    # ---- stages of a batch

    def _begun(self, batch: _Batch, run: _Call) -> _Batch:
        """Begin to prepare the sessions of a batch."""
        for group in batch.groups:
            own = [session for session in group.sessions if not _is_bridged(session, run.bridge)]
            batch.prepared.append(self.workers.submit("prepare", own, run.alone))
        return batch

    def _drafted(self, batch: _Batch, run: _Call) -> _Batch:
        """Take the prepared sessions of a batch, choose the contexts of its logs, and begin to split these.

        Raises PltzError of the first session that cannot be coded.
        """
        number = batch.start
        for group, later in zip(batch.groups, batch.prepared, strict=True):
            prepared = iter(later.result())
            for session in group.sessions:
                try:
                    ready = self._bridged(session, run) if _is_bridged(session, run.bridge) else next(prepared)
                    if isinstance(ready, PltzError):
                        raise ready
                    batch.drafts.append(self._draft(number, session, ready, run.earlier))
                except PltzError as exc:
                    raise named("session", number, exc) from exc
                number += 1
        batch.groups, batch.prepared = [], []
        return batch

    def _bridged(self, session: Session, run: _Call) -> Prepared:
        """Return a session prepared whose ids are those of another tokenizer. Raises PltzError."""
        content, bridge = session.to_bytes(), run.bridge
        by_zstd = bridge is None or run.options.by_zstd(content)
        tokens, patch = (None, b"") if bridge is None or by_zstd else bridge.to_bundle(session.value)
        return self._work.prepared(content, tokens, run.alone, patch)

    def _draft(self, number: int, session: Session, ready: Prepared, earlier: Neighbours | None) -> _Draft:
        if not ready.log:
            return _Draft(number, session, ready)
        wanted = None if earlier is None else ready.passages
        context = None if earlier is None or wanted is None else earlier.log(number, ready.content, wanted)
        draft = _Draft(number, session, ready, context)
        return replace(draft, split=self.logs.begin(ready.content, draft.above))

    def _coding(self, batch: _Batch, run: _Call) -> _Batch:
        """Begin to code the sessions of a batch by the model, in a thread where there is one, else when it is asked."""
        self._leave_to_zstd(batch)
        good, counted = batch.drafts, run.proving is not None or run.counts_coded

        def coded(decoder: SessionDecoder, told: Progress | None) -> _ModelOutput:
            return _coded_by(decoder, good, run.options, told if counted else None)

        if run.options.progress and run.proving is None:  # it is coded now, and counted
            begin(run.options.progress, "encode", sum(map(_work, batch.drafts)))
        batch.coded = run.encoding.submit(coded, run.stop)
        return batch

    def _leave_to_zstd(self, batch: _Batch) -> None:
        """Take the tokens from sessions that the model would code in vain, as samples of them tell."""
        asked: list[tuple[int, _Draft, Tokens, look.Samples]] = []
        for n, draft in enumerate(batch.drafts):
            if (tokens := draft.ready.tokens) is not None:
                taken = draft.ready.copies
                left = len(tokens) - sum(copy.length for copy in taken)
                if left >= look.LEAST and (samples := look.doubtful(left, draft.ready.content, draft.ready.fast)):
                    asked.append((n, draft, copies.literals(tokens, taken), samples))
        if not asked:
            return
        for _, draft, _, _ in asked:
            batch.packed[draft.number] = self.workers.submit("packed", draft.ready.content)
        sizes = look.expected_sizes(self.coder, [(tokens, samples) for _, _, tokens, samples in asked])
        for (n, draft, _, _), size in zip(asked, sizes, strict=True):
            size += len(copies.pack(draft.ready.copies)) if draft.ready.copies else 0
            if len(batch.packed[draft.number].result()) <= size:
                batch.drafts[n] = replace(draft, ready=replace(draft.ready, tokens=None))

    def _framed(self, batch: _Batch, run: _Call) -> _Batch:
        """Take what the model made of a batch, and begin to code by zstd what may be shorter so."""
        progress = run.options.progress if run.proving else None  # without threads it is told as sessions are coded
        work = sum(map(_work, batch.drafts)) if progress else 0
        if progress:
            begin(progress, "encode", work)
        coded: _ModelOutput = cast("Later", batch.coded).result()
        batch.coded = None
        if progress and run.counts_coded:
            progress(work)
        results, logs = iter(coded.model), iter(coded.logs)
        for draft in batch.drafts:
            frame = None
            if draft.ready.log:
                context = draft.context.number if draft.context else None
                frame = _byte_frame(draft, next(logs), Method.LOG, context)
            elif draft.ready.tokens is not None:
                frame = _model_frame(draft, draft.ready.tokens, next(results))
            frame = frame if frame and frame.fits else None
            size = NO_SIZE if frame is None else len(frame.encode())
            known = (frame and frame.log) or draft.number in batch.packed
            if not known and may_reach(draft.ready.fast, size):
                batch.packed[draft.number] = self.workers.submit("packed", draft.ready.content)
            batch.made.append(frame)
        return batch

    def _all_tried(self, batches: Iterator[_Batch], run: _Call) -> Iterator[_Batch]:
        """Begin to code the sessions of batches after earlier ones, and to prove them, in threads where there are any.

        After the last batch nothing is left to wait for before a proof.
        """
        trying, proving = run.trying, run.proving

        def begun(tried: list[_Tried]) -> Later:
            return trying.submit(lambda twin, _: _after_earlier(twin, tried, self.workers), run.stop)

        def propose(batch: _Batch, *_: object) -> Later:
            trials = self._proposed(batch, run, begun)
            return trying.submit(lambda *_: self._tried(batch, run, trials), run.stop)

        def send(*_: object) -> None:
            for threads in proving or ():
                threads.send()

        for batch in batches:
            batch.tried = run.proposing.submit(partial(propose, batch), run.stop)
            yield batch
        if proving:
            run.proposing.submit(lambda *_: trying.submit(send, run.stop), run.stop)

    def _proposed(self, batch: _Batch, run: _Call, begin: Callable[[list[_Tried]], Later]) -> list[Later]:
        """Take the shorter frame of each session of a batch, and begin to code some after earlier ones, run by run.

        ``begin``: begins trials of one run. Their results, to come, are returned.
        """
        for draft, frame in zip(batch.drafts, batch.made, strict=True):
            if draft.number in batch.packed:
                other = _byte_frame(draft, batch.packed[draft.number].result())
                frame = frame if frame and len(frame.encode()) <= len(other.data) else other
            assert frame is not None
            batch.frames.append(frame)
        batch.made, batch.packed = [], {}
        earlier, begun = run.earlier, list[Later]()
        if earlier is None:
            return begun
        rows = [
            (draft, frame, earlier.run_of(len(_tokens(draft))))
            for draft, frame in zip(batch.drafts, batch.frames, strict=True)
            if draft.ready.grams is not None and frame.by_model
        ]
        for number, same in itertools.groupby(rows, lambda row: row[2]):
            while run.trials and run.trials[0][0] + SETTLED <= number:
                run.trials.popleft()[1].result()
            tried, left = list[_Tried](), iter(same)
            while some := list(itertools.islice(left, LOOKED)):
                new = [(draft.number, _tokens(draft), cast("Grams", draft.ready.grams)) for draft, _, _ in some]
                proposed = earlier.propose(new, number)
                tried += [_Tried(*row[:2], one) for row, one in zip(some, proposed, strict=True)]
            begun.append(begin([one for one in tried if one.proposed.context is not None]))
            run.trials.append((number, begun[-1]))
        return begun

    def _tried(self, batch: _Batch, run: _Call, trials: Sequence[Later]) -> None:
        """Make the shortest frame of each session of a batch, and begin to decode these.

        ``trials``: of the batch, by number a frame and its context, (m,), to come.
        """
        found: dict[int, tuple[Frame, Tokens]] = {}
        for later in trials:
            found |= later.result()
        above = {n: tokens for n, (_, tokens) in found.items()}
        for n, draft in enumerate(batch.drafts):
            if draft.number in found:
                batch.frames[n] = found[draft.number][0]
        self._begin_proof(batch, run, above)

    def _begin_proof(self, batch: _Batch, run: _Call, above: Mapping[int, Tokens]) -> None:
        """Begin to decode the frames of a batch, in a thread where there is one.

        ``above``: by number, the tokens (m,) that a session was coded after. The frames of these are compared in their
        turn.
        """
        pairs = [p for p in zip(batch.drafts, batch.frames, strict=True) if run.options.verify and p[1].has_tokens]
        by_model, logs = [p for p in pairs if not p[1].log], [p for p in pairs if p[1].log]
        coded = [coded_of(frame, above.get(draft.number, NO_MARK)) for draft, frame in by_model]
        coded_logs = [coded_of(frame, up=draft.above) for draft, frame in logs]
        long = [bool(run.proving) and one.count > LONG for one in coded]
        for apart in sorted({False, *long}):
            chosen, beside = [n for n, one in enumerate(long) if one is apart], [] if apart else logs
            some = [by_model[n] for n in chosen]
            wanted, contents = [_tokens(draft) for draft, _ in some], [draft.ready.content for draft, _ in beside]
            batch.proving.append((some, beside))
            proof = BatchProof([coded[n] for n in chosen], wanted, coded_logs if beside else [], contents)
            batch.proofs.append(proof)
            if run.proving:
                (run.proving.long if apart else run.proving.short).begin(proof, batch.size)
        if run.proving:
            return
        self._begin_verify(batch, run)
        prove(batch.proofs, self, run.progress)
        if run.progress:
            run.progress(sum(_work(draft) for draft, _ in logs))

    def _begin_verify(self, batch: _Batch, run: _Call) -> int:
        """Tell a progress, where there is one, of the proof of a batch, and return its tokens, about."""
        work = 0
        if not run.options.progress:
            return work
        for by_model, logs in batch.proving:
            work += sum(frame.coded for _, frame in by_model) + sum(_work(draft) for draft, _ in logs)
        if run.options.verify:
            begin(run.options.progress, "verify", work)
        return work

    def _proved(self, batch: _Batch, run: _Call) -> list[Frame]:
        """Return the frame of each session of a batch, checked to give it back.

        Fallback frames are always checked, since they cost next to nothing.

        Raises:
            ModelError: the first session that does not come back.
        """
        changed: dict[int, str] = {}
        if batch.tried:
            batch.tried.result().result()
            batch.tried = None
        work = self._begin_verify(batch, run) if run.proving else 0
        for proof, (by_model, logs) in zip(batch.proofs, batch.proving, strict=True):
            wrong, wrong_logs = proof.result()
            for n, (draft, frame) in enumerate(by_model):
                how = "it does not decode" if n in wrong else self._difference(draft, frame, _tokens(draft), run.bridge)
                if how:
                    changed[draft.number] = how
            for n in wrong_logs:
                changed[logs[n][0].number] = "it does not decode"
        if run.options.progress and run.proving:
            run.options.progress(work)
        for draft, frame in zip(batch.drafts, batch.frames, strict=True):
            if not frame.has_tokens and (how := self._difference(draft, frame, None, run.bridge)):
                changed[draft.number] = how
        if changed:
            number, how = min(changed.items())
            raise ModelError(f"session {number} does not come back from its frame ({how}): nothing was kept")
        return batch.frames

    # ---- frames of drafts

    def _difference(
        self, draft: _Draft, frame: Frame, tokens: Tokens | None, bridge: TokenBridge | None
    ) -> str | None:
        """Return how a session differs from its frame, which decodes to tokens (T,); None where it does not."""
        if tokens is not None and frame.content is Kind.CHAT:
            return None  # `transcript.to_tokens` has proved that these tokens give this chat
        try:
            return draft.session.difference(self._restore(frame, tokens, draft.number, bridge)[0]) or None
        except CorruptError as exc:
            return str(exc)


class _Tried(NamedTuple):
    """A session that is coded after an earlier one too: its draft, its frame alone, and what is proposed."""

    draft: _Draft
    frame: Frame
    proposed: Earlier


def _after_earlier(
    decoder: SessionDecoder, tried: Sequence[_Tried], workers: Workers
) -> dict[int, tuple[Frame, Tokens]]:
    """Code sessions after the earlier ones that are proposed; all trials begun before are done.

    Each is coded once, after all its contexts, as soon as it is settled which these are.

    Returns:
        By number, the frame of each session that gets shorter, and its context, (m,).
    """
    found: dict[int, tuple[Frame, Tokens]] = {}
    left = {one.draft.number: one for one in tried}
    while left:  # at most `MOST_CONTEXTS` times
        ready = [one for one in left.values() if one.proposed.settled(left)]
        contexts = [one.proposed.behind() for one in ready]
        rows = zip(ready, contexts, strict=True)
        plain = [Plain(_tokens(o.draft), above, o.frame.unpacked(), o.frame.fast) for o, above in rows]
        trials = [Trial(p, len(o.frame.data), NAME_BYTES) for p, o in zip(plain, ready, strict=True)]
        shorter = shorter_after(decoder.model, trials, workers)
        for n, one in enumerate(ready):
            frame = _frame_after(one, *shorter[n]) if n in shorter else None
            if frame and frame.fits:
                found[one.draft.number] = frame, contexts[n]
            else:
                one.proposed.context = None
            del left[one.draft.number]
    return found


def _frame_after(one: _Tried, data: bytes, way: Plain) -> Frame:
    """Return the frame of a session after the earlier one that is proposed."""
    context = cast("Earlier", one.proposed.context).number
    return replace(one.frame, data=data, copied=bool(way.copies), context=context)


def _coded_by(
    decoder: SessionDecoder,
    drafts: Sequence[_Draft],
    options: CodingOptions,
    progress: Progress | None,
) -> _ModelOutput:
    """Code drafts by the model of a decoder: each with tokens whole, and without its copies where that is shorter."""
    fast = options.layout == "fast"
    ways = _ways(drafts, fast)
    taken = [draft.ready.copies for draft in drafts if draft.ready.tokens is not None]
    logs = [draft for draft in drafts if draft.ready.log]
    pairs = [(draft.ready.content, draft.above) for draft in logs]
    small = [not options.by_zstd(draft.ready.content) for draft in logs]
    begun = [draft.split for draft in logs]
    frames = decoder.logs.encode_begun(pairs, begun, small, fast=fast) if logs else []
    if progress and logs:
        progress(sum(map(_work, logs)))
    coded = _results(decoder, ways, progress)
    tried = {
        i: replace(way, copies=repeated)
        for i, (way, repeated, one) in enumerate(zip(ways, taken, coded, strict=True))
        if not way.copies and copies.may_save(repeated, len(one.data), len(way.tokens))
    }
    for i, cut in zip(tried, _results(decoder, list(tried.values()), None), strict=True):
        coded[i] = min(coded[i], cut, key=lambda result: len(result.data))
    return _ModelOutput(coded, frames)


def _results(decoder: SessionDecoder, ways: Sequence[Plain], progress: Progress | None) -> list[_ModelResult]:
    """Return what the model makes of sequences, each in its way."""
    coded = decoder.model.encode(ways, progress=progress) if ways else []
    return [_ModelResult(*pair) for pair in zip(coded, ways, strict=True)]


def _ways(drafts: Sequence[_Draft], fast: bool) -> list[Plain]:
    """Return the drafts that have tokens, as they are coded first: whole, or without long copies."""
    rows = [(draft.ready.tokens, draft.ready.copies) for draft in drafts if draft.ready.tokens is not None]
    return [Plain(tokens, NO_MARK, taken if copies.surely_save(taken) else (), fast) for tokens, taken in rows]


def _is_bridged(session: Session, bridge: TokenBridge | None) -> bool:
    """Return whether the ids of a session are those of another tokenizer."""
    return bridge is not None and session.kind == "ids"


def _work(draft: _Draft) -> int:
    """Return the tokens of a draft, of a log about, for progress."""
    if draft.ready.log:
        return len(draft.ready.content) // log_coder.BYTES_PER_TOKEN
    if draft.ready.tokens is None:
        return 0
    taken = draft.ready.copies if copies.surely_save(draft.ready.copies) else ()
    return len(draft.ready.tokens) - sum(copy.length for copy in taken)


def _byte_frame(draft: _Draft, data: bytes, method: Method = Method.BYTES, context: int | None = None) -> Frame:
    """Return the frame of a session that is coded as bytes."""
    kind, content = Kind[draft.session.kind.upper()], draft.ready.content
    check = content_check(kind, method, len(content), content)
    return Frame(kind, method, len(content), check, data, context=context, writing=draft.session.writing)


def _batches(groups: Iterable[_Group], most: int) -> Iterator[_Batch]:
    """Yield batches of about ``most`` bytes of content, or of one group."""
    batch, start = _Batch([], 0), 0
    for group in groups:
        batch.groups.append(group)
        start += len(group.sessions)
        batch.size += group.size
        if batch.size >= most:
            yield batch
            batch = _Batch([], start)
    if batch.groups:
        yield batch


def _groups(sessions: Iterable[Session]) -> Iterator[_Group]:
    """Yield runs of at most GROUP sessions and about GROUP_BYTES of content."""
    group: list[Session] = []
    size = 0
    for session in sessions:
        group.append(session)
        size += max(LEAST_BYTES, _size(session))
        if len(group) == GROUP or size >= GROUP_BYTES:
            yield _Group(group, size)
            group, size = [], 0
    if group:
        yield _Group(group, size)


def _size(session: Session) -> int:
    """Return the bytes of a session, about: a chat is not written as JSON to learn that."""
    if session.kind != "chat":
        return session.value.nbytes if session.kind == "ids" else len(session.value)
    try:
        return len(marshal.dumps(session.value))
    except ValueError:
        return 0  # no JSON: refused where it is prepared


def _tokens(draft: _Draft) -> Ids:
    assert draft.ready.tokens is not None
    return draft.ready.tokens


def _model_frame(draft: _Draft, tokens: Tokens, coded: _ModelResult) -> Frame:
    kind, way = Kind[draft.session.kind.upper()], coded.way
    check = content_check(kind, Method.MODEL, len(tokens), draft.session.value if kind is Kind.IDS else tokens)
    return Frame(
        kind, Method.MODEL, len(tokens), check, coded.data, way.fast, draft.ready.patch, bool(way.copies),
        writing=draft.session.writing,
    )  # fmt: skip

"""Pipeline: batches of sessions go through named stages, each begun while what comes before it is still at work.

    prepare   bytes, tokens, copies, 4-grams of each session      in processes
    draft     choose what a log is coded after, split its table   in processes
    code      by the model, but for what a sample tells zstd      on the device
    frame     where zstd may be shorter, code by zstd             in processes
    propose   the shorter frame, and an earlier session           in a thread
    settle    what is shorter after the earlier one               on the device
    decode    all frames again                                    on the device
    compare   with the sessions; frames that do not give one back are an error

Sessions are taken in batches, since an engine is fast only when many sequences run side by side. A stage runs on the
caller's thread: it takes what the stage before it has begun, and begins work in an `Executor` (workers.py). These run
methods here, in threads with a coder each, or in processes. `Depth` says by how many batches each stage lags behind.
"""

from __future__ import annotations

import itertools
import marshal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pltz.coding import look
from pltz.coding.codecs.codec import NO_MARK, NO_SIZE, coded_of
from pltz.coding.decoder import SessionDecoder, named
from pltz.coding.drafts import FAST_TOGETHER, LONG, TOGETHER, DraftCoder, Proof, ProofSegment, Proposed, SessionDraft
from pltz.coding.host_work import HostWork, Prepared
from pltz.coding.neighbours import SETTLED, Neighbours
from pltz.coding.parts import PhasedProgress, begin
from pltz.coding.threads import Threads, giving_way
from pltz.coding.workers import START_BYTES, Later, Workers, ahead
from pltz.plt_codec import limits, repeats
from pltz.plt_codec.container.frame import Frame, Kind
from pltz.plt_codec.errors import CorruptError, ModelError, PltzError
from pltz.plt_codec.zstd import may_reach

if TYPE_CHECKING:
    from pltz.coding.neighbours import Grams
    from pltz.coding.options import CodingOptions
    from pltz.coding.parts import Progress, Tokens
    from pltz.coding.workers import Executor
    from pltz.models.bundle.bridge import Bridge
    from pltz.models.session.session import Session

BATCH_BYTES = 1 << 22  # of content coded side by side; bounds memory, large enough to keep a CPU busy
SMALL_BATCH = 1 << 22  # the same on a device where threads code and prove beside each other: proofs join what waits
LARGE_BATCH = 1 << 24  # the same beside processes alone: a batch takes as long as its longest session
LEAST_BYTES = 1 << 10  # of content that a session counts for, however few it has: a batch holds more than that of each
PROVERS = 2  # threads that prove short sessions, and as many for long ones
LOOKED = 128  # sessions whose neighbours are looked for at once
GROUP = 64  # sessions tokenised in one call, fewer where they are long:
GROUP_BYTES = 1 << 19  # of content, or one session


class Depth(NamedTuple):
    """The number of batches that are begun ahead of each stage, where processes or threads have a part of the work."""

    prepare: int = 0
    draft: int = 0
    code: int = 0
    frame: int = 0
    propose: int = 0
    settle: int = 0
    decode: int = 0
    compare: int = 0


INLINE = Depth()
PROCESSES = Depth(draft=1, code=1, propose=1, compare=1)
DEVICE = Depth(draft=4, code=3, frame=2, propose=1, settle=4, decode=12, compare=4)


class Group(NamedTuple):
    """Sessions that are prepared in one call, and their bytes of content, about."""

    sessions: list[Session]
    size: int


@dataclass
class Batch:
    """Sessions coded side by side.

    Attributes:
        groups: all of them, until they are drafts.
        start: number of the first.
        size: their bytes of content, about.
        prepared: of each group, to come.
        drafts: the prepared sessions.
        coded: what is ``made``, to come.
        packed: by number, the bytes of those that zstd may make shorter, to come.
        made: of each, the frame by the model or of a log, or None.
        frames: the shortest ones.
        trials: after earlier sessions, to come, once it is proposed which ones.
        proofs: what its frames are decoded in.
        compared: for each of these, the numbers of the sessions that do not come back, to come.
    """

    groups: list[Group]
    start: int
    size: int = 0
    prepared: list[Later] = field(default_factory=list)
    drafts: list[SessionDraft] = field(default_factory=list)
    coded: Later | None = None
    packed: dict[int, Later] = field(default_factory=dict)
    made: list[Frame | None] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    trials: Later | None = None
    proofs: list[Proof] = field(default_factory=list)
    compared: list[Later] = field(default_factory=list)


class Trials:
    """Trials of sessions after earlier ones, run by run.

    Args:
        earlier: the sessions before.
        executor: of a `DraftCoder`, which makes the trials.
    """

    def __init__(self, earlier: Neighbours, executor: Executor) -> None:
        self._earlier, self._executor = earlier, executor
        self._begun = deque[tuple[int, Later]]()  # the last ones, with their runs

    def propose(self, rows: Sequence[tuple[SessionDraft, Frame]]) -> list[Later]:
        """Begin to code some sessions after earlier ones, run by run, and return what `DraftCoder.code_after` does."""
        begun: list[Later] = []
        for run, group in itertools.groupby(rows, lambda row: self._earlier.run_of(len(row[0].tokens))):
            while self._begun and self._begun[0][0] + SETTLED <= run:
                self._begun.popleft()[1].result()
            proposed, left = list[Proposed](), iter(group)
            while some := list(itertools.islice(left, LOOKED)):
                new = [(draft.number, draft.tokens, cast("Grams", draft.ready.grams)) for draft, _ in some]
                proposed += map(Proposed, *zip(*some, strict=True), self._earlier.propose(new, run))
            chosen = [one for one in proposed if one.earlier.context is not None]
            begun.append(self._executor.submit("code_after", chosen))
            self._begun.append((run, begun[-1]))
        return begun


class Executors(NamedTuple):
    """The executors beside the caller, each over a `DraftCoder`: what codes, what tries, and what proves."""

    code: Executor
    trial: Executor
    short: Executor
    long: Executor

    @classmethod
    def threads(cls, decoder: SessionDecoder, workers: Workers) -> Executors:
        """Return threads, each with a twin of a decoder."""

        def coder(*, urgent: bool = False) -> DraftCoder:
            return DraftCoder(decoder.twin(urgent=urgent), workers)

        urgent = partial(coder, urgent=True)
        return cls(Threads(urgent), Threads(urgent), Threads(coder, PROVERS), Threads(coder, PROVERS))

    def settle(self) -> None:
        """Wait until no thread runs a call, and give back what coders keep."""
        for one in self:
            cast("Threads[DraftCoder]", one).settle(DraftCoder.rest)


class NotWanted(Exception):
    """The pipeline of a call was stopped. Nobody asks for its result."""


class Pipeline:
    """The stages of one call of a codec.

    Args:
        decoder: with the coder of the caller's thread.
        work: what is done beside the model, and ``workers``: processes with it.
        threads: executors beside the caller; None: there are none.
        bridge: to the tokenizer that ids belong to; None where they need none.
        earlier: the sessions before, where they may be coded after each other; None: each is coded alone.
    """

    def __init__(
        self,
        decoder: SessionDecoder,
        work: HostWork,
        workers: Workers,
        threads: Executors | None,
        options: CodingOptions,
        bridge: Bridge | None,
        earlier: Neighbours | None,
    ) -> None:
        self._decoder, self._work, self._workers = decoder, work, workers
        self._threads, self._options, self._bridge, self._earlier = threads, options, bridge, earlier
        self._alone = replace(options, independent=earlier is None, progress=None)  # of preparing a session
        self._stopped = False
        self._fallen = set[int]()  # numbers of the logs under zstd, which no log may have as its context

    def frames(self, sessions: Iterable[Session]) -> Iterator[Frame]:
        """Yield the frame of each session, coded batch by batch."""
        large, groups = self._staffed(groups_of(sessions))
        if not large:
            self._threads = None
        self._executors = self._threads or Executors(*[Workers(DraftCoder(self._decoder, self._workers))] * 4)
        trials = self._earlier and Trials(self._earlier, self._executors.trial)
        self._proposing: Executor = Threads(lambda: trials) if self._threads else Workers(trials)
        self._open = dict[bool, Proof]()  # of short segments and of long ones, those that wait for others
        most, depth = (LARGE_BATCH, PROCESSES) if self._workers.on else (BATCH_BYTES, INLINE)
        if self._threads:
            most, depth = SMALL_BATCH, DEVICE

        def weight(batch: Batch) -> int:
            return max(1, batch.size // most)

        batches = batches_of(groups, most)
        for name, count in depth._asdict().items():
            stage: Callable[[Batch], Batch] = getattr(self, f"_{name}")
            first = count if name == "decode" else 1  # whoever waits for a proof cuts it short, and begins nothing
            batches = map(stage, ahead(batches, count, weight, first) if count else batches)
            if self._threads and name in ("propose", "settle"):
                batches = itertools.chain(batches, self._last())
        try:
            with giving_way() if self._threads else nullcontext():
                for batch in batches:
                    yield from batch.frames
        finally:
            self._stopped = True
            if self._threads:
                cast("Threads[Any]", self._proposing).settle()
                self._threads.settle()

    def _staffed(self, groups: Iterator[Group]) -> tuple[bool, Iterator[Group]]:
        """Return whether there are `START_BYTES` or more, so that processes were asked for, and all groups."""
        taken: list[Group] = []
        size = 0
        if self._workers.count or self._threads:
            for group in groups:
                taken.append(group)
                size += group.size
                if size >= START_BYTES:
                    self._workers.on = self._workers.count > 0
                    break
        return size >= START_BYTES, itertools.chain(taken, groups)

    # ---- progress

    def _told(self, counted: bool = True) -> Progress | None:
        """Return what coders tell of tokens: with threads they learn that nobody waits for them."""
        if self._threads:
            return self._going_on
        return self._options.progress if counted else None

    def _going_on(self, _: int) -> None:
        if self._stopped:
            raise NotWanted

    def _counted(self, phase: str, batch: Batch, results: Iterable[Later]) -> list[Any]:
        """Return the results of a phase (encode, verify) of a batch, and tell the progress of it.

        With threads all tokens are told here; without, coders tell of all but those of logs.
        """
        progress = self._options.progress
        if not progress:
            return [later.result() for later in results]
        frames: Sequence[Frame | None] = batch.frames or [None] * len(batch.drafts)
        logs = sum(draft.work for draft in batch.drafts if draft.ready.log)
        work = logs + sum(
            draft.work if frame is None else frame.by_model and frame.coded
            for draft, frame in zip(batch.drafts, frames, strict=True)
            if not draft.ready.log
        )
        begin(progress, phase, work)
        found = [later.result() for later in results]
        if phase == "verify" or self._counts_coded:
            progress(work if self._threads else logs)
        return found

    @property
    def _counts_coded(self) -> bool:
        """Return whether the tokens that are coded are counted; if not, those that are proved are."""
        return isinstance(self._options.progress, PhasedProgress) or not self._options.verify

    # ---- stages

    def _prepare(self, batch: Batch) -> Batch:
        """Begin to prepare the sessions of a batch."""
        for group in batch.groups:
            own = [session for session in group.sessions if not self._is_bridged(session)]
            batch.prepared.append(self._workers.submit("prepare", own, self._alone))
        return batch

    def _draft(self, batch: Batch) -> Batch:
        """Take the prepared sessions of a batch, choose the contexts of its logs, and begin to split these.

        Raises PltzError of the first session that cannot be coded.
        """
        number = batch.start
        for group, later in zip(batch.groups, batch.prepared, strict=True):
            prepared = iter(later.result())
            for session in group.sessions:
                try:
                    ready = self._bridged(session) if self._is_bridged(session) else next(prepared)
                    if isinstance(ready, PltzError):
                        raise ready
                    batch.drafts.append(self._drafted(number, session, ready))
                except PltzError as exc:
                    raise named("session", number, exc) from exc
                number += 1
        batch.groups, batch.prepared = [], []
        return batch

    def _is_bridged(self, session: Session) -> bool:
        """Return whether the ids of a session are those of another tokenizer."""
        return self._bridge is not None and session.kind == "ids"

    def _bridged(self, session: Session) -> Prepared | PltzError:
        """Return a session prepared whose ids are those of another tokenizer. Raises PltzError."""
        content = session.to_bytes()
        by_zstd = len(content) > limits.ZSTD_ABOVE
        tokens, patch = (None, b"") if by_zstd else cast("Bridge", self._bridge).to_bundle(session.value)
        return self._work.prepared(content, tokens, self._alone, patch)

    def _drafted(self, number: int, session: Session, ready: Prepared) -> SessionDraft:
        context = None
        if self._earlier and ready.passages is not None:
            context = self._earlier.log(number, ready.content, ready.passages)
        draft = SessionDraft(number, session, ready, context)
        if not ready.log:
            return draft
        by_model = self._options.model_logs and len(ready.content) <= limits.ZSTD_ABOVE
        return replace(draft, split=self._decoder.logs.begin(ready.content, draft.above, by_model))

    def _code(self, batch: Batch) -> Batch:
        """Begin to code the sessions of a batch by the model, but for those that it would code in vain."""
        asked: list[tuple[int, SessionDraft, Tokens, look.Samples]] = []
        for n, draft in enumerate(batch.drafts):
            if (tokens := draft.ready.tokens) is not None:
                left = len(tokens) - sum(copy.length for copy in draft.ready.copies)
                if left >= look.LEAST and (samples := look.doubtful(left, draft.ready.content, draft.ready.fast)):
                    asked.append((n, draft, repeats.literals(tokens, draft.ready.copies), samples))
                    batch.packed[draft.number] = self._workers.submit("packed", draft.ready.content)
        sizes = look.expected_sizes(self._decoder.coder, [row[2:] for row in asked]) if asked else ()
        for (n, draft, _, _), size in zip(asked, sizes, strict=True):
            size += len(repeats.pack(draft.ready.copies)) if draft.ready.copies else 0
            if len(batch.packed[draft.number].result()) <= size:
                batch.drafts[n] = replace(draft, ready=replace(draft.ready, tokens=None))
        told = self._told(self._counts_coded)
        batch.coded = self._executors.code.submit("code", batch.drafts, self._options, told)
        return batch

    def _frame(self, batch: Batch) -> Batch:
        """Take what was coded of a batch, and begin to code by zstd what may be shorter so."""
        [batch.made] = self._counted("encode", batch, [cast("Later", batch.coded)])
        batch.coded = None
        for draft, frame in zip(batch.drafts, batch.made, strict=True):
            size = len(frame.encode()) if frame else NO_SIZE
            known = (frame and frame.log) or draft.number in batch.packed
            if not known and may_reach(draft.ready.fast, size):
                batch.packed[draft.number] = self._workers.submit("packed", draft.ready.content)
        return batch

    def _propose(self, batch: Batch) -> Batch:
        """Take the shorter frame of each session of a batch, and begin to look for earlier ones to code it after."""
        rows: list[tuple[SessionDraft, Frame]] = []
        for draft, frame in zip(batch.drafts, batch.made, strict=True):
            if frame and frame.context in self._fallen:
                batch.packed[draft.number], frame = self._workers.submit("packed", draft.ready.content), None
            if draft.number in batch.packed:
                other = draft.by_bytes(batch.packed[draft.number].result())
                frame = frame if frame and len(frame.encode()) <= len(other.data) else other
            assert frame is not None
            if draft.ready.log and not frame.log:
                self._fallen.add(draft.number)
            batch.frames.append(frame)
            if draft.ready.grams is not None and frame.by_model:
                rows.append((draft, frame))
        batch.made, batch.packed = [], {}
        if self._earlier:
            batch.trials = self._proposing.submit("propose", rows)
        return batch

    def _settle(self, batch: Batch) -> Batch:
        """Take the shorter frames after earlier sessions, and begin to decode all frames of a batch."""
        found: dict[int, tuple[Frame, Tokens]] = {}
        for later in batch.trials.result() if batch.trials else ():
            found |= later.result()
        batch.trials = None
        for n, draft in enumerate(batch.drafts):
            frame, above = found.get(draft.number, (batch.frames[n], NO_MARK))
            batch.frames[n] = frame
            if self._options.verify and frame.has_tokens:
                wanted = draft.ready.content if frame.log else draft.tokens
                self._begin_proof(batch, ProofSegment(draft.number, coded_of(frame, above, draft.above), wanted))
        together = FAST_TOGETHER if self._options.layout == "fast" else TOGETHER
        for proof in batch.proofs:
            proof.size += batch.size
            if not self._threads or proof.size >= together:
                proof.send()
        return batch

    def _begin_proof(self, batch: Batch, segment: ProofSegment) -> None:
        """Add a segment of a batch to those that are decoded together."""
        long = segment.coded.count > LONG and not isinstance(segment.wanted, bytes)
        proof = self._open.get(long)
        if proof is None or proof.sent:
            executor = self._executors.long if long else self._executors.short
            proof = self._open[long] = Proof(executor, self._told())
        proof.segments.append(segment)
        if proof not in batch.proofs:
            batch.proofs.append(proof)

    def _last(self) -> Iterator[Batch]:
        """Have all that waits for others decoded, since no more batches come: what is settled, then the rest."""
        for proof in self._open.values():
            proof.send()
        yield from ()

    def _decode(self, batch: Batch) -> Batch:
        """Wait until the frames of a batch are decoded."""
        if batch.proofs:
            batch.compared = self._counted("verify", batch, batch.proofs)
        batch.proofs = []
        return batch

    def _compare(self, batch: Batch) -> Batch:
        """Check each frame of a batch to give its session back.

        Fallback frames are always checked, since they cost next to nothing.

        Raises:
            ModelError: the first session that does not come back.
        """
        wrong = set[int]().union(*(later.result() for later in batch.compared))
        for draft, frame in zip(batch.drafts, batch.frames, strict=True):
            how = "it does not decode" if draft.number in wrong else self._difference(draft, frame)
            if how:
                raise ModelError(f"session {draft.number} does not come back from its frame ({how}): nothing was kept")
        return batch

    def _difference(self, draft: SessionDraft, frame: Frame) -> str | None:
        """Return how a session differs from its frame, which decodes to its tokens or bytes; None where it does not."""
        if frame.has_tokens and (frame.log or frame.content is Kind.CHAT or not self._options.verify):
            return None  # `transcript.to_tokens` has proved that these tokens give this chat
        try:
            tokens = draft.tokens if frame.has_tokens else None
            return draft.session.difference(self._decoder.restore(frame, tokens, draft.number, self._bridge)[0]) or None
        except CorruptError as exc:
            return str(exc)


def batches_of(groups: Iterable[Group], most: int) -> Iterator[Batch]:
    """Yield batches of about ``most`` bytes of content, or of one group."""
    batch, start = Batch([], 0), 0
    for group in groups:
        batch.groups.append(group)
        start += len(group.sessions)
        batch.size += group.size
        if batch.size >= most:
            yield batch
            batch = Batch([], start)
    if batch.groups:
        yield batch


def groups_of(sessions: Iterable[Session]) -> Iterator[Group]:
    """Yield runs of at most GROUP sessions and about GROUP_BYTES of content."""
    group: list[Session] = []
    size = 0
    for session in sessions:
        group.append(session)
        size += max(LEAST_BYTES, _size(session))
        if len(group) == GROUP or size >= GROUP_BYTES:
            yield Group(group, size)
            group, size = [], 0
    if group:
        yield Group(group, size)


def _size(session: Session) -> int:
    """Return the bytes of a session, about: a chat is not written as JSON to learn that."""
    if session.kind != "chat":
        return session.value.nbytes if session.kind == "ids" else len(session.value)
    try:
        return len(marshal.dumps(session.value))
    except ValueError:
        return 0  # no JSON: refused where it is prepared

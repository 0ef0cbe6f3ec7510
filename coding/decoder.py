"""Frames of .pltz files to sessions, each compared with its content check: the decoding half of a codec.

    frame --model--> bundle tokens --copies put back--> tokens --transcript, bridge--> session
          --zstd--> plain bytes ------------------------------------------------------> session
          --log coder--> plain bytes -------------------------------------------------> session

Frames are decoded side by side in batches, since an engine is fast only when many sequences run together. A
file that lies about its counts is found out early. Memory is bounded by a batch, whatever the file holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pltz.coding.codecs.codec import NO_MARK, BundleCodec, BytesCodec, Coded, coded_of
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.decode_limits import DecodeLimits
from pltz.models.bundle.locations import described, how_to_get
from pltz.models.session import transcript
from pltz.models.session.session import Kind as SessionKind, Session
from pltz.models.session.spelling import WRITINGS
from pltz.plt_codec.container.file import Reader
from pltz.plt_codec.container.frame import CHECK_KEPT, CONTEXT_TOKENS, Frame, Kind, content_check, context_of
from pltz.plt_codec.errors import BundleMismatch, CorruptError, PltzError, TokenizerMismatch, VersionError

if TYPE_CHECKING:
    from pltz.coding.parts import Coder, Doubling, Parts, Progress, Tokens
    from pltz.coding.workers import Workers
    from pltz.models.bundle.bridge import Bridge
    from pltz.models.bundle.tokenizer import Ids
    from pltz.plt_codec.container.header import Header

BATCH_TOKENS = 1 << 20  # tokens decoded side by side
LEAST_TOKENS = 1 << 6  # that a frame counts for, however few it has: at most 16,384 frames side by side
KEPT = 1 << 25  # bytes of the tokens of contexts that are kept from batch to batch

DEFAULT = DecodeLimits()  # where a caller names none


class SessionDecoder:
    """A decoder of the sessions in .pltz files, with one bundle.

    Args:
        bundle: tokenizer, dictionary and identity.
        coder: the token coder over this bundle's engine.
        workers: processes beside it; None: none.
    """

    def __init__(self, bundle: Parts, coder: Coder, workers: Workers | None = None) -> None:
        self.bundle = bundle
        self.coder = coder
        self.model = BundleCodec(bundle, coder=coder, reach=CONTEXT_TOKENS)
        self.logs = LogCodec(bundle, coder=coder, workers=workers)
        self.plain = BytesCodec(bundle)

    def twin(self, *, urgent: bool = False) -> SessionDecoder:
        """Return a decoder with a coder of its own on the same device, for another thread (`Doubling`)."""
        twin = SessionDecoder(self.bundle, cast("Doubling", self.coder).twin(urgent=urgent))
        twin.logs = self.logs.twin(twin.coder)
        return twin

    def rest(self) -> None:
        """Give back the memory of the device that a twin keeps from call to call."""
        cast("Doubling", self.coder).rest()

    def decompress(
        self,
        data: bytes | Reader,
        indices: Iterable[int] | None = None,
        *,
        bridge: Bridge | None = None,
        progress: Progress | None = None,
        limits: DecodeLimits = DEFAULT,
    ) -> list[Session]:
        """Return sessions of a .pltz file, decoded side by side in large groups.

        Args:
            data: the file, or a reader of it.
            indices: session numbers, in any order; None is all of them.
            bridge: to the tokenizer that the file's ids belong to, if it names one.
            progress: called with the number of tokens decoded since the last call.
            limits: most tokens, bytes and seconds.

        Raises:
            LimitError: the sessions ask for more than the limits.
            FormatError: not a .pltz file; CorruptError, VersionError: a damaged or a newer one.
            BundleMismatch: it was written with another bundle.
            TokenizerMismatch: its ids belong to another tokenizer than the bridge's.
            UsageError: there is no session of that number.
        """
        return list(self.decompress_each(data, indices, bridge=bridge, progress=progress, limits=limits))

    def decompress_each(
        self,
        data: bytes | Reader,
        indices: Iterable[int] | None = None,
        *,
        bridge: Bridge | None = None,
        progress: Progress | None = None,
        limits: DecodeLimits = DEFAULT,
    ) -> Iterator[Session]:
        """Yield the sessions as `decompress` does, one after the other.

        Memory is bounded by a batch and its largest session, not by the file's content.

        Raises:
            PltzError: as `decompress`.
        """
        reader = data if isinstance(data, Reader) else Reader(data)
        self.check(reader.header)
        numbers = range(len(reader)) if indices is None else list(indices)
        frames = reader.frames(numbers)
        for frame in frames:
            _check_tokenizer(reader.header, frame, bridge)
        limits.check([*frames, *_contexts(reader, dict(zip(numbers, frames, strict=True))).values()])
        progress, size = limits.timed(progress), 0
        bridge = None if bridge is None or bridge.identity else bridge
        checks: dict[int, int] = {}
        known = _Known()
        for part in _parts(frames):
            tokens = self._tokens(reader, frames[part], numbers[part], known, progress)
            for frame, found, number in zip(frames[part], tokens, numbers[part], strict=True):
                session, checks[number] = self.restore(frame, found, number, bridge)
                size = limits.count(session, size)
                yield session
        _check_contents(reader, checks)

    def token_ids(
        self, reader: Reader, index: int, *, bridge: Bridge | None = None, limits: DecodeLimits = DEFAULT
    ) -> Ids:
        """Return the ids (T,) int32 for prefilling a target to make session ``index`` hot again.

        A chat gives its messages and a text its text, in bundle tokens. Ids stay ids of their own tokenizer.

        Raises:
            OpaqueContentError: the session was kept as opaque.
            PltzError: as `decompress`.
        """
        if not (info := reader.info(index)).by_model or info.content is not Kind.CHAT:
            session = self.decompress(reader, [index], bridge=bridge, limits=limits)[0]
            return cast("Ids", session.value) if session.kind == "ids" else self._conversation(session)
        self.check(reader.header)
        frame = reader.frame(index)
        limits.check([frame, *_contexts(reader, {index: frame}).values()])
        ids = cast("Tokens", self._tokens(reader, [frame], [index], _Known(), limits.timed(None))[0])
        _check_contents(reader, {index: _check_content(frame, ids, index)})
        return transcript.conversation_ids(ids)

    def check(self, header: Header) -> None:
        """Refuse a file that this codec's bundle did not write.

        Raises:
            BundleMismatch: another bundle.
        """
        if header.bundle_id != self.bundle.id:
            raise BundleMismatch(
                f"expected a file of the loaded bundle {described(self.bundle.id)}, found one of bundle "
                f"{described(header.bundle_id)}: load that bundle by name or folder (`pltz bundle show` lists "
                f"those at hand, `pltz bundle add` adds one), or {how_to_get(header.bundle_id)}"
            )

    def _conversation(self, session: Session) -> Ids:
        tokens = transcript.to_tokens(session, self.bundle.tokenizer)
        return transcript.conversation_ids(tokens) if session.kind == "chat" else tokens

    def _tokens(
        self, reader: Reader, frames: Sequence[Frame], numbers: Sequence[int], known: _Known, progress: Progress | None
    ) -> list[Tokens | None]:
        """Return the bundle tokens of each model frame and the bytes of each log, (T,); None for a fallback frame.

        Contexts beside them are decoded too, and do not count for ``progress``. Frames that wait for others are decoded
        in further calls of their codec, at most `MOST_CONTEXTS`.

        ``known``: the contexts of these are added.
        """
        own = dict(zip(numbers, frames, strict=True))
        every = own | _contexts(reader, own)
        found = {n: known.begins[n] for n in every.keys() - own.keys() if n in known.begins}
        _check_contexts(every, [n for n, frame in every.items() if frame.has_tokens and n not in found])
        logs = known.logs.copy()
        for n, frame in every.items():
            if frame.log:
                _log(n, every, logs)
        left = [n for n, frame in every.items() if frame.has_tokens and n not in found and (n in own or not frame.log)]
        while left:
            ready = [n for n in left if (context := every[n].context) not in left or context is None]
            of_logs = [n for n in ready if every[n].log]
            mine = [n for n in ready if not every[n].log and n in own]
            beside = [n for n in ready if n not in own]
            for some, told in ((beside, None), (mine, progress)):
                coded = [coded_of(every[n], _above(n, every, found)) for n in some]
                found |= zip(some, self.model.decode(coded, progress=told) if coded else (), strict=True)
            if of_logs:
                found |= zip(of_logs, self.logs.decode([logs[n] for n in of_logs], progress=progress), strict=True)
            left = [n for n in left if n not in found]
        known.add(every.values(), found, logs)
        return [found.get(n) for n in numbers]

    def restore(self, frame: Frame, tokens: Tokens | None, number: int, bridge: Bridge | None) -> tuple[Session, int]:
        """Return the session of a frame and its content check, compared.

        ``tokens``: the decoded tokens, (T,), of a frame that has some.
        """
        kind = cast(SessionKind, frame.content.kind)
        if tokens is None or frame.log:
            content = self.plain.content(coded_of(frame)) if tokens is None else tokens.tobytes()
            check = _check_content(frame, content, number)
            return _written(frame, Session.from_bytes(kind, content)), check
        if frame.content is Kind.IDS:
            if bridge is not None:
                tokens = bridge.from_bundle(tokens, frame.patch)
            elif frame.patch:
                raise CorruptError(f"session {number} has a patch, but its ids are bundle tokens: the file is damaged")
        check = _check_content(frame, tokens, number)
        return _written(frame, transcript.from_tokens(kind, tokens, self.bundle.tokenizer)), check


class _Known:
    """Contexts that were decoded before, by number: of sessions of tokens the beginnings, (T,), and logs."""

    def __init__(self) -> None:
        self.begins: dict[int, Tokens] = {}
        self.logs: dict[int, Coded] = {}

    def add(self, frames: Iterable[Frame], found: Mapping[int, Tokens], logs: Mapping[int, Coded]) -> None:
        """Add the contexts of frames, after those of before if these are few. ``found``, ``logs``: decoded ones."""
        sizes = [tokens.nbytes for tokens in self.begins.values()] + [log.count for log in self.logs.values()]
        if sum(sizes) > KEPT:
            self.begins, self.logs = {}, {}
        for context in {frame.context for frame in frames if frame.context is not None}:
            if context in logs:
                self.logs[context] = logs[context]
            else:
                self.begins[context] = found[context][:CONTEXT_TOKENS].copy()


def _log(number: int, frames: Mapping[int, Frame], logs: dict[int, Coded]) -> Coded:
    """Return a log to decode after its context. ``logs``: by number; it and those behind it are added."""
    if number not in logs:
        context = frames[number].context
        logs[number] = coded_of(frames[number], up=None if context is None else _log(context, frames, logs))
    return logs[number]


def _written(frame: Frame, session: Session) -> Session:
    """Return a session with the writing of its frame. Raises VersionError for one that this version does not know."""
    if frame.writing >= WRITINGS:
        raise VersionError(f"a chat has writing {frame.writing}, which this pltz does not know: use a newer pltz")
    return replace(session, writing=frame.writing) if frame.writing else session


def named(what: str, number: int, error: PltzError) -> PltzError:
    """Return the same error with a kind and number, such as "session 3", in front of its message."""
    named = type(error)(f"{what} {number}: {error}")
    named.__cause__ = error
    return named


def _contexts(reader: Reader, frames: Mapping[int, Frame]) -> dict[int, Frame]:
    """Return the frames that these are coded after and that are not among them, by number. Raises CorruptError."""
    found, new = dict[int, Frame](), [*frames.values()]
    while wanted := sorted({f.context for f in new if f.context is not None} - frames.keys() - found.keys()):
        new = reader.frames(wanted)
        found |= zip(wanted, new, strict=True)
    return found


def _check_contexts(frames: Mapping[int, Frame], numbers: Iterable[int]) -> None:
    """Check that the context of a log is a log, and that of another session is none. Raises CorruptError."""
    for frame in map(frames.__getitem__, numbers):
        context = frame if frame.context is None else frames[frame.context]
        if context.log is not frame.log or not context.has_tokens:
            raise CorruptError("a session is coded after one of another kind: the file is damaged")


def _above(number: int, frames: Mapping[int, Frame], tokens: Mapping[int, Tokens]) -> Tokens:
    """Return the tokens that a frame was coded after, (m,): those of the contexts behind it."""
    line: list[Tokens] = []
    frame = frames[number]
    while (context := frame.context) is not None:
        line.append(tokens[context])
        frame = frames[context]
    return context_of(*line) if line else NO_MARK


def _parts(frames: Sequence[Frame]) -> Iterator[slice]:
    """Yield runs of frames of about BATCH_TOKENS tokens, so a file that lies about its counts is found out early."""
    start = tokens = 0
    for end, frame in enumerate(frames, 1):
        tokens += max(LEAST_TOKENS, frame.count if frame.has_tokens else 0)
        if tokens >= BATCH_TOKENS:
            yield slice(start, end)
            start, tokens = end, 0
    yield slice(start, len(frames))


def _check_content(frame: Frame, content: bytes | Tokens, number: int) -> int:
    """Return the content check, after its low byte was compared with the frame's."""
    check = content_check(frame.content, frame.method, frame.count, content)
    if (check ^ frame.check) & CHECK_KEPT:
        raise CorruptError(f"session {number} does not match its checksum: the file is damaged")
    return check


def _check_contents(reader: Reader, checks: dict[int, int]) -> None:
    """Compare the content checks, by number, with the check of all contents, where all sessions were read."""
    if len(checks) == len(reader):
        reader.check_contents(checks[number] for number in range(len(reader)))


def _check_tokenizer(header: Header, frame: Frame, bridge: Bridge | None) -> None:
    """Refuse ids that belong to another tokenizer. Compressed ids come back without a tokenizer, coded ones do not."""
    if frame.content is not Kind.IDS or (bridge is None and not frame.by_model):
        return
    expected = header.tokenizer_fingerprint
    found = None if bridge is None or (bridge.identity and expected is None) else bridge.fingerprint
    if expected != found:
        raise TokenizerMismatch(
            f"the ids in this file belong to {_tokenizer_name(expected)}, found {_tokenizer_name(found)}: "
            "name the tokenizer or target they were frozen with (--tokenizer, --target)"
        )


def _tokenizer_name(fingerprint: bytes | None) -> str:
    return "the bundle's own tokenizer" if fingerprint is None else f"tokenizer {fingerprint.hex()}"

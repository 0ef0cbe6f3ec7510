"""Codec: sessions to the bytes of a .pltz file and back, every frame decoded before it is acknowledged.

    session --transcript, bridge--> bundle tokens ------------------> model--> frame
                                                  --repeats cut out-> model--> frame    the shortest goes into the file
            --plain bytes, zstd----------------------------------------------> frame

What: `Codec` joins a bundle (tokenizer, dictionary, id), a token coder (the model's engine) and the container.
How: sessions are taken in batches, since the engine is fast only when many sequences run side by side; with ``verify``
each model frame is decoded again and the whole session compared before the bytes are handed out.
Why three methods: the model sees some thousand tokens back, so what a log of hundreds of kilobytes repeats is taken out as copies
(plt_codec/copies.py); what the model does not know at all zstd may code shorter; opaque content (images) has no tokens at all.

    codec = Codec.load()
    data = codec.compress([Session("text", b"hello")])
    assert codec.decompress(data) == [Session("text", b"hello")]
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, cast

import numpy.typing as npt

from pltz.models import transcript
from pltz.models.session import Kind as SessionKind
from pltz.models.session import Session
from pltz.plt_codec import copies
from pltz.plt_codec.container import Frame, Header, Kind, Reader, Writer, content_check
from pltz.plt_codec.errors import (
    BundleMismatch,
    ContentError,
    CorruptError,
    ModelError,
    OpaqueContentError,
    PltzError,
    TokenizerMismatch,
    VersionError,
)
from pltz.plt_codec.fallback import Fallback

if TYPE_CHECKING:
    from pltz.models.bundle import Bundle
    from pltz.models.tokenizer import BundleTokenizer, Ids
    from pltz.plt_codec.item import Encoded, FrameItem

BATCH_TOKENS = 1 << 20  # coded side by side; bounds memory, large enough to keep any engine busy
GROUP = 64  # sessions tokenised in one call, fewer where they are long:
GROUP_BYTES = 1 << 22  # of content, or one session
BATCH_FILES = 4096  # opened together
COPIES_FIELDS = 3  # bytes at most, below 16 kB of copies: head and length
ID_BYTES = 4  # bytes an id counts for in `content_bytes`

Progress = Callable[[int], None]
OnError = Literal["raise", "return"]
Tokens = npt.NDArray[Any]  # (T,) integers


class Parts(Protocol):
    """What a codec asks of a bundle (`pltz.models.bundle.Bundle`)."""

    @property
    def id(self) -> bytes:
        """16 bytes."""

    @property
    def contract(self) -> int:
        """Numeric contract version."""

    @property
    def tokenizer(self) -> BundleTokenizer:
        """Bytes to bundle tokens."""

    @property
    def zstd_dict(self) -> bytes:
        """Dictionary of the fallback."""


class Coder(Protocol):
    """Bundle tokens to bits and back (`pltz.plt_codec.frame.TokenCoder`)."""

    def encode(
        self,
        sequences: Sequence[Tokens],
        *,
        lanes: int | None = None,
        steps: int | None = None,
        progress: Progress | None = None,
    ) -> Sequence[Encoded]:
        """One `Encoded` a sequence."""

    def decode(self, items: Sequence[FrameItem], *, progress: Progress | None = None) -> Sequence[Tokens]:
        """One sequence an item."""


class TokenBridge(Protocol):
    """Ids of another tokenizer to bundle tokens and back (`pltz.models.bridge.Bridge`)."""

    @property
    def fingerprint(self) -> bytes:
        """16 bytes, of the other tokenizer."""

    @property
    def identity(self) -> bool:
        """Whether its ids are the bundle's."""

    def to_bundle(self, ids: npt.ArrayLike) -> tuple[Ids, bytes]:
        """Bundle tokens and patch."""

    def from_bundle(self, bundle_ids: npt.ArrayLike, patch: bytes) -> Ids:
        """The ids again."""


@dataclass(frozen=True)
class Coded:
    """What the model made of a session of ``tokens`` tokens: all of them, or those that ``copies`` left over."""

    tokens: int
    encoded: Encoded
    copies: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of both, and of the fields that say so."""
        return len(self.encoded.data) + (len(self.copies) + COPIES_FIELDS if self.copies else 0)


@dataclass(frozen=True)
class _Draft:
    """Session ``number`` on its way into a frame. ``tokens`` None: it has none and goes to the fallback."""

    number: int
    session: Session
    tokens: Ids | None
    patch: bytes = b""


class Codec:
    """Sessions to .pltz bytes and back, with one bundle.

    Args:
        bundle: tokenizer, dictionary and identity.
        coder: the token coder over this bundle's engine.
        note: told what the model made of each session that has tokens, in order; its frame may be the fallback's all the same.
    """

    def __init__(self, bundle: Parts, coder: Coder, note: Callable[[Coded], None] | None = None) -> None:
        self.bundle = bundle
        self.coder = coder
        self._note = note
        self._fallback = Fallback(bundle.zstd_dict)

    @classmethod
    def load(
        cls,
        bundle: str | os.PathLike[str] | Bundle | None = None,
        *,
        device: str = "cpu",
        threads: int | None = None,
    ) -> Codec:
        """The codec of a bundle, by name, folder or loaded; None is the bundle that ships with pltz.

        Raises:
            UsageError: no such bundle or device.
            ModelError: the bundle cannot be used.
        """
        from pltz.models.bundle import Bundle

        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        return cls(loaded, loaded.coder(device, threads))

    # ---- sessions -> bytes

    def compress(
        self,
        sessions: Iterable[Session],
        *,
        lanes: int | None = None,
        steps: int | None = None,
        bridge: TokenBridge | None = None,
        target_fingerprint: bytes | None = None,
        verify: bool = True,
        keep_opaque: bool = False,
        progress: Progress | None = None,
    ) -> bytes:
        """A .pltz file of these sessions; the arguments are those of `compress_into`."""
        sink = io.BytesIO()
        self.compress_into(
            sink,
            sessions,
            lanes=lanes,
            steps=steps,
            bridge=bridge,
            target_fingerprint=target_fingerprint,
            verify=verify,
            keep_opaque=keep_opaque,
            progress=progress,
        )
        return sink.getvalue()

    def compress_into(
        self,
        sink: BinaryIO,
        sessions: Iterable[Session],
        *,
        lanes: int | None = None,
        steps: int | None = None,
        bridge: TokenBridge | None = None,
        target_fingerprint: bytes | None = None,
        verify: bool = True,
        keep_opaque: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Write a .pltz file of these sessions, in batches; returns how many there were.

        The file is whole when this returns: whatever stops it before leaves a file that every reader refuses.

        Args:
            sink: binary file; written front to back.
            lanes, steps: layout of the blocks; None is the default rule, which costs no bytes.
            bridge: to the tokenizer that sessions of ids belong to; None: they are bundle tokens.
            target_fingerprint: 16 bytes of the target the sessions are frozen for; None: any.
            verify: decode every frame and compare before it is written.
            keep_opaque: keep sessions with images or audio as compressed JSON, instead of refusing them.
            progress: called with a number of tokens, whenever so many more are done.

        Raises:
            ContentError: a session cannot be coded; OpaqueContentError for an image, audio or file part.
            TokenizerMismatch: ids without a bridge that are not ids of the bundle.
            ModelError: a frame did not decode to what was encoded.
        """
        writer = Writer(sink, self._header(bridge, target_fingerprint))
        bridge = None if bridge is None or bridge.identity else bridge
        for drafts in self._batches(sessions, bridge, keep_opaque):
            for frame in self._frames(drafts, lanes, steps, bridge, verify, progress):
                writer.add(_sound(frame))
        writer.finish()
        return len(writer)

    def compress_many(
        self,
        sessions: Iterable[Session | PltzError],
        *,
        lanes: int | None = None,
        steps: int | None = None,
        bridge: TokenBridge | None = None,
        target_fingerprint: bytes | None = None,
        verify: bool = True,
        keep_opaque: bool = False,
        errors: OnError = "raise",
        progress: Progress | None = None,
    ) -> Iterator[bytes | Any]:
        """A .pltz file for each session, in their order, coded side by side as in one file.

        Sessions are read as they are needed, a batch ahead; memory is bounded by a batch and its largest session. The
        engine starts a batch's long sessions first and puts the next one in where one ends.

        Args:
            sessions: any iterable. An exception among them is passed on as the result of its place.
            errors: "raise" the first error, which names its session, or "return" it, a PltzError, in the place of the file.
            lanes, steps, bridge, target_fingerprint, verify, keep_opaque, progress: as in `compress_into`.

        Raises: as `compress_into`, with errors="return" only what is about no single session.
        """
        header = self._header(bridge, target_fingerprint)
        bridge = None if bridge is None or bridge.identity else bridge
        for drafts in self._batches(sessions, bridge, keep_opaque):
            for frame in self._frames(drafts, lanes, steps, bridge, verify, progress):
                if errors == "return" and not isinstance(frame, Frame):
                    yield frame
                else:
                    sink = io.BytesIO()
                    writer = Writer(sink, header)
                    writer.add(_sound(frame))
                    writer.finish()
                    yield sink.getvalue()

    def _header(self, bridge: TokenBridge | None, target_fingerprint: bytes | None) -> Header:
        return Header(
            contract=self.bundle.contract,
            bundle_id=self.bundle.id,
            tokenizer_fingerprint=None if bridge is None or bridge.identity else bridge.fingerprint,
            target_fingerprint=target_fingerprint,
        )

    def _batches(
        self, sessions: Iterable[Session | PltzError], bridge: TokenBridge | None, keep_opaque: bool
    ) -> Iterator[list[_Draft | PltzError]]:
        """All sessions tokenised, in lists of about BATCH_TOKENS tokens; one that cannot be coded is the error that says so."""
        batch: list[_Draft | PltzError] = []
        start = tokens = 0
        for group in _groups(sessions):
            for draft in self._drafts(group, start, bridge, keep_opaque):
                batch.append(draft)
                tokens += len(draft.tokens) if isinstance(draft, _Draft) and draft.tokens is not None else 0
            start += len(group)
            if tokens >= BATCH_TOKENS:
                yield batch
                batch, tokens = [], 0
        if batch:
            yield batch

    def _drafts(
        self, group: list[Session | PltzError], start: int, bridge: TokenBridge | None, keep_opaque: bool
    ) -> list[_Draft | PltzError]:
        """Tokenise a group in one call; where that fails, one by one, to name the session that cannot be coded."""
        good = [session for session in group if isinstance(session, Session)]
        if len(good) == len(group) and not (bridge and any(session.kind == "ids" for session in good)):
            try:
                tokens = transcript.to_tokens_many(good, self.bundle.tokenizer)
                return [_Draft(*found) for found in zip(itertools.count(start), good, tokens)]
            except (ContentError, TokenizerMismatch):
                pass
        drafts: list[_Draft | PltzError] = []
        for number, session in enumerate(group, start):
            try:
                if isinstance(session, PltzError):
                    raise session
                drafts.append(self._draft(number, session, bridge, keep_opaque))
            except PltzError as exc:
                drafts.append(_named("session", number, exc))
        return drafts

    def _draft(self, number: int, session: Session, bridge: TokenBridge | None, keep_opaque: bool) -> _Draft:
        if session.kind == "ids" and bridge is not None:
            return _Draft(number, session, *bridge.to_bundle(session.value))
        try:
            return _Draft(number, session, transcript.to_tokens(session, self.bundle.tokenizer))
        except OpaqueContentError:
            if not keep_opaque:
                raise
        return _Draft(number, session, None)

    def _frames(
        self,
        drafts: list[_Draft | PltzError],
        lanes: int | None,
        steps: int | None,
        bridge: TokenBridge | None,
        verify: bool,
        progress: Progress | None,
    ) -> list[Frame | PltzError]:
        """The shorter frame of each draft, found to give the session back; an error is passed on."""
        good = [draft for draft in drafts if isinstance(draft, _Draft)]
        coded = self._encode(good, lanes, steps, None if verify else progress)
        changed = self._changed(good, coded, bridge, verify, progress)
        frames = iter(changed.get(draft.number, frame) for draft, frame in zip(good, coded, strict=True))
        return [next(frames) if isinstance(draft, _Draft) else draft for draft in drafts]

    def _encode(
        self, drafts: list[_Draft], lanes: int | None, steps: int | None, progress: Progress | None
    ) -> list[Frame]:
        """The shortest frame of each draft."""
        sequences = [draft.tokens for draft in drafts if draft.tokens is not None]
        whole = self.coder.encode(sequences, lanes=lanes, steps=steps, progress=progress)
        cut = self._cut(sequences, whole, lanes, steps)
        best = iter([cut.get(i, Coded(len(sequences[i]), one)) for i, one in enumerate(whole)])
        frames = []
        for draft in drafts:
            plain = self._fallback_frame(draft.session)
            if draft.tokens is None:
                frames.append(plain)
                continue
            coded = next(best)
            frame = _model_frame(draft, draft.tokens, coded)
            by_model = frame.fits and len(frame.encode()) <= len(plain.encode())
            frames.append(frame if by_model else plain)
            if self._note:
                self._note(coded)
        return frames

    def _cut(
        self, sequences: list[Ids], whole: Sequence[Encoded], lanes: int | None, steps: int | None
    ) -> dict[int, Coded]:
        """By number, the sequences that are shorter with their long repeats taken out."""
        found: dict[int, tuple[Ids, bytes]] = {}
        for i, (tokens, one) in enumerate(zip(sequences, whole, strict=True)):
            taken = copies.find(tokens)
            packed = copies.pack(taken) if taken else b""
            mean = len(one.data) / max(len(tokens), 1)  # bytes a token; repeats cost the model less
            if 2 * len(packed) < mean * sum(copy.length for copy in taken):
                found[i] = copies.literals(tokens, taken), packed
        if not found:
            return {}
        encoded = self.coder.encode([rest for rest, _ in found.values()], lanes=lanes, steps=steps)
        cut = {
            i: Coded(len(sequences[i]), one, packed)
            for (i, (_, packed)), one in zip(found.items(), encoded, strict=True)
        }
        return {i: coded for i, coded in cut.items() if coded.size < len(whole[i].data)}

    def _fallback_frame(self, session: Session) -> Frame:
        content = session.to_bytes()
        kind = Kind[f"{session.kind.upper()}_FALLBACK"]
        check = content_check(kind, len(content), content)
        return Frame(kind, len(content), check, self._fallback.compress(content))

    def _changed(
        self,
        drafts: list[_Draft],
        frames: list[Frame],
        bridge: TokenBridge | None,
        model_too: bool,
        progress: Progress | None,
    ) -> dict[int, ModelError]:
        """Decode frames and compare whole sessions; by number, those that changed.

        Fallback frames are looked at always, they cost next to nothing.
        """
        chosen = [pair for pair in zip(drafts, frames, strict=True) if model_too or not pair[1].kind.by_model]
        tokens = self._decode([frame for _, frame in chosen], progress)
        found = {}
        for (draft, frame), ids in zip(chosen, tokens, strict=True):
            try:
                changed = draft.session.difference(self._restore(frame, ids, draft.number, bridge))
            except CorruptError as exc:
                changed = str(exc)
            if changed:
                found[draft.number] = ModelError(
                    f"session {draft.number} does not come back from its frame ({changed}): nothing was kept"
                )
        return found

    # ---- bytes -> sessions

    def decompress(
        self,
        data: bytes | Reader,
        indices: Iterable[int] | None = None,
        *,
        bridge: TokenBridge | None = None,
        progress: Progress | None = None,
    ) -> list[Session]:
        """Sessions of a .pltz file, decoded side by side in large groups.

        Args:
            data: the file, or a reader of it.
            indices: session numbers, in any order; None is all of them.
            bridge: to the tokenizer that the file's ids belong to, if it names one.
            progress: called with a number of tokens, whenever so many more are decoded.

        Raises:
            FormatError: not a .pltz file; CorruptError, VersionError: a damaged or a newer one.
            BundleMismatch: it was written with another bundle.
            TokenizerMismatch: its ids belong to another tokenizer than the bridge's.
            UsageError: there is no session of that number.
        """
        reader = data if isinstance(data, Reader) else Reader(data)
        self.check(reader.header)
        numbers = range(len(reader)) if indices is None else list(indices)
        frames = [reader.frame(i) for i in numbers]
        for frame in frames:
            _check_tokenizer(reader.header, frame.kind, bridge)
        bridge = None if bridge is None or bridge.identity else bridge
        sessions = []
        for part in _parts(frames):
            tokens = self._decode(frames[part], progress)
            for frame, ids, number in zip(frames[part], tokens, numbers[part], strict=True):
                sessions.append(self._restore(frame, ids, number, bridge))
        return sessions

    def decompress_many(
        self,
        files: Iterable[bytes | PltzError],
        *,
        bridge: TokenBridge | None = None,
        errors: OnError = "raise",
        progress: Progress | None = None,
    ) -> Iterator[list[Session] | Any]:
        """The sessions of each .pltz file, in the order of the files, decoded side by side.

        Files are read as they are needed, a batch ahead; memory is bounded by a batch and its largest file.

        Args:
            files: any iterable of whole files. An exception among them is passed on as the result of its place.
            errors: "raise" the first error, which names its file, or "return" it, a PltzError, in the place of the sessions.
            bridge, progress: as in `decompress`.

        Raises: as `decompress`.
        """
        for number, result in enumerate(self._decompressed(files, bridge, progress)):
            if not isinstance(result, PltzError):
                yield result
            elif errors == "return":
                yield _named("file", number, result)
            else:
                raise _named("file", number, result)

    def _decompressed(
        self, files: Iterable[bytes | PltzError], bridge: TokenBridge | None, progress: Progress | None
    ) -> Iterator[list[Session] | PltzError]:
        batch: list[tuple[Reader | PltzError, list[Frame]]] = []
        tokens = size = 0
        for file in files:
            opened = self._opened(file, bridge)
            more = sum(frame.count for frame in opened[1] if frame.kind.by_model)
            if tokens + more > BATCH_TOKENS or size >= GROUP_BYTES or len(batch) >= BATCH_FILES:
                yield from self._together(batch, bridge, progress)
                batch, tokens, size = [], 0, 0
            batch.append(opened)
            tokens += more
            size += 0 if isinstance(file, PltzError) else len(file)
        yield from self._together(batch, bridge, progress)

    def _opened(
        self, file: bytes | PltzError, bridge: TokenBridge | None
    ) -> tuple[Reader | PltzError, list[Frame]]:
        """A file and all its frames, or what is wrong with it."""
        try:
            if isinstance(file, PltzError):
                raise file
            reader = Reader(file)
            self.check(reader.header)
            frames = [reader.frame(i) for i in range(len(reader))]
            for frame in frames:
                _check_tokenizer(reader.header, frame.kind, bridge)
        except PltzError as exc:
            return exc, []
        return reader, frames

    def _together(
        self,
        batch: list[tuple[Reader | PltzError, list[Frame]]],
        bridge: TokenBridge | None,
        progress: Progress | None,
    ) -> Iterator[list[Session] | PltzError]:
        """Decode the files of a batch by one call; a single one, or where that fails, one by one, which finds the damaged."""
        foreign = None if bridge is None or bridge.identity else bridge
        tokens: Iterator[Tokens | None] | None = None
        if len(batch) > 1:
            with contextlib.suppress(CorruptError):
                tokens = iter(self._decode([frame for _, frames in batch for frame in frames], progress))
        for reader, frames in batch:
            try:
                if isinstance(reader, PltzError):
                    raise reader
                if tokens is None:
                    yield self.decompress(reader, bridge=bridge, progress=progress)
                else:
                    ids = [next(tokens) for _ in frames]
                    yield [self._restore(*found, foreign) for found in zip(frames, ids, itertools.count())]
            except PltzError as exc:
                yield exc

    def token_ids(self, reader: Reader, index: int, *, bridge: TokenBridge | None = None) -> Ids:
        """What a target is prefilled with to make session ``index`` hot again, (T,) int32.

        A chat is its messages and a text its text, in bundle tokens; ids are themselves, in their own tokenizer.

        Raises: as `decompress`, and OpaqueContentError for a session that was kept as opaque.
        """
        if reader.info(index).kind is not Kind.CHAT:
            session = self.decompress(reader, [index], bridge=bridge)[0]
            return cast("Ids", session.value) if session.kind == "ids" else self._conversation(session)
        self.check(reader.header)
        frame = reader.frame(index)
        ids = cast("Tokens", self._decode([frame], None)[0])
        _check_content(frame, ids, index)
        return transcript.conversation_ids(ids)

    def check(self, header: Header) -> None:
        """Refuse a file that this codec's bundle did not write.

        Raises:
            BundleMismatch: another bundle.
            VersionError: this bundle, under a numeric contract this build does not know.
        """
        if header.bundle_id != self.bundle.id:
            raise BundleMismatch(
                f"expected a file of the loaded bundle {self.bundle.id.hex()}, found one of bundle "
                f"{header.bundle_id.hex()}: load that bundle by name or folder (--bundle; `pltz bundle list` shows "
                "the installed ones)"
            )
        if header.contract != self.bundle.contract:
            raise VersionError(
                f"expected numeric contract {self.bundle.contract}, found {header.contract}: use a pltz that knows it"
            )

    def _conversation(self, session: Session) -> Ids:
        tokens = transcript.to_tokens(session, self.bundle.tokenizer)
        return transcript.conversation_ids(tokens) if session.kind == "chat" else tokens

    def _decode(self, frames: Sequence[Frame], progress: Progress | None) -> list[Tokens | None]:
        """Bundle tokens of each model frame, by one call of the coder; None for a fallback frame."""
        from pltz.plt_codec.item import FrameItem

        items = [FrameItem(f.data, f.coded, f.lanes, f.steps) for f in frames if f.kind.by_model]
        decoded = iter(self.coder.decode(items, progress=progress) if items else [])
        return [
            copies.expand(next(decoded), frame.unpacked()) if frame.kind.by_model else None
            for frame in frames
        ]

    def _restore(
        self, frame: Frame, tokens: Tokens | None, number: int, bridge: TokenBridge | None
    ) -> Session:
        """The session of a frame, from its decoded tokens if it has any, under its content check."""
        kind = cast(SessionKind, frame.kind.session)
        if tokens is None:
            content = self._fallback.decompress(frame.data, frame.count)
            _check_content(frame, content, number)
            return Session.from_bytes(kind, content)
        if frame.kind is Kind.IDS:
            if bridge is not None:
                tokens = bridge.from_bundle(tokens, frame.patch)
            elif frame.patch:
                raise CorruptError(
                    f"session {number} has a patch, but its ids are bundle tokens: the file is damaged"
                )
        _check_content(frame, tokens, number)
        return transcript.from_tokens(kind, tokens, self.bundle.tokenizer)


def content_bytes(session: Session) -> int:
    """Raw size of a session's content: what ratios are taken against.

    The UTF-8 bytes of all message texts of a chat, the bytes of a text, 4 bytes for each of ids.

    >>> content_bytes(Session("chat", {"messages": [{"role": "user", "content": "h\\u00e9"}]}))
    3
    """
    if session.kind == "text":
        return len(session.value)
    if session.kind == "ids":
        return ID_BYTES * len(session.value)
    value = session.value
    if isinstance(value, dict):
        value = value.get("messages", value.get("conversations"))
    messages = value if isinstance(value, list) else []
    return sum(_text_bytes(m.get("content", m.get("value"))) for m in messages if isinstance(m, dict))


def _text_bytes(content: Any) -> int:
    """UTF-8 bytes of a message's content: a string, or a list of parts with a text each."""
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    parts = content if isinstance(content, list) else []
    return sum(_text_bytes(part.get("text")) for part in parts if isinstance(part, dict))


def _groups(sessions: Iterable[Session | PltzError]) -> Iterator[list[Session | PltzError]]:
    """Runs of at most GROUP sessions and about GROUP_BYTES of content."""
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


def _named(what: str, number: int, error: PltzError) -> PltzError:
    """The same error with the number of what it is about in front."""
    named = type(error)(f"{what} {number}: {error}")
    named.__cause__ = error
    return named


def _sound(frame: Frame | PltzError) -> Frame:
    if isinstance(frame, PltzError):
        raise frame
    return frame


def _parts(frames: Sequence[Frame]) -> Iterator[slice]:
    """Runs of frames of about BATCH_TOKENS tokens: a file that lies about its counts is found out early."""
    start = tokens = 0
    for end, frame in enumerate(frames, 1):
        tokens += frame.count if frame.kind.by_model else 0
        if tokens >= BATCH_TOKENS:
            yield slice(start, end)
            start, tokens = end, 0
    yield slice(start, len(frames))


def _model_frame(draft: _Draft, tokens: Tokens, coded: Coded) -> Frame:
    kind = Kind[draft.session.kind.upper()]
    content = draft.session.value if kind is Kind.IDS else tokens
    check = content_check(kind, len(tokens), content)
    one = coded.encoded
    return Frame(kind, len(tokens), check, one.data, one.lanes, one.steps, draft.patch, coded.copies)


def _check_content(frame: Frame, content: bytes | Tokens, number: int) -> None:
    if content_check(frame.kind, frame.count, content) != frame.check:
        raise CorruptError(f"session {number} does not match its checksum: the file is damaged")


def _check_tokenizer(header: Header, kind: Kind, bridge: TokenBridge | None) -> None:
    """Refuse ids that belong to another tokenizer; compressed ids come back without one, coded ones do not."""
    if kind.session != "ids" or (bridge is None and not kind.by_model):
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

"""Sessions in an archive: chats, texts and token ids as towers of segments, and back value for value.

    cold = SessionArchive.open("/data/cold")
    for receipt in cold.put([PutRequest("support/7", Session("chat", {"messages": [...]}), tenant="acme")]):
        print(receipt.version, receipt.size)
    cold.get("support/7", tenant="acme")              # the same Session

A session is cut into segments, each stored once however many sessions have it:

    <|system|>You are ...  |  <|user|>Hi<|assistant|>Hello  |  <|user|>And ...  |  <|meta|>{...}
    base                      the last version's turns         new turns           the rest of the object

* base: the part of a chat before the first user message, where it has BASE_TOKENS or more. It belongs to the
  tenant, or to a domain of its own where ``PutRequest.base`` names one: then all tenants that name it share it.
* the last version: as many of its segments as the new tokens begin with. So a longer version of a session adds
  only its new turns. A tower of more than MAX_TOWER segments is cut anew.
* <|meta|>, a chat's other keys, comes last. After META_AFTER tokens it is a segment of its own, so that new
  turns can follow the old ones.

A session goes to the writer in two ways: as tokens of the bundle, and as plain bytes under zstd
(`codec.BytesCodec`, with the bundle's dictionary). The writer stores the shorter one. The tokenizer fingerprint
of a version shows which codec it was, and its kind whether it is chat, text or ids.

The log of an agent (`log_look.is_log`) goes as plain bytes alone, by `logs.LogCodec`: the segments that it begins with,
told by their ids, then all that is new as one. So a log that grows adds its new lines, in a time like theirs, and one
that did not change is not coded.

**Token ids that a served model saw** come with a tokenizer, prefixes or a parent. They keep to their tokenizer:
ids of the bundle are coded directly, others through a bridge (`bridged.BridgedCodec`). They are cut where the last
version (or that of the parent) was cut, as far as they begin with the same ids, then at the prefixes. A session
that is stored with the same ids, tags and target is not put again. This holds for its last version and for any
version of the same second, so replaying a journal after a crash does no harm.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from pltz.archive.catalog.lookup import Version
from pltz.archive.encryption.keys import LockedArchive
from pltz.archive.errors import KeyMismatch, LostError, NotFound
from pltz.archive.format import ids as identity
from pltz.archive.format.ids import BASE, TENANT, Tokens, tenant_of
from pltz.archive.format.index_file import SESSIONS
from pltz.archive.format.object_names import PACKS
from pltz.archive.tower_archive import Tower, TowerArchive
from pltz.archive.writing.new_session import KINDS, CommitReceipt, NewSession
from pltz.archive.writing.pace import COMMIT_BYTES, COMMIT_SECONDS, Pace
from pltz.coding.codecs.codec import (
    BundleCodec,
    BytesCodec,
    IdsCodec,
    SegmentCodec,
)
from pltz.coding.codecs.logs import LogCodec, method_of
from pltz.coding.log.log_coder import METHODS
from pltz.coding.log.log_look import is_log
from pltz.datasets.continuation import continues
from pltz.datasets.given import as_session
from pltz.models.bundle.tokenizer import SPECIALS
from pltz.models.session import transcript
from pltz.models.session.session import Session
from pltz.plt_codec.errors import (
    BundleMismatch,
    ContentError,
    FormatError,
    OpaqueContentError,
    PltzError,
    TokenizerMismatch,
    UsageError,
)
from pltz.plt_codec.identity import NONE, digest
from pltz.plt_codec.lanes import LayoutName
from pltz.plt_codec.limits import ZSTD_ABOVE, check_ids
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import Secret
    from pltz.coding.expected_time import Expect
    from pltz.coding.partners import Path_
    from pltz.datasets.given import SessionLike
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.bundle.tokenizer import BundleTokenizer
    from pltz.models.target.target import Target

BASE_TOKENS = 64  # a shorter base is not worth a record of its own
META_AFTER = 512  # tokens before a chat's other keys from which these get a segment of their own, so turns can follow
MAX_TOWER = 1024  # segments above which a session is cut anew
COMMIT_TOKENS = 1 << 20  # tokens of the sessions of one commit
COMMIT_SESSIONS = 4096
QUICK_TOKENS = 1 << 14  # tokens cut within milliseconds: what others put in that time is not looked for
AT_ONCE = 64  # sessions whose last versions are decoded side by side
READ_BYTES = 16 << 20  # content of sessions from which no more are read before the first of them is put
MAX_SEGMENT = 65536  # token ids per segment: so many may take one byte (FORMAT.md, "Limits")
ZSTD_SEGMENT = 1 << 20  # token ids per segment under zstd, which finds repeats only within a segment
LOG_PART = 1 << 20  # bytes after which a log is cut at a line end: a part is coded in half a minute, and kept
LEAST_PART = 1 << 19  # bytes of the last part of a log, at least
ID_BYTES = 4  # bytes per id, as in `Session.to_bytes`
USER, META = SPECIALS.index("user"), SPECIALS.index("meta")

Segments = list[tuple[bytes, Tokens]]
Refused = Callable[["PutRequest", PltzError], None]


@dataclass(frozen=True, eq=False)
class PutRequest:
    """A session to put into an archive. The fields are the arguments of `Archive.put`.

    Immutable: any thread may use it.

    ``continues``: refuse it where it does not continue the last version of its name (`datasets.continuation`): one of
    another file may not.

    `SessionArchive.put` takes them resolved: a `Session`, the tenant with its salt (`tenant_of`), and fingerprints of
    16 bytes for target and tokenizer.
    """

    name: str
    session: SessionLike
    tenant: str = "default"
    tags: Mapping[str, str] = field(default_factory=dict)
    base: str | None = None
    target: Path_ | Target | bytes | None = None
    tokenizer: Path_ | bytes | None = None
    time: int | None = None
    prefixes: Sequence[int] = ()
    parent: str | None = None
    salt: str | bytes | None = None
    continues: bool = False

    @property
    def fingerprint(self) -> bytes | None:
        """Return the fingerprint of the weights. Raises UsageError where the target is not resolved."""
        if self.target is None or isinstance(self.target, bytes):
            return self.target or None
        raise UsageError("expected the fingerprint of a target, 16 bytes: put through pltz.Archive to name a target")

    @property
    def as_ids(self) -> bool:
        """Return whether these are token ids that a served model saw."""
        return self.tokenizer is not None or bool(self.prefixes) or bool(self.parent)


@dataclass(frozen=True)
class PutReceipt:
    """The result of a put.

    Immutable: any thread may use it.

    Attributes:
        version: number of the version, from 1.
        id: 16 bytes that name this version for ever; empty in a dry run.
        segments: number of new segments.
        size: bytes of the new segments.
        by_model: coded by the bundle, not by zstd.
        method: name of what coded its new segments: "model", "zstd", or of a log "log + model", "log + zstd". Of an
            unchanged log "log".
        opaque: bytes among ``size`` of ids, hashes and signatures, which no coder shrinks, where known.
        unchanged: the archive had it already, and nothing was added.
        kind: chat, text or ids.
        tokens: tokens of the session, in the vocabulary of its codec.
        tower: segments of the session, new and stored ones.
        target: fingerprint, 16 bytes, of the weights it belongs to; None: not known.
    """

    tenant: str
    name: str
    version: int
    id: bytes
    segments: int
    size: int
    by_model: bool
    unchanged: bool
    kind: str
    tokens: int
    tower: int
    target: bytes | None
    method: str = ""
    opaque: int | None = None


@dataclass(frozen=True)
class TokenSession:
    """Token ids as they were put.

    ``ids``: (T,) int64; ``segments``: (id, ids of shape (t,)) from the root to the leaf.
    """

    ids: Tokens
    version: Version
    segments: Segments

    @property
    def target(self) -> bytes | None:
        """Return the fingerprint it was served with, 16 bytes; None where none was given."""
        return self.version.target if any(self.version.target) else None


class EngineOptions(TypedDict, total=False):
    """Options with which codecs are made."""

    device: str
    threads: int | None
    layout: LayoutName


class DictionaryCodec(BytesCodec):
    """Codes bytes by zstd with a bundle's dictionary, which makes short sessions smaller.

    Its bundle id identifies the dictionary.
    """

    def __init__(self, dictionary: bytes) -> None:
        self._fallback = Fallback(dictionary)
        self.bundle_id = digest(b"pltz bundle", b"zstd 1", dictionary)


class SessionArchive:
    """An open archive of sessions. Make one with `create` or `open`.

    Args:
        archive: opened with `codecs_of` the bundles: the first codec is the model's, the second that of plain bytes.
        bundles: the first one codes new sessions; all are read.
        zstd_above: sessions of more bytes (`Session.to_bytes`) are put by zstd and not by the model; None: none.
        engine: device, threads and layout of codecs that `add` makes.
    """

    def __init__(
        self,
        archive: TowerArchive,
        bundles: Sequence[Bundle],
        *,
        zstd_above: int | None = ZSTD_ABOVE,
        **engine: Unpack[EngineOptions],
    ) -> None:
        self.archive, self.zstd_above = archive, zstd_above
        self.bundle = bundles[0]
        self.tokenizer = self.bundle.tokenizer
        self._engine = engine
        self._tokenizers = {b.tokenizer.fingerprint: b.tokenizer for b in bundles}
        self._codecs: dict[bytes, SegmentCodec] = {}  # tokenizer -> the first codec that takes its ids
        for codec in archive.codecs:
            if isinstance(codec, LogCodec):
                codec.zstd_above = zstd_above
            elif not isinstance(codec, BytesCodec | IdsCodec):
                self._codecs.setdefault(codec.tokenizer, codec)

    @classmethod
    def create(
        cls, place: str | os.PathLike[str], bundles: Sequence[Bundle] = (), *, key: Secret | None = None
    ) -> SessionArchive:
        """Make an archive in a directory or bucket, sealed where a ``key`` is given.

        Raises UsageError where there is one, StoreError.
        """
        found = list(bundles) or [_bundle(None)]
        return cls(TowerArchive.create(place, codecs_of(found), key=key), found)

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        bundles: Sequence[Bundle | str | os.PathLike[str] | None] = (),
        *,
        key: Secret | None = None,
        create: bool = False,
        tokenizers: Sequence[bytes] = (),
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
        zstd_above: int | None = ZSTD_ABOVE,
    ) -> SessionArchive:
        """Open an archive, with the bundle that ships with pltz where none is given.

        Args:
            create: make the archive where there is none.
            tokenizers: tokenizer.json of targets whose own ids are put or read, where they are not the bundle's.
            layout: layout of long segments that are put. "fast" ones thaw sooner on a GPU and are a few per cent longer
                (FORMAT.md, "Bitstrings"). Both are read.
            zstd_above: as in the constructor.

        Raises UsageError, FormatError, KeyMismatch, StoreError, ModelError for a tokenizer that cannot be
        used.
        """
        found = [_bundle(bundle) for bundle in bundles or (None,)]
        codecs = codecs_of(found, device=device, threads=threads, layout=layout)
        try:
            archive = TowerArchive.open(place, codecs, key=key)
        except UsageError:
            if not create:
                raise
            archive = TowerArchive.create(place, codecs, key=key)
        cold = cls(archive, found, zstd_above=zstd_above, device=device, threads=threads, layout=layout)
        for tokenizer in tokenizers:
            cold.add(tokenizer)
        return cold

    def add(self, tokenizer: bytes) -> bytes:
        """Add another tokenizer, by its tokenizer.json, and return its fingerprint. Raises ModelError."""
        from pltz.coding.codecs.bridged import BridgedCodec
        from pltz.models.bundle.bridge import Bridge

        bridge = Bridge(tokenizer, self.tokenizer)
        if bridge.fingerprint not in self._codecs:
            codec = self.archive.codecs[0] if bridge.identity else BridgedCodec(self.bundle, bridge, **self._engine)
            if not bridge.identity:
                self.archive.codecs.register(codec)
            self._codecs[bridge.fingerprint] = codec
        return bridge.fingerprint

    def knows(self, tokenizer: bytes) -> bool:
        """Return whether ids of a tokenizer can be put."""
        return tokenizer in self._codecs

    def want_key(self) -> None:
        """Raise KeyMismatch where the archive is sealed and was opened without its key."""
        if self.archive.settings.sealed and isinstance(self.archive.keys, LockedArchive):
            raise KeyMismatch(
                "the archive is sealed, and no key was given: nothing could be put or read. "
                "Name its key: key_file, key_command or passphrase_env (--key-file, --key-command, --passphrase-env)"
            )

    # ---- in

    def put(
        self,
        requests: Iterable[PutRequest],
        *,
        keep_opaque: bool = False,
        dry_run: bool = False,
        expect: Expect | None = None,
        coding: Callable[[int, int], None] | None = None,
        refused: Refused | None = None,
        commit_bytes: int = COMMIT_BYTES,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> Iterator[PutReceipt]:
        """Freeze sessions, in commits that are small enough to lose little with the last one.

        Yielded results are durable and were decoded and compared, whatever is raised later. An error of one session is
        raised after the sessions before it were stored.

        Args:
            keep_opaque: keep sessions with images or audio as plain bytes, instead of refusing them.
            dry_run: report what would be stored, and store nothing.
            expect: called with the expected seconds before a commit of many tokens is coded.
            coding: called with the sessions of a commit and the bytes of their content, before they are coded.
            refused: called with a request that cannot be coded and its error, which is then not raised.
            commit_bytes: content of a commit, at most, unless one session has more.
            commit_seconds: time that coding a commit should take, at most, by the commits before it.

        Raises:
            ContentError: a session cannot be coded (OpaqueContentError: an image, audio or file part); its commit was
                not begun.
            TokenizerMismatch: ids that are not ids of their tokenizer, or a tokenizer that was not given.
            StoreError, WriterFailed, Fenced: as `TowerArchive.put`; sessions yielded before stay.
        """
        single = isinstance(requests, Sequence) and len(requests) == 1
        pace = Pace(commit_bytes, commit_seconds)
        for batch in self._batches(self._prepared(requests), keep_opaque, pace, refused):
            # a commit at a time: what is new is put, and what is there already is only answered
            began, coded = time.monotonic(), 0
            fresh = [cut for _, cut in batch if isinstance(cut, NewSession)]
            before = [] if dry_run else list(self._put_parts(fresh, expect, coding))
            if coding:
                coding(len(fresh), sum(map(_size_of, fresh)) - sum(size for size, _ in before))
            quick = single and sum(len(tokens) for cut in fresh for tokens in cut.segments) <= QUICK_TOKENS
            receipts = iter(self.archive.put(fresh, dry_run=dry_run, expect=expect, refresh=not quick))
            if len(fresh) < len(batch):
                self.archive.store.settle(PACKS)  # its writer may be between link and fsync
            # the receipts, in the order of the requests
            took = time.monotonic() - began
            for request, cut in batch:
                if isinstance(cut, Tower):
                    yield self._repeated(request, cut)
                    continue
                receipt = next(receipts)
                parts = [one for _, one in before if (one.tenant, one.name) == (request.tenant, request.name)]
                receipt = _together(parts, receipt) if parts else receipt
                coded += _size_of(cut) if receipt.new else 0
                method, opaque = _method(receipt)
                yield PutReceipt(
                    tenant=request.tenant,
                    name=request.name,
                    version=receipt.version,
                    id=b"" if dry_run else receipt.id,
                    segments=receipt.new,
                    size=receipt.size,
                    by_model=method.endswith("model") or method == "log",
                    unchanged=receipt.unchanged,
                    kind=cut.kind,
                    tokens=receipt.tokens,
                    tower=receipt.segments,
                    target=request.fingerprint,
                    method=method,
                    opaque=opaque,
                )
            pace.took(coded, took)

    def _put_parts(
        self, sessions: Iterable[NewSession], expect: Expect | None, coding: Callable[[int, int], None] | None
    ) -> Iterator[tuple[int, CommitReceipt]]:
        """Put the beginnings of large logs, each longer by one part, and yield the bytes and the receipt of the part.

        No version is there until the whole is put: what is cut off is never taken for all of a log. A part that is
        stored is not coded again.
        """
        for cut in sessions:
            if not isinstance(cut.codec, LogCodec):
                continue
            for count, part in enumerate(cut.segments[:-1], 1):
                if len(part) >= LOG_PART:
                    if coding:
                        coding(1, len(part))
                    begin = replace(cut, segments=cut.segments[:count], unfinished=True)
                    yield len(part), self.archive.put([begin], expect=expect)[0]

    def _repeated(self, request: PutRequest, tower: Tower) -> PutReceipt:
        """Return the receipt of a session that the archive has already."""
        version, tokens = tower.version, len(tower.tokens)
        by_model = not self._ids_by_zstd(tokens)
        return PutReceipt(
            tenant=request.tenant,
            name=request.name,
            version=version.version,
            id=version.id,
            segments=0,
            size=0,
            by_model=by_model,
            unchanged=True,
            kind="ids",
            tokens=tokens,
            tower=len(tower.segments),
            target=request.fingerprint,
            method="model" if by_model else "zstd",
        )

    def _batches(
        self, requests: Iterable[PutRequest], keep_opaque: bool, pace: Pace, refused: Refused | None
    ) -> Iterator[list[tuple[PutRequest, NewSession | Tower]]]:
        """Yield requests, cut into segments, commit by commit.

        A name comes once per commit, because its second version builds on the first, as a fork on its parent. An error
        is raised after the requests before it were yielded.
        """
        batch: list[tuple[PutRequest, NewSession | Tower]] = []
        names: set[tuple[str, str]] = set()
        tokens = size = 0
        began = time.monotonic()
        source = iter(requests)
        while True:
            try:
                request = next(source, None)
            except Exception:  # of the caller's iterator
                if batch:
                    yield batch
                raise
            # a commit ends where it is full, where time is up, or where a session comes again
            full = tokens >= COMMIT_TOKENS or len(batch) >= COMMIT_SESSIONS or pace.is_full(size, began)
            if request is None or full or _names(request) & names:
                if batch:
                    yield batch
                batch, names, tokens, size = [], set(), 0, 0
            if request is None:
                return
            if not batch:  # the request may have been long in coming
                began = time.monotonic()
                self.archive.catalog.refresh()
            try:
                new = self._cut_ids(request) if request.as_ids else self._cut(request, keep_opaque)
            except PltzError as exc:
                if refused is None or not isinstance(exc, ContentError | TokenizerMismatch):
                    if batch:
                        yield batch
                    raise
                refused(request, exc)
                continue
            amount = _size_of(new) if isinstance(new, NewSession) else 0
            if batch and size + amount > pace.limit:  # what is there does not wait for a large session
                yield batch
                batch, names, tokens, size, began = [], set(), 0, 0, time.monotonic()
            batch.append((request, new))
            names.add((request.tenant, request.name))
            tokens += sum(map(len, new.segments)) if isinstance(new, NewSession) else 0
            size += amount

    def _prepared(self, requests: Iterable[PutRequest]) -> Iterator[PutRequest]:
        """Yield requests. Decode what they extend side by side: of AT_ONCE requests, or of READ_BYTES.

        So many are read before the first of them is yielded. An error of their source is raised after those before it.
        """
        source = iter(requests)
        while True:
            part: list[PutRequest] = []
            size = 0
            try:
                while size < READ_BYTES and len(part) < AT_ONCE:
                    part.append(next(source))
                    size += _bytes_of(part[-1])
            except StopIteration:
                pass
            except Exception:
                yield from part
                raise
            if not part:
                return
            if len(part) > 1:
                self.archive.prepare(self._extended(part))
            yield from part

    def _extended(self, requests: Sequence[PutRequest]) -> list[Version]:
        """Return the last version of each session that requests extend. One look-up tells which are stored."""
        keys, found = self.archive.keys, dict[bytes, tuple[str, str]]()
        try:
            for r in requests:
                found[keys.session_key(keys.domain(TENANT, r.tenant), r.name)] = r.tenant, r.name
        except (PltzError, UnicodeError, TypeError, AttributeError):  # `put` tells which request is wrong
            return []
        stored = self.archive.catalog.lookup.known(SESSIONS, list(found))
        versions = [self._versions(*found[key]) for key in stored]
        last = [staying[-1] for known in versions if (staying := [v for v in known if not v.forgotten])]
        return [v for v in last if v.tokenizer != BytesCodec.tokenizer]  # what a log begins with is told by ids

    def _cut(self, request: PutRequest, keep_opaque: bool) -> NewSession:
        """Return a session cut for the model and, as its other way, as plain bytes. Raises the errors of `put`."""
        session = as_session(request.session)
        try:
            content = session.to_bytes()  # checks limits before any other work
        except ContentError as exc:
            raise type(exc)(f"session {request.name!r}: {exc}") from exc
        if is_log(session, content):
            if not keep_opaque:
                transcript.refuse_opaque(session)
            return self._log_way(request, session, content)
        # the bytes of the session, cut where the stored version has its segments
        by_zstd = self.zstd_above is not None and len(content) > self.zstd_above
        tower = self._last_tower(request)
        if request.continues and tower:
            self._want_continuation(request, session, tower, content)
        before = self._before(tower, session)
        plain = self._way(self.archive.codecs[1], request, session.kind, np.frombuffer(content, np.uint8), before)
        if before and _adds_nothing(before.tower, plain):
            if session.kind == "chat" and not keep_opaque:
                transcript.refuse_opaque(session)
            return plain
        # its tokens, unless it is too long for the model or holds what the model does not code
        tokens: Tokens | None = None
        try:
            if not by_zstd:
                tokens = self._tokens(session)
            elif session.kind == "ids":
                transcript.to_tokens(session, self.tokenizer)  # raises TokenizerMismatch for foreign ids
            elif not keep_opaque:
                transcript.refuse_opaque(session)
        except OpaqueContentError:
            if not keep_opaque:
                raise
        except (ContentError, TokenizerMismatch) as exc:
            raise type(exc)(f"session {request.name!r}: {exc}") from exc
        if tokens is None:
            return plain
        return replace(self._way(self.archive.codecs[0], request, session.kind, tokens, before), otherwise=[plain])

    def _tokens(self, session: Session) -> Tokens | None:
        """Return the bundle tokens of a session, (T,); None where they would not give the same text back."""
        tokens = transcript.to_tokens(session, self.tokenizer)
        if session.kind == "text" and self.tokenizer.decode(tokens) != session.value:
            return None
        return tokens.astype(np.int64)

    def _way(
        self, codec: SegmentCodec, request: PutRequest, kind: str, tokens: Tokens, before: _Before | None
    ) -> NewSession:
        """Cut tokens, (T,), where the last version, the base and the rest of the object begin or end."""
        chat = codec is self.archive.codecs[0] and kind == "chat"
        start, end = _ends(tokens) if chat else (0, len(tokens))
        base = request.base if request.base is not None or before is None else before.base
        shared = int(chat and start > 0 and base is not None)
        known: list[int] = []
        if before and before.tower.version.tokenizer == codec.tokenizer:
            same = base == before.base or not (shared or before.shared)
            known = common(before.tower, tokens) if same else []  # else the base's domain and all ids change
            if len(known) < before.shared:
                known = []
            elif before.shared:
                shared = before.shared
        cuts = [*known, *(cut for cut in (start, end) if not known or cut > known[-1])]
        ends = sorted({*cuts, len(tokens)} - {0})
        segments = [tokens[a:b] for a, b in itertools.pairwise([0, *ends])]
        return NewSession(
            request.name,
            segments,
            tenant=request.tenant,
            shared=shared,
            base=base or "base",
            tags=request.tags,
            kind=kind,
            target=request.fingerprint,
            time=request.time,
            codec=codec,
        )

    def _log_way(self, request: PutRequest, session: Session, content: bytes) -> NewSession:
        """Cut a log at the ends of the stored segments that it begins with. Raises the errors of `put`."""
        tokens = np.frombuffer(content, np.uint8)
        versions = [v for v in self._versions(request.tenant, request.name) if not v.forgotten]
        ends, whole = list[int](), not versions
        if versions and (versions[-1].tokenizer, KINDS[versions[-1].kind]) == (BytesCodec.tokenizer, session.kind):
            known = self.archive.known_ends(versions[-1], tokens)
            if known is not None:
                ends, whole = known
            elif before := self._before(self._last_tower(request), session):  # of a merged log, or a damaged one
                ends = common(before.tower, tokens)
        if request.continues and not whole and (tower := self._last_tower(request)):
            self._want_continuation(request, session, tower, content)
        ends = ends if len(ends) <= MAX_TOWER else []
        if self.zstd_above is None or len(content) <= self.zstd_above:  # zstd is soon done
            ends = [*ends, *_line_ends(content, ends[-1] if ends else 0)]
        cuts = sorted({*ends, len(content)} - {0})
        return NewSession(
            request.name,
            [tokens[a:b] for a, b in itertools.pairwise([0, *cuts])],
            tenant=request.tenant,
            tags=request.tags,
            kind=session.kind,
            target=request.fingerprint,
            time=request.time,
            codec=next(codec for codec in self.archive.codecs if isinstance(codec, LogCodec)),
        )

    def _last_tower(self, request: PutRequest) -> Tower | None:
        """Return the last version of a session, None where there is none that can be read.

        A new name costs one look-up only.
        """
        versions = [v for v in self._versions(request.tenant, request.name) if not v.forgotten]
        if not versions:
            return None
        try:
            return self.archive.before(versions[-1])
        except (NotFound, FormatError, BundleMismatch):
            return None

    def _before(self, tower: Tower | None, session: Session) -> _Before | None:
        """Return the last version of a session if a new one can build on it."""
        if tower is None or len(tower.segments) > MAX_TOWER or KINDS[tower.version.kind] != session.kind:
            return None
        try:
            return _Before(tower, *base_of(self.archive, tower))  # remembered, and its base damaged since
        except (NotFound, FormatError, BundleMismatch):
            return None

    def _want_continuation(self, request: PutRequest, session: Session, tower: Tower, content: bytes) -> None:
        """Raise ContentError where a session does not continue the last version of its name."""
        version = tower.version
        own = version.tokenizer == BytesCodec.tokenizer and KINDS[version.kind] == session.kind
        if own and np.array_equal(tower.tokens, np.frombuffer(content, np.uint8)):
            return
        if not continues(self.session(tower), session):
            raise ContentError(
                f"session {request.name!r} does not continue version {version.version}, which is stored under this "
                "name: put it under another name (--name), or let it be the next version all the same (--new-version; "
                "new_version = true in a nightly source)"
            )

    def _cut_ids(self, request: PutRequest) -> NewSession | Tower:
        """Return token ids cut into segments, or the stored version that is the same."""
        session, tokenizer = as_session(request.session), request.tokenizer
        if session.kind != "ids" or not isinstance(tokenizer, bytes | None):
            raise UsageError(f"expected token ids and a fingerprint of their tokenizer for session {request.name!r}")
        if tokenizer is None or tokenizer == NONE:
            tokenizer = self.tokenizer.fingerprint
        if tokenizer not in self._codecs:
            raise TokenizerMismatch(
                f"session {request.name!r} has ids of tokenizer {tokenizer.hex()}: "
                "open the archive with it (--tokenizer)"
            )
        check_ids(len(session.value))
        codec = self._codecs[tokenizer]
        ids = identity.checked(session.value)
        last = self._last_ids(request.tenant, request.name, codec)
        for tower in self._alike(request, codec, last):
            if self._has(tower, request, ids):
                return tower
        if self._ids_by_zstd(len(ids)):
            codec = self.archive.codecs.for_ids(codec.tokenizer)
        return self._ids_way(request, codec, ids, last or self._last_ids(request.tenant, request.parent or "", codec))

    def _ids_by_zstd(self, count: int) -> bool:
        """Return whether so many ids are too large for the model (``zstd_above``)."""
        return self.zstd_above is not None and ID_BYTES * count > self.zstd_above

    def _alike(self, request: PutRequest, codec: SegmentCodec, last: Tower | None) -> Iterator[Tower]:
        """Yield versions that a request may repeat: the last one, if it surely is, and those of the same second."""
        history = self.archive.catalog.histories.of(request.tenant, request.name)
        if last and history.has_newest:
            yield last
        for version in history.versions:
            known = last is not None and version.id == last.version.id and history.has_newest
            if version.time == request.time and not known and (tower := self._tower(version, codec)):
                yield tower

    def _has(self, tower: Tower, request: PutRequest, ids: Tokens) -> bool:
        version = tower.version
        same = version.target == (request.fingerprint or NONE) and version.tags == dict(request.tags)
        return same and np.array_equal(tower.tokens, ids) and self.archive.is_sound(tower)

    def _ids_way(self, request: PutRequest, codec: SegmentCodec, ids: Tokens, before: Tower | None) -> NewSession:
        """Cut ids, (T,), into the segments of ``before`` that they begin with, then at each prefix."""
        shared, base = (0, request.base or None)
        known: list[int] = []
        if before and len(before.segments) <= MAX_TOWER:
            known = common(before, ids)
            try:
                shared, name = base_of(self.archive, before)
            except LostError:  # the tower is remembered, and its base was damaged since
                shared, name = MAX_TOWER, None
            base = request.base or name
            if len(known) < shared or (request.base and name != request.base):
                known, shared = [], 0
        # new segments begin where the caller said, behind those that are stored
        ends = [end for end in request.prefixes if 0 < end <= len(ids)]
        if not shared and base and ends and not known:
            shared = 1
        cuts = sorted({*known, *(end for end in ends if not known or end > known[-1]), len(ids)} - {0})
        step = ZSTD_SEGMENT if self._ids_by_zstd(len(ids)) else MAX_SEGMENT
        rows = _short(ids, cuts, exact=len(known), step=step)
        shared = _count(rows, cuts[shared - 1]) if shared else 0
        return NewSession(
            request.name,
            rows,
            tenant=request.tenant,
            shared=shared,
            base=base or "base",
            tags=request.tags,
            kind="ids",
            target=request.fingerprint,
            time=request.time,
            codec=codec,
        )

    def _last_ids(self, tenant: str, name: str, codec: SegmentCodec) -> Tower | None:
        """Return the last version of a session if a new one can build on it."""
        versions = [v for v in self._versions(tenant, name) if not v.forgotten] if name else []
        return self._tower(versions[-1], codec) if versions else None

    def _versions(self, tenant: str, name: str) -> list[Version]:
        return self.archive.catalog.lookup.versions(self.archive.keys.domain(TENANT, tenant), name)

    def _tower(self, version: Version, codec: SegmentCodec) -> Tower | None:
        if (version.tokenizer, KINDS[version.kind]) != (codec.tokenizer, "ids"):
            return None
        try:
            return self.archive.before(version)
        except (NotFound, FormatError, BundleMismatch):
            return None

    # ---- out

    def get_ids(
        self, name: str, tenant: str = "default", version: int | None = None, *, salt: str | bytes | None = None
    ) -> TokenSession:
        """Return a session of token ids with its segments: its last version, or the one given.

        Versions that other processes have put by now are included. Raises ContentError where it is not one of
        token ids, and the errors of `get`.
        """
        tower = self.archive.get(name, tenant_of(tenant, salt), version)
        if KINDS[tower.version.kind] != "ids":
            raise ContentError(
                f"session {name!r} is a {KINDS[tower.version.kind]}, not token ids: get it with pltz.Archive"
            )
        return TokenSession(tower.tokens, tower.version, tower.segments)

    def get(self, name: str, tenant: str = "default", version: int | None = None) -> Session:
        """Return a session as it was put: the last version that is not forgotten, or the one given.

        Raises:
            NotFound: there is no such session or version.
            LostError: it is damaged.
            ArchiveError: it may be in a damaged pack.
            BundleMismatch: its bundle is not among those given.
        """
        return self.session(self.archive.get(name, tenant, version))

    def read(self, version: Version) -> Session:
        """Return the session of a version, as `TowerArchive.ls` lists it.

        Raises LostError, BundleMismatch.
        """
        return self.session(self.archive.tower(version))

    def read_many(self, versions: Iterable[Version]) -> Iterator[Session]:
        """Yield the sessions of versions in their order, decoded side by side. Raises the errors of `read`."""
        return map(self.session, self.archive.each(versions))

    def session(self, tower: Tower) -> Session:
        """Return the session of a tower's tokens. Raises BundleMismatch, CorruptError."""
        version, kind = tower.version, KINDS[tower.version.kind]
        if version.tokenizer == BytesCodec.tokenizer:
            content = b"".join(tokens.astype(np.uint8).tobytes() for _, tokens in tower.segments)
            return Session.from_bytes(kind, content)  # type: ignore[arg-type]
        if kind == "ids":
            return Session("ids", tower.tokens)
        return transcript.from_tokens(kind, tower.tokens, self.tokenizer_of(version))  # type: ignore[arg-type]

    def tokenizer_of(self, version: Version) -> BundleTokenizer:
        """Return the tokenizer of a version's tokens. Raises BundleMismatch."""
        if version.tokenizer not in self._tokenizers:
            raise BundleMismatch(
                f"frozen under tokenizer {version.tokenizer.hex()}, which no bundle given has: "
                "name its bundle (--bundle)"
            )
        return self._tokenizers[version.tokenizer]


def codecs_of(bundles: Sequence[Bundle], **engine: Unpack[EngineOptions]) -> list[SegmentCodec]:
    """Return the codecs for an archive: the first bundle and its plain bytes, then all others for reading."""
    models: list[SegmentCodec] = [BundleCodec(bundle, **engine) for bundle in bundles]
    plain = [DictionaryCodec(bundle.zstd_dict) for bundle in bundles]
    logs = [LogCodec(bundle, device=engine.get("device", "cpu"), threads=engine.get("threads")) for bundle in bundles]
    return [models[0], plain[0], *models[1:], *plain[1:], BytesCodec(), *logs]


def _method(receipt: CommitReceipt) -> tuple[str, int | None]:
    """Return the method and the opaque bytes of what a put stored, as in `PutReceipt`."""
    if not isinstance(receipt.codec, LogCodec):
        return "zstd" if isinstance(receipt.codec, BytesCodec | IdsCodec) else "model", None
    if not receipt.coded:
        return "log", None
    methods, opaque = zip(*map(method_of, receipt.coded), strict=True)
    return max(methods, key=METHODS.index), sum(opaque)


def _line_ends(content: bytes, begin: int) -> list[int]:
    """Return where the new part of a log is cut, so that a put that is cut off goes on there.

    The bytes up to there alone decide it, so that a log that grew meanwhile is cut in the same places.
    """
    ends = list[int]()
    while len(content) - begin >= LOG_PART + LEAST_PART:
        begin = content.find(b"\n", begin + LOG_PART) + 1
        if not 0 < begin <= len(content) - LEAST_PART:
            break
        ends.append(begin)
    return ends


def _together(before: Sequence[CommitReceipt], last: CommitReceipt) -> CommitReceipt:
    """Return the receipt of a log that was put in parts."""
    new, size = last.new + sum(one.new for one in before), last.size + sum(one.size for one in before)
    return last._replace(new=new, size=size, coded=[*(data for one in before for data in one.coded), *last.coded])


def _names(request: PutRequest) -> set[tuple[str, str]]:
    """Return the sessions that a request builds on."""
    return {(request.tenant, request.name), (request.tenant, request.parent or "")}


def _size_of(cut: NewSession) -> int:
    """Return the bytes of content of a session."""
    way = cut.otherwise[0] if cut.otherwise else cut
    return sum(len(tokens) * (1 if tokens.dtype == np.uint8 else ID_BYTES) for tokens in way.segments)


def _adds_nothing(tower: Tower, way: NewSession) -> bool:
    """Return whether a way as plain bytes is the last version itself, so that no other has to be looked at."""
    stored = [tokens for _, tokens in tower.segments]
    same = tower.version.tokenizer == BytesCodec.tokenizer and len(stored) == len(way.segments)
    return same and all(map(np.array_equal, stored, way.segments))


def _bytes_of(request: PutRequest) -> int:
    """Return about the bytes of a request's content, 0 where it cannot be put."""
    try:
        return len(as_session(request.session).to_bytes())
    except (PltzError, UnicodeError, TypeError, ValueError, AttributeError):  # `put` tells why
        return 0


def base_of(archive: TowerArchive, tower: Tower) -> tuple[int, str | None]:
    """Return how many segments of a tower that was read are in a base domain, and its name; (0, None) if none."""
    shared, name = 0, None
    for segment, _ in tower.segments:
        found = archive.places(segment)
        if not found or found[0].context.domain_kind != BASE:  # a segment inside a run may have no record
            break
        context = found[0].context
        shared, name = shared + 1, archive.keys.domain_name(context)
    return shared, name


@dataclass(frozen=True)
class _Before:
    """The last version of a session.

    ``shared``: number of its segments shared with all tenants; ``base``: name under which they are.
    """

    tower: Tower
    shared: int
    base: str | None


def common(tower: Tower, tokens: Tokens) -> list[int]:
    """Return the ends, in tokens, of the segments of a tower with which ``tokens``, (T,), begin."""
    cuts: list[int] = []
    at = 0
    for _, segment in tower.segments:
        if not np.array_equal(tokens[at : at + len(segment)], segment):
            break
        at += len(segment)
        cuts.append(at)
    return cuts


def _ends(tokens: Tokens) -> tuple[int, int]:
    """Return the ends of a chat's base and of its turns, in tokens.

    The base ends at 0 where there is none, the turns at T where nothing follows them.

    >>> _ends(np.array([1, *[99] * 70, USER, *[50] * 500, 3, 51, META, 40]))
    (71, 574)
    """
    users, metas = np.flatnonzero(tokens == USER), np.flatnonzero(tokens == META)
    start = int(users[0]) if len(users) else 0
    end = int(metas[-1]) if len(metas) and metas[-1] >= META_AFTER else len(tokens)
    return (start if start >= BASE_TOKENS else 0), end


def _bundle(bundle: Bundle | str | os.PathLike[str] | None) -> Bundle:
    """Return a bundle by name or folder, or loaded; None is the one that ships with pltz. Raises ModelError."""
    from pltz.models.bundle.bundle import Bundle

    return bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)


def _short(ids: Tokens, cuts: Sequence[int], exact: int, step: int = MAX_SEGMENT) -> list[Tokens]:
    """Return the segments, (t,) each, that end at the cuts.

    Those after the first ``exact`` are in pieces of at most ``step`` tokens.
    """
    rows: list[Tokens] = []
    for number, (start, end) in enumerate(itertools.pairwise([0, *cuts])):
        most = end - start if number < exact else step
        rows += [ids[at : min(at + most, end)] for at in range(start, end, most)]
    return rows


def _count(rows: Sequence[Tokens], end: int) -> int:
    """Return the number of segments, from the root, up to token ``end``."""
    ends = list(itertools.accumulate(len(row) for row in rows))
    return ends.index(end) + 1

"""Freezer: sessions (chats, texts, token ids) in an archive, as towers of segments. Spec: FORMAT.md, "Sessions and their segments".

    freezer = Freezer.open("/data/cold")
    freezer.put([Named("chat-7", session)], tenant="acme")
    freezer.get("chat-7", tenant="acme")            # the same Session, value for value

How a session becomes segments, from the root: what an earlier version of it holds already, as far as it is the same (so a session
that grew adds only its new turns); else a long system prompt as a segment of its own, which other sessions share; then the
turns; then, after many turns, the keys beside the messages, so that turns added later do not store them inside.
Why two codecs: a log that repeats itself over hundreds of kilobytes is smaller under zstd, and opaque content has no tokens.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from pltz.archive import identity
from pltz.archive.archive import Archive
from pltz.archive.codec import BundleCodec, BytesCodec, Plain, SegmentCodec
from pltz.archive.identity import NONE, TENANT, Tokens
from pltz.archive.index import SEGMENTS
from pltz.archive.store import Store
from pltz.archive.view import Found, Version
from pltz.archive.writer import KINDS, NewSession, Receipt
from pltz.models import transcript
from pltz.models.session import Kind, Session
from pltz.models.tokenizer import SPECIALS
from pltz.plt_codec.errors import (
    ContentError,
    OpaqueContentError,
    TokenizerMismatch,
    UsageError,
)
from pltz.plt_codec.fallback import Fallback

if TYPE_CHECKING:
    from pltz.models.bundle import Bundle

PROMPT_TOKENS = 128  # a shorter system prompt costs more as a segment than it saves
META_AFTER = 512  # tokens before the keys beside the messages, from where these stand alone
FOLD = 128  # segments; a tower of more is stored anew, so that reading it stays quick
SUSPECT = 1.5  # bits a token; where zstd needs less, the model is measured against it
BATCH_TOKENS = 1 << 20  # a commit
BATCH_SESSIONS = 8192
GROUP = 256  # sessions tokenised or decoded in one call
_USER = next(number for number, role in transcript.ROLES.items() if role == "user")
_META = transcript.META
_MODEL, _BYTES = 0, 1  # numbers of the codecs

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Named:
    """A session and what it is called. ``time``: seconds since 1970, None is now. ``target``: fingerprint, 16 bytes."""

    name: str
    session: Session
    labels: Mapping[str, str] = field(default_factory=dict)
    time: int | None = None
    target: bytes | None = None


class Freezer:
    """Puts sessions into an archive and gets them back.

    Args:
        archive: opened with the codecs of `codecs`.
        bundle: what its model segments are coded with.
    """

    def __init__(self, archive: Archive, bundle: Bundle):
        self.archive, self.bundle = archive, bundle
        self._plain = Fallback()
        self._model = archive.codecs[_MODEL]

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str] | Store,
        bundle: str | os.PathLike[str] | Bundle | None = None,
        *,
        create: bool = False,
        device: str = "cpu",
        threads: int | None = None,
    ) -> Freezer:
        """The archive at a path or URL, with a bundle by name, folder or loaded; ``create`` makes a new one.

        Raises UsageError where there is none (or one already), ModelError where the bundle cannot be used.
        """
        from pltz.models.bundle import Bundle

        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        codecs: list[SegmentCodec] = [BundleCodec(loaded, device=device, threads=threads), BytesCodec()]
        return cls((Archive.create if create else Archive.open)(place, codecs), loaded)

    # ---- sessions -> archive

    def put(
        self,
        sessions: Iterable[Named],
        tenant: str = "default",
        *,
        share_prompts: bool = False,
        keep_opaque: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[Receipt]:
        """Freeze sessions, a commit a batch; a receipt each, as soon as it is durable.

        ``share_prompts``: long system prompts go to the domain that all tenants share. ``dry_run``: check and count, write nothing.

        Raises:
            ContentError: a session cannot be stored; earlier batches are durable, nothing of its own was written.
            UsageError: two sessions of one batch have one name.
            ArchiveError: see `Archive.put`.
        """
        for batch in _batches(sessions):
            self.archive.view.refresh()
            rows = list(self._towers(batch, tenant, share_prompts, keep_opaque))
            if dry_run:
                yield from (Receipt(tenant, r.name, NONE, 0, NONE, len(r.segments), 0, False) for r in rows)
                continue
            yield from self.archive.put(rows)
            if progress:
                progress(len(rows))

    def _towers(
        self, batch: list[Named], tenant: str, share: bool, keep_opaque: bool
    ) -> Iterator[NewSession]:
        names = [item.name for item in batch]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise UsageError(f"two of the sessions are called {twice!r}: give them names of their own")
        for start in range(0, len(batch), GROUP):
            group = batch[start : start + GROUP]
            for item, tokens in zip(group, self._tokens(group, keep_opaque), strict=True):
                yield self._tower(item, tokens, tenant, share)

    def _tokens(self, group: list[Named], keep_opaque: bool) -> list[Tokens | None]:
        """Bundle tokens of each; None for opaque content that is kept as bytes."""
        try:
            return list(transcript.to_tokens_many([i.session for i in group], self.bundle.tokenizer))
        except (ContentError, TokenizerMismatch):
            pass
        out: list[Tokens | None] = []
        for item in group:
            try:
                out.append(transcript.to_tokens(item.session, self.bundle.tokenizer))
            except OpaqueContentError as exc:
                if not keep_opaque:
                    raise OpaqueContentError(f"session {item.name!r}: {exc}") from exc
                out.append(None)
            except (ContentError, TokenizerMismatch) as exc:
                raise type(exc)(f"session {item.name!r}: {exc}") from exc
        return out

    def _tower(self, item: Named, tokens: Tokens | None, tenant: str, share: bool) -> NewSession:
        session = item.session
        codec = _BYTES if tokens is None or self._repeats(session, tokens) else _MODEL
        if tokens is None or codec == _BYTES:
            tokens = np.frombuffer(session.to_bytes(), np.uint8)
        have, shared = self._stored(item.name, tenant, self.archive.codecs[codec].tokenizer, tokens)
        cuts = have or ([0] if codec == _BYTES else _prompt(session.kind, tokens))
        if not have and share and len(cuts) > 1:
            shared = 1
        if codec == _MODEL:
            cuts = [*cuts, *(c for c in _meta(session.kind, tokens) if c > cuts[-1])]
        ends = [*cuts[1:], len(tokens)]
        segments = [tokens[a:b] for a, b in zip(cuts, ends, strict=True) if b > a]
        return NewSession(
            item.name,
            segments,
            tenant,
            shared=shared,
            labels=item.labels,
            kind=session.kind,
            target=item.target,
            time=item.time,
            codec=codec,
        )

    def _repeats(self, session: Session, tokens: Tokens) -> bool:
        """Whether zstd is smaller than the model. The model is asked only where that is likely."""
        if len(tokens) < 1024:
            return False
        plain = len(self._plain.compress(session.to_bytes()))
        if plain * 8 > SUSPECT * len(tokens):
            return False
        return plain < len(self._model.encode([Plain(tokens, np.zeros(0, np.int64))])[0])

    def _stored(self, name: str, tenant: str, tokenizer: bytes, tokens: Tokens) -> tuple[list[int], int]:
        """(where the segments of the last version begin that this session begins with, and where they end; how many are shared).

        Nothing is decoded: a segment's id is the hash of its tokens.
        """
        view = self.archive.view
        known = view.versions(identity.domain_id(TENANT, tenant), name)
        last = next((v for v in reversed(known) if not v.forgotten and v.tokenizer == tokenizer), None)
        chain = self._chain(last.leaf) if last else []
        if not chain or len(chain) > FOLD:
            return [], 0
        cuts, shared, parent = [0], 0, NONE
        for found in chain:
            end = cuts[-1] + found.record.tokens
            name_of = identity.segment_id(found.context.domain, tokenizer, parent, tokens[cuts[-1] : end])
            if end > len(tokens) or name_of != found.record.id:
                break
            shared += found.context.domain_kind != TENANT
            parent = name_of
            cuts.append(end)
        return (cuts if len(cuts) > 1 else []), shared

    def _chain(self, leaf: bytes) -> list[Found]:
        """Records from the root to a leaf; empty where one is missing."""
        chain: list[Found] = []
        while leaf != NONE:
            places = self.archive.view.find(SEGMENTS, leaf)
            if not places or len(chain) > FOLD:
                return []
            chain.append(places[0])
            leaf = places[0].record.parent
        return chain[::-1]

    # ---- archive -> sessions

    def get(self, name: str, tenant: str = "default", number: int | None = None) -> Session:
        """A session as it was put: its last version, or version ``number``. Raises as `Archive.get`."""
        return self.session(self.archive.version(name, tenant, number))

    def session(self, version: Version) -> Session:
        """The session of a version. Raises as `Archive.tower`."""
        return self._session(version, self.archive.tower(version).tokens)

    def sessions(
        self, versions: Iterable[Version], progress: Progress | None = None
    ) -> Iterator[tuple[Version, Session]]:
        """Many sessions, decoded side by side. Raises as `session`, at the first that cannot be had."""
        remaining = iter(versions)
        while group := list(itertools.islice(remaining, GROUP)):
            for tower in self.archive.towers(group):
                yield tower.version, self._session(tower.version, tower.tokens)
            if progress:
                progress(len(group))

    def token_ids(self, version: Version) -> Tokens:
        """What a target is prefilled with, (T,): a chat's messages, a text's tokens, or the ids themselves, in the version's tokenizer.

        Raises as `session`, and OpaqueContentError for a session kept as plain bytes that has no tokens.
        """
        tokens = self.archive.tower(version).tokens
        if version.tokenizer == BytesCodec.tokenizer:
            session = self._session(version, tokens)
            tokens = transcript.to_tokens(session, self.bundle.tokenizer)
        return transcript.conversation_ids(tokens) if KINDS[version.kind] == "chat" else tokens

    def _session(self, version: Version, tokens: Tokens) -> Session:
        kind = cast(Kind, KINDS[version.kind])
        if version.tokenizer == BytesCodec.tokenizer:
            return Session.from_bytes(kind, tokens.astype(np.uint8).tobytes())
        return transcript.from_tokens(kind, tokens, self.bundle.tokenizer)


def names(sessions: Iterable[Session], stem: str = "session") -> Iterator[tuple[str, Session]]:
    """A name for each session: its ``id`` where it has one, else ``stem/number``.

    >>> [n for n, _ in names([Session("chat", {"id": "a", "messages": []}), Session("text", b"x")], "notes")]
    ['a', 'notes/1']
    """
    for number, session in enumerate(sessions):
        own = session.value.get("id") if session.kind == "chat" and isinstance(session.value, dict) else None
        yield (own if isinstance(own, str) and own else f"{stem}/{number}"), session


def _batches(sessions: Iterable[Named]) -> Iterator[list[Named]]:
    """Commits of bounded size: about four bytes a token."""
    batch: list[Named] = []
    size = 0
    for item in sessions:
        batch.append(item)
        size += 64 + len(item.session.to_bytes()) // 4
        if size >= BATCH_TOKENS or len(batch) == BATCH_SESSIONS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _prompt(kind: Kind, tokens: Tokens) -> list[int]:
    """[0], or [0, end] with the end of a long system prompt: all before the first user message."""
    if kind != "chat":
        return [0]
    starts = np.flatnonzero(tokens < len(SPECIALS))
    users = starts[tokens[starts] == _USER]
    end = int(users[0]) if len(users) else 0
    return [0, end] if PROMPT_TOKENS <= end < len(tokens) else [0]


def _meta(kind: Kind, tokens: Tokens) -> list[int]:
    """Where the keys beside the messages begin, if they are to stand alone."""
    if kind != "chat" or len(tokens) < META_AFTER:
        return []
    starts = np.flatnonzero(tokens < len(SPECIALS))
    last = int(starts[-1]) if len(starts) else 0
    return [last] if last >= META_AFTER and tokens[last] == _META else []

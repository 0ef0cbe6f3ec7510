"""Sessions in an archive: a user's sessions as towers of segments, and back value for value.

    cold = SessionArchive.open("/data/cold")
    for stored in cold.put([Item("support/7", Session("chat", {"messages": [...]}), tenant="acme")]):
        print(stored.receipt.version, stored.receipt.size)
    cold.get("support/7", tenant="acme")              # the same Session

A session is cut into segments, each stored once however many sessions have it:

    <|system|>You are ...  |  <|user|>Hi<|assistant|>Hello  |  <|user|>And ...  |  <|meta|>{...}
    base                      the last version's turns         new turns           the rest of the object

* base: the part of a chat before the first user message, where it has BASE_TOKENS or more. It belongs to the
tenant,
  or to a domain of its own where ``Item.base`` names one: then all tenants that name it share it.
* the last version: as many of its segments as the new tokens begin with. So a longer version of a session
adds only
  its new turns. A tower of more than MAX_TOWER segments is cut anew.
* <|meta|>, a chat's other keys, comes last. After META_AFTER tokens it is a segment of its own, so that new
turns can
  follow the old ones.

A session is coded by the bundle. It is stored as plain bytes under zstd (`codec.BytesCodec`, with the
bundle's dictionary) where that takes fewer bytes or there are no tokens (opaque parts, ``keep_opaque``). Ids
of a target with another tokenizer (``Item.tokenizer``) are coded by the bundle through a bridge
(`bridged.BridgedCodec`). The tokenizer fingerprint of a version shows which codec it was, and its kind
whether it is chat, text or ids. Nothing else is recorded, and `get` returns the session that was put.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pltz.archive.catalog.lookup import Version
from pltz.archive.codecs.codec import (
    BundleCodec,
    BytesCodec,
    IdsCodec,
    SegmentCodec,
    ids_codec,
)
from pltz.archive.errors import NotFound
from pltz.archive.format.ids import BASE, TENANT, Tokens, digest
from pltz.archive.tower_archive import Tower, TowerArchive
from pltz.archive.writing.new_session import KINDS, NewSession, Receipt
from pltz.models.bundle.tokenizer import SPECIALS
from pltz.models.session import transcript
from pltz.models.session.session import Session
from pltz.plt_codec.errors import (
    BundleMismatch,
    ContentError,
    FormatError,
    OpaqueContentError,
    TokenizerMismatch,
)
from pltz.plt_codec.lanes import LayoutName
from pltz.plt_codec.limits import ZSTD_ABOVE
from pltz.plt_codec.zstd import Fallback

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import Secret
    from pltz.models.bundle.bundle import Bundle
    from pltz.models.bundle.tokenizer import BundleTokenizer
    from pltz.models.session.expected_time import Expect

BASE_TOKENS = 64  # a shorter base is not worth a record of its own
META_AFTER = 512  # tokens before a chat's other keys from which these get a segment of their own, so turns can follow
MAX_TOWER = 1024  # segments above which a session is cut anew
COMMIT_TOKENS = 1 << 20  # tokens of the sessions of one commit
COMMIT_SESSIONS = 4096
USER, META = SPECIALS.index("user"), SPECIALS.index("meta")


@dataclass(frozen=True)
class Item:
    """A session to put.

    Attributes:
        base: share its base under this name with all tenants. None: as its last version did, else with its tenant
            alone.
        target: fingerprint of the weights it belongs to, 16 bytes.
        time: seconds since 1970, None is now.
        tokenizer: fingerprint, 16 bytes, of the tokenizer of a session of ids; None: the bundle's.
    """

    name: str
    session: Session
    tenant: str = "default"
    tags: Mapping[str, str] = field(default_factory=dict)
    base: str | None = None
    target: bytes | None = None
    time: int | None = None
    tokenizer: bytes | None = None


@dataclass(frozen=True)
class Stored:
    """The result for an item.

    Attributes:
        tokens, segments: numbers of its tokens and segments.
        known: number of segments that the archive had.
        size: bytes of the new segments.
        receipt: None in a dry run.
    """

    item: Item
    by_model: bool
    tokens: int
    segments: int
    known: int
    size: int
    receipt: Receipt | None


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
        archive: opened with `codecs_of` the bundles.
        bundles: the first one codes new sessions; all are read.
        zstd_above: sessions of more bytes (`Session.to_bytes`) are put by zstd and not by the model; None: none.

    ``expect`` is called with the expected seconds before a commit of many tokens is coded; None by default.
    """

    def __init__(
        self, archive: TowerArchive, bundles: Sequence[Bundle], *, zstd_above: int | None = ZSTD_ABOVE
    ) -> None:
        self.archive, self.zstd_above = archive, zstd_above
        self.expect: Expect | None = None
        self.bundle = bundles[0]
        self.tokenizer = self.bundle.tokenizer
        self._tokenizers = {b.tokenizer.fingerprint: b.tokenizer for b in bundles}

    @classmethod
    def create(
        cls, place: str | os.PathLike[str], bundles: Sequence[Bundle] = (), *, key: Secret | None = None
    ) -> SessionArchive:
        """Make an archive in a directory or bucket, sealed where a ``key`` is given.

        Raises UsageError where there is one, StoreError.
        """
        found = list(bundles) or [_default()]
        return cls(TowerArchive.create(place, codecs_of(found), key=key), found)

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        bundles: Sequence[Bundle] = (),
        *,
        key: Secret | None = None,
        tokenizers: Sequence[bytes] = (),
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
        zstd_above: int | None = ZSTD_ABOVE,
    ) -> SessionArchive:
        """Open an archive, with the bundle that ships with pltz where none is given.

        Args:
            tokenizers: tokenizer.json of targets whose own ids are put or read (`Item.tokenizer`), where they are not
                the bundle's.
            layout: layout of long segments that are put. "fast" ones thaw sooner on a GPU and are a few per cent longer
                (FORMAT.md, "Bitstrings"). Both are read.
            zstd_above: as in the constructor.

        Raises UsageError, FormatError, KeyMismatch, StoreError, ModelError for a tokenizer that cannot be
        used.
        """
        found = list(bundles) or [_default()]
        codecs = codecs_of(found, tokenizers, device=device, threads=threads, layout=layout)
        return cls(TowerArchive.open(place, codecs, key=key), found, zstd_above=zstd_above)

    # ---- in

    def put(
        self, items: Iterable[Item], *, keep_opaque: bool = False, dry_run: bool = False
    ) -> Iterator[Stored]:
        """Freeze sessions, in commits of about COMMIT_TOKENS tokens.

        Yielded results are durable and were decoded and compared.

        Args:
            keep_opaque: keep sessions with images or audio as plain bytes, instead of refusing them.
            dry_run: report what would be stored, and store nothing.

        Raises:
            ContentError: a session cannot be coded (OpaqueContentError: an image, audio or file part); its commit was
                not begun.
            TokenizerMismatch: ids that are not ids of the bundle.
            StoreError, WriterFailed, Fenced: as `TowerArchive.put`; sessions yielded before stay.
        """
        self.archive.catalog.refresh()
        for batch in self._batches(items, keep_opaque):
            receipts = self.archive.put([new for _, new in batch], dry_run=dry_run, expect=self.expect)
            for (item, _), receipt in zip(batch, receipts, strict=True):
                by_model = not isinstance(self.archive.codecs[receipt.codec], BytesCodec | IdsCodec)
                known = receipt.segments - receipt.new
                facts = by_model, receipt.tokens, receipt.segments, known, receipt.size
                yield Stored(item, *facts, None if dry_run else receipt)

    def _batches(self, items: Iterable[Item], keep_opaque: bool) -> Iterator[list[tuple[Item, NewSession]]]:
        """Yield items, cut into segments, commit by commit.

        A name comes once per commit, because its second version builds on the first.
        """
        batch: list[tuple[Item, NewSession]] = []
        names: set[tuple[str, str]] = set()
        tokens = 0
        for item in items:
            full = tokens >= COMMIT_TOKENS or len(batch) >= COMMIT_SESSIONS
            if batch and (full or (item.tenant, item.name) in names):
                yield batch
                batch, names, tokens = [], set(), 0
            new = self._cut(item, keep_opaque)
            batch.append((item, new))
            names.add((item.tenant, item.name))
            tokens += sum(map(len, new.segments))
        if batch:
            yield batch

    def _cut(self, item: Item, keep_opaque: bool) -> NewSession:
        """Return a session cut for the model and, as its other way, as plain bytes. Raises the errors of `put`."""
        try:
            content = item.session.to_bytes()  # checks limits before any other work
        except ContentError as exc:
            raise type(exc)(f"session {item.name!r}: {exc}") from exc
        by_zstd = self.zstd_above is not None and len(content) > self.zstd_above
        before = self._last(item)
        if item.tokenizer not in (None, self.tokenizer.fingerprint):
            return self._bridged(item, before, by_zstd)
        tokens: Tokens | None = None
        try:
            if not by_zstd:
                tokens = self._tokens(item)
            elif item.session.kind == "ids":
                transcript.to_tokens(item.session, self.tokenizer)  # raises TokenizerMismatch for foreign ids
            elif not keep_opaque:
                transcript.refuse_opaque(item.session)
        except OpaqueContentError:
            if not keep_opaque:
                raise
        except (ContentError, TokenizerMismatch) as exc:
            raise type(exc)(f"session {item.name!r}: {exc}") from exc
        plain = self._way(1, item, np.frombuffer(content, np.uint8), before)
        return plain if tokens is None else replace(self._way(0, item, tokens, before), otherwise=[plain])

    def _bridged(self, item: Item, before: _Before | None, by_zstd: bool) -> NewSession:
        """Return a session of ids of another tokenizer, for the bundle behind a bridge.

        Plain bytes would not record whose ids they are. ``by_zstd``: they are too many for the model.
        """
        numbers = [n for n, codec in enumerate(self.archive.codecs) if codec.tokenizer == item.tokenizer]
        if item.session.kind != "ids" or not numbers or item.tokenizer is None:
            raise TokenizerMismatch(
                f"session {item.name!r} is of tokenizer {(item.tokenizer or b'').hex()}: "
                "open the archive with it (--tokenizer)"
            )
        codec = ids_codec(self.archive.codecs, item.tokenizer) if by_zstd else numbers[0]
        return self._way(codec, item, np.asarray(item.session.value), before)

    def _tokens(self, item: Item) -> Tokens | None:
        """Return the bundle tokens of a session, (T,); None where they would not give the same text back."""
        session = item.session
        tokens = transcript.to_tokens(session, self.tokenizer)
        if session.kind == "text" and self.tokenizer.decode(tokens) != session.value:
            return None
        return tokens.astype(np.int64)

    def _way(self, codec: int, item: Item, tokens: Tokens, before: _Before | None) -> NewSession:
        """Cut tokens, (T,), where the last version, the base and the rest of the object begin or end."""
        chat = codec == 0 and item.session.kind == "chat"
        start, end = _ends(tokens) if chat else (0, len(tokens))
        base = item.base if item.base is not None or before is None else before.base
        shared = int(chat and start > 0 and base is not None)
        known: list[int] = []
        if before and before.tower.version.tokenizer == self.archive.codecs[codec].tokenizer:
            same = base == before.base or not (shared or before.shared)
            known = common(before.tower, tokens) if same else []  # else the base's domain and all ids change
            if len(known) < before.shared:
                known = []
            elif before.shared:
                shared = before.shared
        cuts = [*known, *(cut for cut in (start, end) if not known or cut > known[-1])]
        ends = sorted({*cuts, len(tokens)} - {0})
        segments = [tokens[a:b] for a, b in itertools.pairwise([0, *ends])]
        facts = item.tags, item.session.kind, item.target, item.time, codec
        return NewSession(item.name, segments, item.tenant, shared, base or "base", *facts)

    def _last(self, item: Item) -> _Before | None:
        """Return the last version of a session if a new one can build on it.

        A new name costs one look-up only.
        """
        domain = self.archive.keys.domain(TENANT, item.tenant)
        versions = [v for v in self.archive.catalog.lookup.versions(domain, item.name) if not v.forgotten]
        if not versions:
            return None
        try:
            tower = self.archive.before(versions[-1])
            base = base_of(self.archive, tower)  # the tower may be remembered, and its base damaged since
        except (NotFound, FormatError, BundleMismatch):
            return None
        if len(tower.segments) > MAX_TOWER or KINDS[tower.version.kind] != item.session.kind:
            return None
        return _Before(tower, *base)

    # ---- out

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

    def session(self, tower: Tower) -> Session:
        """Return the session of a tower's tokens. Raises BundleMismatch, CorruptError."""
        version, kind = tower.version, KINDS[tower.version.kind]
        if version.tokenizer == BytesCodec.tokenizer:
            return Session.from_bytes(kind, tower.tokens.astype(np.uint8).tobytes())  # type: ignore[arg-type]
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


def codecs_of(
    bundles: Sequence[Bundle],
    tokenizers: Sequence[bytes] = (),
    *,
    device: str = "cpu",
    threads: int | None = None,
    layout: LayoutName = "default",
) -> list[SegmentCodec]:
    """Return the codecs for an archive of sessions.

    They are the first bundle, its plain bytes and its bridges to other tokenizers (given as tokenizer.json),
    then all others for reading. Raises ModelError for a tokenizer that cannot be used.
    """
    models = [BundleCodec(bundle, device=device, threads=threads, layout=layout) for bundle in bundles]
    plain = [DictionaryCodec(bundle.zstd_dict) for bundle in bundles]
    bridged = [_bridged(bundle, tokenizers, device, threads, layout) for bundle in bundles]
    return [models[0], plain[0], *bridged[0], *models[1:], *plain[1:], BytesCodec(), *itertools.chain(*bridged[1:])]


def _bridged(
    bundle: Bundle, tokenizers: Sequence[bytes], device: str, threads: int | None, layout: LayoutName
) -> list[SegmentCodec]:
    """Return codecs for the ids of other tokenizers. A tokenizer with the bundle's ids needs none."""
    if not tokenizers:
        return []
    from pltz.archive.codecs.bridged import BridgedCodec
    from pltz.models.bundle.bridge import Bridge

    bridges = [bridge for t in tokenizers if not (bridge := Bridge(t, bundle.tokenizer)).identity]
    return [BridgedCodec(bundle, bridge, device=device, threads=threads, layout=layout) for bridge in bridges]


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


def _default() -> Bundle:
    from pltz.models.bundle.bundle import Bundle

    return Bundle.load()

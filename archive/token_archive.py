"""Token archive: sessions as the token ids that a served model saw, put by id and returned id for id.

    cold = TokenArchive.open("/data/cold", tokenizers=[tokenizer_json])
    cold.put([TokenItem("chat-7", ids, tenant="acme", target=target.fingerprint, prefixes=(len(system_ids),))])
    cold.get("chat-7", tenant="acme").ids            # the same ids, for one prefill

`sessions.SessionArchive` keeps what people wrote; this keeps the ids from which a KV cache was computed. Ids
of the bundle's own vocabulary are coded directly, others through the bridge (`bridged.BridgedCodec`).

A session is cut where its last version (or that of its parent) was cut, as far as it begins with the same
ids, and then at its prefixes. So a session that grew adds only its new ids, and sessions with one system
prompt store it once. A session that is already stored with the same ids, tags and target is not put again.
This holds for its last version and for any version of the same second, so replaying a journal after a crash
does no harm.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from pltz.archive.catalog.lookup import Version
from pltz.archive.codecs.codec import BundleCodec, ids_codec
from pltz.archive.errors import KeyMismatch, LostError, NotFound
from pltz.archive.format import ids as identity
from pltz.archive.format.ids import BASE, NONE, SIZE, TENANT, Tokens
from pltz.archive.format.object_names import PACKS
from pltz.archive.sessions import MAX_TOWER, base_of, common
from pltz.archive.tower_archive import Tower, TowerArchive
from pltz.archive.writing.new_session import KINDS, NewSession, Receipt
from pltz.plt_codec.errors import (
    BundleMismatch,
    ContentError,
    FormatError,
    TokenizerMismatch,
    UsageError,
)
from pltz.plt_codec.lanes import LayoutName
from pltz.plt_codec.limits import ZSTD_ABOVE, check_ids

if TYPE_CHECKING:
    from pltz.archive.codecs.codec import SegmentCodec
    from pltz.archive.encryption.keys import Secret
    from pltz.models.bundle.bundle import Bundle

MAX_SEGMENT = 65536  # tokens per segment: so many may take one byte (FORMAT.md, "Limits")
ZSTD_SEGMENT = 1 << 20  # tokens per segment under zstd, which finds repeats only within a segment
ID_BYTES = 4  # bytes per id, as in `Session.to_bytes`
RECENT = 1 << 22  # tokens of recently put sessions kept in memory
SALT_SIZE = 16  # bytes of the digest that stands for a salt
SALTED = "#salt="  # between a tenant and the digest of a salt

Segments = list[tuple[bytes, Tokens]]


@dataclass(frozen=True, eq=False)
class TokenItem:
    """A session to put.

    Attributes:
        ids: (T,) ids of ``tokenizer``.
        tenant: see `tenant_of`.
        tokenizer: fingerprint, 16 bytes; zeros: the bundle's own.
        target: fingerprint of the weights, see `target_of`.
        time: seconds since 1970, None is now.
        prefixes: token counts at which shared beginnings end.
        base: name under which the first of them is shared with all tenants.
        parent: session that it was forked from.
    """

    name: str
    ids: Tokens
    tenant: str = "default"
    tokenizer: bytes = NONE
    tags: Mapping[str, str] = field(default_factory=dict)
    target: bytes | None = None
    time: int | None = None
    prefixes: tuple[int, ...] = ()
    base: str = ""
    parent: str = ""


@dataclass(frozen=True)
class Put:
    """The result for an item.

    ``receipt``: None where the archive had it already, as version ``known``; ``by_zstd``: it was too large for
    the model.
    """

    item: TokenItem
    receipt: Receipt | None
    by_zstd: bool = False
    known: Version | None = None

    @property
    def size(self) -> int:
        """Return the bytes of its new segments."""
        return self.receipt.size if self.receipt else 0

    @property
    def unchanged(self) -> bool:
        """Return whether no version was added."""
        return self.receipt is None or self.receipt.unchanged


@dataclass(frozen=True)
class TokenSession:
    """A session as it was put.

    ``ids``: (T,) int64; ``segments``: (id, ids of shape (t,)) from the root to the leaf.
    """

    ids: Tokens
    version: Version
    segments: Segments

    @property
    def target(self) -> bytes | None:
        """Return the fingerprint it was served with, 16 bytes; None where none was given."""
        return self.version.target if any(self.version.target) else None


class EngineOptions(TypedDict):
    """Options with which codecs are made."""

    device: str
    threads: int | None
    layout: LayoutName


class TokenArchive:
    """An open archive of token ids. Make one with `open`.

    Args:
        archive: opened with the bundle's codec first.
        bundle: the bundle that codes.
    """

    def __init__(
        self,
        archive: TowerArchive,
        bundle: Bundle,
        *,
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
        zstd_above: int | None = ZSTD_ABOVE,
    ):
        self.archive, self.bundle, self.zstd_above = archive, bundle, zstd_above
        self._options: EngineOptions = {"device": device, "threads": threads, "layout": layout}
        self._recent = Recent(RECENT)
        self._numbers = {NONE: 0, bundle.tokenizer.fingerprint: 0}  # tokenizer -> codec

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        tokenizers: Sequence[bytes] = (),
        bundle: Bundle | str | os.PathLike[str] | None = None,
        *,
        key: Secret | None = None,
        create: bool = False,
        device: str = "cpu",
        threads: int | None = None,
        layout: LayoutName = "default",
        zstd_above: int | None = ZSTD_ABOVE,
    ) -> TokenArchive:
        """Open an archive in a directory or bucket.

        Args:
            tokenizers: tokenizer.json of the targets, as bytes; the bundle's own needs none.
            create: make the archive if there is none.
            layout: layout of long segments that are put. "fast" ones thaw sooner on a GPU and are a few per cent
                longer. Both are read.
            zstd_above: put sessions of more bytes, 4 per id, by zstd and not by the model; None: none.

        Raises:
            UsageError: there is no archive.
            KeyMismatch: the archive is sealed, and ``key`` is missing or not its key.
            FormatError, ModelError, StoreError: see `TowerArchive.open` and `add`.
        """
        from pltz.models.bundle.bundle import Bundle

        loaded = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        codecs: list[SegmentCodec] = [BundleCodec(loaded, device=device, threads=threads, layout=layout)]
        try:
            archive = TowerArchive.open(place, codecs, key=key)
        except UsageError:
            if not create:
                raise
            archive = TowerArchive.create(place, codecs, key=key)
        if archive.settings.sealed and key is None:
            raise KeyMismatch(
                f"the archive at {os.fspath(place)} is sealed, and no key was given: nothing could be put or read. "
                "Name its key: key_file, key_command or passphrase_env (--key-file, --key-command, --passphrase-env)"
            )
        made = cls(archive, loaded, device=device, threads=threads, layout=layout, zstd_above=zstd_above)
        for tokenizer in tokenizers:
            made.add(tokenizer)
        return made

    def add(self, tokenizer: bytes) -> bytes:
        """Add another tokenizer, by its tokenizer.json, and return its fingerprint. Raises ModelError."""
        from pltz.archive.codecs.bridged import BridgedCodec
        from pltz.models.bundle.bridge import Bridge

        bridge = Bridge(tokenizer, self.bundle.tokenizer)
        if bridge.fingerprint not in self._numbers:
            if bridge.identity:
                self._numbers[bridge.fingerprint] = 0
            else:
                self.archive.codecs.append(BridgedCodec(self.bundle, bridge, **self._options))
                self._numbers[bridge.fingerprint] = len(self.archive.codecs) - 1
        return bridge.fingerprint

    def knows(self, tokenizer: bytes) -> bool:
        """Return whether ids of a tokenizer can be put."""
        return tokenizer in self._numbers

    # ---- in

    def put(self, items: Sequence[TokenItem]) -> list[Put]:
        """Freeze sessions; on return each is durable and was decoded and compared.

        A name that comes again starts a new commit.

        Raises:
            ContentError: ids that are not its tokenizer's, or that the archive refuses; nothing of that commit was
                stored.
            TokenizerMismatch: a tokenizer that was not given.
            StoreError, WriterFailed, Fenced: as `TowerArchive.put`.
        """
        return list(self.put_each(items))

    def put_each(self, items: Sequence[TokenItem]) -> Iterator[Put]:
        """Freeze sessions as `put` does, one after the other.

        Yielded results are durable whatever is raised later.
        """
        for batch in _batches(items):
            self.archive.catalog.refresh()
            drafts = [self._draft(item) for item in batch]
            fresh = [draft for draft in drafts if isinstance(draft, NewSession)]
            receipts = iter(self.archive.put(fresh))
            if len(fresh) < len(drafts):
                self.archive.store.settle(PACKS)  # its writer may be between link and fsync
            for item, draft in zip(batch, drafts, strict=True):
                if isinstance(draft, Version):
                    yield Put(item, None, self.by_zstd(item), draft)
                    continue
                receipt = next(receipts)
                self._remember(draft, receipt)
                yield Put(item, receipt, self.by_zstd(item))

    def _remember(self, draft: NewSession, receipt: Receipt) -> None:
        """Remember the segments of a put, so that the session's next version need not decode it."""
        keys = self.archive.keys
        own, base = (
            keys.domain(TENANT, draft.tenant),
            keys.domain(BASE, draft.base) if draft.shared else NONE,
        )
        segments: Segments = []
        parent = NONE
        for number, row in enumerate(draft.segments):
            domain = base if number < draft.shared else own
            parent = keys.segment_digest(domain, self.archive.codecs[draft.codec].tokenizer, parent, row)[
                :SIZE
            ]
            segments.append((parent, row))
        if parent == receipt.leaf:
            self._recent.add(receipt.id, segments)

    def _draft(self, item: TokenItem) -> NewSession | Version:
        """Return an item cut into segments, or the version that is it where the archive has it."""
        if item.tokenizer not in self._numbers:
            raise TokenizerMismatch(
                f"session {item.name!r} has ids of tokenizer {item.tokenizer.hex()}, whose tokenizer.json was not given"
            )
        check_ids(len(item.ids))
        codec = self._numbers[item.tokenizer]
        ids = identity.checked(item.ids)
        last = self._last(item.tenant, item.name, codec)
        for tower in self._repeated(item, codec, last):
            if self._has(tower, item, ids):
                return tower.version
        if self.by_zstd(item):
            codec = ids_codec(self.archive.codecs, self.archive.codecs[codec].tokenizer)
        return self._cut(item, codec, ids, last or self._last(item.tenant, item.parent, codec))

    def by_zstd(self, item: TokenItem) -> bool:
        """Return whether a session is too large for the model (``zstd_above``)."""
        return self.zstd_above is not None and ID_BYTES * len(item.ids) > self.zstd_above

    def _repeated(self, item: TokenItem, codec: int, last: Tower | None) -> Iterator[Tower]:
        """Yield versions that an item may repeat: the last one, and those of the item's second."""
        if last:
            yield last
        for version in self._versions(item.tenant, item.name):
            known = last is not None and version.id == last.version.id
            if version.time == item.time and not known and (tower := self._tower(version, codec)):
                yield tower

    def _has(self, tower: Tower, item: TokenItem, ids: Tokens) -> bool:
        version = tower.version
        same = version.target == (item.target or NONE) and version.tags == dict(item.tags)
        return same and np.array_equal(tower.tokens, ids) and self.archive.is_sound(tower)

    def _cut(self, item: TokenItem, codec: int, ids: Tokens, before: Tower | None) -> NewSession:
        """Cut ids, (T,), into the segments of ``before`` that they begin with, then at each prefix."""
        shared, base = (0, item.base or None)
        known: list[int] = []
        if before and len(before.segments) <= MAX_TOWER:
            try:
                shared, name = base_of(self.archive, before)
            except LostError:  # the tower is remembered, and its base was damaged since
                shared, name = MAX_TOWER, None
            known = common(before, ids)
            base = item.base or name
            if len(known) < shared or (item.base and name != item.base):
                known, shared = [], 0
        ends = [end for end in item.prefixes if 0 < end <= len(ids)]
        if not shared and base and ends and not known:
            shared = 1
        cuts = sorted({*known, *(end for end in ends if not known or end > known[-1]), len(ids)} - {0})
        step = ZSTD_SEGMENT if self.by_zstd(item) else MAX_SEGMENT
        rows = _short(ids, cuts, exact=len(known), step=step)
        shared = _count(rows, cuts[shared - 1]) if shared else 0
        options = shared, base or "base", item.tags, "ids", item.target, item.time, codec
        return NewSession(item.name, rows, item.tenant, *options)

    def _last(self, tenant: str, name: str, codec: int) -> Tower | None:
        """Return the last version of a session if a new one can build on it."""
        versions = [v for v in self._versions(tenant, name) if not v.forgotten] if name else []
        return self._tower(versions[-1], codec) if versions else None

    def _versions(self, tenant: str, name: str) -> list[Version]:
        return self.archive.catalog.lookup.versions(self.archive.keys.domain(TENANT, tenant), name)

    def _tower(self, version: Version, codec: int) -> Tower | None:
        if (version.tokenizer, KINDS[version.kind]) != (self.archive.codecs[codec].tokenizer, "ids"):
            return None
        if (segments := self._recent.get(version.id)) is not None:
            return Tower(version, segments)
        try:
            return self.archive.before(version)
        except (NotFound, FormatError, BundleMismatch):
            return None

    # ---- out

    def get(
        self,
        name: str,
        tenant: str = "default",
        version: int | None = None,
        *,
        salt: str | bytes | None = None,
    ) -> TokenSession:
        """Return a session: its last version that is not forgotten, or the one given.

        Versions that other processes have put by now are included.

        Raises:
            NotFound: there is no such session or version.
            LostError: it is damaged.
            BundleMismatch: its bundle or tokenizer is not among those given.
            ContentError: it is not one of token ids.
        """
        self.archive.catalog.refresh()  # a worker may have put new versions
        tower = self.archive.get(name, tenant_of(tenant, salt), version)
        if KINDS[tower.version.kind] != "ids":
            raise ContentError(
                f"session {name!r} is a {KINDS[tower.version.kind]}, not token ids: get it with pltz.Archive"
            )
        return TokenSession(tower.tokens, tower.version, tower.segments)


class Recent:
    """Segments of the most recently used versions, with at most a given number of tokens in total."""

    def __init__(self, tokens: int) -> None:
        self._room = tokens
        self._known: OrderedDict[bytes, Segments] = OrderedDict()

    def add(self, version: bytes, segments: Segments) -> None:
        """Remember a version's segments: (id, ids of shape (t,)) each."""
        self._room += _tokens(self._known.pop(version, []))
        self._known[version] = segments
        self._room -= _tokens(segments)
        while self._room < 0:
            _, oldest = self._known.popitem(last=False)
            self._room += _tokens(oldest)

    def get(self, version: bytes) -> Segments | None:
        """Return the segments of a version, (id, ids of shape (t,)) each; None where they are not
        remembered.
        """
        if version in self._known:
            self._known.move_to_end(version)
        return self._known.get(version)


def tenant_of(tenant: str, salt: str | bytes | None = None) -> str:
    """Return the archive's tenant for a tenant's sessions under a salt.

    Nothing is shared between salts, and a session is found only with its own salt. A salt must not be
    guessable, so only its digest is kept. Raises UsageError.

    >>> tenant_of("acme"), tenant_of("acme", "s3cret")[:10]
    ('acme', 'acme#salt=')
    """
    if salt is None or salt in ("", b""):
        return tenant
    if SALTED in tenant:
        raise UsageError(f"expected a tenant without a salt, found one with {SALTED}")
    key = hashlib.blake2b(tenant.encode("utf-8", "surrogatepass")).digest()
    named = hashlib.blake2b(_data(salt, "salt"), digest_size=SALT_SIZE, person=b"pltz salt", key=key)
    return f"{tenant}{SALTED}{named.hexdigest()}"


def target_of(target: bytes | None, adapter: str | bytes | None = None) -> bytes:
    """Return the fingerprint, 16 bytes, to keep for a target with an adapter: the KV depends on both.

    ``adapter``: its name, or 16 bytes of its own. Zeros stand for an unknown target. Raises UsageError.

    >>> target_of(None).hex() == "00" * 16, target_of(bytes(16), "lora-1") == target_of(bytes(16), "lora-2")
    (True, False)
    """
    if adapter is None:
        return target or NONE
    kind = bytes([isinstance(adapter, str)])
    return identity.digest(b"pltz adapter", target or NONE, kind, _data(adapter, "adapter"))


def _data(name: str | bytes, what: str) -> bytes:
    """Return a name as bytes. Raises UsageError."""
    if not isinstance(name, str | bytes):
        raise UsageError(f"expected a {what} as str or bytes, got {type(name).__name__}")
    return name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name


def _tokens(segments: Segments) -> int:
    return sum(len(row) for _, row in segments)


def _batches(items: Sequence[TokenItem]) -> Iterator[list[TokenItem]]:
    """Yield commits.

    A name comes once in each, because its second version builds on the first, as on a parent.
    """
    batch: list[TokenItem] = []
    names: set[tuple[str, str]] = set()
    for item in items:
        if {(item.tenant, item.name), (item.tenant, item.parent)} & names:
            yield batch
            batch, names = [], set()
        batch.append(item)
        names.add((item.tenant, item.name))
    if batch:
        yield batch


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

"""An archive through its towers and segments: the ways in that tests of records need and `pltz.Archive` does not have.

    archive = TowerArchive.create(DirectoryStore(disk), [BytesCodec()])
    archive.put([NewSession("chat-7", [prompt_ids, turn_ids], shared=1)])

Each call goes straight to the part that does the work. Tests take these classes from here alone, however the parts are
arranged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from pltz.archive import copy as copying, opener
from pltz.archive.archive import Archive
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import Chains, KnownSegment, Segments
from pltz.archive.catalog.directory import History
from pltz.archive.catalog.freshness import Token, token_of
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version, VersionName
from pltz.archive.catalog.losses import Loss
from pltz.archive.catalog.problems import Problem
from pltz.archive.catalog.reader import Tower
from pltz.archive.catalog.stat import Stat, disk_bytes, stat_of
from pltz.archive.encryption.keys import Encryption, KeySource
from pltz.archive.errors import StaysErased
from pltz.archive.format.ids import TENANT, Tokens, tenant_of
from pltz.archive.format.settings import Settings
from pltz.archive.maintenance.collect import Collected, Collector
from pltz.archive.maintenance.erase import Erasure
from pltz.archive.maintenance.join import TurnJoiner
from pltz.archive.maintenance.verify import Report, Verifier
from pltz.archive.opener import OpenArchive, open_keys
from pltz.archive.storage.store import Store
from pltz.archive.writing.new_session import CommitReceipt, NewSession
from pltz.archive.writing.put_request import PutReceipt, PutRequest, prepare
from pltz.coding.codecs.bundle_codecs import BundleCodecs, CodecRegistry, EngineOptions
from pltz.coding.codecs.codec import SegmentCodec
from pltz.models.bundle.bundle import Bundle
from pltz.models.session.session import Session, kind_of
from pltz.plt_codec.errors import ContentError

if TYPE_CHECKING:
    from pltz.kv.thaw.thawer import Thawer
    from pltz.models.target.target import Target

__all__ = ["SessionArchive", "Tower", "TowerArchive", "copy", "cut", "inside", "open_keys", "thawer_of"]

Place = Any  # a path, a URL or a store


@dataclass(eq=False)
class TowerArchive:
    """An archive with given codecs. ``load_codecs``: called before a stored segment is coded anew."""

    parts: OpenArchive
    load_codecs: Callable[[], object] = field(default=lambda: None)

    @classmethod
    def create(
        cls, place: Place, codecs: Iterable[SegmentCodec], *, key: KeySource | None = None, append_only: bool = False
    ) -> TowerArchive:
        return cls(opener.create(place, codecs, key=key, append_only=append_only))

    @classmethod
    def open(cls, place: Place, codecs: Iterable[SegmentCodec], *, key: KeySource | None = None) -> TowerArchive:
        return cls(opener.open_at(place, codecs, key=key))

    @property
    def store(self) -> Store:
        return self.parts.store

    @property
    def settings(self) -> Settings:
        return self.parts.settings

    @property
    def keys(self) -> Encryption:
        return self.parts.keys

    @property
    def codecs(self) -> CodecRegistry:
        return self.parts.codecs

    @property
    def catalog(self) -> Catalog:
        return self.parts.catalog

    @property
    def problems(self) -> list[Problem]:
        return list(self.parts.catalog.problems)

    # ---- sessions in, out, and listed

    def put(self, sessions: Sequence[NewSession], **options: Any) -> list[CommitReceipt]:
        """Put sessions, also those that were erased."""
        for _ in range(2):
            for tenant, name in {(s.tenant, s.name) for s in sessions if self.keys.cipher}:
                self.keys.unbury(self.keys.domain(TENANT, tenant), name)
            with suppress(StaysErased):  # it was erased since these keys were read; now they are read again
                return self.parts.writer.put(sessions, **options)
        raise AssertionError("erased twice meanwhile")

    def get(self, name: str, tenant: str = "default", version: VersionName | None = None) -> Tower:
        return self.tower(self.version(name, tenant, version))

    def version(self, name: str, tenant: str = "default", version: VersionName | None = None) -> Version:
        return self.parts.directory.version(name, tenant, version)

    def sight(self, name: str, tenant: str = "default") -> History:
        return self.parts.directory.sight(name, tenant)

    def history(self, name: str, tenant: str = "default") -> list[Version]:
        return self.sight(name, tenant).versions

    def whole_histories(self, tenant: str | None = None) -> list[Version]:
        return self.parts.directory.whole_histories(tenant)

    def ls(self, tenant: str | None = None, *, forgotten: bool = False, history: bool = False) -> Iterator[Version]:
        return self.parts.directory.ls(tenant, forgotten=forgotten, history=history)

    def want_whole(self, what: str, tenant: str | None = None) -> None:
        self.parts.directory.want_whole(what, tenant)

    def tower(self, version: Version) -> Tower:
        return self.parts.reader.tower(version)

    def towers(self, versions: Sequence[Version], known: Mapping[bytes, KnownSegment] | None = None) -> list[Tower]:
        return self.parts.reader.towers(versions, known)

    def each(self, versions: Iterable[Version]) -> Iterator[Tower]:
        return self.parts.reader.each(versions)

    def places(self, segment: bytes) -> list[Found]:
        return self.parts.reader.records(segment)

    def record(self, segment: bytes) -> Found:
        return self.parts.reader.record(segment)

    def segment(self, segment: bytes) -> Segments:
        return Chains(self.catalog, self.codecs).tower(segment)

    def before(self, version: Version) -> Tower:
        return self.parts.last.of(version)

    def prepare(self, versions: Sequence[Version]) -> None:
        self.parts.last.load(versions)

    def forget(self, versions: Sequence[Version]) -> int:
        return self.parts.marker.forget(versions)

    def undelete(self, versions: Sequence[Version]) -> int:
        return self.parts.marker.undelete(versions)

    def stat(self) -> Stat:
        return stat_of(self.parts.catalog, self.parts.settings.archive)

    def disk_bytes(self) -> int:
        return disk_bytes(self.parts.store)

    def token(self) -> str:
        return str(token_of(self.parts.catalog))

    def losses(self) -> list[Loss]:
        return self.parts.catalog.damage.losses()

    def acknowledge(self, losses: Sequence[Loss] | None = None) -> list[Loss]:
        return self.parts.catalog.acknowledge(losses)

    # ---- maintenance

    def write_index(self, *, everything: bool = True) -> None:
        self.parts.indexes.write(everything=everything)

    def rebuild(self) -> None:
        self.parts.indexes.rebuild()

    def joiner(self) -> TurnJoiner:
        parts, load = self.parts, lambda: self.load_codecs()
        return TurnJoiner(parts.catalog, parts.writer, parts.codecs, parts.indexes, load=load, few=0)

    def collect(self, **options: Any) -> Collected:
        return Collector(self.parts.catalog, self.parts.writer, self.parts.indexes, self.joiner()).run(**options)

    def join(self) -> int:
        """Join the turns of all sessions, as a collector does with those that it copies."""
        self.load_codecs()
        return self.joiner().sessions((v.tenant, v.name, v.part) for whole in list(self.ls()) for v in whole.each)

    def put_and_join(self, sessions: Sequence[NewSession]) -> list[CommitReceipt]:
        """Put sessions and join the last turns of those that grew, as `Archive.put_many` does."""
        receipts = self.put(sessions)
        self.joiner().after(receipts)
        return receipts

    def verify(self, *, expect: str | None = None, **options: Any) -> Report:
        if options.get("decode"):
            self.load_codecs()
        catalog = Catalog(self.parts.store, self.parts.keys)
        token = None if expect is None else Token.parse(expect)
        return Verifier(catalog, self.parts.codecs, self.parts.settings).run(expect=token, **options)

    def erase(self, tenant: str, name: str | None = None, *, dry_run: bool = False) -> Erasure:
        return Archive(self.parts).erase(name, tenant=tenant, everything=name is None, dry_run=dry_run)

    def erase_base(self, name: str, *, dry_run: bool = False) -> Erasure:
        return Archive(self.parts).erase(base=name, dry_run=dry_run)


@dataclass(frozen=True)
class TokenSession:
    """Token ids as they were put. ``segments``: (id, ids of shape (t,)) from the root to the leaf."""

    ids: Tokens
    version: Version
    segments: Segments

    @property
    def target(self) -> bytes | None:
        return self.version.target if any(self.version.target) else None


class SessionArchive:
    """An archive of sessions, put in lists and read as values, beside its towers: ``archive``."""

    def __init__(
        self, archive: TowerArchive, bundles: Sequence[Any] = (), *, model_logs: bool = False, merge_turns: bool = True,
        tokenizers: Sequence[bytes] = (), **engine: Unpack[EngineOptions],
    ) -> None:
        self.archive = archive
        self.cold = Archive(
            archive.parts, bundle=[*bundles] or None, tokenizers=tokenizers, model_logs=model_logs, model_ids=True,
            merge_turns=merge_turns, **engine,
        )
        archive.load_codecs = lambda: self.cold.codecs
        if archive.codecs:  # given ones, perhaps of no real bundle
            self.cold.__dict__["codecs"] = BundleCodecs(archive.codecs, bundles, model_logs=model_logs, **engine)
        self.cold.codecs  # noqa: B018  (loads the bundles)

    @classmethod
    def create(cls, place: Place, bundles: Sequence[Bundle] = (), *, key: KeySource | None = None) -> SessionArchive:
        return cls(TowerArchive.create(place, [], key=key), bundles)

    @classmethod
    def open(
        cls, place: Place, bundles: Sequence[Any] = (), *, key: KeySource | None = None, create: bool = False,
        **options: Any,
    ) -> SessionArchive:
        opened = (opener.open_or_create if create else opener.open_at)(place, key=key)
        return cls(TowerArchive(opened), bundles, **options)

    @property
    def tokenizer(self) -> Any:
        return self.cold.codecs.tokenizer

    @property
    def bundle(self) -> Bundle:
        return self.cold.codecs.bundle

    def add(self, tokenizer: bytes) -> bytes:
        return self.cold.codecs.add(tokenizer)

    def put(self, requests: Iterable[PutRequest], **options: Any) -> Iterator[PutReceipt]:
        return self.cold.put_many(requests, **options)

    def get(self, name: str, tenant: str = "default", version: VersionName | None = None) -> Session:
        return self.session(self.archive.get(name, tenant, version))

    def get_ids(
        self, name: str, tenant: str = "default", version: VersionName | None = None, *, salt: str | bytes | None = None
    ) -> TokenSession:
        tower = self.archive.get(name, tenant_of(tenant, salt), version)
        if kind_of(tower.version.kind) != "ids":
            raise ContentError(f"session {name!r} is a {kind_of(tower.version.kind)}, not token ids")
        return TokenSession(tower.tokens, tower.version, tower.segments)

    def read(self, version: Version) -> Session:
        return self.cold.sessions.read(version)

    def read_many(self, versions: Iterable[Version]) -> Iterator[Session]:
        return self.cold.sessions.read_many(versions)

    def session(self, tower: Tower) -> Session:
        return self.cold.sessions.session(tower)


def cut(archive: SessionArchive, request: PutRequest) -> NewSession:
    """Return a request's session in segments, as a put would give it to the writer."""
    found = archive.cold.commits.cutter.cut(prepare(request, archive.add))
    assert isinstance(found, NewSession)
    return found


def inside(archive: Archive) -> TowerArchive:
    """Return the same archive through its towers."""
    return TowerArchive(archive.parts, lambda: archive.codecs)


def copy(
    source: TowerArchive, versions: Iterable[Version], to: TowerArchive, *, dry_run: bool = False
) -> Iterator[copying.Copied]:
    """Copy versions, as `archive.copy` does."""
    return copying.copy(source.parts, versions, to.parts, dry_run=dry_run)


def thawer_of(archive: SessionArchive, target: Target, hot: Any = None, **options: Any) -> Thawer:
    """Return a thawer of its own for an archive and a target."""
    from pltz.kv.thaw.thawer import Thawer

    return Thawer(archive.cold, target, hot, **options)

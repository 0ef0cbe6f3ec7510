"""TowerArchive: freeze sessions as towers of segments, get them back token for token. Spec: FORMAT.md.

    archive = TowerArchive.create("/data/cold", [BundleCodec(Bundle.load())])
    receipts = archive.put([NewSession("chat-7", [prompt_ids, turn_ids], tenant="acme", shared=1)])
    tower = archive.get("chat-7", tenant="acme")     # tower.tokens == prompt_ids + turn_ids

This module opens archives, reads them, lists the catalogue and forgets versions. Writing is `writer.ArchiveWriter`,
garbage collection `collect.Collector`, checking `verify.Verifier`; they share one `catalog.Catalog`. Several
processes may do all of it at once. One `TowerArchive` belongs to one thread.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import MAX_SEGMENTS, Chains, Heard, KnownSegment, decodable_groups
from pltz.archive.catalog.freshness import Token, token_of
from pltz.archive.catalog.history import History
from pltz.archive.catalog.ledger import Loss, PackState
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.problems import Problem
from pltz.archive.catalog.recent_towers import RecentTowers
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.encryption.keys import Encryption, LockedArchive, Plaintext, Secret
from pltz.archive.errors import ArchiveError, LostError, MissingPack, NotFound, StoreError
from pltz.archive.format import index_file, object_names
from pltz.archive.format.context import RUN, WITHIN
from pltz.archive.format.ids import TENANT, Tokens, segment_of
from pltz.archive.format.index_file import SEGMENTS, Lookup
from pltz.archive.format.object_names import SETTINGS, SETTINGS_COPY
from pltz.archive.format.parity import SHARE, SHARED
from pltz.archive.format.record import FORGET, UNDELETE
from pltz.archive.format.settings import MAX_SIZE, Settings
from pltz.archive.humanize import counted, moment
from pltz.archive.maintenance.cluster import MEDOIDS, Clustered, Clusterer
from pltz.archive.maintenance.collect import COPYING, DEAD_SHARE, SMALL, Collected, Collector
from pltz.archive.maintenance.merge import COLD, Merged, Merger
from pltz.archive.maintenance.recode import Recoder
from pltz.archive.storage.store import Store, is_there, open_store, remains
from pltz.archive.writing.candidates import read_candidates
from pltz.archive.writing.new_session import CommitReceipt, NewSession
from pltz.archive.writing.verified_segments import VerifiedSegments
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.codec import SegmentCodec
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.engines.queued import Told
from pltz.plt_codec.errors import PltzError, UsageError
from pltz.plt_codec.identity import NONE, SIZE

if TYPE_CHECKING:
    from pltz.archive.maintenance.erase import Erasure
    from pltz.archive.maintenance.verify import Report
    from pltz.coding.expected_time import Expect

# packs, entries and bytes without an index before one is written; opening scans them, for some tens of milliseconds
INDEX_PACKS, INDEX_ENTRIES, INDEX_BYTES = 32, 1024, 8 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class Tower:
    """A session thawed to tokens. ``segments``: (id, tokens (T,)) from the root to the leaf."""

    version: Version
    segments: list[tuple[bytes, Tokens]]

    @property
    def tokens(self) -> Tokens:
        """Return all tokens, (T,)."""
        return np.concatenate([np.zeros(0, np.int64), *(tokens for _, tokens in self.segments)])


@dataclass(frozen=True)
class Stat:
    """Counts and bytes of an archive.

    Attributes:
        tail: packs that no index covers.
        missing: packs that are gone although no collector deleted them.
        losses: packs that repair gave up and whose loss is not acknowledged.
    """

    archive: bytes
    packs: int
    pack_bytes: int
    indexes: int
    index_bytes: int
    segments: int
    sessions: int
    marks: int
    tail: int
    condemned: int
    epoch: int
    problems: int
    missing: int
    losses: int


class TowerArchive:
    """An open archive. Make one with `create` or `open`.

    Args:
        store: store of the archive.
        codecs: the first codes new sessions that name no other; all are used for reading.
    """

    def __init__(
        self, store: Store, settings: Settings, codecs: Sequence[SegmentCodec], keys: Encryption | None = None
    ):
        self.store, self.settings, self.codecs = store, settings, CodecRegistry(codecs)
        self.keys = keys or Plaintext()
        self._neighbours = False
        self._max_age = 0.0
        self.load_codecs: Callable[[], object] = lambda: None  # called before a segment is coded anew
        self._look()

    @classmethod
    def create(
        cls,
        place: str | os.PathLike[str] | Store,
        codecs: Sequence[SegmentCodec],
        *,
        key: Secret | None = None,
        parity: tuple[int, int] = (SHARE, SHARED),
    ) -> TowerArchive:
        """Make an archive where there is none: in a directory, at ``s3://bucket/prefix``, or in a store.

        Args:
            codecs: as in the constructor.
            key: encrypts everything, so that sessions and tenants can be erased, and opens the archive.
            parity: thousandths of parity for packs, and for segments that many sessions depend on; 0 is none.

        If several processes do this at once, one wins and the others leave its archive untouched. If a crash
        cut an init off before a sealed archive had its key, the next init finishes it.

        Raises UsageError where there is one or another process makes one, StoreError where the place cannot
        be written.
        """
        store = open_store(place) if isinstance(place, str | os.PathLike) else place
        store.make()
        settings = Settings(store.random(SIZE), key is not None, parity)
        # the settings are the last step of init: where they are, another init won or was cut off
        if not is_there(store, SETTINGS):
            _want_nothing(store)
        if not store.put(SETTINGS, settings.encode()):
            settings = _cut_off(store, settings)
        # keys and the second copy may be lacking after a crash, and are made then
        if key:
            Keyring.create(store, settings.archive, key)
        store.put(SETTINGS_COPY, settings.encode())
        return cls(store, settings, codecs, open_keys(store, settings, key))

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str] | Store,
        codecs: Sequence[SegmentCodec],
        *,
        key: Secret | None = None,
    ) -> TowerArchive:
        """Open an archive. Packs that no index covers are scanned now.

        A sealed archive opened without ``key`` can be checked, collected and repaired, but not read or
        written.

        Raises:
            UsageError: there is no archive, or a key was given for one that is not sealed.
            CorruptError, VersionError: archive.json is damaged or newer.
            KeyMismatch: ``key`` is not its key.
            ArchiveError, StoreError: archive.json is missing from an archive, a plan is damaged, or the store failed.
        """
        store = open_store(place) if isinstance(place, str | os.PathLike) else place
        try:
            data = store.read(SETTINGS, 0, MAX_SIZE)
        except FileNotFoundError as exc:
            if folder := remains(store):
                raise ArchiveError(
                    f"{SETTINGS} is missing and {folder}/ is not empty: an archive is here; "
                    "pltz archive repair brings it back from its copy"
                ) from exc
            at = f"at {place}" if isinstance(place, str | os.PathLike) else "here"
            raise UsageError(f"no archive {at} ({SETTINGS} is missing): make one with pltz archive init") from exc
        settings = Settings.decode(data)
        return cls(store, settings, codecs, open_keys(store, settings, key))

    @property
    def max_age(self) -> float:
        """Return how old, in seconds, the sight of the archive may be that a read answers from (`Catalog.look`)."""
        return self._max_age

    @max_age.setter
    def max_age(self, seconds: float) -> None:
        self._max_age = self.catalog.max_age = seconds

    @property
    def neighbours(self) -> bool:
        """Return whether puts code segments after the nearest earlier session of their tenant, where that is shorter.

        All archives are read either way. See FORMAT.md, "Neighbours".
        """
        return self._neighbours

    @neighbours.setter
    def neighbours(self, on: bool) -> None:
        """Begin or stop to do so; no stored record changes."""
        self._neighbours = on
        if not on:
            self._writer.neighbours.candidates = None
        elif self._writer.neighbours.candidates is None:
            self._writer.neighbours.candidates = read_candidates(self.catalog, self.settings.archive)

    @property
    def problems(self) -> list[Problem]:
        """Return the problems met so far; `verify` reads everything."""
        return list(self.catalog.damage.problems)

    def want_whole(self, what: str, tenant: str | None = None) -> None:
        """Raise ArchiveError where a listing may lack sessions because packs or keys are damaged or gone.

        Args:
            what: the completed work, for the message.
            tenant: the listing was of this tenant alone, so the keys of others do not count.
        """
        all_tenants = tenant is None or isinstance(self.keys, LockedArchive)
        if lacking := self.catalog.keyless(None if all_tenants else self.keys.domain(TENANT, tenant or "")):
            raise ArchiveError(
                f"{what}, but sessions are missing: {lacking[min(lacking)]}"
                + (f"; and those of {counted(len(lacking) - 1, 'other domain')}" if len(lacking) > 1 else "")
            )
        losses = {loss.pack for loss in self.losses()}
        if hiding := self.catalog.damage.hiding() - losses:
            raise ArchiveError(
                f"{what}, but sessions may be missing: {counted(len(hiding), 'pack')} damaged or gone, "
                "see pltz archive repair"
            )
        if losses:
            raise ArchiveError(
                f"{what}, but sessions were lost with {counted(len(losses), 'pack')} that repair gave up: "
                "see pltz archive verify; pltz archive repair --acknowledge ends this message"
            )

    def put(
        self,
        sessions: Sequence[NewSession],
        *,
        dry_run: bool = False,
        expect: Expect | None = None,
        refresh: bool = True,
    ) -> list[CommitReceipt]:
        """Freeze sessions in one commit; on return they are durable and were decoded and compared.

        Args:
            dry_run: encode and store nothing; the receipts say what a put would store.
            expect: called with the expected seconds before many tokens are coded.
            refresh: read the changes of others first; False for a caller that has just done so.

        Raises:
            ContentError, UsageError: a session cannot be stored; nothing was written.
            StoreError: the disk is full or refuses; the archive is as it was.
            WriterFailed: a sync failed; nothing was acknowledged, and this archive object writes no more.
            Fenced: plans or keys changed meanwhile; nothing was acknowledged, put again.
        """
        if refresh:
            self.catalog.refresh()
        self._writer.expect = expect
        receipts = self._writer.put(sessions, dry_run=dry_run)
        self._index_now_and_then()
        return receipts

    def get(self, name: str, tenant: str = "default", version: int | None = None) -> Tower:
        """Return a session's tokens: of the last version that is not forgotten, or of a version by its number.

        Raises:
            NotFound: there is no such session or version.
            LostError: it was damaged.
            ArchiveError: it may be in a damaged pack.
            BundleMismatch: none of the codecs coded it.
        """
        return self.tower(self.version(name, tenant, version))

    def version(self, name: str, tenant: str = "default", version: int | None = None) -> Version:
        """Return the version that `get` would read.

        Raises:
            NotFound: there is no such session or version.
            LostError: damage took it, or what may be the last version.
            MissingPack: it is in a missing pack that repair may restore.
            ArchiveError: it may be in a damaged pack.
        """
        known = self.sight(name, tenant)
        wanted = [v for v in known.versions if (not v.forgotten if version is None else v.version == version)]
        if version is None:
            known.want_newest()
        if not wanted:
            known.want_whole()
            if version is not None:
                self.catalog.histories.of(tenant, name, older=True).want_whole()
            key = self.keys.session_key(self.keys.domain(TENANT, tenant), name)
            if not known.versions and (told := self._told_of_loss(key)):
                raise NotFound(f"session {name!r} of tenant {tenant!r} {told}")
            raise NotFound(_not_found(name, tenant, version, known.versions))
        return wanted[-1]

    def losses(self) -> list[Loss]:
        """Return the packs that repair gave up and whose loss is not acknowledged. Raises StoreError."""
        return self.catalog.damage.losses()

    def acknowledge(self, losses: Sequence[Loss] | None = None) -> list[Loss]:
        """Record that a person knows of losses (None: all) and return them; they are not reported any more.

        `get` of a session that an acknowledged loss names still says so. Raises StoreError, WriterFailed.
        """
        self.catalog.refresh()
        known = self.losses()
        chosen = known if losses is None else [loss for loss in known if loss in losses]
        self.catalog.ledger.acknowledge(chosen)
        return chosen

    def _told_of_loss(self, key: bytes) -> str | None:
        """Return the message about a session that an acknowledged loss names; None where none does."""
        for loss in self.catalog.ledger.losses():
            if loss.acknowledged is not None and index_file.key_of(key) in loss.entry.sessions:
                lost, told = moment(loss.entry.time), moment(loss.acknowledged)
                return f"was lost: repair gave up pack {loss.pack.hex()} at {lost}; acknowledged at {told}"
        return None

    def sight(self, name: str, tenant: str = "default") -> History:
        """Return the versions of a session that can be read, and what may hide others.

        Raises CorruptError where there are some and none of them is sound, ArchiveError, StoreError.
        """
        looked = self.catalog.look()
        found = self.catalog.histories.of(tenant, name)
        if not found.versions and not looked:  # no session is absent by an old sight
            self.catalog.refresh()
            found = self.catalog.histories.of(tenant, name)
        return found

    def history(self, name: str, tenant: str = "default") -> list[Version]:
        """Return all versions of a session that can be read, oldest first, forgotten ones included.

        For what others may be hidden: `sight`, whose errors it raises.
        """
        return self.sight(name, tenant).versions

    def whole_histories(self, tenant: str | None = None) -> list[Version]:
        """Return all versions of the sessions of which damage hides none, by tenant and name. Raises ArchiveError."""
        self.catalog.refresh()
        known = (v for v in self.catalog.lookup.all_versions() if tenant is None or v.tenant == tenant)
        groups = [list(rows) for _, rows in itertools.groupby(known, key=lambda v: (v.tenant, v.name))]
        return [v for versions in groups if self.catalog.histories.are_whole(versions) for v in versions]

    def tower(self, version: Version) -> Tower:
        """Return the tokens of a version.

        Raises LostError, CorruptError, BundleMismatch, KeyMismatch, Erased.
        """
        return self.towers([version])[0]

    def before(self, version: Version) -> Tower:
        """Return the tower of a version that a put will extend.

        One that this archive object put or read recently is remembered. Else this proves that it decodes, so
        the put need not prove it again. Raises the errors of `tower`.
        """
        if not version.lacks and (segments := self._writer.recent.get(version.leaf)) is not None:
            return Tower(version, segments)
        tower = self._twice(lambda: self._towers([version], heard=self._writer.proved.heard))[0]
        self._writer.recent.add(tower.segments)
        return tower

    def known_ends(self, version: Version, tokens: Tokens) -> tuple[list[int], bool] | None:
        """Return the ends of the segments of a version with which tokens, (T,), begin, and whether they are all of it.

        Their ids tell; nothing is decoded. None where that cannot tell: segments are in a run, or a record is gone.
        """
        chain: list[Found] = []
        leaf = version.leaf
        while leaf != NONE:
            found = self.catalog.lookup.find(SEGMENTS, leaf)
            if not found or found[0].context.mode >= RUN or len(chain) >= MAX_SEGMENTS:
                return None
            chain.append(found[0])
            leaf = found[0].record.parent
        ends, at = list[int](), 0
        for item in reversed(chain):
            context, record = item.context, item.record
            part = tokens[at : at + record.tokens]
            digest = self.keys.segment_digest(context.domain, context.tokenizer, record.parent, part)
            if segment_of(digest) != record.id:
                break
            at += record.tokens
            ends.append(at)
        return ends, len(ends) == len(chain)

    def prepare(self, versions: Sequence[Version]) -> None:
        """Decode the towers of versions that puts will extend, side by side, so that `before` remembers them.

        Those that cannot be read are left out. Raises StoreError.
        """
        recent = self._writer.recent
        fresh = [v for v in versions if v.lacks or recent.get(v.leaf) is None]
        for group in decodable_groups(fresh, self._length):
            if len(group) < 2:
                continue  # `before` decodes it when its turn comes
            chains = Chains(self.catalog, self.codecs, heard=self._writer.proved.heard)
            with suppress(FileNotFoundError):  # `before` looks again
                chains.load([v.leaf for v in group])
                for version in group:
                    with suppress(PltzError):
                        recent.add(chains.version(version))

    @property
    def remembered(self) -> tuple[RecentTowers, VerifiedSegments]:
        """Return the towers put or read last, and the segments proved to decode."""
        return self._writer.recent, self._writer.proved

    def take_over(self, recent: RecentTowers, proved: VerifiedSegments) -> None:
        """Remember what another object of this archive `remembered`, so that sessions it put grow without decoding."""
        self._writer.take_over(recent, proved)

    def is_sound(self, tower: Tower) -> bool:
        """Return whether the records of a version and of its segments read now. None of them is decoded.

        For a put that finds a remembered tower unchanged. If one does not read, the next put decodes every
        segment that it relies on. Raises StoreError.
        """
        sound = self.catalog.lookup.is_sound(tower.version.location) and self._stands(tower.version.leaf)
        if not sound:
            self._writer.recent.clear()
            self._writer.proved.clear()
        return sound

    def _stands(self, leaf: bytes) -> bool:
        """Return whether the records that a tower is read from are there. A run has no records of its segments."""
        for _ in range(MAX_SEGMENTS):
            if leaf == NONE:
                return True
            if not (found := self.catalog.lookup.find(SEGMENTS, leaf)):
                return False
            leaf = found[0].record.parent
        return False

    def towers(
        self,
        versions: Sequence[Version],
        known: Mapping[bytes, KnownSegment] | None = None,
        told: Told | None = None,
    ) -> list[Tower]:
        """Return the tokens of versions, decoded together, shared segments once.

        All of them are in memory at once: ask for some hundred at a time. ``known``: segments that the caller
        already has; they are neither read nor decoded. ``told``: called for tokens that a GPU still decodes
        (`codecs.codec.Queueing`). Raises the errors of `tower` for the first that is lost.
        """
        return self._twice(lambda: self._towers(versions, known, told=told))

    def each(self, versions: Iterable[Version]) -> Iterator[Tower]:
        """Yield the tokens of versions in their order, decoded in groups (`decodable_groups`).

        Raises the errors of `tower` for the first that is lost, before others of its group are yielded.
        """
        for group in decodable_groups(versions, self._length):
            yield from self.towers(group)

    def _length(self, version: Version) -> int:
        """Return the tokens of a version's tower, from its records alone."""
        with suppress(FileNotFoundError):  # whoever reads it looks again
            return Chains(self.catalog, self.codecs).length(version.leaf)
        return 0

    def places(self, segment: bytes) -> list[Found]:
        """Return the records of a segment. Raises ArchiveError, StoreError."""
        return self.catalog.listing.stable(lambda: self.catalog.lookup.find(SEGMENTS, segment))

    def record(self, segment: bytes) -> Found:
        """Return a segment's record with its location. Raises LostError."""
        return self._twice(lambda: self._record(segment))

    def _record(self, segment: bytes) -> Found:
        found = self.catalog.lookup.find(SEGMENTS, segment)
        if not found:
            raise LostError(f"segment {segment.hex()} is damaged or gone: see pltz archive verify")
        return min(found, key=lambda item: item.context.mode & (RUN | WITHIN))

    def segment(self, segment: bytes) -> list[tuple[bytes, Tokens]]:
        """Return the tower that ends in a segment: (id, tokens of shape (T,)) from the root.

        Raises NotFound, and the errors of `version` and `tower`.
        """
        if not self._twice(lambda: self.catalog.lookup.find(SEGMENTS, segment)):
            damage, what = self.catalog.damage, f"segment {segment.hex()}"
            if (state := damage.hides(SEGMENTS, segment)) is not None:
                error = MissingPack if state is PackState.MISSING else LostError
                raise error(f"a record of {what} is damaged or gone: see pltz archive repair")
            if blind := damage.uncatalogued():
                raise ArchiveError(
                    f"found no {what}, and {counted(len(blind), 'pack')} damaged or gone may have had it: "
                    "see pltz archive repair, then ask again"
                )
            raise NotFound(f"no {what} in this archive")
        return self._twice(lambda: Chains(self.catalog, self.codecs).tower(segment))

    def ls(
        self, tenant: str | None = None, *, forgotten: bool = False, history: bool = False
    ) -> Iterator[Version]:
        """Yield the last version of each session, or all versions with ``history``, by tenant and name.

        Forgotten versions come only on request. Raises ArchiveError, StoreError.
        """
        self.catalog.look()
        chosen = [
            v
            for v in self.catalog.lookup.all_versions()
            if (tenant is None or v.tenant == tenant) and (forgotten or not v.forgotten)
        ]
        for number, v in enumerate(chosen):
            following = chosen[number + 1 : number + 2]
            if history or not following or (following[0].tenant, following[0].name) != (v.tenant, v.name):
                yield v

    def find(
        self,
        tags: dict[str, str] | None = None,
        *,
        tenant: str | None = None,
        name: str = "",
        since: int | None = None,
        until: int | None = None,
    ) -> Iterator[Version]:
        """Yield last versions whose name contains ``name`` and that have all these tags.

        ``since``, ``until``: seconds since 1970; ``since`` <= time < ``until``. Raises ArchiveError,
        StoreError.
        """
        wanted = (tags or {}).items()
        for v in self.ls(tenant):
            in_time = (since is None or v.time >= since) and (until is None or v.time < until)
            if name in v.name and in_time and wanted <= v.tags.items():
                yield v

    def stat(self) -> Stat:
        """Return counts and bytes.

        Segments stored twice (by two writers at once) count twice. Raises StoreError.
        """
        self.catalog.look()
        catalog = self.catalog
        lookups: list[Lookup] = [*catalog.listing.indexes.values(), catalog.listing.tail]
        starts = {pack: number << 30 for number, pack in enumerate(catalog.listing.packs)}
        segments, sessions, marks = (
            len(index_file.gather(lookups, section, starts)[0]) for section in range(len(index_file.SECTIONS))
        )
        sizes = self.store.list(object_names.INDEXES)
        return Stat(
            self.settings.archive,
            len(catalog.listing.packs),
            sum(catalog.listing.packs.values()),
            len(catalog.listing.indexes),
            sum(sizes.get(n, 0) for n in catalog.listing.indexes),
            segments,
            sessions,
            marks,
            len(self._uncovered()),
            len(catalog.listing.condemned & set(catalog.listing.packs)),
            catalog.listing.epoch,
            len(catalog.damage.problems),
            len(catalog.damage.missing()),
            len(catalog.damage.losses()),
        )

    def disk_bytes(self) -> int:
        """Return the bytes of all files of the archive: packs, indexes, parity, keys, plans, copies and the reserve.

        Raises StoreError.
        """
        top = self.store.list("")
        own = (object_names.SETTINGS, object_names.RESERVE, object_names.RESERVE_COLLECT)
        return sum(top.get(name, 0) for name in own) + sum(
            sum(self.store.list(folder).values()) for folder in object_names.FOLDERS
        )

    def forget(self, versions: Sequence[Version]) -> int:
        """Forget versions and return how many were not forgotten yet.

        `ls` and `get` no longer return them. `undelete` brings them back for the grace of `collect` at least. Raises
        NotFound where one was collected, else the errors of `put`.
        """
        return self._twice(lambda: self._mark(versions, FORGET))

    def undelete(self, versions: Sequence[Version]) -> int:
        """Bring forgotten versions back and return how many were forgotten.

        Raises NotFound, ArchiveError where they or their segments were collected, else the errors of `put`.
        """
        return self._twice(lambda: self._mark(versions, UNDELETE))

    def verify(
        self,
        *,
        decode: bool = False,
        fraction: float = 1.0,
        max_seconds: int | None = None,
        anywhere: bool = False,
        resume: Report | None = None,
        expect: str | None = None,
        progress: Callable[[Report], None] | None = None,
    ) -> Report:
        """Read everything and change nothing; problems are in the report. See `verify.Verifier.run`.

        Raises UsageError for an invalid ``expect``, StoreError.
        """
        from pltz.archive.maintenance.verify import Verifier

        verifier = Verifier(Catalog(self.store, self.keys), self.codecs, self.settings, resume)
        return verifier.run(
            decode=decode,
            fraction=fraction,
            max_seconds=max_seconds,
            anywhere=anywhere,
            expect=None if expect is None else Token.parse(expect),
            progress=progress,
        )

    def token(self) -> str:
        """Return the freshness token of the present state, to be kept elsewhere for ``verify(expect=...)``.

        Raises StoreError.
        """
        return str(token_of(self.catalog))

    def erase(
        self, tenant: str, name: str | None = None, *, bases: bool = False, dry_run: bool = False
    ) -> Erasure:
        """Destroy the keys of a session, or of a whole tenant, and prove that nothing opens.

        The proof reads the raw files. This cannot be undone. Segments that other sessions of the tenant share
        stay, and so do base domains; the receipt names them. With ``bases``, which needs no ``name``, base
        domains on which only this tenant's sessions stand are erased too. See `erase.Eraser`.

        Raises:
            UsageError: the archive is not sealed or was opened without its key, or ``bases`` is given with a ``name``.
            NotFound: there is no such session or tenant, or it was erased.
            Fenced: another erase ran at the same time.
            ArchiveError: damage hides which segments other sessions share.
            StoreError: the store failed.
        """
        from pltz.archive.maintenance.erase import Eraser

        eraser = Eraser(self.catalog, self._recoder())
        self._writer.forget_tokens()
        if name is not None and bases:
            raise UsageError("bases are erased with a whole tenant, or by name: leave the session's name out")
        with self.store.using_reserve(0 if dry_run else 1):
            if name is None:
                return eraser.tenant(tenant, bases=bases, dry_run=dry_run)
            return eraser.session(tenant, name, dry_run=dry_run)

    def erase_base(self, name: str, *, dry_run: bool = False) -> Erasure:
        """Destroy the keys of a base domain, whose prompts sessions share, and prove it.

        This cannot be undone. Raises the errors of `erase`, and ArchiveError where any session stands on it,
        forgotten ones included.
        """
        from pltz.archive.maintenance.erase import Eraser

        self._writer.forget_tokens()
        with self.store.using_reserve(0 if dry_run else 1):
            return Eraser(self.catalog).base(name, dry_run=dry_run)

    def collect(
        self, *, dead_share: float = DEAD_SHARE, small: int = SMALL, grace: int = 0, dry_run: bool = False
    ) -> Collected:
        """Free packs condemned by an earlier run, then condemn small packs and packs with many dead bytes.

        Args:
            dead_share: share of dead bytes from which the rest of a pack is copied.
            small: packs of fewer bytes are merged.
            grace: seconds between condemning a pack and deleting it. For so long after a forget `undelete` works, at
                least.
            dry_run: only report the work to do.

        Raises ArchiveError where anything in the archive is damaged or missing: then nothing is deleted.
        Raises StoreError.
        """
        locked = isinstance(self.keys, LockedArchive)
        run = Collector(self.catalog, self._writer, None if locked else self._recoder()).run
        if dry_run:
            return run(dead_share=dead_share, small=small, grace=grace, dry_run=True)
        with self.store.using_reserve(COPYING):
            done = run(dead_share=dead_share, small=small, grace=grace)
        if done.copied or done.deleted:
            try:
                self.write_index()
            except StoreError as exc:  # the collection stands; an index can be written later
                self.catalog.damage.note("index", "", str(exc))
        return done

    def merge(
        self,
        *,
        cold: int = COLD,
        tenant: str | None = None,
        dry_run: bool = False,
        progress: Callable[[Merged], None] | None = None,
    ) -> Merged:
        """Rewrite the own segments of each cold session as one, so that it is read sooner. See `merge.Merger`.

        All versions stay as they are. `collect` frees the records that are replaced.

        Args:
            cold: least age of a session's newest version, in seconds.
            tenant: merge only sessions of this tenant.
            dry_run: only report the work to do.
            progress: called with the result so far.

        Raises ArchiveError where packs are damaged or gone, Fenced where something was erased meanwhile, StoreError,
        WriterFailed.
        """
        done = Merger(self.catalog, self._writer, self.codecs).run(
            cold=cold, tenant=tenant, dry_run=dry_run, progress=progress
        )
        if done.merged and not dry_run:
            self._index_now_and_then()
        return done

    def cluster(
        self,
        *,
        medoids: int = MEDOIDS,
        dry_run: bool = False,
        progress: Callable[[Clustered], None] | None = None,
    ) -> Clustered:
        """Choose the sessions of each tenant that new ones are coded after, where `neighbours` is on.

        Args:
            medoids: most sessions per tenant.
            dry_run: put nothing.
            progress: called with the result so far, after each tenant.

        Raises StoreError, WriterFailed. The candidates chosen before stay then.
        """
        clusterer = Clusterer(self.catalog, self.codecs, self.settings.archive)
        done = clusterer.run(medoids=medoids, dry_run=dry_run, progress=progress)
        if self._neighbours and not dry_run:
            self._writer.neighbours.candidates = read_candidates(self.catalog, self.settings.archive)
        return done

    def rebuild(self) -> None:
        """Make one index from the packs alone, then delete all others.

        Raises StoreError; the old indexes are all there then.
        """
        old = set(self.store.list(object_names.INDEXES))
        self._look(unused=old)
        made = self._write_index(everything=True)
        for name in old - made:
            self.store.delete(object_names.index(name))
        self._look()

    def write_index(self, *, everything: bool = True) -> None:
        """Put an index over the packs that have none, merging smaller indexes into it (or all of them).

        Raises StoreError.
        """
        self._write_index(everything)

    def _write_index(self, everything: bool) -> set[str]:
        """Do the work of `write_index` and return the names of the index files put."""
        catalog = self.catalog
        absorbed: dict[str, index_file.FileIndex] = {}
        entries, packs = catalog.listing.tail.count, len(catalog.listing.tail.packs)
        for name, known in sorted(catalog.listing.indexes.items(), key=lambda item: len(item[1])):
            fits = packs + len(known.packs) <= index_file.MAX_PACKS
            if everything or (fits and len(known) <= 2 * entries):
                absorbed[name] = known
                entries += len(known)
                packs += len(known.packs)
        sources: list[Lookup] = [catalog.listing.tail, *absorbed.values()]
        covered = {p for source in sources for p in source.packs if p in catalog.listing.packs}
        # Damaged packs are scanned on opening.
        sizes = {p: catalog.listing.packs[p] for p in covered - catalog.damage.damaged()}
        made = set()
        for part in index_file.parts(sizes):
            data = index_file.build(sources, part)
            name = data[-SIZE :].hex()
            if not self.store.put(object_names.index(name), data):
                self.store.delete(object_names.index(name))  # its digest is not its name: it is damaged
                if not self.store.put(object_names.index(name), data):
                    raise StoreError(
                        f"{object_names.index(name)} holds other bytes than its name says: rebuild or repair"
                    )
            made.add(name)
        for old in set(absorbed) - made:
            self.store.delete(object_names.index(old))
        catalog.listing.reset_tail()
        catalog.refresh()
        return made

    def _look(self, unused: Iterable[str] = ()) -> None:
        """Read the files afresh. ``unused``: names of index files to skip."""
        self.catalog = Catalog(self.store, self.keys, unused)
        self.catalog.max_age = self._max_age
        self.catalog.refresh()
        self._writer = ArchiveWriter(self.catalog, self.codecs, self.settings.parity)
        self.neighbours = self._neighbours

    def _recoder(self) -> Recoder:
        return Recoder(self.catalog, self._writer, self.codecs, lambda: self.load_codecs())

    def _mark(self, versions: Sequence[Version], verb: int) -> int:
        self.catalog.refresh()
        known = [self._again(v) for v in {v.id: v for v in versions}.values()]
        fresh = [v for v in known if self.catalog.lookup.mark(v.id)[0] != verb]
        if fresh:
            with self.store.using_reserve(1) if verb == FORGET else nullcontext():
                self._writer.mark(fresh, verb)
            self._index_now_and_then()
        else:
            self.store.settle(object_names.PACKS)  # the writer of these marks may be between link and fsync
        return len(fresh)

    def _again(self, version: Version) -> Version:
        """Return the same version at its present place. Raises NotFound."""
        known = self.catalog.lookup.versions(self.keys.domain(TENANT, version.tenant), version.name)
        found = next((v for v in known if v.id == version.id), None)
        if found is None:
            raise NotFound(f"version {version.version} of {version.name!r} is no longer in the archive")
        return found

    def _index_now_and_then(self) -> None:
        """Write an index when enough packs lack one.

        The put is durable already, so a full disk costs only time.
        """
        tail = self.catalog.listing.tail
        waiting = self._uncovered() - self.catalog.damage.damaged()  # unreadable packs never get an index
        entries = sum(tail.counts.get(pack, 0) for pack in waiting)
        size = sum(self.catalog.listing.packs[pack] for pack in waiting)
        if len(waiting) >= INDEX_PACKS or entries >= INDEX_ENTRIES or size >= INDEX_BYTES:
            try:
                self.write_index(everything=False)
            except StoreError as exc:
                self.catalog.damage.note("index", "", str(exc))

    def _uncovered(self) -> set[bytes]:
        covered = set[bytes]().union(*(set(i.packs) for i in self.catalog.listing.indexes.values()))
        return set(self.catalog.listing.packs) - covered

    def _towers(
        self,
        versions: Sequence[Version],
        known: Mapping[bytes, KnownSegment] | None = None,
        heard: Heard | None = None,
        told: Told | None = None,
    ) -> list[Tower]:
        leaves = [v.leaf for v in versions]
        chains = Chains(self.catalog, self.codecs, known, heard, recent=self._writer.neighbours.towers, told=told)
        chains.load(leaves)
        return [Tower(v, chains.version(v)) for v in versions]

    def _twice(self, work: Callable[[], T]) -> T:
        """Call ``work``, and again after a refresh where packs vanished because a collector merged them."""
        try:
            return work()
        except (FileNotFoundError, LostError):
            self.catalog.refresh()
            try:
                return work()
            except FileNotFoundError as exc:
                raise LostError(f"{exc.filename} is gone: run pltz archive repair") from exc


def _want_nothing(store: Store) -> None:
    """Raise UsageError where an archive lost its archive.json: a new one would destroy it."""
    if (folder := remains(store, made=True)) and not is_there(store, SETTINGS):
        raise UsageError(
            f"{SETTINGS} is missing and {folder}/ is not empty: an archive is here; "
            f"pltz archive repair may bring it back. "
            f"Where it was never used (an init was cut off), delete it"
        )


def _cut_off(store: Store, wanted: Settings) -> Settings:
    """Return the settings of a sealed archive that has no key yet.

    Its init was cut off or is still running. The init whose key comes first owns the archive. Raises
    UsageError for any other archive.
    """
    settings = Settings.decode(store.read(SETTINGS, 0, MAX_SIZE))
    used = [n for folder in ("keys", "packs", "collect", "parity", "ledger") for n in store.list(folder)]
    if replace(settings, archive=wanted.archive) != wanted or not settings.sealed or {*used} - {SETTINGS}:
        raise UsageError(f"there is an archive already: {SETTINGS} exists")
    return settings


def open_keys(store: Store, settings: Settings, key: Secret | None) -> Encryption:
    """Return the keys of an archive. Raises KeyMismatch, CorruptError, UsageError."""
    if key and not settings.sealed:
        raise UsageError("this archive is not sealed: leave the key out")
    if not settings.sealed:
        return Plaintext()
    return Keyring(store, settings.archive, key) if key else LockedArchive()


def _not_found(name: str, tenant: str, version: int | None, known: list[Version]) -> str:
    if version is not None and known:
        return (
            f"session {name!r} of tenant {tenant!r} has versions "
            f"{', '.join(str(v.version) for v in known)}, not {version}"
        )
    if known:
        return f"session {name!r} of tenant {tenant!r} is forgotten: undelete it, or name a version"
    return f"no session {name!r} of tenant {tenant!r} in this archive"

"""Repair: restore files from parity and second copies, report the losses exactly, move damage aside.

Spec: FORMAT.md, "Repair".

    archive.json, plans, keys,
    ledger entries               from their second copies
    packs                        from their remains and parity, with a footer made anew; accepted only where the
                                 digest is the name
    packs beyond their parity    readable records into new packs, the rest to damaged/; sessions with losses are
                                 named, and the ledger keeps the loss until a person acknowledges it
    parity, indexes              made anew

Repair works without the key of a sealed archive: boxes are copied unchanged. Nothing that a session needs is
ever deleted. A file is first copied to `damaged/` before it is replaced; only the next repair reads that
folder. Damaged parity files and indexes are dropped because packs suffice to make them. A damaged copy of a
key file is dropped too: it must not outlive an erasure.

Memory: some MiB for a sound pack, twice the size of a damaged one, three times that of one beyond its parity.

A crash leaves some files repaired. Between deleting a damaged pack and putting the restored one the pack is
gone, but its sources are in `damaged/`, and the next run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import TypeVar, cast

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import lost_versions
from pltz.archive.catalog.ledger import MAX_FILE as MAX_ENTRY, PackState, decode_as
from pltz.archive.catalog.listing import ATTEMPTS
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.register import ManifestRegister
from pltz.archive.encryption.key_files import KeyFile, KeyFolder
from pltz.archive.encryption.keys import Encryption, LockedArchive
from pltz.archive.errors import ArchiveError, StoreError, WriterFailed
from pltz.archive.format import object_names
from pltz.archive.format.index_file import (
    SEGMENTS,
    SESSIONS,
    FileIndex,
    Location,
    Lookup,
    key_of,
    key_of_session,
    keys_of,
    table_of,
)
from pltz.archive.format.object_names import SETTINGS, SETTINGS_COPY
from pltz.archive.format.pack import (
    COUNTS,
    FOOTER,
    MAX_SIZE as MAX_PACK,
    Damage,
    Pack,
    RecordPlace,
    digest_before,
    sealed,
)
from pltz.archive.format.parity import Parity
from pltz.archive.format.plan import MAX_PLAN, CollectionPlan
from pltz.archive.format.record import Record
from pltz.archive.format.settings import MAX_SIZE, Settings
from pltz.archive.maintenance.salvage_reader import SalvageReader
from pltz.archive.storage.store import Store, is_there, remains
from pltz.archive.writing.publisher import shared_places, shared_ranges
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.container.block import ByteSource
from pltz.plt_codec.errors import CorruptError, FormatError, PltzError, UsageError, VersionError
from pltz.plt_codec.identity import digest

T = TypeVar("T")

PERSON = b"pltz damaged"
FROM_A_BACKUP = "bring one of them from a backup"


@dataclass(frozen=True)
class LostRecord:
    """A version whose own record is gone.

    ``session``: first 36 bits of its session key, hex; ``tenant``, ``name``: known where another version has
    them.
    """

    session: str
    tenant: str | None
    name: str | None
    place: Location


@dataclass
class Repaired:
    """The result of a run; files are given by name.

    Attributes:
        finished: older key files that an unfinished erase left, destroyed now.
        keyless: domains with records whose keys are missing, damaged or others, a sentence for each.
        lost: versions that cannot be thawed.
        unnamed: versions of which no record is left.
        missing: number of records in packs beyond repair that were not read.
        uncounted: number of such packs whose count of records is unknown.
        recorded: packs that earlier runs gave up and whose loss is not acknowledged.
        rolled_back: whether the manifest was that of a backup, so that what was put since may be lost.
    """

    checked: int = 0
    restored: list[str] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    keyless: list[str] = field(default_factory=list)
    salvaged: int = 0
    missing: int = 0
    uncounted: int = 0
    lost: list[Version] = field(default_factory=list)
    unnamed: list[LostRecord] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    rolled_back: bool = False

    @property
    def whole(self) -> bool:
        """Return whether nothing is lost."""
        gone = self.lost or self.unnamed or self.missing or self.uncounted or self.recorded or self.rolled_back
        return not (self.broken or self.keyless or gone)


class Repairer:
    """One run over the files of an archive, which need not open.

    Args:
        store: store of the archive.
        keys: makes the names of lost sessions readable, as ``open_keys`` of the settings does. Optional.
        dry_run: only report the work to do.
    """

    def __init__(
        self, store: Store, keys: Callable[[Settings], Encryption] | None = None, *, dry_run: bool = False
    ):
        self.store, self.dry_run = store, dry_run
        self.report = Repaired()
        self._places: dict[bytes, str] | None = None  # of packs in other places than their own, by pack
        self._keys = keys
        self._known: Settings | None = None

    def run(self) -> Repaired:
        """Repair everything and return the report.

        Raises:
            UsageError: there is no archive.
            CorruptError: both copies of archive.json are lost, and there is no manifest, which has the settings too.
            ArchiveError: all packs are of another archive, or collectors interfere.
            StoreError: the store failed.
        """
        settings = self.settings()
        plans = self._plans()
        self._ledger()
        self._key_files()
        if plans is None:
            return self.report  # it is unknown which packs are condemned, so packs must wait
        self._indexes()
        keys = self._keys(settings) if self._keys else (LockedArchive() if settings.sealed else None)
        catalog = Catalog(self.store, keys)
        catalog.refresh()
        self.report.recorded += [loss.pack.hex() for loss in catalog.damage.losses()]
        listing = catalog.listing
        self.report.rolled_back = listing.is_rolled_back
        if listing.register and (not listing.register.manifest or listing.left_out() or listing.is_rolled_back):
            self.report.remade.append(object_names.MANIFEST)
        if not self.dry_run:
            self._publish(catalog)  # before packs get parity: what has none is late
        packs = sorted(self._pack_names(catalog))
        self.report.checked += len(packs)
        for pack in self.unsound(packs, settings):
            self._pack(catalog, pack, settings.parity)
        self._manifest(keys)
        self._keys_of_packs(catalog)
        self._towers(keys)
        return self.report

    def _publish(self, catalog: Catalog) -> None:
        """Publish where collectors do not interfere; else everybody lists. Raises StoreError, WriterFailed."""
        try:
            catalog.listing.publish()
        except (StoreError, WriterFailed):
            raise
        except ArchiveError:
            return

    def _manifest(self, keys: Encryption | None) -> None:
        """Make the manifest name what is there now."""
        catalog = Catalog(self.store, keys)
        catalog.refresh()
        if not self.dry_run:
            catalog.listing.publish(repaired=True)
        self.report.remade += catalog.listing.put_marks(dry_run=self.dry_run)
        for name in sorted(catalog.listing.named_indexes() & catalog.listing.indexes.keys()):
            copy = object_names.table_copy(name)
            with suppress(FileNotFoundError):
                table = table_of(self.store.open(object_names.index(name)))
                if self._maybe(copy, len(table) + 1) == table:
                    continue
                self.report.remade.append(copy)
                if not self.dry_run:
                    self.store.delete(copy)
                    self.store.put(copy, table)

    def settings(self) -> Settings:
        """Return the settings of the archive, once archive.json and its copy are restored.

        Raises UsageError, CorruptError, StoreError as `run`.
        """
        if self._known is None:
            self._known = self._settings()
        return self._known

    def _settings(self) -> Settings:
        why: PltzError = CorruptError(f"{SETTINGS} and its copy {SETTINGS_COPY} are damaged: {FROM_A_BACKUP}")

        def own(data: bytes) -> Settings:
            nonlocal why
            settings = Settings.decode(data)
            try:
                self._want_own(settings.archive)
            except ArchiveError as exc:
                why = exc
                raise CorruptError(str(exc)) from exc
            return settings

        try:
            if found := self._mirrored(SETTINGS, SETTINGS_COPY, own, MAX_SIZE):
                return self._converted(found)
            self.report.broken.remove(SETTINGS)
        except VersionError:
            raise
        except CorruptError as exc:  # both are missing
            why = exc
        if (manifest := ManifestRegister(self.store).load()) is None:
            raise why
        self._want_own(manifest.archive)
        for name in (SETTINGS, SETTINGS_COPY):
            self._replace(name, self._maybe(name, MAX_SIZE), manifest.settings.encode())
        return manifest.settings

    def _converted(self, found: Settings) -> Settings:
        """Return settings, those of the manifest where a copy came back that is older than it; restore them then."""
        known = None if found.manifest else ManifestRegister(self.store).load()
        if known is None or known.archive != found.archive:
            return found
        for name in (SETTINGS_COPY, SETTINGS):
            self._replace(name, self._maybe(name, MAX_SIZE), known.settings.encode())
        return known.settings

    def _plans(self) -> set[bytes] | None:
        """Repair plans and return the condemned packs; None where a plan is lost."""
        listed = (self.store.list(folder) for folder in (object_names.PLANS, object_names.PARITY))
        found = [
            self._mirrored(object_names.plan(epoch), object_names.plan_copy(epoch), _plan(epoch), MAX_PLAN)
            for epoch in sorted(set[int]().union(*map(object_names.plans_among, listed)))
        ]
        if None in found:
            return None
        return set().union(*(plan.condemned for plan in found if plan))

    def _ledger(self) -> None:
        """Repair both copies of each ledger entry."""
        names = object_names.ledger_entries_among(self.store.list(object_names.LEDGER))
        for name in sorted(names | object_names.ledger_copies_among(self.store.list(object_names.PARITY))):
            self._mirrored(*object_names.ledger_copies(name), partial(decode_as, name), MAX_ENTRY)

    def _mirrored(self, name: str, copy: str, decode: Callable[[bytes], T], most: int) -> T | None:
        """Return the content of a small file from a sound copy, and repair the other copy.

        None if neither is sound. Raises UsageError if neither exists, VersionError for a newer file.
        """
        self.report.checked += 1
        data = {n: self._maybe(n, most) for n in (name, copy)}
        if not any(d is not None for d in data.values()):
            if folder := remains(self.store):
                what = f"{name} and its copy {copy} are missing, and {folder}/ is not empty"
                raise CorruptError(f"{what}: {FROM_A_BACKUP}")
            raise UsageError(f"no archive here: {name} is missing")
        sound: dict[str, T] = {}
        for n, d in data.items():
            try:
                if d is not None:
                    sound[n] = decode(d)
            except VersionError:
                raise
            except FormatError:
                continue
        if not sound:
            self.report.broken.append(name)
            return None
        best = next(iter(sound))
        for n, d in data.items():
            if d != data[best]:
                self._replace(n, d, data[best] or b"")
        return sound[best]

    def _key_files(self) -> None:
        """Repair both copies of each newest key file.

        Then destroy older key files that an unfinished erase left.
        """
        folder = KeyFolder(self.store)
        for domain, generations in folder.generations().items():
            self.report.checked += 1
            if good := self._sound_key(folder, domain, generations[-1]):
                self._key_copies(domain, generations[-1], good)
            elif folder.generations().get(domain, generations)[-1] == generations[-1]:
                self.report.broken.append(object_names.key_copies(domain, generations[-1])[0])
        for files in folder.leftovers().values():  # listed again: a file put back may be erased since
            self.report.finished += files
            for name in () if self.dry_run else files:
                self.store.shred(name)

    def _keys_of_packs(self, catalog: Catalog) -> None:
        """Report the domains that have records and lack keys. Nothing can make these again."""
        if check := catalog.key_check:
            check.refresh()
            self.report.keyless += check.faults().values()
            self.report.keyless += (f"{name} {what}" for name, what in check.strangers())

    def _key_copies(self, domain: bytes, generation: int, good: bytes) -> None:
        """Make all copies of a key file equal to the sound one."""
        for name in object_names.key_copies(domain, generation):
            if self._maybe(name, len(good) + 1) != good:
                self.report.restored.append(name)
                if not self.dry_run:
                    self.store.shred(name)
                    self.store.put(name, good)

    def _sound_key(self, folder: KeyFolder, domain: bytes, generation: int) -> bytes | None:
        try:
            file: KeyFile | None = folder.read(domain, generation)
        except FormatError:
            return None
        return file.encode() if file else None

    def _indexes(self) -> None:
        """Drop damaged indexes: the packs hold the same information."""
        for name in sorted(self.store.list(object_names.INDEXES)):
            self.report.checked += 1
            path = object_names.index(name)
            try:
                FileIndex(self.store.open(path), name).verify()
                continue
            except FormatError:
                pass
            except FileNotFoundError:
                continue
            self.report.remade.append(path)
            if not self.dry_run:
                self.store.delete(path)

    def _pack_names(self, catalog: Catalog) -> set[bytes]:
        """Return the packs that are there or that something names."""
        parity = object_names.packs_among(self.store.list(object_names.PARITY))
        return parity | catalog.damage.missing() | set(catalog.listing.packs)

    def unsound(self, packs: Iterable[bytes], settings: Settings) -> Iterator[bytes]:
        """Yield those of some packs that are gone, damaged, newer or of another archive, or lack sound parity.

        ``settings``: of the archive. Raises StoreError.
        """
        for pack in packs:
            data = SalvageReader.of(self.store, object_names.pack(pack), MAX_PACK)
            try:
                own = data is not None and _is(pack, data) and not self._foreign(settings.archive, data)
                sound = own and self._is_protected(pack, cast(SalvageReader, data), settings.parity)
            except VersionError:
                sound = False
            if not sound:
                yield pack

    def _pack(self, catalog: Catalog, pack: bytes, shares: tuple[int, int]) -> None:
        name = object_names.pack(pack)
        data = SalvageReader.of(self.store, name, MAX_PACK)
        if data is None and self._gone(catalog, pack):
            return
        own, archive = _named(data) if data is not None else None, catalog.ledger.archive
        if data is not None and self._foreign(archive, data):
            if own == pack:
                return self._move_out(catalog, pack)
        elif own and not is_there(self.store, object_names.pack(own)):
            self._pack(catalog, own, shares)  # the file was moved here, and nothing else may name its pack
        try:
            if data is not None and _is(pack, data):
                if pack not in catalog.ledger.deleted:  # else a collector is deleting the pack, parity first
                    self._protect(catalog, pack, data, shares)
                return
        except VersionError:
            return  # left to the newer pltz that wrote it
        found = (data, *self._aside(name), self._misplaced(catalog, pack))
        sources = [d for d in found if d is not None and _named(d) in (None, pack) and not self._foreign(archive, d)]
        whole = (d for d in sources if _named(d) == pack and _is(pack, d))
        best: ByteSource = next(whole, sources[0] if sources else b"")
        if (parity := self._parity(pack)) and not _is(pack, best):
            best = parity.restore(sources)[0]
        best = best if _is(pack, best) else _with_footer(pack, best)
        if (its := _named(best)) == pack and self._foreign(archive, best):
            return self._move_out(catalog, pack)
        if _is(pack, best):
            restored = bytes(best[:])
            self._replace(name, None if data is None else data.whole(), restored)
            self._protect(catalog, pack, restored, shares)
            return
        remains = its in (None, pack) and not self._foreign(archive, best)
        self._salvage(catalog, pack, best if remains else b"", shares)

    def _misplaced(self, catalog: Catalog, pack: bytes) -> SalvageReader | None:
        """Return the bytes of a pack from the place of another, or from what was moved aside from there."""
        if self._places is None:
            sizes = {f"{object_names.DAMAGED}/{name}": n for name, n in self.store.list(object_names.DAMAGED).items()}
            self._places = {}
            for name, size in (sizes | {object_names.pack(p): n for p, n in catalog.listing.packs.items()}).items():
                with suppress(FormatError, FileNotFoundError):
                    own = Pack(partial(self.store.read, name), size, both=False).footer().name
                    if name != object_names.pack(own):
                        self._places[own] = name
        place = self._places.get(pack)
        return SalvageReader.of(self.store, place, MAX_PACK) if place else None

    def _foreign(self, archive: bytes, data: ByteSource) -> bool:
        """Return whether these are the bytes of a pack of another archive than ``archive``, damaged or not."""
        try:
            return _opened(data).head.archive != archive
        except FormatError:
            return False

    def _move_out(self, catalog: Catalog, pack: bytes) -> None:
        """Move a pack of another archive aside, with its parity, and salvage nothing.

        The ledger records the deletion first.
        """
        if not self.dry_run:
            catalog.ledger.put_deleted([pack])
        for name in (object_names.pack(pack), object_names.parity(pack)):
            if (left := self._maybe(name, 1 << 31)) is None:
                continue
            self._put_aside(name, left, dry_run=self.dry_run)
            if not self.dry_run:
                self.store.delete(name)

    def _want_own(self, archive: bytes) -> None:
        """Raise ArchiveError where there are packs and all are of another archive than that of an archive.json."""
        others = set[bytes]()
        for pack in object_names.packs_listed(self.store.list(object_names.PACKS)):
            data = SalvageReader.of(self.store, object_names.pack(pack), MAX_PACK)
            if data is None or not self._foreign(archive, data):
                return
            others.add(_opened(data).head.archive)
        if others:
            here, there = archive.hex(), min(others).hex()
            raise ArchiveError(
                f"{SETTINGS} is of archive {here}, and all packs are of archive {there}: "
                f"bring the right {SETTINGS} from a backup; nothing was changed"
            )

    def _gone(self, catalog: Catalog, pack: bytes) -> bool:
        """Return whether the ledger, read after the pack was found absent, explains the absence.

        Left-over parity of a deleted pack is deleted.
        """
        catalog.ledger.refresh()
        state = catalog.ledger.state(pack)
        name = object_names.parity(pack)
        if state is PackState.DELETED and not self.dry_run:
            self.store.delete(name)
        return state is PackState.DELETED or (state is PackState.LOST and not is_there(self.store, name))

    def _protect(self, catalog: Catalog, pack: bytes, data: ByteSource, shares: tuple[int, int]) -> None:
        """Give a sound pack sound parity unless it has it."""
        if self._is_protected(pack, data, shares):
            return
        name = object_names.parity(pack)
        self.report.remade.append(name)
        if self.dry_run:
            return
        if not shares[0]:
            self.store.delete(name)
            if catalog.listing.takes_marks:
                self.store.put(name, b"")
            return
        opened = _opened(data)
        # bitstrings are dropped: only the parents matter
        found = [(at, r._replace(bitstring=b"")) for at, r in _scan(data)]
        contexts = [opened.head.contexts[r.context] for _, r in found]
        shared = shared_ranges(opened, shared_places(contexts, [r for _, r in found], [at for at, _ in found]))
        made = Parity.of(pack, data, shared, shares)
        self.store.delete(name)
        self.store.put(name, made.encode())
        if not is_there(self.store, object_names.pack(pack)):  # collected meanwhile
            self._gone(catalog, pack)

    def _is_protected(self, pack: bytes, data: ByteSource, shares: tuple[int, int]) -> bool:
        """Return whether a sound pack has sound parity; in an archive without parity, none or a marker."""
        if not shares[0] and not self._maybe(object_names.parity(pack), 1):
            return True
        try:
            parity = self._parity(pack)
            if parity and parity.covers(data):
                parity.verify()
                return True
        except FormatError:
            pass
        return False

    def _parity(self, pack: bytes) -> Parity | None:
        data = self._maybe(object_names.parity(pack), 1 << 31)
        try:
            parity = Parity.decode(data) if data is not None else None
        except FormatError:
            return None
        return parity if parity and parity.pack == pack else None

    def _salvage(self, catalog: Catalog, pack: bytes, best: ByteSource, shares: tuple[int, int]) -> None:
        """Move a pack beyond repair aside.

        Its readable records go into a new pack, its losses into the ledger, and the pack is condemned.
        """
        catalog.ledger.refresh()
        deleted = pack in catalog.ledger.deleted  # a killed collector left it: its live records are elsewhere
        rows = [] if deleted else list(_scan(best))
        missing: int | None = 0
        sessions, segments, covered = set[int](), set[int](), True
        if not deleted:
            missing, sessions, segments, covered = self._note_lost(catalog, pack, best, rows)
        self.report.salvaged += len(rows)
        if self.dry_run:
            return
        if rows:
            contexts = _opened(best).head.contexts
            ArchiveWriter(catalog, CodecRegistry(), shares).copy([(contexts[r.context], r) for _, r in rows])
        if missing == 0 and not sessions and not segments:
            catalog.ledger.put_deleted([pack])
        else:
            catalog.ledger.put_lost(pack, missing, covered, sessions, segments)
        self._condemn(catalog, pack)
        self._publish(catalog)
        for name in (object_names.pack(pack), object_names.parity(pack)):
            if (left := self._maybe(name, 1 << 31)) is not None:
                self._put_aside(name, left)
                self.store.delete(name)

    def _condemn(self, catalog: Catalog, pack: bytes) -> None:
        """Condemn a pack, so that no writer relies on it and no collector waits for it.

        Raises ArchiveError.
        """
        for _ in range(ATTEMPTS):
            catalog.listing.read_plans()
            if pack in catalog.listing.condemned:
                return
            plan = catalog.listing.next_plan([pack])
            if self.store.put(plan.name, plan.encode()):
                self.store.put(plan.copy, plan.encode())
        catalog.listing.read_plans()
        if pack not in catalog.listing.condemned:
            raise ArchiveError("others keep collecting: try again")

    def _note_lost(
        self, catalog: Catalog, pack: bytes, best: ByteSource, read: Sequence[tuple[RecordPlace, Record]]
    ) -> tuple[int | None, set[int], set[int], bool]:
        """Note the records of a pack that were not read, as far as footer and indexes tell.

        Returns their number (None if unknown), the keys of sessions and of segments among them, and whether
        an index covers the pack, so that these keys are complete.
        """
        missing: int | None = None
        try:
            missing = max(0, _opened(best).count() - len(read))
            self.report.missing += missing
        except FormatError:
            self.report.uncounted += 1
        # what indexes say of the pack, less what was read of it
        sessions, segments, covered = set[int](), set[int](), False
        known: dict[int, tuple[str, str]] = {}
        for session, called in _sessions(catalog):
            known.setdefault(key_of(session), called)
        contexts = _opened(best).head.contexts if read else []
        there = {
            (section, key_of(identity), at.offset)
            for at, r in read
            for section, identity in keys_of(r, contexts[r.context])
        }
        # an index has one entry for all records of a session in a block, of which some were not read
        for damage in (item for item in (_opened(best).scan() if read else ()) if isinstance(item, Damage)):
            there -= {
                (section, key_of(identity), damage.block)
                for _, r in damage.rows or ()
                for section, identity in keys_of(r, contexts[r.context])
            }
        indexes: list[Lookup] = [*catalog.listing.indexes.values(), catalog.listing.tail]
        covered |= pack in catalog.listing.rows
        for index in indexes:
            covered |= index is not catalog.listing.tail and pack in index.packs
            named = ((key, at) for key, at in index.entries(SEGMENTS) if at.pack == pack)
            segments |= {key for key, at in named if (SEGMENTS, key, at.offset) not in there}
            for key, at in index.entries(SESSIONS):
                if at.pack == pack and (SESSIONS, key, at.offset) not in there:
                    sessions.add(key)
                    tenant, name = known.get(key, (None, None))
                    self.report.unnamed.append(LostRecord(f"{key:09x}", tenant, name, at))
        return missing, sessions, segments, covered

    def _towers(self, keys: Encryption | None) -> None:
        """Report the versions that lack a segment.

        A dry run that would restore packs leaves them out, because those packs are damaged still.
        """
        if self.dry_run and any(name.startswith(f"{object_names.PACKS}/") for name in self.report.restored):
            return
        catalog = Catalog(self.store, keys)
        catalog.refresh()
        self.report.lost += lost_versions(catalog, catalog.lookup.all_versions())

    def _replace(self, name: str, old: bytes | None, new: bytes) -> None:
        self.report.restored.append(name)
        if self.dry_run:
            return
        if old is not None:
            self._put_aside(name, old)
            self.store.delete(name)
        if not self.store.put(name, new):
            raise StoreError(
                f"{name} was put by somebody else, with other bytes, at the same time: repair again"
            )

    def _put_aside(self, name: str, data: bytes, *, dry_run: bool = False) -> None:
        """Put a durable copy of damaged data, named by its content, so that a second run adds nothing."""
        copy = object_names.damaged(name, digest(PERSON, data))
        if not dry_run and not self.store.put(copy, data):
            raise StoreError(
                f"{copy} holds other bytes than those of {name}, which stays: move it away, and repair again"
            )
        if self._places and not dry_run:
            self._places = {pack: copy if place == name else place for pack, place in self._places.items()}
        self.report.aside.append(copy)

    def _aside(self, name: str) -> Iterator[SalvageReader | None]:
        """Yield the copies of a file that earlier runs moved aside."""
        for copy in object_names.damaged_among(self.store.list(object_names.DAMAGED), name):
            yield SalvageReader.of(self.store, copy, MAX_PACK)

    def _maybe(self, name: str, most: int) -> bytes | None:
        """Return the remains of a file, in memory; None if it does not exist."""
        found = SalvageReader.of(self.store, name, most)
        return None if found is None else found.whole()


def _plan(epoch: int) -> Callable[[bytes], CollectionPlan]:
    """Return a decoder of the plan of an epoch, which raises CorruptError for any other."""

    def decode(data: bytes) -> CollectionPlan:
        plan = CollectionPlan.decode(data)
        if plan.epoch != epoch:
            raise CorruptError(f"{object_names.plan(epoch)} says it is {plan.name}")
        return plan

    return decode


def _opened(data: ByteSource) -> Pack:
    """Return a pack that is read on demand. Raises the errors of `Pack`."""
    return Pack(lambda at, size: memoryview(data[at : at + size]), len(data))


def _is(pack: bytes, data: ByteSource) -> bool:
    """Return whether these bytes have the digest that is the pack's name. Raises VersionError."""
    try:
        return _opened(data).verify() == pack
    except VersionError:
        raise
    except FormatError:
        return False


def _with_footer(pack: bytes, data: ByteSource) -> ByteSource:
    """Return a pack with its footer made anew, where all other bytes are those of its name; else the same bytes."""
    with suppress(FormatError):
        size = _opened(data).end - _opened(data).begin
        counts = COUNTS.pack(sum(1 for _ in _scan(data)), size)
        made = BytesIO(bytes(data[: -FOOTER.size]) + counts + bytes(FOOTER.size - COUNTS.size))
        if digest_before(made) == pack:
            return sealed(made, pack)
    return data


def _scan(data: ByteSource) -> Iterator[tuple[RecordPlace, Record]]:
    """Yield the readable records."""
    try:
        yield from (item for item in _opened(data).scan() if not isinstance(item, Damage))
    except FormatError:
        return


def _named(data: ByteSource) -> bytes | None:
    """Return the name that the footer of a pack gives it; None where that or more is damaged."""
    try:
        return _opened(data).footer().name
    except FormatError:
        return None


def _sessions(catalog: Catalog) -> Iterable[tuple[bytes, tuple[str, str]]]:
    """Yield session key, tenant and name of the versions that can be read."""
    for v in catalog.lookup.all_versions():
        with suppress(FileNotFoundError, CorruptError):  # collected meanwhile, or in a pack that waits for its repair
            item = catalog.lookup.head(v.location)
            yield key_of_session(item.record, item.context), (v.tenant, v.name)

"""Repair: restore files from parity and second copies, report the losses exactly, move damage aside.

Spec: WRITING.md, "Repair".

    archive.json, keys           from their second copies
    manifest                     names every sound pack; what is condemned, gone or lost is as it was, or as the one
                                 before said, where it is lost itself. Each hold is there that it or hold/ has
    packs                        from their remains and parity, with a footer made anew; accepted only where the
                                 digest is the name
    packs beyond their parity    readable records into new packs, the rest to damaged/; sessions with losses are
                                 named, and the manifest keeps the loss until a person acknowledges it
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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO

from pltz.archive.author import Author
from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import lost_versions
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import Listing
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.losses import Losses
from pltz.archive.catalog.problems import Problems
from pltz.archive.catalog.register import ManifestRegister
from pltz.archive.encryption.key_files import KeyFile, KeyFolder
from pltz.archive.encryption.keys import Encryption, LockedArchive
from pltz.archive.errors import ArchiveError, StoreError, UnreadableError
from pltz.archive.format import object_names
from pltz.archive.format.audit import BREAK, MAX_SIZE as MAX_AUDIT, AuditFile, AuditTail, Verb
from pltz.archive.format.byte_source import ByteSource, File, Held
from pltz.archive.format.hold import MAX_SIZE as MAX_HOLD, Hold
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.format.index_file import (
    SEGMENTS,
    SESSIONS,
    Entries,
    FileIndex,
    Location,
    Lookup,
    MemoryIndex,
    build,
    key_of,
    key_of_session,
    keys_of,
    name_of,
    parts,
    table_of,
)
from pltz.archive.format.manifest import LostPack, Manifest, NamedPack
from pltz.archive.format.object_names import SETTINGS, SETTINGS_COPY
from pltz.archive.format.pack import (
    COUNT,
    FOOTER,
    MAX_SIZE as MAX_PACK,
    Damage,
    Pack,
    RecordPlace,
    digest_before,
    sealed,
)
from pltz.archive.format.parity import Parity
from pltz.archive.format.record import Record
from pltz.archive.format.session_list import decoded
from pltz.archive.format.settings import MAX_SIZE, Settings
from pltz.archive.storage.store import Store, is_there, remains
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.plt_codec.errors import CorruptError, FormatError, PltzError, UsageError, VersionError
from pltz.plt_codec.identity import digest

PERSON = b"pltz damaged"
FROM_A_BACKUP = "bring one of them from a backup"
SECTOR = 4096  # smallest unit that a disk loses, in bytes
MOST_ROWS = 32  # packs that get rows in the manifest; more get an index


@dataclass(frozen=True)
class LostRecord:
    """A version whose own record is gone.

    ``session``: first 36 bits of its session key, hex; ``tenant``, ``name``: known where another version has them.
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
        named: packs that no manifest named, and that are part of the archive again.
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
    named: list[str] = field(default_factory=list)

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
        author: who repairs and why, for the audit; None: the system's user.
    """

    def __init__(
        self,
        store: Store,
        keys: Callable[[Settings], Encryption] | None = None,
        *,
        dry_run: bool = False,
        author: Author | None = None,
    ):
        self.store, self.dry_run, self._author = store, dry_run, author or Author.of(None, None)
        self.report = Repaired()
        self._places: dict[bytes, str] | None = None  # of packs in other places than their own, by pack
        self._keys = keys
        self._known: Settings | None = None
        self._sound_indexes, self._sound = set[str](), set[bytes]()  # indexes, and packs, that were checked
        self._doubted = set[bytes]()  # packs that are lost unless they are restored now
        self._recorded = set[bytes]()  # packs that earlier runs gave up, and nobody acknowledged

    def run(self) -> Repaired:
        """Repair everything and return the report.

        Raises:
            UsageError: there is no archive.
            CorruptError: both copies of archive.json are lost, and there is no manifest, which has the settings too.
            ArchiveError: all packs are of another archive, or collectors interfere.
            StoreError: the store failed.
        """
        settings = self.settings()
        self._key_files()
        self._indexes()
        keys = self._keys(settings) if self._keys else (LockedArchive() if settings.sealed else None)
        catalog = Catalog(self.store, keys)
        catalog.author = self._author
        if not self._manifest(settings, catalog):
            return self.report  # a dry run, and what else there is to do is not known before there is a manifest
        catalog.refresh()
        packs = sorted(self._pack_names(catalog))
        self.report.checked += len(packs)
        for pack in self._unsound(packs, settings.archive):
            self._pack(catalog, pack)
        self.report.recorded += [pack.hex() for pack in sorted(self._recorded & catalog.listing.present.lost.keys())]
        self._tables(catalog)
        self._lists(catalog)
        self._keys_of_packs(catalog)
        self._towers(keys)
        return self.report

    def _manifest(self, settings: Settings, catalog: Catalog) -> bool:
        """Put a manifest that names every sound pack, and return whether there is one.

        Packs of which it is not known what they had, because they are damaged or gone too, are lost until they are
        restored.
        """
        register = ManifestRegister(self.store)
        found = register.find() or register.older
        own = found if found and found.settings.archive == settings.archive else None
        self.report.rolled_back = own is not None and own is register.older
        before = own or register.earlier(settings.archive) or Manifest(settings)
        listing = Listing(self.store, Problems())
        unusable = {name: listing.table_of(name) for name in before.indexes - self._sound_indexes}
        listing.take(replace(before, indexes=before.indexes & self._sound_indexes))
        # packs whose entries have to be made, or of which nothing tells what they had
        there = object_names.pack.listed(self.store.list)
        once = object_names.parity.listed(self.store.list).keys()
        tabled = {pack for table in unusable.values() for pack in table or ()}
        if own is None or None in unusable.values():  # nothing else tells what there was
            tabled |= there.keys() | once
        doubted = (tabled | there.keys()) - listing.packs.keys() - before.gone.keys()
        sound = {pack: there[pack] for pack in sorted(doubted & there.keys()) if self._is_sound(pack, settings.archive)}
        for pack in sorted(doubted & there.keys() - sound.keys()):
            data = SalvageReader.of(self.store, object_names.pack(pack), MAX_PACK)
            if data is not None and self._foreign(settings.archive, data):
                self._move_out(pack)
                doubted.discard(pack)
        entries = {pack: listing.entries_of(pack, size) for pack, size in sound.items()}
        standing = self._standing(listing, entries, tabled | once)
        covered = set[bytes]().union(*(index.packs for index in listing.indexes.values()))  # lost ones may be
        rows = {pack: NamedPack(sound[pack], entries[pack]) for pack in standing - covered}
        holds = self._holds(settings.archive, own)
        self._doubted = doubted & (tabled | once & there.keys()) - sound.keys() - before.lost.keys()
        self._recorded = {pack for pack, row in before.lost.items() if not row.acknowledged}
        self.report.named = [pack.hex() for pack in sorted(standing)]
        if own and not (own is register.older or standing or unusable or self._doubted or holds):
            return True
        self.report.remade.append(object_names.MANIFEST)
        if self.dry_run:
            return own is not None and own is not register.older
        made = self._index_of(rows) if len(rows) > MOST_ROWS else {}
        lost = {pack: LostPack(self.store.now(), None) for pack in self._doubted}
        whole = own is not None and own is not register.older
        record = catalog.record(Verb.REPAIR, len(standing), flags=0 if whole else BREAK)
        audit = before.audit if whole else self._audit(settings.archive, before)

        def naming(base: Manifest | None) -> Manifest:
            base = base if base and base.settings.archive == settings.archive else before
            fresh = base.naming({} if made else rows).giving_up(lost)
            names = (fresh.indexes - unusable.keys()) | made.keys()
            made_again = replace(
                fresh.indexed(names),
                lost={pack: row for pack, row in fresh.lost.items() if pack not in standing},
                # a pack that is named again may rely on one that was condemned while it was not
                condemned={} if standing else fresh.condemned,
                holds={**fresh.holds, **holds},
            )
            return (made_again if whole else replace(made_again, audit=audit)).recording(record)

        register.swap(naming, repaired=True)
        return True

    def _audit(self, archive: bytes, before: Manifest) -> AuditTail:
        """Return the newest records that are left, of the manifest before one that is lost or of the files."""
        tails = [before.audit]
        for name in object_names.audit.listed(self.store.list):
            with suppress(FormatError):
                file = AuditFile.decode(self._maybe(object_names.audit(name), MAX_AUDIT) or b"")
                tails += [file.tail.after(name)] if file.archive == archive else []
        return max(tails, key=lambda tail: tail.end)

    def _holds(self, archive: bytes, own: Manifest | None) -> dict[bytes, Hold]:
        """Return the holds that have an object and that the manifest lacks, and put the objects that are missing."""
        found, rows = dict[bytes, Hold](), dict(own.holds) if own else {}
        for name in sorted(object_names.hold.listed(self.store.list).keys() | rows.keys()):
            path = object_names.hold(name)
            data = self._maybe(path, MAX_HOLD)
            with suppress(CorruptError):
                if (hold := Hold.decode(data or b"")).id == name:
                    found |= {name: hold} if hold.archive == archive else {}
                    continue
            if name in rows:
                self._replace(path, data, rows[name].encode())
            elif data is not None:
                self._put_aside(path, data, dry_run=self.dry_run)
                if not self.dry_run:
                    self.store.delete(path)
        return {name: hold for name, hold in found.items() if not own or name not in rows}

    def _standing(
        self, listing: Listing, entries: Mapping[bytes, Mapping[int, Entries]], once: AbstractSet[bytes]
    ) -> set[bytes]:
        """Return the packs to be named: those that were named once, and those of which no parent is gone.

        A put that was cut off may have relied on what was collected since. Marks alone, of a forget that was cut off,
        are left: they would take effect on what people saw as kept since. ``once``: packs that were named once.
        """
        standing = {p for p, of in entries.items() if p in once or len(of[SEGMENTS].keys) + len(of[SESSIONS].keys)}
        while True:
            known = {key for pack in standing for key in entries[pack][SEGMENTS].keys.tolist()}
            falling = {p for p in standing - once if not listing.has_segments(self._parents(p) - known)}
            if not falling:
                return standing
            standing -= falling

    def _parents(self, pack: bytes) -> set[int]:
        """Return the keys of the segments that records of a sound pack name as parents."""
        found = _scan(SalvageReader.of(self.store, object_names.pack(pack), MAX_PACK) or b"")
        return {key_of(parent) for _, r in found if not r.mark and (parent := r.parent) != NO_SEGMENT}

    def _index_of(self, rows: Mapping[bytes, NamedPack]) -> dict[str, FileIndex]:
        """Put indexes over packs, and return them by name."""
        memory, made = MemoryIndex(), dict[str, FileIndex]()
        for pack, row in rows.items():
            memory.add_pack(pack, row.size, row.sections)
        for part in parts({pack: row.size for pack, row in rows.items()}):
            index = FileIndex.of(data := build([memory], part))
            made[name := name_of(data)] = index
            self.store.put(object_names.index(name), data)
            self.store.put(object_names.table_copy(name), table_of(Held(data)))
        return made

    def _tables(self, catalog: Catalog) -> None:
        """Put the copies of pack tables that are missing or damaged."""
        for name in sorted(catalog.listing.indexes):
            copy = object_names.table_copy(name)
            with suppress(FileNotFoundError):
                table = table_of(self.store.open(object_names.index(name)))
                if self._maybe(copy, len(table) + 1) == table:
                    continue
                self.report.remade.append(copy)
                if not self.dry_run:
                    self.store.delete(copy)
                    self.store.put(copy, table)

    def _lists(self, catalog: Catalog) -> None:
        """Put lists of sessions again where one is missing or damaged."""
        for name, index in sorted(catalog.listing.present.lists.items()):
            path = object_names.session_list(name)
            with suppress(FormatError, FileNotFoundError):
                decoded(self.store.view(path), bytes.fromhex(name), catalog.listing.archive)
                continue
            self.report.remade.append(path)
            if not self.dry_run and index in catalog.listing.indexes:
                self.store.delete(path)
                IndexKeeper(catalog).list_again(index)

    def settings(self) -> Settings:
        """Return the settings of the archive, once archive.json and its copy are restored.

        Raises UsageError, CorruptError, StoreError as `run`.
        """
        if self._known is None:
            self._known = self._settings()
        return self._known

    def _settings(self) -> Settings:
        """Return the settings in a sound copy of archive.json, else in the manifest, and make both copies say so."""
        self.report.checked += 1
        data = {name: self._maybe(name, MAX_SIZE) for name in (SETTINGS, SETTINGS_COPY)}
        why: PltzError = CorruptError(f"{SETTINGS} and its copy {SETTINGS_COPY} are damaged: {FROM_A_BACKUP}")
        if not any(copy is not None for copy in data.values()):
            if not (folder := remains(self.store)):
                raise UsageError(f"no archive here: {SETTINGS} is missing")
            what = f"{SETTINGS} and its copy {SETTINGS_COPY} are missing, and {folder}/ is not empty"
            why = CorruptError(f"{what}: {FROM_A_BACKUP}")
        # the first copy that is sound and of the archive that the packs are of
        register, sound = ManifestRegister(self.store), list[Settings]()
        for copy in (copy for copy in data.values() if copy is not None):
            try:
                self._want_own((settings := Settings.decode(copy)).archive)
                sound.append(settings)
            except VersionError:
                raise
            except FormatError:
                continue
            except ArchiveError as exc:
                why = exc
        manifest = register.find() or register.older if self._may_be_strange(sound, data) else None
        if not sound or (manifest and manifest.settings.archive != sound[0].archive):
            if manifest is None:
                raise why
            self._want_own(manifest.settings.archive)
            sound.insert(0, manifest.settings)
        for name, there in data.items():
            if there != sound[0].encode():
                self._replace(name, there, sound[0].encode())
        return sound[0]

    def _may_be_strange(self, sound: Sequence[Settings], data: Mapping[str, bytes | None]) -> bool:
        """Return whether the manifest has to say of which archive this is: no pack says it, and no key file."""
        if not sound:
            return True
        alone = data[SETTINGS] != data[SETTINGS_COPY] and not object_names.pack.listed(self.store.list)
        return alone and sound[0].archive not in KeyFolder(self.store).generations()

    def _key_files(self) -> None:
        """Repair both copies of each newest key file. Then destroy older key files that an unfinished erase left."""
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
        """Make all copies of a key file equal to the sound one. Where two sound ones differ, both stay."""
        for name in object_names.key_copies(domain, generation):
            if self._maybe(name, len(good) + 1) == good:
                continue
            with suppress(FormatError, FileNotFoundError):
                KeyFolder(self.store).read_copy(object_names.KeyFileName(domain, generation, int(name[-1])))
                self.report.broken.append(name)
                continue
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
                self._sound_indexes.add(name)
                continue
            except FormatError:
                pass
            except FileNotFoundError:
                continue
            self.report.remade.append(path)
            if not self.dry_run:
                self.store.delete(path)

    def _pack_names(self, catalog: Catalog) -> set[bytes]:
        """Return the packs that the manifest names, and those that it gave up of which there is a file."""
        names = object_names.pack, object_names.parity
        lost = catalog.listing.present.lost.keys()
        back = {p for p in lost if p in self._doubted or any(is_there(self.store, name(p)) for name in names)}
        return catalog.listing.packs.keys() | catalog.listing.missing() | back

    def _unsound(self, packs: Iterable[bytes], archive: bytes) -> Iterator[bytes]:
        """Yield those of some packs that are gone, damaged, newer or of another archive, or lack sound parity."""
        for pack in packs:
            data = SalvageReader.of(self.store, object_names.pack(pack), MAX_PACK)
            if data is None or not self._is_sound(pack, archive) or not self._is_protected(pack, data):
                yield pack

    def _is_sound(self, pack: bytes, archive: bytes) -> bool:
        """Return whether the file of a pack has its bytes, which never change then. Raises StoreError."""
        if pack not in self._sound:
            data = SalvageReader.of(self.store, object_names.pack(pack), MAX_PACK)
            try:
                sound = data is not None and _is(pack, data) and not self._foreign(archive, data)
            except VersionError:
                sound = False
            if not sound:
                return False
            self._sound.add(pack)
        return True

    def _pack(self, catalog: Catalog, pack: bytes) -> None:
        name = object_names.pack(pack)
        data = SalvageReader.of(self.store, name, MAX_PACK)
        if data is None and self._is_over(catalog, pack):
            return
        own, archive = _named(data) if data is not None else None, catalog.listing.archive
        if data is not None and self._foreign(archive, data):
            if own == pack:
                return self._move_named_out(catalog, pack)
        elif own and not is_there(self.store, object_names.pack(own)):
            self._pack(catalog, own)  # the file was moved here, and nothing else may name its pack
        try:
            if data is not None and _is(pack, data):
                self._name(catalog, pack, data)
                self._protect(pack, data)
                return
        except VersionError:  # left to the newer pltz that wrote it
            self.report.broken.append(name)
            return
        found = (data, *self._aside(name), self._misplaced(catalog, pack))
        sources = [d for d in found if d is not None and _named(d) in (None, pack) and not self._foreign(archive, d)]
        whole = (d for d in sources if _named(d) == pack and _is(pack, d))
        best: ByteSource = next(whole, sources[0] if sources else b"")
        if (parity := self._parity(pack)) and not _is(pack, best):
            best = parity.restore(sources)[0]
        best = best if _is(pack, best) else _with_footer(pack, best)
        if (its := _named(best)) == pack and self._foreign(archive, best):
            return self._move_named_out(catalog, pack)
        if _is(pack, best):
            restored = bytes(best[:])
            self._replace(name, None if data is None else data.whole(), restored)
            self._name(catalog, pack, restored)
            self._protect(pack, restored)
            return
        remains = its in (None, pack) and not self._foreign(archive, best)
        self._salvage(catalog, pack, best if remains else b"")

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

    def _move_named_out(self, catalog: Catalog, pack: bytes) -> None:
        """Move a named pack of another archive aside."""
        if not self.dry_run:
            catalog.listing.publish(lambda manifest: manifest.taking_out({pack}, self.store.now()))
        self._move_out(pack)

    def _move_out(self, pack: bytes) -> None:
        """Move a pack aside, with its parity, and salvage nothing."""
        for name in (object_names.pack(pack), object_names.parity(pack)):
            if (left := self._maybe(name, 1 << 31)) is None:
                continue
            self._put_aside(name, left, dry_run=self.dry_run)
            if not self.dry_run:
                self.store.delete(name)

    def _want_own(self, archive: bytes) -> None:
        """Raise ArchiveError where there are packs and all are of another archive than that of an archive.json."""
        others = set[bytes]()
        for pack in object_names.pack.listed(self.store.list):
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

    def _is_over(self, catalog: Catalog, pack: bytes) -> bool:
        """Return whether a collector took a pack out meanwhile, whose file is not there."""
        catalog.refresh()
        listing = catalog.listing
        return pack not in listing.missing() | listing.packs.keys() | listing.present.lost.keys()

    def _name(self, catalog: Catalog, pack: bytes, data: ByteSource) -> None:
        """Name a pack that was given up and is whole again."""
        if pack in catalog.listing.present.lost and not self.dry_run:
            row, indexes = NamedPack(len(data), catalog.listing.entries_of(pack, len(data))), catalog.listing.indexes
            rows = {} if any(pack in index.packs for index in indexes.values()) else {pack: row}
            catalog.listing.publish(lambda base: replace(base.naming({pack: row}), packs={**base.packs, **rows}))

    def _protect(self, pack: bytes, data: ByteSource) -> None:
        """Give a sound pack sound parity unless it has it."""
        if self._is_protected(pack, data):
            return
        name = object_names.parity(pack)
        self.report.remade.append(name)
        if self.dry_run:
            return
        self.store.delete(name)
        self.store.put(name, Parity.of(pack, data).encode())
        if not is_there(self.store, object_names.pack(pack)):  # collected meanwhile
            self.store.delete(name)

    def _is_protected(self, pack: bytes, data: ByteSource) -> bool:
        """Return whether a sound pack has sound parity."""
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
            parity = Parity.decode(data, pack) if data is not None else None
        except FormatError:
            return None
        return parity if parity and parity.pack == pack else None

    def _salvage(self, catalog: Catalog, pack: bytes, best: ByteSource) -> None:
        """Move a pack beyond repair aside. Its readable records go into a new pack, and the manifest has its losses."""
        if pack in catalog.listing.present.lost and pack not in self._doubted and not len(best):
            return  # given up already, and nothing of it came back
        rows = list(_scan(best))
        missing, sessions, segments, covered = self._note_lost(catalog, pack, best, rows)
        self.report.salvaged += len(rows)
        if self.dry_run:
            return
        if rows:
            contexts = _opened(best).head.contexts
            ArchiveWriter(catalog, CodecRegistry()).publisher.put([(contexts[r.context], r) for _, r in rows])
        if missing == 0 and not sessions and not segments:
            catalog.listing.publish(lambda manifest: manifest.taking_out({pack}, self.store.now()))
        else:
            row = Losses(self.store).put(missing, covered, sessions, segments)
            catalog.listing.publish(lambda manifest: manifest.giving_up({pack: row}))
        for name in (object_names.pack(pack), object_names.parity(pack)):
            if (left := self._maybe(name, 1 << 31)) is not None:
                self._put_aside(name, left)
                self.store.delete(name)

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
            raise StoreError(f"{name} was put by somebody else, with other bytes, at the same time: repair again")

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


class SalvageReader:
    """The remains of a file, at most ``most`` bytes: zeros where the disk gives none. A `ByteSource`."""

    def __init__(self, file: File, most: int) -> None:
        self._file, self._size = file, min(file.size, most)

    @classmethod
    def of(cls, store: Store, name: str, most: int) -> SalvageReader | None:
        """Return the remains of a file, None if it does not exist. Raises StoreError."""
        try:
            return cls(store.open(name), most)
        except FileNotFoundError:
            return None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes | memoryview:
        begin, end, _ = part.indices(self._size)
        return self.read(begin, max(0, end - begin))

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return at most ``size`` bytes from ``offset``, fewer at the end, as `disk.Reader` does."""
        size = max(0, min(size, self._size - offset))
        try:
            found = self._file.read(offset, size)
        except UnreadableError:
            found = self._by_sector(offset, size)
        return found if len(found) == size else bytes(found).ljust(size, b"\0")  # the file was cut off meanwhile

    def whole(self) -> bytes:
        """Return all bytes, in memory."""
        return bytes(self.read(0, self._size))

    def _by_sector(self, offset: int, size: int) -> bytes:
        data = bytearray(size)
        for at in range(0, size, SECTOR):
            with suppress(UnreadableError):
                found = self._file.read(offset + at, min(SECTOR, size - at))
                data[at : at + len(found)] = found
        return bytes(data)


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
        count = COUNT.pack(sum(1 for _ in _scan(data)))
        made = BytesIO(bytes(data[: -FOOTER.size]) + count.ljust(FOOTER.size, b"\0"))
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

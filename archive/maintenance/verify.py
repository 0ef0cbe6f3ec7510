"""Verify: one walk that reads everything, reports every problem exactly, and names the sessions it costs.

    packs     digest against name, both headers, footer; the blocks of a pack against its index entries, both ways. What
              `pack_walk.py` proves by columns is not looked at record by record, but to decode it
    decode    (on request) every segment decodes to tokens whose hash is its id
    indexes   digest against name
    towers    every version's segments are there

Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import Answer, Chains, decodable_groups, decode_records, deepest, lost_versions
from pltz.archive.catalog.directory import SHOWN
from pltz.archive.catalog.freshness import Token, rolled_back, token_of
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.problems import Problem, Problems
from pltz.archive.catalog.sources import Sources
from pltz.archive.encryption.key_files import KeyFolder
from pltz.archive.errors import Erased, KeyMismatch, LostError
from pltz.archive.format import index_file, object_names
from pltz.archive.format.byte_source import File
from pltz.archive.format.hold import MAX_SIZE as MAX_HOLD, Hold
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.format.index_file import SECTIONS, SEGMENTS, SESSIONS, FileIndex, key_of, key_of_session, keys_of
from pltz.archive.format.object_names import SETTINGS, SETTINGS_COPY
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.parity import Parity
from pltz.archive.format.session_list import decoded
from pltz.archive.format.settings import MAX_SIZE as MAX_SETTINGS, Settings
from pltz.archive.humanize import counted
from pltz.archive.maintenance.erase import unfinished
from pltz.archive.maintenance.pack_walk import PackColumns, PackWalk, WalkedPack, absent, inner_blocks
from pltz.archive.storage.store import is_there
from pltz.archive.work_part import WorkPart
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.plt_codec.container.frame import TOWER
from pltz.plt_codec.errors import BundleMismatch, FormatError, PltzError

DECODE_RECORDS = 256  # records decoded at once, of one pack or of several
SOURCES = 1 << 30  # bytes of contents that logs recall passages from after which these are decoded anew


@dataclass
class Report:
    """The result of a verification.

    Attributes:
        undecoded: number of segments whose bundle or key was not at hand.
        unreadable: number of records that damaged packs had and that were not read. A version among them has no
            name any more, so it is not in ``lost``.
        lost: versions that cannot be thawed.
        missing_copies: paths of redundant files that are gone (parity, second copies); `repair` makes them again.
        unfinished: erases that were cut off or are running; they damage nothing.
        unnamed: number of packs of puts that were cut off or are running: no manifest named them.
        token: see `freshness`.
    """

    packs: int = 0
    records: int = 0
    decoded: int = 0
    undecoded: int = 0
    unreadable: int = 0
    unnamed: int = 0
    problems: list[Problem] = field(default_factory=list)
    lost: list[Version] = field(default_factory=list)
    missing_copies: list[str] = field(default_factory=list)
    unfinished: list[Problem] = field(default_factory=list)
    token: str = ""

    @property
    def sound(self) -> bool:
        """Return whether no problem was found."""
        return not (self.problems or self.lost or self.unreadable)


class Verifier:
    """Checks an archive through a fresh catalog of its files."""

    def __init__(self, catalog: Catalog, codecs: CodecRegistry, settings: Settings):
        self.catalog, self.codecs, self.settings = catalog, codecs, settings
        self.report = Report()
        self._problems = Problems(self.report.problems)
        self._bad = set[bytes]()  # segments of which a record did not decode
        self._sources = Sources(catalog)
        self._hidden: dict[int, bytes] = {}  # keys of sessions with records that cannot be read, and packs of these

    def run(
        self,
        *,
        decode: bool = False,
        expect: Token | None = None,
        progress: Callable[[Report], None] | None = None,
        part: WorkPart | None = None,
    ) -> Report:
        """Check all packs in the order of their names, and return the report.

        Args:
            decode: also decode every segment and compare its id.
            expect: token that `freshness.token_of` returned earlier. An archive older than that is not sound.
            progress: called with the report after each pack, and between batches of decoded segments.
            part: check only the packs of this part, and that the segments are there that they need of other parts. What
                is of no pack is checked by the first part. Together all parts check what a run without them does.

        Raises ManifestLost, RolledBack where repair has to make the manifest again, StoreError where the store fails or
        files cannot be read at all, ArchiveError where collectors interfere. Other damage is in the report, not raised.
        """
        listing, damage = self.catalog.listing, self.catalog.damage
        part, progress = part or WorkPart(), progress or (lambda report: None)
        self.catalog.refresh()
        # known before anything is read: lost packs, a roll back
        for pack in sorted(self.catalog.listing.missing()):
            self._wrong("pack", pack.hex(), "is gone, and no collector took it out: run pltz archive repair")
        for loss in damage.losses():
            self._wrong("loss", loss.pack.hex(), str(loss))
        if expect and (why := rolled_back(self.catalog, expect)):
            self._wrong("freshness", str(expect), why)
        self.report.token = str(token_of(self.catalog))
        # packs, while the digests of indexes are computed beside
        walk = PackWalk(self.catalog)
        listing.stable(walk.look)
        for pack in listing.missing():
            self._hide(pack, walk.entries(pack))
        indexes = {name: index for name, index in listing.indexes.items() if part.has(name.encode())}
        with ThreadPoolExecutor(1) as pool:
            faults = pool.submit(self._index_faults, indexes)
            proved, doubted = self._walk(walk, sorted(filter(part.has, listing.packs)), decode, progress)
        for name, what in faults.result():
            self._wrong("index", name, what)
        if part.number == 1:
            self._check_copies()
            self._check_redundancy()
        # sessions that are lost are looked for only where something may be, and with ``decode``, as names may not open
        if doubted:
            self.catalog.refresh()
        there = listing.packs.keys() | listing.missing()  # others were deleted by a collector meanwhile
        self._hidden = {key: pack for key, pack in self._hidden.items() if pack in there}
        if decode or doubted or self._hidden or listing.stable(lambda: self._astray(proved)):
            self.report.lost += listing.stable(self._lost)
        for problem in self.catalog.problems:
            self._problems.add(problem)
        return self.report

    # ---- packs

    def _walk(
        self, walk: PackWalk, packs: Sequence[bytes], decode: bool, progress: Callable[[Report], None]
    ) -> tuple[list[PackColumns], set[bytes]]:
        """Check packs, and return what they have that are proved sound, and the others.

        With ``decode`` their segments are decoded, those of several packs at once.
        """
        proved, doubted = list[PackColumns](), set[bytes]()
        waiting: list[Found] = []
        for pack in walk.run(packs):
            if pack.columns:
                proved.append(pack.columns)
                self.report.records += pack.columns.records
            else:
                doubted.add(pack.name)
            if pack.file is None:
                self._hide(pack.name, walk.entries(pack.name))
            elif decode or not pack.columns:
                self._check_entries(pack, pack.file, walk.entries(pack.name))
                for item in self._records(pack, pack.file):
                    segment = item.record.id
                    if decode and segment and not self.catalog.keys.gone(item.context, segment):
                        waiting.append(item)
                    if len(waiting) == DECODE_RECORDS:
                        self._decode(waiting)
                        waiting.clear()
                        progress(self.report)
            self._check_parity(pack.name)
            self.report.packs += 1
            progress(self.report)
        self._decode(waiting)
        return proved, doubted

    def _records(self, pack: WalkedPack, file: File) -> Iterator[Found]:
        """Yield the records of a pack that can be read, and report what cannot."""
        name, read, seen = pack.name.hex(), 0, len(self.report.problems)
        if pack.why:
            self._wrong("pack", name, pack.why)
        try:
            for item in self.catalog.listing.scan(pack.name, file=file):
                if isinstance(item, Damage):
                    self._wrong("pack", name, f"{item.size} bytes at {item.offset}: {item.why}")
                else:
                    read += 1
                    yield item
        except FormatError as exc:
            self._wrong("pack", name, str(exc))
        if pack.columns:
            return
        self.report.records += read
        with suppress(FormatError):  # without a footer nothing tells how many there were
            count = Pack(file.read, file.size).count()
            self.report.unreadable += max(0, count - read)  # one that counts too few must not offset another pack
            if count != read and len(self.report.problems) == seen:
                self._wrong("pack", name, f"expected {count} records in the pack, found {read}")

    def _check_entries(self, pack: WalkedPack, file: File, entries: set[tuple[int, int, int]]) -> None:
        """Check that entries, each a section, a key and an offset, name the records of a pack and nothing else.

        Damaged blocks are reported with the pack. The sessions of their records are hidden, and those of all where
        nothing tells that these are the bytes of the pack.
        """
        there, blocks, name = set[tuple[int, int, int]](), set[int](), pack.name.hex()
        with suppress(FormatError):
            for item in self.catalog.listing.scan(pack.name, bodies=False, file=file):
                if not isinstance(item, Damage):
                    blocks.add(offset := item.location.offset)
                    there |= {(section, key_of(i), offset) for section, i in keys_of(item.record, item.context)}
        if not pack.columns:
            try:
                Pack(file.read, file.size).footer()
                self._hide(pack.name, entries - there)
            except FormatError:
                self._hide(pack.name, entries)
        for section, _, offset in sorted(there - entries):
            where = f"{name} at {offset}"
            self._wrong("index", SECTIONS[section], f"the record in {where} is not found through any index")
        for _, _, offset in sorted(entry for entry in entries - there if entry[2] in blocks):
            indexes = (index for index, known in self.catalog.listing.indexes.items() if pack.name in known.packs)
            what = f"an entry names the block at byte {offset} of {name}, where no such record is"
            self._wrong("index", ", ".join(sorted(indexes)), what)

    def _hide(self, pack: bytes, entries: Iterable[tuple[int, int, int]]) -> None:
        """Note the sessions that entries of a pack name and that cannot be read there."""
        self._hidden |= {key: pack for section, key, _ in entries if section == SESSIONS}

    def _check_parity(self, pack: bytes) -> None:
        """Check the parity of a pack, if any. Missing parity is no damage and is counted later."""
        try:
            parity = Parity.decode(self.catalog.store.view(object_names.parity(pack)), pack)
            parity.verify()
            if parity.pack != pack:
                self._wrong("parity", pack.hex(), "is that of another pack")
        except FormatError as exc:
            self._wrong("parity", pack.hex(), str(exc))
        except FileNotFoundError:
            return

    # ---- segments

    def _decode(self, items: Sequence[Found]) -> None:
        """Decode these records in groups and compare their ids."""
        for group in decodable_groups(items, lambda item: item.record.tokens):
            self._note(group, self.catalog.listing.stable(partial(self._answers, group)))

    def _answers(self, items: Sequence[Found]) -> list[Answer]:
        """Return the tokens, (T,), of each record, or the error. Segments above them are decoded first, once."""
        self.catalog.keys.refresh()
        if self._sources.size > SOURCES:
            self._sources = Sources(self.catalog)
        chains = Chains(self.catalog, self.codecs, needed=True, sources=self._sources)
        chains.load([i.record.parent for i in items if i.record.mode & TOWER])
        above = [chains.above(i) for i in items]
        pairs = zip(items, above, strict=True)
        wanted = [chains.to_decode(item, up) for item, up in pairs if not isinstance(up, PltzError)]
        answers = iter(decode_records(self.codecs, self.catalog.keys, wanted))
        return [a if isinstance(a, PltzError) else next(answers) for a in above]

    def _note(self, items: Sequence[Found], answers: Sequence[Answer]) -> None:
        """Count the segments that decoded, and report the others.

        A record whose parent was collected is no damage in itself. If a version needs it, that version is found lost.
        """
        rooted = {NO_SEGMENT}  # segments of which all that they need is there
        for item, answer in zip(items, answers, strict=True):
            if not isinstance(answer, PltzError):
                self.report.decoded += 1
            elif isinstance(answer, BundleMismatch | KeyMismatch):
                self.report.undecoded += 1
            elif item.record.id and not isinstance(answer, Erased):  # else it was erased meanwhile
                self._bad.add(item.record.id)
                if not (isinstance(answer, LostError) and self._is_orphan(item, rooted)):
                    where = f"{item.location.pack.hex()} at {item.location.offset}"
                    self._wrong("record", where, str(answer))

    def _is_orphan(self, item: Found, rooted: set[bytes]) -> bool:
        """Return whether a segment above a record is absent, and no damage hides it.

        Nothing live needed it then. ``rooted``: segments that need no absent one; others are added.
        """
        seen, at = set[bytes](), item.record.parent
        while at not in seen and at not in rooted:
            seen.add(at)
            if not (places := self.catalog.lookup.find(SEGMENTS, at)):
                return not self.catalog.damage.hiding()
            at = places[0].record.parent
        rooted |= seen
        return False

    # ---- towers

    def _astray(self, proved: Sequence[PackColumns]) -> set[bytes]:
        """Return the segments of circles, those below too many others, and those that are needed and not there.

        Dead records count, so no reader may need these: versions that do are lost. Nothing is decoded.
        """
        records: dict[bytes, set[bytes]] = {}
        for place in inner_blocks(proved):
            if place.pack not in self.catalog.listing.packs:
                continue  # a collector deleted it, and what is live is in another
            try:
                _, block = self.catalog.lookup.block(place)
            except FormatError:  # changed since it was proved: the next run tells
                continue
            except FileNotFoundError:
                self.catalog.listing.note_stale()
                continue
            for record in block.heads():
                if record.id is not None:
                    records.setdefault(record.id, set()).add(record.parent)
        needed, missing = absent(proved), set[bytes]()  # of packs of other parts, which may be deep themselves
        while needed:
            if (segment := needed.pop()) == NO_SEGMENT or segment in records:
                continue
            places = self.catalog.lookup.find(SEGMENTS, segment)
            records[segment] = {place.record.parent for place in places}
            missing |= set() if places else {segment}
            needed += records[segment]
        return missing | deepest(records)

    def _lost(self) -> list[Version]:
        """Return the versions of which something is missing, and name the sessions of which damage hides versions."""
        versions = chain.from_iterable(map(self._named, self.catalog.lookup.histories()))
        lost = list(lost_versions(self.catalog, versions, self._unread(self._bad)))
        for key, pack in sorted(self._hidden.items()):
            self._wrong("session", f"{key:09x}", f"has a record in pack {pack.hex()} that cannot be read")
        return lost

    def _unread(self, segments: Collection[bytes]) -> set[bytes]:
        """Return the segments that cannot be read. Of the others, one record failed and another one is sound."""
        unread, ordered = set[bytes](), sorted(segments)
        for at in range(0, len(ordered), DECODE_RECORDS):
            some = ordered[at : at + DECODE_RECORDS]
            answers = Chains(self.catalog, self.codecs, needed=True).answers(some)
            unread |= {segment for segment, answer in zip(some, answers, strict=True) if isinstance(answer, PltzError)}
        return unread

    def _named(self, history: list[Version]) -> list[Version]:
        """Return a session's versions. Where others are hidden, name it."""
        name = f"{history[0].tenant}  {history[0].name}"
        for version in history:
            if version.hides_older:
                self._wrong("session", name, f"what was put before version {version.id[:SHOWN].hex()} cannot be read")
        if self._hidden:
            with suppress(FormatError, FileNotFoundError):
                item = self.catalog.lookup.head(history[-1].location)
                if pack := self._hidden.pop(key_of(key_of_session(item.record, item.context)), None):
                    what = f"has a record in pack {pack.hex()} that cannot be read: it may be a newer version"
                    self._wrong("session", name, what)
        return history

    # ---- what is of no pack

    def _check_copies(self) -> None:
        """Check second copies of small files, key files, and what lost packs had."""
        store, listing = self.catalog.store, self.catalog.listing
        for path in SETTINGS, SETTINGS_COPY:
            try:
                if Settings.decode(store.read(path, 0, MAX_SETTINGS)) != listing.present.settings:
                    self._wrong("settings", SETTINGS, "is that of another archive: run pltz archive repair")
            except FormatError as exc:
                self._wrong("settings", SETTINGS, str(exc))
            except FileNotFoundError:
                continue
        for name in sorted(listing.indexes):
            with suppress(FileNotFoundError):
                try:
                    packs = index_file.packs_of(bytes(store.view(object_names.table_copy(name))), name)
                    if packs != listing.indexes[name].packs:
                        self._wrong("index", name, "the copy of its pack table is that of another")
                except FormatError as exc:
                    self._wrong("index", name, str(exc))
        for name, index in listing.present.lists.items():
            with suppress(FileNotFoundError):
                try:
                    decoded(store.view(object_names.session_list(name)), bytes.fromhex(name), listing.archive)
                except FormatError as exc:
                    self._wrong("list", name, f"{exc}; the packs of index {index} are read instead")
        self._check_keys()

    def _check_keys(self) -> None:
        """Check key files, except older ones that an unfinished erase left, and that they are those for the packs."""
        folder = KeyFolder(self.catalog.store)
        for file in object_names.key_files_among(sorted(self.catalog.store.list(object_names.KEYS))):
            try:
                folder.read_copy(file)
            except FormatError as exc:
                if not folder.outdated(name := object_names.last_part(file.name)):
                    self._wrong("keys", name, str(exc))
            except FileNotFoundError:
                continue
        if check := self.catalog.key_check:
            check.refresh()
            for domain, what in check.faults().items():
                self._wrong("keys", domain.hex(), what)
            for path, what in check.strangers():
                self._wrong("keys", path, what)
        self.report.unfinished = list(unfinished(self.catalog))

    def _check_redundancy(self) -> None:
        """Note each redundant copy that is missing while its original is there."""
        listed = {
            f"{folder}/{name}"
            for folder in (object_names.PARITY, object_names.KEYS, object_names.LISTS)
            for name in self.catalog.store.list(folder)
        } | {SETTINGS for name in self.catalog.store.list("") if name == SETTINGS}
        self.report.missing_copies = [
            copy
            for copy, original in sorted(self._copies())
            if copy not in listed
            and not is_there(self.catalog.store, copy)  # it may have been put since
            and is_there(self.catalog.store, original)  # or both may have gone
        ]
        unnamed = self.catalog.listing.unnamed_packs()
        named_once = object_names.parity.listed(self.catalog.store.list).keys() & unnamed.keys()
        self.report.unnamed = len(unnamed) - len(named_once)
        if named_once and (left := named_once & self.catalog.listing.unnamed_packs().keys()):
            what = (
                f"does not name {counted(len(left), 'pack')} that an earlier one did: it is that of a backup, and get "
                "does not see what is in them; run pltz archive repair"
            )
            self._wrong("manifest", "", what)
        self._check_holds()

    def _check_holds(self) -> None:
        """Check that each hold has its object, and that the manifest has each hold that has one."""
        store, listing = self.catalog.store, self.catalog.listing
        there = object_names.hold.listed(store.list).keys()
        listing.follow()  # after the listing: a hold has its object only while the manifest has it
        rows = listing.present.holds
        self.report.missing_copies += [object_names.hold(name) for name in sorted(rows.keys() - there)]
        for name in sorted(there):
            try:
                hold = Hold.decode(store.read(object_names.hold(name), 0, MAX_HOLD))
            except FormatError as exc:
                self._wrong("hold", name.hex(), str(exc))
            except FileNotFoundError:  # it was released meanwhile
                continue
            else:
                if name not in rows and hold.archive == listing.archive:
                    what = "is not in the manifest, which is that of a backup: run pltz archive repair"
                    self._wrong("hold", name.hex(), what)

    def _copies(self) -> Iterator[tuple[str, str]]:
        """Yield the path of each redundant copy that should exist, with the path of its original."""
        store = self.catalog.store
        yield SETTINGS_COPY, SETTINGS
        yield SETTINGS, SETTINGS_COPY
        yield from ((object_names.parity(pack), object_names.pack(pack)) for pack in self.catalog.listing.packs)
        yield from ((object_names.table_copy(name), object_names.index(name)) for name in self.catalog.listing.indexes)
        lists = self.catalog.listing.present.lists.items()
        yield from ((object_names.session_list(name), object_names.index(index)) for name, index in lists)
        for domain, generations in KeyFolder(store).generations().items():
            first, second = object_names.key_copies(domain, generations[-1])
            yield from ((first, second), (second, first))

    def _index_faults(self, indexes: Mapping[str, FileIndex]) -> list[tuple[str, str]]:
        """Return the name of each index that is damaged, and what is wrong. Holds the GIL for little of its time."""
        faults: list[tuple[str, str]] = []
        for name, index in indexes.items():
            try:
                if index.verify().hex() != name:
                    faults.append((name, "its digest is not its name"))
            except FormatError as exc:
                faults.append((name, str(exc)))
            except FileNotFoundError:  # another replaced it meanwhile
                continue
        return faults

    def _wrong(self, kind: str, name: str, what: str) -> None:
        self._problems.note(kind, name, what)

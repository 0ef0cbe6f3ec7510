"""Verify: read everything, report every problem exactly, and name the sessions it costs. Changes nothing.

    packs     digest against name, both headers, footer, every record's check; packs that bulk verification
              (`bulk_verify.py`) proves are not read record by record
    indexes   digest against name; every record is found through them; every entry points at its record
    towers    every version's segments are there
    decode    (on request) every segment decodes to tokens whose hash is its id
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, compress

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import (
    Answer,
    Chains,
    RecordToDecode,
    decodable_groups,
    decode_records,
    deepest,
    lost_versions,
)
from pltz.archive.catalog.freshness import Token, rolled_back, token_of
from pltz.archive.catalog.history import SHOWN
from pltz.archive.catalog.listing import ATTEMPTS, Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.problems import Problem, Problems
from pltz.archive.concurrency import run_alongside
from pltz.archive.encryption.key_files import KeyFolder
from pltz.archive.errors import KeyMismatch, LostError
from pltz.archive.format import index_file, object_names
from pltz.archive.format.index_file import SECTIONS, SEGMENTS, FileIndex, key_of, key_of_session, keys_of
from pltz.archive.format.object_names import SETTINGS, SETTINGS_COPY
from pltz.archive.format.pack import Damage, Pack
from pltz.archive.format.parity import Parity
from pltz.archive.format.settings import MAX_SIZE as MAX_SETTINGS, Settings
from pltz.archive.humanize import counted
from pltz.archive.maintenance.bulk_verify import BulkVerified, BulkVerifier, absent, inner_blocks
from pltz.archive.maintenance.erase import unfinished
from pltz.archive.storage.store import is_there
from pltz.archive.work_part import WorkPart
from pltz.coding.codecs.modes import TOWER
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.errors import BundleMismatch, CorruptError, FormatError, PltzError
from pltz.plt_codec.identity import NONE

DECODE_RECORDS = 256  # records decoded between two looks at the clock


@dataclass
class Report:
    """The result of a verification.

    Attributes:
        undecoded: number of segments whose bundle or key was not at hand.
        unreadable: number of records that damaged packs had and that were not read. A version among them has no
            name any more, so it is not in ``lost``.
        complete: nothing was left out.
        lost: versions that cannot be thawed.
        missing_copies: paths of redundant files that are gone (parity, second copies); `repair` makes them again.
        unfinished: erases that were cut off or are running; they damage nothing.
        unnamed: number of packs of puts that were cut off or are running: no manifest named them.
        token: see `freshness`.
        cursor: the last pack that was checked; a run that resumes from this report goes on after it.
        within: the pack being checked, whose records before byte ``offset`` are done.
        bad: ids of segments that did not decode.
    """

    packs: int = 0
    records: int = 0
    decoded: int = 0
    undecoded: int = 0
    unreadable: int = 0
    unnamed: int = 0
    complete: bool = True
    problems: list[Problem] = field(default_factory=list)
    lost: list[Version] = field(default_factory=list)
    missing_copies: list[str] = field(default_factory=list)
    unfinished: list[Problem] = field(default_factory=list)
    token: str = ""
    cursor: bytes = b""
    within: bytes = b""
    offset: int = 0  # bytes
    bad: set[bytes] = field(default_factory=set)

    @property
    def sound(self) -> bool:
        """Return whether no problem was found."""
        return not (self.problems or self.lost or self.unreadable)


@dataclass(frozen=True)
class PackSpan:
    """A pack, or its records that begin at byte ``start`` or later and before byte ``stop``."""

    pack: bytes
    start: int = 0  # bytes
    stop: int | None = None  # bytes


class Verifier:
    """Checks an archive through a fresh catalog of its files.

    ``resume``: the report of a run that was stopped.
    """

    def __init__(
        self, catalog: Catalog, codecs: CodecRegistry, settings: Settings, resume: Report | None = None
    ):
        self.catalog, self.codecs, self.settings = catalog, codecs, settings
        self.report = resume or Report()
        self._problems = Problems(self.report.problems)
        self._end: float | None = None
        self._stop: int | None = None  # bytes
        self._part = WorkPart()
        self._hidden: dict[int, bytes] = {}  # keys of sessions with records that cannot be read, and packs of these
        self._progress: Callable[[Report], None] | None = None

    def run(
        self,
        *,
        decode: bool = False,
        fraction: float = 1.0,
        max_seconds: int | None = None,
        anywhere: bool = False,
        expect: Token | None = None,
        progress: Callable[[Report], None] | None = None,
        part: WorkPart | None = None,
    ) -> Report:
        """Check all packs, or a random ``fraction`` of them, and return the report.

        Packs are taken in the order of their names. A pack put behind the cursor meanwhile was proved when it
        was put; the next run from the start checks it.

        Args:
            decode: also decode every segment and compare its id.
            fraction: share of the packs to check, 0 to 1.
            max_seconds: approximate limit in seconds. Decoding a pack may take hours, so the clock is read after every
                `DECODE_RECORDS` segments.
            anywhere: begin at a random record and go round, so that runs that never finish cover everything in the
                end. Nothing can resume from their reports.
            expect: token that `freshness.token_of` returned earlier. An archive older than that is not sound.
            progress: called with the report after each pack, and between batches of decoded segments.
            part: check only the packs of this part, and that the segments are there that they need of other parts. What
                is of no pack is checked by the first part. Together all parts check what a run without them does.

        Raises ManifestLost, RolledBack where repair has to make the manifest again, StoreError where the store fails or
        files cannot be read at all, ArchiveError where collectors interfere. Other damage is in the report, not raised.
        """
        self.catalog.refresh()
        # known before anything is read: lost packs, a roll back
        for pack in sorted(self.catalog.damage.missing()):
            self._wrong("pack", pack.hex(), "is gone, and no collector took it out: run pltz archive repair")
        for loss in self.catalog.damage.losses():
            self._wrong("loss", loss.pack.hex(), str(loss))
        if expect and (why := rolled_back(self.catalog, expect)):
            self._wrong("freshness", str(expect), why)
        self.report.token = str(token_of(self.catalog))
        self._progress = progress
        if max_seconds is not None:
            self._end = self.catalog.store.now() + max_seconds
        # packs, while the digests of indexes are computed beside
        swept: list[BulkVerified] = []
        doubted: set[bytes] = set()  # packs that bulk verification did not prove: checked record by record
        self._part = part or WorkPart()
        spans = self._chosen(fraction, anywhere and decode)
        with run_alongside(self._index_digests) as digests:
            self._check_packs(spans, decode, swept, doubted)
        if self._part.number == 1:
            self._check_copies()
            self._check_redundancy()
        self._check_indexes(digests(), doubted)
        # sessions that are lost are looked for only where something may be
        self._hidden = self.catalog.damage.hidden_sessions(doubted)
        astray = self.catalog.listing.stable(lambda: self._astray(swept))
        if doubted or self._hidden or not self.report.complete or astray:
            self.report.lost += self.catalog.listing.stable(self._lost)
        for problem in self.catalog.damage.problems:
            self._problems.add(problem)
        return self.report

    def _check_packs(self, spans: list[PackSpan], decode: bool, swept: list[BulkVerified], doubted: set[bytes]) -> None:
        """Check as many packs as there is time for.

        Adds packs proved in bulk to ``swept`` and all other packs to ``doubted``.
        """
        for span, found in self._swept(spans, decode):
            pack = span.pack
            if self._late():
                self.report.complete = False
                break
            if found:
                self.report.packs += 1
                self.report.records += found.records
                swept.append(found)
            else:
                doubted.add(pack)
                self.report.within, self.report.offset, self._stop = pack, span.start, span.stop
                self._check_pack(pack, decode)
                if self.report.within:
                    self.report.complete = False
                    break
                self.report.packs += span.stop is None
            self._check_parity(pack)
            self.report.cursor = pack
            if self._progress:
                self._progress(self.report)

    def _astray(self, swept: Sequence[BulkVerified]) -> set[bytes]:
        """Return the segments of circles, those below too many others, and those that are needed and not there.

        Dead records count, so no reader may need these: versions that do are lost. Nothing is decoded.
        """
        records: dict[bytes, set[bytes]] = {}
        for place in inner_blocks(swept):
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
        needed, missing = absent(swept), set[bytes]()  # of packs of other parts, which may be deep themselves
        while needed:
            if (segment := needed.pop()) == NONE or segment in records:
                continue
            places = self.catalog.lookup.find(SEGMENTS, segment)
            records[segment] = {place.record.parent for place in places}
            missing |= set() if places else {segment}
            needed += records[segment]
        return missing | deepest(records)

    def _lost(self) -> list[Version]:
        """Return the versions of which something is missing, and name the sessions of which damage hides versions."""
        versions = chain.from_iterable(map(self._named, self.catalog.lookup.histories()))
        lost = list(lost_versions(self.catalog, versions, self._unread(self.report.bad)))
        for key, pack in sorted(self._hidden.items()):
            self._wrong("session", f"{key:09x}", f"has a record in pack {pack.hex()} that cannot be read")
        return lost

    def _unread(self, segments: Collection[bytes]) -> set[bytes]:
        """Return the segments that cannot be read. Of the others, one record failed and another one is sound."""
        unread, ordered = set[bytes](), sorted(segments)
        for at in range(0, len(ordered), DECODE_RECORDS):
            some = ordered[at : at + DECODE_RECORDS]
            answers = Chains(self.catalog, self.codecs).answers(some)
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

    def _late(self) -> bool:
        return self._end is not None and self.catalog.store.now() >= self._end

    def _chosen(self, fraction: float, anywhere: bool) -> list[PackSpan]:
        """Return the spans to check, in order."""
        dice = random.Random(self.catalog.store.random(8))
        packs = sorted(p for p in self.catalog.listing.packs if p > self.report.cursor and self._part.has(p))
        if fraction < 1:
            self.report.complete = False
            packs = [pack for pack in packs if dice.random() < fraction]
        if anywhere and packs:
            return self._round(packs, dice)
        return [PackSpan(pack, self.report.offset if pack == self.report.within else 0) for pack in packs]

    def _round(self, packs: list[bytes], dice: random.Random) -> list[PackSpan]:
        """Return all packs from a random byte of a random pack on, and round to that byte again."""
        at = dice.randrange(len(packs))
        first = packs[at]
        try:
            byte = dice.randrange(max(1, self.catalog.listing.opened(first).size))
        except (FormatError, FileNotFoundError):  # the check reports it
            byte = 0
        others = [*packs[at + 1 :], *packs[:at]]
        return [PackSpan(first, byte), *map(PackSpan, others), *([PackSpan(first, 0, byte)] if byte else [])]

    def _swept(self, spans: list[PackSpan], decode: bool) -> Iterator[tuple[PackSpan, BulkVerified | None]]:
        """Yield packs with their contents where bulk verification proves them.

        With ``decode`` none is proved in bulk.
        """
        if decode:
            yield from ((span, None) for span in spans)
        else:
            found = BulkVerifier(self.catalog).run([span.pack for span in spans])
            yield from ((PackSpan(pack), swept) for pack, swept in found)

    def _check_pack(self, pack: bytes, decode: bool) -> None:
        """Check a pack's records from the report's ``offset`` on.

        If the time runs out before the last record, the report stays ``within`` the pack.
        """
        start = self.report.offset
        try:
            file = self.catalog.store.open(object_names.pack(pack))
            if Pack(file.read, file.size, archive=self.catalog.listing.archive).verify() != pack:
                self._wrong("pack", pack.hex(), "its digest is not its name")
        except FormatError as exc:
            self._wrong("pack", pack.hex(), str(exc))
        except FileNotFoundError:
            return self._pass(b"")  # a collector deleted it
        # record by record, from where the last run stopped
        waiting: list[Found] = []
        read = 0
        for item in self._records(pack):
            read += 1
            if item.location.offset < start:
                continue
            if len(waiting) >= DECODE_RECORDS and item.location.offset > waiting[-1].location.offset:
                self._decode(waiting)  # after whole blocks, because a run resumes at a block
                waiting = []
                self._pass(pack, item.location.offset)
                if self._progress:
                    self._progress(self.report)
                if self._late():
                    return
            if self._stop is not None and item.location.offset >= self._stop:
                break
            self.report.records += 1
            self._check_found(item)
            if decode and item.record.id is not None and not self._erased(item):
                waiting.append(item)
        self._decode(waiting)
        if self._stop is None:
            self._count(pack, read)
        self._pass(b"")

    def _count(self, pack: bytes, read: int) -> None:
        """Compare the number of records in the footer with those read.

        A pack without a footer is a problem already told.
        """
        with suppress(FormatError, FileNotFoundError):
            missing = self.catalog.listing.opened(pack).count() - read
            self.report.unreadable += max(
                0, missing
            )  # a footer that counts too few must not offset another pack

    def _pass(self, pack: bytes, offset: int = 0) -> None:
        self.report.within, self.report.offset = pack, offset

    def _erased(self, item: Found) -> bool:
        return item.record.id is not None and self.catalog.keys.gone(item.context, item.record.id)

    def _records(self, pack: bytes) -> Iterator[Found]:
        try:
            for item in self.catalog.listing.scan(pack):
                if isinstance(item, Damage):
                    self._wrong("pack", pack.hex(), f"{item.size} bytes at {item.offset}: {item.why}")
                else:
                    yield item
        except FormatError as exc:
            self._wrong("pack", pack.hex(), str(exc))
        except FileNotFoundError:
            return

    def _check_found(self, item: Found) -> None:
        """Check that the indexes find the record by each of its identities, unless its pack was deleted since."""
        if item.location.pack not in self.catalog.listing.packs:
            return
        for section, identity in keys_of(item.record, item.context):
            if item.location.block not in self.catalog.lookup.places(section, identity):
                where = f"{item.location.pack.hex()} at {item.location.offset}"
                self._wrong(
                    "index", SECTIONS[section], f"the record in {where} is not found through any index"
                )

    def _decode(self, items: Sequence[Found]) -> None:
        """Decode these records in groups and compare their ids."""
        for group in decodable_groups(items, lambda item: item.record.tokens):
            self._decode_group(group)

    def _decode_group(self, items: Sequence[Found]) -> None:
        """Decode these records at once and compare their ids.

        Where a pack vanished meanwhile, a collector moved its records: look again for those that failed. A record
        whose parent was collected is no damage in itself. If a version needs it, that version is found lost.
        """
        for _ in range(ATTEMPTS):
            before, answers = self.catalog.listing.staleness, self._answers(items)
            if self.catalog.listing.staleness == before:
                return self._note(items, answers)
            self.catalog.refresh()
            ready = [not isinstance(answer, CorruptError) for answer in answers]
            self._note(list(compress(items, ready)), list(compress(answers, ready)))
            items = [i for i, done in zip(items, ready, strict=True) if not (done or self._erased(i))]
        self._note(items, self._answers(items))

    def _note(self, items: Sequence[Found], answers: Sequence[Answer]) -> None:
        """Count the segments that decoded, and report the others."""
        rooted = {NONE}  # segments of which all that they need is there
        for item, answer in zip(items, answers, strict=True):
            if not isinstance(answer, PltzError):
                self.report.decoded += 1
            elif isinstance(answer, BundleMismatch | KeyMismatch):
                self.report.undecoded += 1
            elif isinstance(answer, LostError) and item.record.id and self._orphan(item, rooted):
                self.report.bad.add(item.record.id)
            else:
                self._undecodable(item, answer)

    def _orphan(self, item: Found, rooted: set[bytes]) -> bool:
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

    def _answers(self, items: Sequence[Found]) -> list[Answer]:
        """Return the tokens, (T,), of each record, or the error. Segments above them are decoded first, once."""
        chains = Chains(self.catalog, self.codecs)
        chains.load([i.record.parent for i in items if i.context.mode & TOWER])
        above = [chains.above(i) for i in items]
        wanted = [
            RecordToDecode(i, a)
            for i, a in zip(items, above, strict=True)
            if not isinstance(a, PltzError)
        ]
        answers = iter(decode_records(self.codecs, self.catalog.keys, wanted))
        return [a if isinstance(a, PltzError) else next(answers) for a in above]

    def _undecodable(self, item: Found, exc: PltzError) -> None:
        if item.record.id is not None:
            self.report.bad.add(item.record.id)
        self._wrong("record", f"{item.location.pack.hex()} at {item.location.offset}", str(exc))

    def _check_parity(self, pack: bytes) -> None:
        """Check the parity of a pack, if any. Missing parity is no damage and is counted later."""
        try:
            data = self.catalog.store.view(object_names.parity(pack))
            parity = Parity.decode(data)
            parity.verify()
            if parity.pack != pack:
                self._wrong("parity", pack.hex(), "is that of another pack")
        except FormatError as exc:
            self._wrong("parity", pack.hex(), str(exc))
        except FileNotFoundError:
            return

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
            for folder in (object_names.PARITY, object_names.KEYS)
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
        named_once = object_names.packs_among(self.catalog.store.list(object_names.PARITY)) & unnamed.keys()
        self.report.unnamed = len(unnamed) - len(named_once)
        if named_once and (left := named_once & self.catalog.listing.unnamed_packs().keys()):
            what = (
                f"does not name {counted(len(left), 'pack')} that an earlier one did: it is that of a backup, and get "
                "does not see what is in them; run pltz archive repair"
            )
            self._wrong("manifest", "", what)

    def _copies(self) -> Iterator[tuple[str, str]]:
        """Yield the path of each redundant copy that should exist, with the path of its original."""
        store = self.catalog.store
        yield SETTINGS_COPY, SETTINGS
        yield SETTINGS, SETTINGS_COPY
        yield from ((object_names.parity(pack), object_names.pack(pack)) for pack in self.catalog.listing.packs)
        yield from ((object_names.table_copy(name), object_names.index(name)) for name in self.catalog.listing.indexes)
        for domain, generations in KeyFolder(store).generations().items():
            first, second = object_names.key_copies(domain, generations[-1])
            yield from ((first, second), (second, first))

    def _index_digests(self) -> dict[str, bytes | FormatError]:
        """Return the digest of each index file, or the error it raises.

        Holds the GIL for little of its time.
        """
        found: dict[str, bytes | FormatError] = {}
        for name, index in list(self.catalog.listing.indexes.items()):
            if not self._part.has(name.encode()):
                continue
            try:
                found[name] = index.verify()
            except FormatError as exc:
                found[name] = exc
        return found

    def _check_indexes(self, digests: dict[str, bytes | FormatError], doubted: set[bytes]) -> None:
        for name, index in list(self.catalog.listing.indexes.items()):
            try:
                if self._part.has(name.encode()):
                    found = digests[name] if name in digests else index.verify()
                    if isinstance(found, FormatError):
                        raise found
                    if found.hex() != name:
                        self._wrong("index", name, "its digest is not its name")
                for pack in sorted(doubted & index.packs.keys() & self.catalog.listing.packs.keys()):
                    self._check_entries(name, index, pack)
            except FormatError as exc:
                self._wrong("index", name, str(exc))

    def _check_entries(self, name: str, index: FileIndex, pack: bytes) -> None:
        """Check that the entries of a pack name its blocks and records. Damaged blocks are reported with the pack."""
        there, blocks = set[tuple[int, int, int]](), set[int]()
        try:
            for item in self.catalog.listing.scan(pack, bodies=False):
                if isinstance(item, Damage):
                    continue
                offset = item.location.offset
                blocks.add(offset)
                there |= {(section, key_of(i), offset) for section, i in keys_of(item.record, item.context)}
        except (FormatError, FileNotFoundError):
            return
        number = index.names.index(pack)
        for section in range(len(SECTIONS)):
            keys, numbers, offsets = index.columns(section)
            mine = numbers == number
            for key, offset in zip(keys[mine].tolist(), offsets[mine].tolist(), strict=True):
                if offset in blocks and (section, key, offset) not in there:
                    what = f"an entry names the block at byte {offset} of {pack.hex()}, where no such record is"
                    self._wrong("index", name, what)

    def _wrong(self, kind: str, name: str, what: str) -> None:
        self._problems.note(kind, name, what)

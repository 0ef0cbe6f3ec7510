"""Put: sessions to packs, with group commit. Spec: WRITING.md, "Put".

    NewSession --ids--> new segments --encode--> pack in memory --parse, decode, compare--> put --manifest--> receipt

One call is one commit, in several packs where it is large. A stored segment is relied on only after its
record was decoded and compared, and only where its pack is not condemned. The manifest that names the new packs takes
the place of one in which none of the packs relied on is condemned: else the put looks again and decides again.

A crash leaves all sessions of a pack or none of them; see the table in WRITING.md.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import ExitStack, contextmanager
from functools import partial

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.directory import History, history_of
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.lookup import Version
from pltz.archive.errors import ArchiveError, Outdated, StoreError
from pltz.archive.format import ids, object_names
from pltz.archive.format.audit import AuditRecord, Verb
from pltz.archive.format.index_file import MARKS, SEGMENTS, SESSIONS, Entries, Location, key_of_session
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.pack import SALT, Builder, Damage, Pack, RecordPlace, name_in
from pltz.archive.format.parity import Parity
from pltz.archive.format.record import FORGET, TICK_BITS, Record
from pltz.archive.writing.batch import Contexts, PendingVersion, batches, draft, session_rows
from pltz.archive.writing.new_session import CommitReceipt, NewSession
from pltz.archive.writing.segments import Beginning, PendingSegment, RecentTowers, Row, VerifiedSegments, collision
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import Plain, shortest, unproved
from pltz.plt_codec.container.frame import ALONE, CODING, FAST
from pltz.plt_codec.errors import ContentError


class Publisher:
    """Puts rows for one catalog. ``proved`` is told of the segments decoded here."""

    def __init__(self, catalog: Catalog, proved: VerifiedSegments):
        self.catalog, self.proved = catalog, proved

    def put(
        self,
        rows: Iterable[Row],
        new: Mapping[bytes, PendingSegment] | None = None,
        *,
        relied: AbstractSet[bytes] = frozenset(),
        fence: Callable[[], None] = lambda: None,
        record: AuditRecord | None = None,
    ) -> None:
        """Lay out packs, prove them and put them; all are durable on return.

        ``new``: new segments by id; each is decoded from its record and compared before a byte is written.
        ``relied``, ``fence``, ``record``: as of `Listing.publish`. Where there is nothing to put, nothing is recorded.

        Raises ArchiveError, ContentError, FullError, Outdated, StoreError, WriterFailed. Nothing of a pack that fails
        its proof is written, and none of the packs takes effect.
        """
        listing = self.catalog.listing
        with ExitStack() as ahead:
            try:
                proved: list[tuple[Location, PendingSegment]] = []
                record = record if (rows := list(rows)) else None
                parities = list(self._packs(rows, new or {}, proved, ahead, record))
                listing.publish(relied=relied, fence=fence, record=record)
            except BaseException as exc:
                listing.drop_pending(delete=isinstance(exc, Outdated))
                raise
            self.proved.remember(proved)
            for name, parity in parities:
                self._put_parity(name, parity)

    def _packs(
        self,
        rows: list[Row],
        new: Mapping[bytes, PendingSegment],
        proved: list[tuple[Location, PendingSegment]],
        ahead: ExitStack,
        record: AuditRecord | None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Put packs, and yield the name and the parity of each, which follows the manifest.

        Adds the places of new segments to ``proved``, and to ``ahead`` the contexts in which files are written.
        """
        listing = self.catalog.listing
        while rows:
            contexts, records = zip(*rows, strict=True)
            # one pack, of as many rows as it takes
            moments = [r.moment for r in records if r.name is not None]
            moment = min(moments) if moments else self.catalog.store.ticks()
            builder = Builder(moment, self.catalog.store.random(SALT), listing.archive)
            count = builder.fill(contexts, records)
            part, rows = rows[:count], rows[count:]
            data = builder.finish()
            places = _read_back(data, builder)
            # every new segment is decoded and compared before the pack has a name
            segments = [new.get(r.id or b"") for _, r in part]
            self._prove_decoding(part, segments)
            # pack, manifest and parity are written and synced together, and get their names one by one
            name, parity = name_in(data), Parity.of(name_in(data), data).encode()
            listing.add_pack(name, len(data), _entries(part, places), part)
            files = [data, parity]
            if not rows and (manifest := listing.draft(record)):
                files.append(manifest)
            path = object_names.pack(name)
            ahead.enter_context(self.catalog.store.ahead(files))
            if not self.catalog.store.put(path, data):
                raise StoreError(f"{path} holds other bytes than its name says: nothing was acknowledged")
            proved += [(Location(name, *at), s) for at, s in zip(places, segments, strict=True) if s]
            yield name, parity

    def _prove_decoding(self, rows: Sequence[Row], new: Sequence[PendingSegment | None]) -> None:
        """Decode every new segment from the bytes in the pack and compare, before a byte is written.

        Bytes that are those that were decoded already, in the same mode, are not decoded again.

        Raises ArchiveError, ContentError.
        """
        keys = self.catalog.keys
        proving: list[tuple[Record, bytes, PendingSegment]] = []
        for (context, record), segment in zip(rows, new, strict=True):
            if segment:
                bits = keys.bits(context, record) if keys.cipher else record.bitstring
                if bits != segment.proved or record.mode & CODING != segment.mode & CODING:
                    proving.append((record, bits, segment))
        for codec, numbers in batches([s for _, _, s in proving]):
            part = [proving[n] for n in numbers]
            coded = [s.coded_by(s.codec, r.mode, bits, r.tokens) for r, bits, s in part]
            if unproved(codec.decode, coded, [s.tokens for _, _, s in part]):
                raise ArchiveError("a segment just encoded does not decode to its tokens: nothing was written")

    def _put_parity(self, name: bytes, parity: bytes) -> None:
        """Put parity after the manifest, so that no parity stands for a pack that was never named; see WRITING.md.

        Its folder is not synced. If there is no room for it the pack is acknowledged all the same, and `repair` tries
        again. `collect` deletes the parity of a slow writer.
        """
        if name not in self.catalog.listing.packs:  # collected before it was named
            return
        try:
            self.catalog.store.put_spare(object_names.parity(name), parity)
        except StoreError as exc:
            self.catalog.problems.note("parity", name.hex(), f"{exc}: this pack has no parity until repair writes it")


class ArchiveWriter:
    """Puts sessions. One per process is enough; several processes need not know of each other."""

    def __init__(self, catalog: Catalog, codecs: CodecRegistry):
        self.catalog, self.codecs = catalog, codecs
        self.proved = VerifiedSegments(catalog, codecs)
        self.recent = RecentTowers()
        self.publisher = Publisher(catalog, self.proved)
        self._indexes = IndexKeeper(catalog)

    def put(self, sessions: Sequence[NewSession], *, refresh: bool = True) -> list[CommitReceipt]:
        """Freeze sessions in one commit; on return they are durable and were decoded and compared.

        ``refresh``: read the changes of others first; False for a caller that has just done so.

        Raises:
            ContentError, LimitError, UsageError: a session cannot be stored; nothing was written.
            StoreError: the disk is full or refuses; the archive is as it was.
            WriterFailed: a sync failed; nothing was acknowledged, and this writer writes no more.
            Fenced: erases or collectors went on all the time; nothing was acknowledged, put again.
            ArchiveError, CorruptError: what it would rely on is damaged.
        """
        self.catalog.store.want_room()
        if refresh:
            self.catalog.look(0)
        self.catalog.want_clock()
        work = partial(self._put, sessions)
        with _no_sweeps():
            try:
                receipts = work()
            except (Outdated, FileNotFoundError):  # a collector condemned or took what is relied on
                receipts = self.catalog.decide(work)
        self._indexes.write_if_due()
        return receipts

    def _put(self, sessions: Sequence[NewSession]) -> list[CommitReceipt]:
        decided = self.catalog.listing.manifest
        begun = frozenset[bytes]().union(*(s.after.packs for s in sessions if s.after))
        if not begun <= self.catalog.listing.packs.keys() - self.catalog.listing.condemned:
            raise Outdated("a collector took what a log stands on: nothing was acknowledged, try again")
        contexts = Contexts(self.codecs, self.catalog.keys)
        drafts, segments = draft(sessions, contexts)
        names = [s.id for s in segments]
        stored = self.catalog.lookup.known(SEGMENTS, names).union(filter(self.proved.knows, names))
        fresh, relied = self._sort_out(segments, stored)
        self._take_out_of_runs(drafts, fresh, relied)
        self.encode(list(fresh.values()))
        self._number([d for d in drafts if not d.session.begins])
        rows = session_rows(drafts, dict(fresh))
        standing = begun | {at.pack for at in relied.values()} | {d.kept.location.pack for d in drafts if d.kept}
        changed = {d.key for d in drafts if not d.kept}
        kept = [d.kept.id for d in drafts if d.kept and d.key in changed]  # of a session whose other parts are put

        def fence() -> None:
            if self.catalog.keys.cipher:
                self.catalog.keys.check(contexts.domains)
            self.want_decided(decided, lambda: not any(map(self._is_forgotten, kept)))

        put = [d.key for d in drafts if not (d.kept or d.session.begins)]
        record = self.catalog.record(Verb.PUT, len(put), put) if put else None
        self.publisher.put(self._sealed(rows), fresh, relied=standing, fence=fence, record=record)
        for d in drafts:
            if not d.codec.carries:
                self.recent.add([(s.id, s.tokens) for s in d.tower])
        return [self._receipt(d, relied) for d in drafts]

    def _receipt(self, draft: PendingVersion, relied: Mapping[bytes, Location]) -> CommitReceipt:
        """Return the receipt of a session, of the first segments of a log with what the others stand below."""
        receipt = draft.receipt()
        if not draft.session.begins:
            return receipt
        places = [relied.get(s.id) or self.proved.place_of(s.id) for s in draft.tower]
        after = (draft.session.after or Beginning()).and_then(draft.tower, frozenset(at.pack for at in places if at))
        return receipt._replace(after=after)

    def want_decided(self, decided: Manifest | None, still: Callable[[], bool]) -> None:
        """Raise Outdated where others swapped since the manifest that was decided by, and not ``still``."""
        if self.catalog.listing.manifest is not decided and not still():
            raise Outdated("others marked or put what was relied on: nothing was acknowledged, try again")

    def _is_forgotten(self, version: bytes) -> bool:
        return self.catalog.listing.stable(partial(self.catalog.lookup.mark, version))[0] == FORGET

    def take_over(self, recent: RecentTowers, proved: VerifiedSegments) -> None:
        """Remember what another writer of the same archive remembers."""
        self.recent = recent
        self.proved.take_over(proved)

    def _sort_out(
        self, segments: list[PendingSegment], stored: Collection[bytes]
    ) -> tuple[dict[bytes, PendingSegment], dict[bytes, Location]]:
        """Return the segments to write and the places of stored segments relied on.

        ``stored``: ids that the archive may have. Raises CorruptError where two segments have one id.
        """
        fresh: dict[bytes, PendingSegment] = {}
        for segment in segments:
            if fresh.setdefault(segment.id, segment).digest != segment.digest:
                raise collision(segment.id)
        relied: dict[bytes, Location] = {}
        there = sorted(fresh.keys() & stored, key=lambda name: -fresh[name].depth)
        if there:
            self.proved.begin()
        for name in there:  # the last segment of a run proves all of it
            if location := self.proved.place(fresh[name]):
                relied[name] = location
                del fresh[name]
            elif found := self.proved.vouched_aside(fresh[name]):
                segment = fresh[name]
                segment.data, segment.mode, segment.coded = *found, True
        return fresh, relied

    def _take_out_of_runs(
        self, drafts: Sequence[PendingVersion], fresh: dict[bytes, PendingSegment], relied: dict[bytes, Location]
    ) -> None:
        """Let segments within runs be written again that become a parent or a leaf, and those above them in the run.

        Of the segments of a run only the last one has a record, which others can name.
        """
        ends = [s.up for s in fresh.values() if s.up] + [d.tower[-1] for d in drafts if d.tower]
        while ends:
            end = ends.pop()
            if (at := relied.get(end.id)) is None:  # it is written
                continue
            if any(place.pack == at.pack for place in self.catalog.lookup.places(SEGMENTS, end.id)):
                continue
            if own := self.proved.own_place(end):
                relied[end.id] = own
                continue
            del relied[end.id]
            fresh[end.id] = end
            ends += [end.up] if end.up else []

    def _sealed(self, rows: list[Row]) -> list[Row]:
        if not self.catalog.keys.cipher:
            return rows
        return [(c, self.catalog.keys.seal(c, r)) for c, r in rows]

    def encode(self, segments: Sequence[PendingSegment]) -> None:
        """Encode segments after their tower, or alone where that is no longer.

        A prompt may say nothing of the text that follows, and segments coded alone are read faster. Where the codec
        carries (`SegmentCodec.carries`), segments below others are not tried alone.
        """
        for segment in segments:
            if not segment.coded and segment.begun and (data := segment.begun[0]()):
                segment.data = segment.proved = data
                segment.mode, segment.coded = ALONE, True
        segments = [s for s in segments if not s.coded]
        if not segments:
            return
        for codec, numbers in batches(segments):
            batch = [segments[n] for n in numbers]
            ways: list[tuple[int, Plain]] = []
            modes_of: list[int] = []
            for n, segment in enumerate(batch):
                for mode, plain in segment.ways():
                    ways.append((n, plain))
                    modes_of.append(mode)
            won = shortest(codec, ways)
            for (n, plain), mode in zip(ways, modes_of, strict=True):
                data, best = won[n]
                if best is plain:
                    segment = batch[n]
                    segment.data, segment.mode, segment.coded = data, mode | codec.fast * FAST, True

    def _number(self, drafts: list[PendingVersion]) -> None:
        """Give each session its moment and number, or find that its last version is the same.

        A moment is the present one, or the next after what this look or this machine saw: clocks may differ.
        """
        listing, seen, keys = self.catalog.listing, self.catalog.store.seen, [d.key for d in drafts]
        archive, whole = listing.archive, listing.is_whole
        clock = self.catalog.store.ticks()
        now = max(clock, seen.moment(archive) + 1)
        stored = self.catalog.lookup.known(SESSIONS, keys) if whole else keys
        before: dict[bytes, list[PendingVersion]] = {}  # versions of a session in this commit
        found: dict[bytes, History] = {}
        for d in drafts:
            others = before.setdefault(d.key, [])
            if d.key in stored and d.key not in found:
                found[d.key] = history_of(self.catalog, d.session.tenant, d.session.name, d.context.domain)
            history = found.get(d.key)
            last = max([history.last if history else -1, *(other.moment for other in others)])
            beside = {o.session.part: o for o in others if o.moment == last}  # parts of one session have one moment
            d.moment = max(now, last + 1) if d.session.part in beside or not beside else last
            d.moment = d.moment if d.session.moment is None else d.session.moment
            d.time = clock >> TICK_BITS if d.session.time is None else d.session.time
            d.id = ids.version_id(d.key, d.moment, d.leaf, d.time, d.part)
            again = any(o.session.part == d.session.part for o in others)
            d.kept = self._repeated(d, history) if history and not again else None
            if d.kept:
                d.moment, d.id, d.version = d.kept.moment, d.kept.id, d.kept.version
                continue
            if any(o.id == d.id for o in others):
                raise ContentError(f"parts {d.session.part!r} and another have one key: rename one of them")
            moments = {v.moment for v in (history.versions if history else [])} | {o.moment for o in others}
            d.version = 1 + sum(moment < d.moment for moment in moments)
            others.append(d)
        made = [d.moment for d in drafts if not d.kept and d.session.moment is None]
        seen.saw_moment(archive, max(made, default=0))

    def _repeated(self, draft: PendingVersion, history: History) -> Version | None:
        """Return the stored version that a put would only repeat: of a copy that with its id, else the last one."""
        staying = [v for v in history.versions if not v.forgotten and v.part == draft.session.part]
        last = staying[-1:] if history.has_newest else []
        known = last if draft.session.moment is None else [v for v in history.versions if v.id == draft.id]
        same = known and self._same(known[0], draft) and self.catalog.lookup.is_sound(known[0].location)
        return known[0] if same else None

    def _same(self, version: Version, draft: PendingVersion) -> bool:
        """Return whether a put would add nothing to the last version. One in a condemned pack is not relied on."""
        c = draft.context
        return (
            (version.leaf, version.kind, version.target) == (draft.leaf, c.kind, c.target)
            and version.tags == draft.session.tags
            and version.location.pack not in self.catalog.listing.condemned
            and draft.session.time in (None, version.time)
        )


@contextmanager
def _no_sweeps() -> Iterator[None]:
    """Disable the cyclic GC: a put allocates many objects but no cycles, and collections took 20 % of it."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _entries(rows: Sequence[Row], places: Sequence[RecordPlace]) -> dict[int, Entries]:
    """Return the index entries of a pack by section."""
    records, offsets = [r for _, r in rows], [at.offset for at in places]
    identities = {
        SEGMENTS: [r.id for r in records],
        MARKS: [r.mark.version if r.mark else None for r in records],
        SESSIONS: [None if r.name is None else key_of_session(r, c) for c, r in rows],
    }
    found = dict[int, Entries]()
    for section, names in identities.items():
        found[section] = Entries.of(names, offsets)
    return found


def _read_back(data: bytes, builder: Builder) -> list[RecordPlace]:
    """Read a pack as a reader would and return the places of its records.

    Raises ArchiveError where a record differs from the one put into it.
    """
    places = list[RecordPlace]()
    for item in Pack.of(data).blocks():
        if isinstance(item, Damage):
            break
        block, rows = item
        if [record for _, record in rows] != builder.records[len(places) : len(places) + len(rows)]:
            break
        places += [RecordPlace(block.offset, row) for row, _ in rows]
    if len(places) != len(builder.records):
        raise ArchiveError("the pack just laid out does not read back: nothing was written")
    return places

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
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, cast

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.history import History
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.errors import ArchiveError, Outdated
from pltz.archive.format import ids
from pltz.archive.format.context import Context
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.format.index_file import SEGMENTS, SESSIONS, Location
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.record import FORGET, RUN, TICK_BITS, Mark, Record, tokens_fit
from pltz.archive.writing.batch import (
    Contexts,
    PendingVersion,
    batches,
    draft,
    session_rows,
)
from pltz.archive.writing.beginning import Beginning
from pltz.archive.writing.new_session import CommitReceipt, NewSession
from pltz.archive.writing.pending_segment import PendingSegment, Row
from pltz.archive.writing.publisher import Publisher
from pltz.archive.writing.verified_segments import RecentTowers, VerifiedSegments, collision
from pltz.coding import look
from pltz.coding.choose import NO_SIZE, may_be_shorter, shortest
from pltz.coding.codecs.codec import NO_MARK, BundleCodec, BytesCodec, Plain, as_bytes
from pltz.coding.codecs.modes import FAST
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.errors import ContentError

if TYPE_CHECKING:
    from pltz.plt_codec.types import Tokens

MAX_CLOCK = (1 << 32) - (1 << 20)  # seconds: counters of marks are below 2^32, whatever the clock says


class ArchiveWriter:
    """Puts sessions and marks. One per process is enough; several processes need not know of each other."""

    def __init__(self, catalog: Catalog, codecs: CodecRegistry):
        self.catalog, self.codecs = catalog, codecs
        self.proved = VerifiedSegments(catalog, codecs)
        self.recent = RecentTowers()
        self._publisher = Publisher(catalog, self.proved)
        self._indexes = IndexKeeper(catalog)

    def put(
        self,
        sessions: Sequence[NewSession],
        *,
        dry_run: bool = False,
        refresh: bool = True,
    ) -> list[CommitReceipt]:
        """Freeze sessions in one commit; on return they are durable and were decoded and compared.

        Args:
            dry_run: encode and store nothing; the receipts say what a put would store.
            refresh: read the changes of others first; False for a caller that has just done so.

        Raises:
            ContentError, LimitError, UsageError: a session cannot be stored; nothing was written.
            StoreError: the disk is full or refuses; the archive is as it was.
            WriterFailed: a sync failed; nothing was acknowledged, and this writer writes no more.
            Fenced: erases or collectors went on all the time; nothing was acknowledged, put again.
            ArchiveError, CorruptError: what it would rely on is damaged.
        """
        if not dry_run:
            self.catalog.store.want_room()
        if refresh:
            self.catalog.look(0)
        work = partial(self._put, sessions, dry_run)
        with _no_sweeps():
            try:
                receipts = work()
            except (Outdated, FileNotFoundError):  # a collector condemned or took what is relied on
                receipts = self.catalog.decide(work)
        self._indexes.write_if_due()
        return receipts

    def _put(self, sessions: Sequence[NewSession], dry_run: bool) -> list[CommitReceipt]:
        contexts, decided = Contexts(self.codecs, self.catalog.keys), self.catalog.listing.manifest
        begun = frozenset[bytes]().union(*(s.after.packs for s in sessions if s.after))
        if not begun <= self.catalog.listing.packs.keys() - self.catalog.listing.condemned:
            raise Outdated("a collector took what a log stands on: nothing was acknowledged, try again")
        ways = [way for session in sessions for way in (session, *session.otherwise)]
        drafts, segments = draft(ways, contexts)
        names = [s.id for s in segments]
        stored = self.catalog.lookup.known(SEGMENTS, names).union(filter(self.proved.knows, names))
        drafts, segments = self._choose(sessions, drafts, segments, stored)
        fresh, relied = self._sort_out(segments, stored)
        self._take_out_of_runs(drafts, fresh, relied)
        self.encode(list(fresh.values()))
        self._number([d for d in drafts if not d.session.begins])
        rows = session_rows(drafts, dict(fresh))
        if dry_run:
            return [self._receipt(d, {}) for d in drafts]
        standing = begun | {at.pack for at in relied.values()} | {d.kept.location.pack for d in drafts if d.kept}
        changed = {d.key for d in drafts if not d.kept}
        kept = [d.kept.id for d in drafts if d.kept and d.key in changed]  # of a session whose other parts are put

        def fence() -> None:
            self.catalog.keys.check(contexts.domains)
            self.want_decided(decided, lambda: not any(map(self._is_forgotten, kept)))

        self._publisher.put(self._sealed(rows), fresh, relied=standing, fence=fence)
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

    def _choose(
        self,
        sessions: Sequence[NewSession],
        drafts: list[PendingVersion],
        segments: list[PendingSegment],
        stored: Collection[bytes],
    ) -> tuple[list[PendingVersion], list[PendingSegment]]:
        """Return each session's way with the fewest new bytes, of equal ones the first, and their segments.

        A way that adds nothing is taken before anything is coded. Others than the first are not coded where it extends
        a stored session by a short turn, so that they would store the whole session again, nor where a cheap look tells
        that they cannot win (`may_be_shorter`).
        """
        if len(drafts) == len(sessions):
            return drafts, segments
        left = iter(drafts)
        groups = [list(islice(left, 1 + len(session.otherwise))) for session in sessions]
        known = [next((way for way in ways if all(s.id in stored for s in way.tower)), None) for ways in groups]
        rivals = [ways for ways, one in zip(groups, known, strict=True) if one is None and len(ways) > 1]
        coded: dict[bytes, PendingSegment] = {}
        self._leave_to_zstd(rivals, stored, coded)
        self._encode_ways([ways[0] for ways in rivals], stored, coded)
        for ways in rivals:
            ways[1:] = [way for way in ways[1:] if _may_win(ways[0], way, stored, coded)]
        self._encode_ways([way for ways in rivals for way in ways[1:]], stored, coded)
        chosen = [
            one or min(ways, key=lambda way: new_bytes(way, coded)) for ways, one in zip(groups, known, strict=True)
        ]
        used = {id(s) for way in chosen for s in way.tower}
        return chosen, [s for s in segments if id(s) in used]

    def _leave_to_zstd(
        self,
        rivals: Sequence[list[PendingVersion]],
        stored: Collection[bytes],
        coded: dict[bytes, PendingSegment],
    ) -> None:
        """Take out the first way of sessions where the model would code it in vain, as samples of it tell.

        The other way of these is encoded, and its segments are added to ``coded``, by id.
        """
        asked: list[list[PendingVersion]] = []
        texts: list[tuple[Tokens, look.Samples]] = []
        for ways in rivals:
            model, plain = ways[0].codec, ways[-1].codec
            if not (isinstance(model, BundleCodec) and isinstance(plain, BytesCodec)):
                continue
            tokens = _new_tokens(ways[0], stored)
            if len(tokens) >= look.LEAST:
                content = as_bytes(_new_tokens(ways[-1], stored))
                if samples := look.doubtful(len(tokens), content, plain.fast_size(content)):
                    asked.append(ways)
                    texts.append((tokens, samples))
        if not asked:
            return
        self._encode_ways([ways[-1] for ways in asked], stored, coded)
        coder = cast("BundleCodec", asked[0][0].codec).coder  # of the first bundle, as that of all of them
        for ways, size in zip(asked, look.expected_sizes(coder, texts), strict=True):
            if new_bytes(ways[-1], coded) <= size:
                del ways[0]

    def _encode_ways(
        self, ways: Sequence[PendingVersion], stored: Collection[bytes], coded: dict[bytes, PendingSegment]
    ) -> None:
        """Encode the segments of ways that are not stored, and add them to ``coded``, by id."""
        new: dict[bytes, PendingSegment] = {}
        for segment in (s for way in ways for s in way.tower):
            if segment.id not in stored and segment.id not in coded:
                new.setdefault(segment.id, segment)
        self.encode(list(new.values()))
        coded.update(new)

    def want_decided(self, decided: Manifest | None, still: Callable[[], bool]) -> None:
        """Raise Outdated where others swapped since the manifest that was decided by, and not ``still``."""
        if self.catalog.listing.manifest is not decided and not still():
            raise Outdated("others marked or put what was relied on: nothing was acknowledged, try again")

    def _is_forgotten(self, version: bytes) -> bool:
        return self.catalog.listing.stable(partial(self.catalog.lookup.mark, version))[0] == FORGET

    def mark(self, versions: Sequence[Version], verb: int, fence: Callable[[], None] = lambda: None) -> None:
        """Forget or undelete versions. ``fence``: as of `Listing.publish`.

        A mark's counter is the time in seconds since 1970, or one above that of the mark in force. So a collector knows
        how old a mark is, and the later of two marks wins whatever the clocks say.

        Restoring copies the records that lie only in condemned packs, which may be deleted at any moment. Raises
        ArchiveError where a segment is gone, Outdated, StoreError.
        """
        tenant = {v.location: self.catalog.lookup.head(v.location) for v in versions}
        rows: list[tuple[Context, Record]] = []
        copied: set[bytes] = set()
        now = min(self.catalog.store.now(), MAX_CLOCK)
        for v in versions:
            item = tenant[v.location]
            if verb != FORGET:
                rows += self._rescued(item, copied)
            counter = max(self.catalog.listing.stable(partial(self.catalog.lookup.mark, v.id))[1] + 1, now)
            rows.append((item.context, Record(0, mark=Mark(v.id, counter, verb))))
        relied = set[bytes]()
        if verb != FORGET:
            relied = {at.pack for v in versions for at in self._places(v)} - self.catalog.listing.condemned
        self._publisher.put(list(rows), relied=relied, fence=fence)

    def take_over(self, recent: RecentTowers, proved: VerifiedSegments) -> None:
        """Remember what another writer of the same archive remembers."""
        self.recent = recent
        self.proved.take_over(proved)

    def forget_tokens(self) -> None:
        """Forget the tokens of sessions: some are about to be erased."""
        self.recent.clear()

    def copy(
        self,
        rows: Iterable[tuple[Context, Record]],
        new: Mapping[bytes, PendingSegment] | None = None,
        *,
        relied: AbstractSet[bytes] = frozenset(),
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        """Put stored records, or others in their place. Arguments and errors as of `Publisher.put`."""
        self._publisher.put(list(rows), new, relied=relied, fence=fence)

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
        self.proved.begin()
        # the last segment of a run proves all of it
        for name in sorted(fresh.keys() & stored, key=lambda name: -fresh[name].depth):
            if location := self.proved.place(fresh[name]):
                relied[name] = location
                del fresh[name]
            elif found := self.proved.vouched_aside(fresh[name]):
                fresh[name].take(*found)
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
                    batch[n].take(data, mode | codec.fast * FAST)

    def _number(self, drafts: list[PendingVersion]) -> None:
        """Give each session its moment and number, or find that its last version is the same.

        A moment is the present one, or the next after what this look or this machine saw: clocks may differ.
        """
        archive, seen = self.catalog.listing.archive, self.catalog.store.seen
        clock = self.catalog.store.ticks()
        now = max(clock, seen.moment(archive) + 1)
        histories, keys = self.catalog.histories, [d.key for d in drafts]
        stored = keys if histories.may_hide else self.catalog.lookup.known(SESSIONS, keys)
        before: dict[bytes, list[PendingVersion]] = {}  # versions of a session in this commit
        found: dict[bytes, History] = {}
        for d in drafts:
            others = before.setdefault(d.key, [])
            if d.key in stored and d.key not in found:
                found[d.key] = histories.of(d.session.tenant, d.session.name, d.context.domain)
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
        known = last if draft.session.moment is None else [v for v in staying if v.id == draft.id]
        same = known and self._same(known[0], draft) and self.catalog.lookup.is_sound(known[0].location)
        return known[0] if same else None

    def _same(self, version: Version, draft: PendingVersion) -> bool:
        """Return whether a put would add nothing to the last version.

        One in a condemned pack is not relied on.
        """
        c = draft.context
        return (
            (version.leaf, version.kind, version.target) == (draft.leaf, c.kind, c.target)
            and version.tags == draft.session.tags
            and version.location.pack not in self.catalog.listing.condemned
            and draft.session.time in (None, version.time)
        )

    def _rescued(self, item: Found, copied: set[bytes]) -> Iterator[tuple[Context, Record]]:
        """Yield the records that a version is read with and that lie only in condemned packs, parents first."""
        chain: list[Found] = []
        for segment, places in self._needed(item.record.leaf):
            if not places:
                raise ArchiveError("a segment of this version is already gone: it cannot be brought back")
            if all(p.location.pack in self.catalog.listing.condemned for p in places) and segment not in copied:
                chain.append(places[0])
            copied.add(segment)
        for found in reversed(chain):
            whole = found.record.mode & RUN  # a run keeps all its versions
            yield found.context, found.record if whole else segment_only(found.record)
        if item.location.pack not in self.catalog.listing.condemned:
            return
        if not item.record.mode & RUN:
            yield item.context, session_only(item.record)
        elif item.location not in [found.location for found in chain]:  # that of its last segment has not its versions
            yield item.context, item.record

    def _places(self, version: Version) -> Iterator[Location]:
        item = self.catalog.lookup.head(version.location)
        yield item.location
        for _, places in self._needed(item.record.leaf):
            yield from (p.location for p in places)

    def _needed(self, leaf: bytes) -> Iterator[tuple[bytes, list[Found]]]:
        """Yield the records of each segment of a tower, from its leaf up."""
        seen = {NO_SEGMENT}
        while leaf not in seen:
            seen.add(leaf)
            yield leaf, (places := self.catalog.lookup.find(SEGMENTS, leaf))
            leaf = places[0].record.parent if places else NO_SEGMENT


def new_bytes(way: PendingVersion, coded: Mapping[bytes, PendingSegment]) -> int:
    """Return the bytes that a session adds in one way. ``coded``: the segments that are not stored, by id."""
    new = [coded[s.id] for s in way.tower if s.id in coded]
    fits = all(tokens_fit(len(s.tokens), len(s.data)) for s in new)
    return sum(len(s.data) for s in new) if fits else NO_SIZE


def _new_tokens(way: PendingVersion, stored: Collection[bytes]) -> Tokens:
    """Return the tokens of a way whose segments are not stored, (T,)."""
    return np.concatenate([NO_MARK, *(s.tokens for s in way.tower if s.id not in stored)])


def _may_win(
    first: PendingVersion, other: PendingVersion, stored: Collection[bytes], coded: Mapping[bytes, PendingSegment]
) -> bool:
    """Return whether a way can be expected to beat the first, which is coded."""
    extends = any(s.id in stored for s in first.tower)
    left = [s.tokens for s in other.tower if s.id not in stored]
    return may_be_shorter(other.codec, left, new_bytes(first, coded), extends=extends)


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


def segment_only(record: Record) -> Record:
    """Return the segment of a record without its session."""
    return Record(0, record.parent, record.id, record.tokens, record.bitstring, mode=record.mode)


def session_only(record: Record) -> Record:
    """Return the session of a record, with its segment named as parent."""
    return Record(
        0,
        record.leaf,
        name=record.name,
        moment=record.moment,
        time=record.time,
        about=record.about,
        veil=record.veil,
        part=record.part,
    )

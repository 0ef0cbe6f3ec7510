"""Publish rows as packs, each proved before it is written. Spec: FORMAT.md, "Put".

    rows --lay out--> pack in memory --read back, decode, compare--> put --> manifest, where there is one --> parity

A crash leaves all records of a pack or none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import groupby

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.concurrency import run_alongside
from pltz.archive.errors import ArchiveError, Fenced, StoreError
from pltz.archive.format import object_names
from pltz.archive.format.context import Context
from pltz.archive.format.ids import BASE
from pltz.archive.format.index_file import MARKS, SEGMENTS, SESSIONS, Entries, Location, key_of_session
from pltz.archive.format.pack import (
    FOOTER,
    MANY_CHILDREN,
    Builder,
    Damage,
    Pack,
    RecordPlace,
    digest_before,
    sealed,
)
from pltz.archive.format.parity import Parity, Range
from pltz.archive.format.record import Record
from pltz.archive.storage.store import is_there
from pltz.archive.writing.batch import PendingSegment, Row, batches
from pltz.archive.writing.verified_segments import VerifiedSegments
from pltz.coding.codecs.codec import Coded
from pltz.coding.prove import unproved
from pltz.plt_codec.identity import NONE

WORTH = 1 << 20  # smallest pack, in bytes, that is worth a thread
BEHIND = 16  # records from which those before them, that many sessions depend on, get a block of their own


class Publisher:
    """Puts rows for one catalog.

    ``proved`` is told of the segments decoded here. ``parity`` has thousandths of parity: for the whole pack,
    and for the segments that many sessions depend on.
    """

    def __init__(self, catalog: Catalog, proved: VerifiedSegments, parity: tuple[int, int]):
        self.catalog, self.proved, self.parity = catalog, proved, parity

    def put(
        self, rows: list[Row], new: Mapping[bytes, PendingSegment] | None = None, *, epoch: int | None = None
    ) -> None:
        """Lay out packs, prove them and put them; all are durable on return.

        ``new``: new segments by id; each is decoded from its record and compared before a byte is written.
        ``epoch``: that of the newest plan when the caller looked. Fenced is raised where there is a newer one by now.

        Raises ArchiveError, ContentError, Fenced, FullError, StoreError, WriterFailed. Nothing of a pack that fails
        its proof is written, and with a manifest none of the packs takes effect.
        """
        with ExitStack() as ahead:
            try:
                proved: list[tuple[Location, PendingSegment]] = []
                parities = list(self._packs(rows, new or {}, proved, ahead, epoch))
                self.catalog.listing.publish(epoch=epoch)
            except BaseException:
                if self.catalog.listing.register:
                    self.catalog.listing.drop_unnamed()
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
        epoch: int | None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Put packs, and yield the name and the parity of those whose parity follows the manifest.

        Adds the places of new segments to ``proved``, and to ``ahead`` the contexts in which files are written.
        """
        listing, register = self.catalog.listing, self.catalog.listing.register
        rows, front = depended_on_first(rows) if all(self.parity) else (rows, 0)
        while rows:
            contexts, records = zip(*rows, strict=True)
            # one pack, of as many rows as it takes
            moments = [r.moment for r in records if r.name is not None]
            moment = min(moments) if moments else self.catalog.store.ticks()
            salt, archive = self.catalog.store.random(16), self.catalog.ledger.archive
            builder = Builder(self.catalog.listing.epoch, moment, salt, archive)
            count = builder.fill(contexts, records)
            builder.front, front = min(front, count), max(0, front - count)
            part, rows = rows[:count], rows[count:]
            # it is hashed while it is read back, record by record
            out = builder.lay_out()
            long = len(out.getbuffer()) >= WORTH
            hashing = partial(digest_before, out)
            with run_alongside(hashing) if long else nullcontext(hashing) as digest:
                places = _read_back(out.getbuffer(), builder)
            data = sealed(out, digest())
            # every new segment is decoded and compared before the pack has a name
            segments = [new.get(r.id or b"") for _, r in part]
            self._prove_decoding(part, segments)
            if epoch is not None and not register:  # with a manifest, what replaces that decides
                listing.read_plans()
                listing.check_epoch(epoch)
            # put and described at once; parity follows, as a copy that may be lost
            name = _pack_name(data)
            describing = partial(self._about, data, part, places)
            if long:
                with run_alongside(describing) as about:
                    self._put_pack(name, data)
                entries, parity = about()
            else:  # pack, manifest and parity are written and synced together, and get their names one by one
                entries, parity = describing()
                files = [data]
                if register:
                    listing.add_pack(name, len(data), entries)
                    if not rows and (manifest := listing.draft()):
                        files.append(manifest)
                if parity or listing.takes_marks:
                    files.append(parity)
                ahead.enter_context(self.catalog.store.ahead(files))
                self._put_pack(name, data)
            if self.catalog.takes_manifest():  # which would not name the pack
                raise Fenced("the archive got a manifest meanwhile: nothing was acknowledged, put again")
            if long or not register:
                listing.add_pack(name, len(data), entries)
            proved += [(Location(name, *at), s) for at, s in zip(places, segments, strict=True) if s]
            if register:  # parity, or an empty file, tells that a pack was in a manifest
                yield name, parity
            else:
                self._put_parity(name, parity)

    def _prove_decoding(self, rows: Sequence[Row], new: Sequence[PendingSegment | None]) -> None:
        """Decode every new segment from the bytes in the pack and compare, before a byte is written.

        Raises ArchiveError, ContentError.
        """
        bits = self.catalog.keys.bits
        proving = [(row, s) for row, s in zip(rows, new, strict=True) if s]
        for codec, numbers in batches([s for _, s in proving]):
            part = [proving[n] for n in numbers]
            coded = [Coded(bits(c, r), r.tokens, s.before(c.mode), c.coding) for (c, r), s in part]
            if unproved(codec.decode, coded, [s.tokens for _, s in part]):
                raise ArchiveError("a segment just encoded does not decode to its tokens: nothing was written")

    def _put_pack(self, name: bytes, data: bytes) -> None:
        path = object_names.pack(name)
        if not self.catalog.store.put(path, data):
            raise StoreError(f"{path} holds other bytes than its name says: nothing was acknowledged")

    def _about(
        self, data: bytes, rows: Sequence[Row], places: Sequence[RecordPlace]
    ) -> tuple[dict[int, Entries], bytes]:
        """Return the index entries of a pack by section, and its parity file."""
        records, offsets = [r for _, r in rows], [at.offset for at in places]
        identities = {
            SEGMENTS: [r.id for r in records],
            SESSIONS: [None if r.name is None else key_of_session(r, c) for c, r in rows],
            MARKS: [r.mark.version if r.mark else None for r in records],
        }
        entries = {section: Entries.of(names, offsets) for section, names in identities.items()}
        return entries, self._parity(data, rows, places)

    def _parity(self, data: bytes, rows: Sequence[Row], places: Sequence[RecordPlace]) -> bytes:
        """Return the parity file of a pack; empty where the archive has no parity."""
        if not self.parity[0]:
            return b""
        contexts, records = [row[0] for row in rows], [row[1] for row in rows]
        shared = shared_places(contexts, records, places)
        ranges = shared_ranges(Pack.of(data), shared) if shared else []
        return Parity.of(_pack_name(data), data, ranges, self.parity).encode()

    def _put_parity(self, name: bytes, parity: bytes) -> None:
        """Put parity after the pack, so that no parity stands for a pack that was never there; see FORMAT.md.

        With a manifest and without parity it is an empty file, the marker. If there is no room for it the pack is
        durable all the same. It is acknowledged, and `repair` tries again.
        """
        wanted = parity or self.catalog.listing.takes_marks
        if not wanted or name not in self.catalog.listing.packs:  # collected before it was named
            return
        store = self.catalog.store
        try:
            store.put(object_names.parity(name), parity)
            if self.catalog.listing.register:  # `collect` deletes the parity of a slow writer
                return
            if not is_there(store, object_names.pack(name)):
                self.catalog.ledger.refresh()
                if name in self.catalog.ledger.deleted:  # collected while this writer was stalled
                    store.delete(object_names.parity(name))
        except StoreError as exc:
            self.catalog.damage.note("parity", name.hex(), f"{exc}: this pack has no parity until repair writes it")


def _read_back(data: memoryview, builder: Builder) -> list[RecordPlace]:
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


def shared_places(
    contexts: Sequence[Context], records: Sequence[Record], places: Sequence[RecordPlace]
) -> list[RecordPlace]:
    """Return the places of the segments in a pack that many sessions depend on.

    ``contexts``, ``records``, ``places``: those of the pack, in order; bitstrings are not looked at.
    """
    return [place for place, shared in zip(places, _depended_on(contexts, records), strict=True) if shared]


def _depended_on(contexts: Sequence[Context], records: Sequence[Record]) -> list[bool]:
    """Return for each record whether many sessions depend on its segment."""
    children = Counter(record.parent for record in records)
    return [
        r.id is not None and (c.domain_kind == BASE or children[r.id] >= MANY_CHILDREN)
        for r, c in zip(records, contexts, strict=True)
    ]


def depended_on_first(rows: list[Row]) -> tuple[list[Row], int]:
    """Return rows with the segments in front that many sessions depend on, and how many these are.

    With those above them, so that parents come first. They get blocks of their own: the head of a block with other
    records would have as much parity as they have.
    """
    contexts, records = [row[0] for row in rows], [row[1] for row in rows]
    first = {n for n, shared in enumerate(_depended_on(contexts, records)) if shared}
    if not first or len(rows) - len(first) < BEHIND:
        return rows, 0
    below = [n for n in first if records[n].parent != NONE]  # whose parents are looked at
    place = {r.id: n for n, r in enumerate(records) if r.id is not None} if below else {}
    while below:
        above = place.get(records[below.pop()].parent)
        if above is not None and above not in first:
            first.add(above)
            below.append(above)
    return [rows[n] for n in sorted(first)] + [row for n, row in enumerate(rows) if n not in first], len(first)


def shared_ranges(pack: Pack, shared: Sequence[RecordPlace]) -> Iterator[Range]:
    """Yield the ranges of a pack that the records at some places are read from; none without places.

    The first range is the pack's header and table, without which they cannot be read. The others are the heads of
    blocks and the pieces of bodies that have such a segment. ``shared``: as `shared_places` returns them.
    """
    if shared:
        yield Range(0, pack.begin)
    for offset, group in groupby(shared, key=lambda place: place.offset):
        block = pack.block(offset)
        yield Range(offset, block.size)
        for piece in {piece for place in group if (piece := block.piece(place.row))}:
            yield Range(offset + block.size + piece.begin, piece.end - piece.begin)


def _pack_name(data: bytes) -> bytes:
    return data[12 - FOOTER.size : 28 - FOOTER.size]

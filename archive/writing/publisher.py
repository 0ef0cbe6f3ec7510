"""Publish rows as packs, each proved before it is written. Spec: WRITING.md, "Put".

    rows --lay out--> pack in memory --read back, decode, compare--> put --> manifest --> parity

A crash leaves all records of a pack or none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import ExitStack

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.errors import ArchiveError, Outdated, StoreError
from pltz.archive.format import object_names
from pltz.archive.format.index_file import MARKS, SEGMENTS, SESSIONS, Entries, Location, key_of_session
from pltz.archive.format.pack import FOOTER, Builder, Damage, Pack, RecordPlace
from pltz.archive.format.parity import Parity
from pltz.archive.writing.batch import batches
from pltz.archive.writing.pending_segment import PendingSegment, Row
from pltz.archive.writing.verified_segments import VerifiedSegments
from pltz.coding.prove import unproved


class Publisher:
    """Puts rows for one catalog. ``proved`` is told of the segments decoded here."""

    def __init__(self, catalog: Catalog, proved: VerifiedSegments):
        self.catalog, self.proved = catalog, proved

    def put(
        self,
        rows: list[Row],
        new: Mapping[bytes, PendingSegment] | None = None,
        *,
        relied: AbstractSet[bytes] = frozenset(),
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        """Lay out packs, prove them and put them; all are durable on return.

        ``new``: new segments by id; each is decoded from its record and compared before a byte is written.
        ``relied``, ``fence``: as of `Listing.publish`.

        Raises ArchiveError, ContentError, FullError, Outdated, StoreError, WriterFailed. Nothing of a pack that fails
        its proof is written, and none of the packs takes effect.
        """
        listing = self.catalog.listing
        with ExitStack() as ahead:
            try:
                proved: list[tuple[Location, PendingSegment]] = []
                parities = list(self._packs(rows, new or {}, proved, ahead))
                listing.publish(relied=relied, fence=fence)
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
            salt, archive = self.catalog.store.random(16), listing.archive
            builder = Builder(moment, salt, archive)
            count = builder.fill(contexts, records)
            part, rows = rows[:count], rows[count:]
            data = builder.finish()
            places = _read_back(data, builder)
            # every new segment is decoded and compared before the pack has a name
            segments = [new.get(r.id or b"") for _, r in part]
            self._prove_decoding(part, segments)
            # pack, manifest and parity are written and synced together, and get their names one by one
            name, parity = _pack_name(data), Parity.of(_pack_name(data), data).encode()
            listing.add_pack(name, len(data), _entries(part, places), part)
            files = [data, parity]
            if not rows and (manifest := listing.draft()):
                files.append(manifest)
            ahead.enter_context(self.catalog.store.ahead(files))
            path = object_names.pack(name)
            if not self.catalog.store.put(path, data):
                raise StoreError(f"{path} holds other bytes than its name says: nothing was acknowledged")
            proved += [(Location(name, *at), s) for at, s in zip(places, segments, strict=True) if s]
            yield name, parity

    def _prove_decoding(self, rows: Sequence[Row], new: Sequence[PendingSegment | None]) -> None:
        """Decode every new segment from the bytes in the pack and compare, before a byte is written.

        Raises ArchiveError, ContentError.
        """
        bits = self.catalog.keys.bits
        proving = [(row, s) for row, s in zip(rows, new, strict=True) if s]
        for codec, numbers in batches([s for _, s in proving]):
            part = [proving[n] for n in numbers]
            coded = [s.coded_by(s.codec, r.mode, bits(c, r), r.tokens) for (c, r), s in part]
            if unproved(codec.decode, coded, [s.tokens for _, s in part]):
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
            self.catalog.damage.note("parity", name.hex(), f"{exc}: this pack has no parity until repair writes it")


def _entries(rows: Sequence[Row], places: Sequence[RecordPlace]) -> dict[int, Entries]:
    """Return the index entries of a pack by section."""
    records, offsets = [r for _, r in rows], [at.offset for at in places]
    identities = {
        SEGMENTS: [r.id for r in records],
        SESSIONS: [None if r.name is None else key_of_session(r, c) for c, r in rows],
        MARKS: [r.mark.version if r.mark else None for r in records],
    }
    return {section: Entries.of(names, offsets) for section, names in identities.items()}


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


def _pack_name(data: bytes) -> bytes:
    return data[12 - FOOTER.size : 28 - FOOTER.size]

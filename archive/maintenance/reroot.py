"""Reroot: put records of a tenant again under its newest root, so that keys under older ones can be destroyed.

    record under an older root --open--> fields --seal under the newest root--> the same record in a new pack

Nothing is decoded and no codec is needed: the fields of a box stay as they are. A record with a segment and a session
is put again in part where only one of them moves. Readers, writers and collectors take no record whose key is gone, so
the new one counts from the moment when the old key is destroyed. A crash leaves some records twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set as AbstractSet
from dataclasses import replace

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.listing import Found
from pltz.archive.encryption.box import unit_of
from pltz.archive.encryption.domain_keys import DomainKeys
from pltz.archive.encryption.keyring import Keyring
from pltz.archive.errors import ArchiveError, Outdated
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.format.index_file import key_of_session
from pltz.archive.format.pack import AHEAD
from pltz.archive.format.record import RUN, Context, Record, segment_only, session_only
from pltz.archive.format.run import pack_run, unpack_run
from pltz.archive.maintenance.domain_records import DomainRecords, identities
from pltz.archive.writing.segments import Row
from pltz.archive.writing.writer import ArchiveWriter
from pltz.plt_codec.errors import FormatError
from pltz.plt_codec.identity import digest

PERSON = b"pltz moved"
AT_ONCE = 16 << 20  # bytes of records put at once, about


class Rerooter:
    """Moves records of one archive. Several may run at once beside readers, writers and collectors."""

    def __init__(self, catalog: Catalog, keys: Keyring, writer: ArchiveWriter) -> None:
        self.catalog, self.keys, self.writer = catalog, keys, writer

    def run(self, keys: DomainKeys, moves: Mapping[bytes, AbstractSet[int]], records: DomainRecords) -> int:
        """Put the records of some units of a domain again and return their number.

        Args:
            keys: those of the domain, as this process published them.
            moves: root -> units under it.
            records: those of the domain, which tell the blocks to read.

        Raises ArchiveError where one cannot be opened, FullError, StoreError, WriterFailed.
        """
        listing, done = self.catalog.listing, set[bytes]()

        def put(rows: dict[bytes, Row], condemned: AbstractSet[bytes]) -> None:
            def fence() -> None:
                if listing.condemned != condemned:
                    raise Outdated("a collector may free what is moved: nothing was put")

            try:
                self.writer.publisher.put(list(rows.values()), fence=fence)
            except Outdated as exc:  # what was forgotten and freed would be back: decide again by what is there
                raise FileNotFoundError(str(exc)) from exc
            done.update(rows)
            rows.clear()

        def work() -> None:
            condemned, rows, size = listing.condemned, dict[bytes, Row](), 0
            for item in self._places(keys.domain, moves, records):
                if (moved := self._moved(item, moves[item.context.root], keys.newest)) is None:
                    continue
                context, record = moved
                about = repr((context, record.id, record.parent, record.mode)).encode()
                name = digest(PERSON, about, record.bitstring, record.veil)
                if name in done or name in rows:
                    continue  # a collector has copied it, and its old pack is there still
                rows[name] = moved
                size += len(record.bitstring) + len(record.veil)
                if size >= AT_ONCE:
                    put(rows, condemned)
                    size = 0
            if rows:
                put(rows, condemned)

        if any(moves.values()):
            listing.stable(work)
        return len(done)

    def _places(
        self, domain: bytes, moves: Mapping[bytes, AbstractSet[int]], records: DomainRecords
    ) -> Iterator[Found]:
        """Yield the records that have one of these units. Raises ArchiveError where a block of one is damaged."""
        listing = self.catalog.listing
        records.read()
        for place in records.blocks_with(moves):
            if place.pack in listing.unnamed:  # moved, it would be named
                continue
            try:
                pack, block = self.catalog.lookup.block(place, ahead=AHEAD)
                for row, head in enumerate(block.heads()):
                    context = pack.head.contexts[head.context]
                    units = moves.get(context.root, set[int]()) if context.domain == domain else set[int]()
                    if not head.mark and any(unit_of(i) in units for i in identities(head, context)):
                        yield Found(place._replace(row=row), pack.of_block(block, row), context)
            except FileNotFoundError:
                listing.note_stale()
            except FormatError as exc:
                raise ArchiveError(f"pack {place.pack.hex()} is damaged ({exc}): repair first") from exc

    def _moved(self, item: Found, units: AbstractSet[int], root: bytes) -> Row | None:
        """Return a record, or the part of it that has one of these units, in boxes under another root.

        None of a run whose segments have no key any more: it was moved before, with its session.
        """
        record, context = item.record, item.context
        newest = replace(context, root=root)
        if record.mode & RUN:  # it is moved whole, with all its versions
            if self.keys.gone(context, record.id or NO_SEGMENT):
                return None
        else:
            segment = record.id is not None and unit_of(record.id) in units
            session = record.name is not None and unit_of(key_of_session(record, context)) in units
            record = record if segment and session else segment_only(record) if segment else session_only(record)
        plain = self._opened(context, record)
        sealed = self.keys.seal(newest, plain)
        if self._opened(newest, sealed) != plain:
            raise ArchiveError("a record put under new keys does not open again: nothing was erased")
        return newest, sealed

    def _opened(self, context: Context, record: Record) -> Record:
        """Return a record without boxes. A run whose session was erased comes without it."""
        if record.id is not None:
            record = record._replace(bitstring=self.keys.bits(context, record))
        if record.name is None:
            return record
        if record.mode & RUN and self.keys.gone(context, key_of_session(record, context)):
            alone = unpack_run(record)._replace(versions=[])
            return segment_only(record)._replace(bitstring=pack_run(alone, 0, 0))
        _, name, about = self.keys.session(context, record)
        return record._replace(name=name, about=about, veil=b"")

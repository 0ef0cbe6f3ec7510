"""DomainRecords: the segments of one domain and their neighbours, from the raw packs, each of which is read once.

    packs not read yet --heads of their blocks--> segments of the domain, those coded after each, and the units that
                                                  have a record under each root of its keys

An erase asks twice: before it begins, and again for what writers put meanwhile. Packs never change, so the second look
reads only those that are new.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.encryption.box import unit_of
from pltz.archive.errors import ArchiveError
from pltz.archive.format.context import RUN, Context
from pltz.archive.format.index_file import key_of_session
from pltz.archive.format.pack import Damage
from pltz.archive.format.record import Record
from pltz.plt_codec.errors import FormatError
from pltz.plt_codec.identity import NONE


def identities(record: Record, context: Context) -> list[bytes]:
    """Return the segment id and the session key of a record, as far as it has them: each names a unit."""
    found = [] if record.id is None else [record.id]
    return found if record.name is None else [*found, key_of_session(record, context)]


@dataclass
class _PackRecords:
    """The records of one pack. ``named_by``: neighbour -> (context, segment) of each record that names it."""

    segments: set[bytes] = field(default_factory=set)
    named_by: dict[bytes, list[tuple[Context, bytes]]] = field(default_factory=dict)
    units: dict[bytes, set[int]] = field(default_factory=dict)  # root -> units
    runs: bool = False


class DomainRecords:
    """The records of a domain as of the last `read`. Not for several threads."""

    def __init__(self, catalog: Catalog, domain: bytes) -> None:
        self.catalog, self.domain = catalog, domain
        self._packs: dict[bytes, _PackRecords] = {}

    def read(self) -> None:
        """Read the packs that are listed and were not read yet. Bitstrings are left out.

        Raises ArchiveError where some records cannot be read, StoreError.
        """
        listing = self.catalog.listing
        listing.absent()  # adds packs that an incomplete listing omitted
        self._packs = {pack: found for pack, found in self._packs.items() if pack in listing.packs}
        for pack in sorted(listing.packs.keys() - self._packs.keys()):
            try:
                self._packs[pack] = self._read(pack)
            except FileNotFoundError:  # a collector was faster; `Listing.stable` looks again
                listing.note_stale()

    @property
    def segments(self) -> set[bytes]:
        """Return the segments of the domain."""
        return set[bytes]().union(*(found.segments for found in self._packs.values()))

    @property
    def units(self) -> dict[bytes, set[int]]:
        """Return the units that have a record under each root, of segments and of sessions."""
        units: dict[bytes, set[int]] = {}
        for found in self._packs.values():
            for root, some in found.units.items():
                units.setdefault(root, set()).update(some)
        return units

    @property
    def have_dead_copies(self) -> bool:
        """Return whether a run or a neighbour may have left records of sessions that are gone."""
        return any(found.runs or found.named_by for found in self._packs.values())

    def coded_after(self, segments: Collection[bytes]) -> set[bytes]:
        """Return the segments of which a record that opens names one of these as its neighbour."""
        gone = self.catalog.keys.gone
        return {
            name
            for found in self._packs.values()
            for neighbour in found.named_by.keys() & segments
            for context, name in found.named_by[neighbour]
            if not gone(context, name)
        }

    def _read(self, pack: bytes) -> _PackRecords:
        found = _PackRecords()
        try:
            for item in self.catalog.listing.scan(pack, bodies=False):
                if isinstance(item, Damage):
                    if item.offset:  # else one of two copies of the head
                        raise ArchiveError(f"pack {pack.hex()} is damaged ({item.why}): repair first")
                    continue
                record, context = item.record, item.context
                if context.domain != self.domain or record.mark:
                    continue
                units = found.units.setdefault(context.root, set())
                units |= {unit_of(identity) for identity in identities(record, context)}
                if record.id is None:
                    continue
                found.segments.add(record.id)
                found.runs |= bool(context.mode & RUN)
                if record.neighbour != NONE:
                    found.named_by.setdefault(record.neighbour, []).append((context, record.id))
        except FormatError as exc:
            raise ArchiveError(f"pack {pack.hex()} is damaged ({exc}): repair first") from exc
        return found

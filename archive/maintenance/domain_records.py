"""DomainRecords: the segments of one domain and their neighbours, from the raw packs, each of which is read once.

    packs not read yet --heads of their blocks--> segments of the domain, and those coded after each

An erase asks twice: before it begins, and again for what writers put meanwhile. Packs never change, so the second look
reads only those that are new.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.errors import ArchiveError
from pltz.archive.format.context import RUN, Context
from pltz.archive.format.pack import Damage
from pltz.plt_codec.errors import FormatError
from pltz.plt_codec.identity import NONE


@dataclass
class _PackRecords:
    """The records of one pack. ``named_by``: neighbour -> (context, segment) of each record that names it."""

    segments: set[bytes] = field(default_factory=set)
    named_by: dict[bytes, list[tuple[Context, bytes]]] = field(default_factory=dict)
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
                if context.domain != self.domain or not record.id:
                    continue
                found.segments.add(record.id)
                found.runs |= bool(context.mode & RUN)
                if record.neighbour != NONE:
                    found.named_by.setdefault(record.neighbour, []).append((context, record.id))
        except FormatError as exc:
            raise ArchiveError(f"pack {pack.hex()} is damaged ({exc}): repair first") from exc
        return found

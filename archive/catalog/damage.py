"""The damage report: what damage may hide.

    damage.hiding()                       packs that may hold sessions that look-ups miss
    damage.hides(SESSIONS, key)           the state of the pack that keeps one session from being read
"""

from __future__ import annotations

from pltz.archive.catalog.listing import Listing
from pltz.archive.catalog.lookup import RecordLookup
from pltz.archive.catalog.losses import Loss, PackState
from pltz.archive.catalog.problems import Problems
from pltz.archive.format.index_file import SEGMENTS, key_of
from pltz.plt_codec.errors import FormatError


class DamageReport:
    """The damage that one process met in an archive. Its methods raise StoreError."""

    def __init__(self, listing: Listing, lookup: RecordLookup, problems: Problems) -> None:
        self._listing, self._lookup, self._problems = listing, lookup, problems

    def losses(self) -> list[Loss]:
        """Return the unacknowledged losses."""
        return [loss for loss in self._listing.losses() if loss.acknowledged is None]

    def hiding(self) -> set[bytes]:
        """Return the packs that may hold sessions that look-ups miss: damaged, missing or lost."""
        return {*self._listing.damaged(), *self._listing.missing()} | {loss.pack for loss in self.losses()}

    def uncatalogued(self, domain: bytes | None = None) -> set[bytes]:
        """Return the packs of `hiding` that may have any session: nothing lists what they hide.

        An index or the manifest lists it, a complete loss entry, or the heads of blocks where only bitstrings are
        damaged. ``domain``: leave out the packs that are there and whose table names no such domain.
        """
        listing = self._listing
        blind = set(listing.damaged() & self._problems.blind | listing.missing())
        if blind:
            blind = blind.difference(listing.rows, *(index.packs for index in listing.indexes.values()))
            blind -= listing.tail.packs.keys() - self._problems.blind
        for loss in self.losses():
            (blind.discard if loss.complete else blind.add)(loss.pack)
        return {pack for pack in blind if domain is None or self._may_have(pack, domain)}

    def _may_have(self, pack: bytes, domain: bytes) -> bool:
        """Return whether records of a domain may be in a pack, as far as its table tells."""
        try:
            there = pack in self._listing.packs
            return not there or any(c.domain == domain for c in self._listing.opened(pack).head.contexts)
        except (FormatError, FileNotFoundError):
            return True

    def hides(self, section: int, identity: bytes) -> PackState | None:
        """Return the state of the pack that keeps a record of this identity from being read.

        - MISSING: an index names the record in a missing pack.
        - LOST: an unacknowledged loss names it, a segment. Of sessions `directory.History` looks at losses.
        - DAMAGED: an index names it at a damaged place, or one that has no record of its key. Of a session the
          bitstrings of its records do not count.
        - None: no such pack is known.

        Raises ArchiveError, StoreError.
        """
        return self._listing.stable(lambda: self._hides(section, identity))

    def _hides(self, section: int, identity: bytes) -> PackState | None:
        missing = self._listing.missing()
        named = self._lookup.named(section, identity)
        if any(location.pack in missing for location in named):
            return PackState.MISSING
        key = key_of(identity)
        if section == SEGMENTS and any(key in loss.segments for loss in self.losses()):
            return PackState.LOST
        for location in named:
            try:
                if location.pack not in self._listing.packs:
                    continue
                pack, block = self._lookup.block(location)
                for row in block.rows_of(identity) if section == SEGMENTS else ():
                    pack.of_block(block, row)
                self._lookup.want_key(location, section, key)
            except FormatError:
                return PackState.DAMAGED
            except FileNotFoundError:
                self._listing.note_stale()
        return None

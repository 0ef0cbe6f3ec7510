"""DomainRecords: the segments and sessions of one domain, from the raw packs, each of which is read once.

    packs not read yet --heads of their blocks--> segments of the domain, the parents of each,
                                                  the last segments of its sessions,
                                                  and the units that have a record under each root of its keys

An erase asks several times: before it begins, again for what writers put meanwhile, and for its proof. Packs never
change, so a later look reads only those that are new. Of packs without a record of the domain only the head is read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import older_versions, version_of
from pltz.archive.encryption.box import unit_of
from pltz.archive.errors import ArchiveError
from pltz.archive.format.ids import NO_SEGMENT
from pltz.archive.format.index_file import Location, key_of_session
from pltz.archive.format.pack import Damage
from pltz.archive.format.record import Context, Record
from pltz.plt_codec.errors import FormatError


def identities(record: Record, context: Context) -> list[bytes]:
    """Return the segment id and the session key of a record, as far as it has them: each names a unit."""
    found = [] if record.id is None else [record.id]
    return found if record.name is None else [*found, key_of_session(record, context)]


class _SessionRecord(NamedTuple):
    """A record of a session. ``versions``: the ids of all that it has; ``tokens``: of a run of several, else 0."""

    context: Context
    key: bytes
    leaf: bytes
    versions: tuple[bytes, ...]
    tokens: int


@dataclass
class _PackRecords:
    """The records of one pack.

    ``parents``: segment -> (context, parent) of each record of it. ``units``: root -> for each record two units, the
    same twice where it has one alone, and the offset of its block.
    """

    parents: dict[bytes, list[tuple[Context, bytes]]] = field(default_factory=dict)
    units: dict[bytes, array[int]] = field(default_factory=dict)
    sessions: list[_SessionRecord] = field(default_factory=list)


class DomainRecords:
    """The records of a domain as of the last `read`. Not for several threads."""

    def __init__(self, catalog: Catalog, domain: bytes) -> None:
        self.catalog, self.domain = catalog, domain
        self._packs: dict[bytes, _PackRecords] = {}
        self._parents: dict[bytes, list[tuple[Context, bytes]]] | None = None  # those of all packs, once asked for

    def read(self) -> None:
        """Read the packs that are listed and were not read yet. Bitstrings are left out.

        Raises ArchiveError where some records cannot be read, StoreError.
        """
        listing = self.catalog.listing
        if self._packs.keys() != listing.packs.keys():
            self._parents = None
        self._packs = {pack: found for pack, found in self._packs.items() if pack in listing.packs}
        for pack in sorted(listing.packs.keys() - self._packs.keys()):
            try:
                self._packs[pack] = self._read(pack)
            except FileNotFoundError:  # a collector was faster; `Listing.stable` looks again
                listing.note_stale()

    @property
    def segments(self) -> set[bytes]:
        """Return the segments of the domain that have a record that opens."""
        return {segment for segment in self._rows if self._open(segment)}

    @property
    def _rows(self) -> dict[bytes, list[tuple[Context, bytes]]]:
        """Return (context, parent) of each record of each segment."""
        if self._parents is None:
            self._parents = {}
            for pack in self._packs.values():
                for segment, rows in pack.parents.items():
                    self._parents.setdefault(segment, []).extend(rows)
        return self._parents

    def under(self, leaves: Iterable[bytes]) -> set[bytes]:
        """Return the segments of the domain in the towers of these leaves, without those that no record opens.

        Shared prompts are left out.
        """
        found, seen, todo = set[bytes](), {NO_SEGMENT}, list(leaves)
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            # follow all records: a crafted one must not cut the tower short
            for _, parent in self._open(at):
                found.add(at)
                todo.append(parent)
        return found

    def _open(self, segment: bytes) -> list[tuple[Context, bytes]]:
        """Return (context, parent) of the records of a segment that open."""
        return [row for row in self._rows.get(segment, ()) if not self.catalog.keys.gone(row[0], segment)]

    @property
    def units(self) -> dict[bytes, set[int]]:
        """Return the units that have a record under each root, of segments and of sessions."""
        units: dict[bytes, set[int]] = {}
        for found in self._packs.values():
            for root, some in found.units.items():
                units.setdefault(root, set()).update(some[::3], some[1::3])
        return units

    def leaves(self, but: bytes | None = None) -> set[bytes]:
        """Return the last segments of all versions. ``but``: key of a session that is left out."""
        return set(self.versions(but).values())

    def versions(self, but: bytes | None = None) -> dict[bytes, bytes]:
        """Return the last segment of each version by its id, as `RecordLookup.all_versions` tells it.

        ``but``: key of a session that is left out.
        """
        listing, gone = self.catalog.listing, self.catalog.keys.gone
        best = dict[bytes, tuple[tuple[bool, bool, int], bytes]]()  # version -> rank of its record, and leaf
        for pack, found in self._packs.items():
            counts = pack in listing.unnamed, pack in listing.condemned
            for record in found.sessions:
                if record.key == but or gone(record.context, record.key):
                    continue
                rank = *counts, -record.tokens
                for version in record.versions:
                    if version not in best or rank < best[version][0]:
                        best[version] = rank, record.leaf
        return {version: leaf for version, (_, leaf) in best.items()}

    def rows(self, pack: bytes) -> Iterator[tuple[bytes, tuple[int, ...]]] | None:
        """Yield the root and the units of each record of the domain in a pack; None where it was not read."""
        found = self._packs.get(pack)
        if found is None:
            return None
        return (
            (root, (one,) if one == other else (one, other))
            for root, units in found.units.items()
            for one, other in zip(units[::3], units[1::3], strict=True)
        )

    def blocks_with(self, units: Mapping[bytes, AbstractSet[int]]) -> list[Location]:
        """Return the places of the blocks that have a record of one of these units under its root."""
        found = set[Location]()
        for pack, records in self._packs.items():
            for root, wanted in units.items():
                rows = records.units.get(root, array("Q"))
                for one, other, offset in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
                    if one in wanted or other in wanted:
                        found.add(Location(pack, offset, 0))
        return sorted(found)

    def _read(self, pack: bytes) -> _PackRecords:
        found = _PackRecords()
        try:
            if all(context.domain != self.domain for context in self.catalog.listing.opened(pack).head.contexts):
                return found
            for item in self.catalog.listing.scan(pack, bodies=False):
                if isinstance(item, Damage):
                    if item.offset:  # else one of two copies of the head
                        raise ArchiveError(f"pack {pack.hex()} is damaged ({item.why}): repair first")
                    continue
                record, context = item.record, item.context
                if context.domain != self.domain or record.mark:
                    continue
                if names := [unit_of(identity) for identity in identities(record, context)]:
                    row = names[0], names[-1], item.location.offset
                    found.units.setdefault(context.root, array("Q")).extend(row)
                if record.name is not None:
                    found.sessions.append(_session(item))
                if record.id is None:
                    continue
                found.parents.setdefault(record.id, []).append((context, record.parent))
        except FormatError as exc:
            raise ArchiveError(f"pack {pack.hex()} is damaged ({exc}): repair first") from exc
        return found


def _session(item: Found) -> _SessionRecord:
    """Return what an erase needs of the record of a session. Raises CorruptError."""
    key = key_of_session(item.record, item.context)
    older = older_versions(item, key)
    versions = version_of(item, key), *older
    return _SessionRecord(item.context, key, item.record.leaf, versions, item.record.tokens if older else 0)

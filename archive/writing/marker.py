"""Marker: forgets versions and brings them back, by marks that are put beside their records.

    marker = Marker(catalog, writer, indexes)
    marker.forget(versions)             # the number of those that were not forgotten yet
    marker.undelete(versions)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.lookup import Version
from pltz.archive.errors import NotFound
from pltz.archive.format import object_names
from pltz.archive.format.ids import TENANT
from pltz.archive.format.record import FORGET, UNDELETE
from pltz.archive.writing.writer import ArchiveWriter


class Marker:
    """Marks versions of one archive."""

    def __init__(self, catalog: Catalog, writer: ArchiveWriter, indexes: IndexKeeper) -> None:
        self._catalog, self._writer, self._indexes = catalog, writer, indexes

    def forget(self, versions: Sequence[Version]) -> int:
        """Forget versions and return how many were not forgotten yet.

        They are listed and read no more. `undelete` brings them back for the grace of a collection at least. Raises
        NotFound where one was collected, else the errors of `ArchiveWriter.put`.
        """
        return self._catalog.twice(partial(self._catalog.decide, lambda: self._mark(versions, FORGET)))

    def undelete(self, versions: Sequence[Version]) -> int:
        """Bring forgotten versions back and return how many were forgotten.

        Raises NotFound, ArchiveError where they or their segments were collected, else the errors of
        `ArchiveWriter.put`.
        """
        return self._catalog.twice(partial(self._catalog.decide, lambda: self._mark(versions, UNDELETE)))

    def _mark(self, versions: Sequence[Version], verb: int) -> int:
        known = [self._again(v) for v in {v.id: v for v in versions}.values()]
        mark, stable = self._catalog.lookup.mark, self._catalog.listing.stable  # a collector may move a mark meanwhile
        fresh = stable(lambda: [v for v in known if mark(v.id)[0] != verb])
        if fresh:
            self._writer.mark(fresh, verb)
            self._indexes.write_if_due()
        else:
            self._catalog.store.settle(object_names.MANIFEST)  # their writer may be between link and fsync
        return len(fresh)

    def _again(self, version: Version) -> Version:
        """Return the same version at its present location. Raises NotFound."""
        domain = self._catalog.keys.domain(TENANT, version.tenant)
        known = self._catalog.lookup.versions(domain, version.name)
        found = next((v for v in known if v.id == version.id), None)
        if found is None:
            raise NotFound(f"version {version.version} of {version.name!r} is no longer in the archive")
        return found

"""Marker: forgets versions and brings them back, by marks that are put beside their records.

    marker = Marker(catalog, writer, indexes)
    marker.forget(versions)             # the number of those that were not forgotten yet
    marker.undelete(versions)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.directory import history_of
from pltz.archive.catalog.index_keeper import IndexKeeper
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version, as_sessions, forgettable
from pltz.archive.errors import ArchiveError, NotFound
from pltz.archive.format import object_names
from pltz.archive.format.audit import Verb
from pltz.archive.format.ids import TENANT
from pltz.archive.format.index_file import Location
from pltz.archive.format.manifest import Manifest
from pltz.archive.format.record import FORGET, RUN, UNDELETE, Context, Mark, Record, segment_only, session_only
from pltz.archive.writing.writer import ArchiveWriter

MAX_CLOCK = (1 << 32) - (1 << 20)  # seconds: counters of marks are below 2^32, whatever the clock says


class Marking(NamedTuple):
    """Versions of parts to mark, all those that are there, and the manifest by which that was decided."""

    verb: int
    versions: list[Version]
    there: list[Version]
    manifest: Manifest | None


class Marker:
    """Marks versions of one archive."""

    def __init__(self, catalog: Catalog, writer: ArchiveWriter, indexes: IndexKeeper) -> None:
        self._catalog, self._writer, self._indexes = catalog, writer, indexes

    def forget(self, versions: Sequence[Version]) -> int:
        """Forget versions of sessions and return of how many something was not forgotten yet.

        What a version that stays has of them is kept. The others are listed and read no more. `undelete` brings them
        back for the grace of a collection at least. Raises NotFound where one was collected, else the errors of
        `ArchiveWriter.put`.
        """
        return self._catalog.decide(partial(self._mark, versions, FORGET))

    def undelete(self, versions: Sequence[Version]) -> int:
        """Bring forgotten versions back, with what they have of older ones, and return how many were forgotten.

        Raises NotFound, ArchiveError where they or their segments were collected, else the errors of
        `ArchiveWriter.put`.
        """
        return self._catalog.decide(partial(self._mark, versions, UNDELETE))

    def _mark(self, versions: Sequence[Version], verb: int) -> int:
        marking = self.of(versions, verb)
        self.mark(marking)
        return len({(v.tenant, v.name, v.version) for v in marking.versions})

    def of(self, versions: Sequence[Version], verb: int) -> Marking:
        """Return what is marked to forget versions of sessions, or to undelete them.

        Raises NotFound where one was collected, LostError and ArchiveError where damage may hide it, OnHold where one
        that is to be forgotten is held.
        """
        found, there, manifest = list[Version](), list[Version](), self._catalog.listing.manifest
        asked = sorted(versions, key=lambda v: (v.tenant, v.name))
        for _, some in itertools.groupby(asked, key=lambda v: (v.tenant, v.name)):
            wanted = {v.id: v for v in some}
            known = self._versions(next(iter(wanted.values())))
            there += known
            for lost in wanted.keys() - {v.id for v in known}:
                version = wanted[lost]
                history_of(self._catalog, version.tenant, version.name).want_counted()  # damage may hide it
                raise NotFound(f"version {version.version} of {version.name!r} is no longer in the archive")
            numbers = {v.version for v in known if v.id in wanted}
            if verb == FORGET:
                found += forgettable(known, numbers)
            else:
                whole = (v for v in as_sessions(known) if v.version in numbers)
                found += {v.id: v for each in whole for v in each.each if v.forgotten}.values()
        if verb == FORGET:
            self._catalog.holds.want_free_versions(found)
        return Marking(verb, found, there, manifest)

    def mark(self, marking: Marking) -> None:
        """Mark what `of` returned by the same look. Raises Outdated where others put or mark versions meanwhile."""
        if not marking.versions:
            self._catalog.store.settle(object_names.MANIFEST)  # their writer may be between link and fsync
            return
        marked = {v.id for v in marking.versions}
        sessions = {(v.tenant, v.name): v for v in marking.there}.values()

        def others(versions: Iterable[Version]) -> set[tuple[bytes, bool]]:
            return {(v.id, v.forgotten) for v in versions if v.id not in marked}

        def still() -> bool:
            if marking.manifest is None or marking.manifest.holds.keys() != self._catalog.holds.rows.keys():
                return False
            return others(v for one in sessions for v in self._versions(one)) == others(marking.there)

        fence = partial(self._writer.want_decided, marking.manifest, still)
        self._put(marking.versions, marking.verb, fence)
        self._indexes.write_if_due()

    def _versions(self, version: Version) -> list[Version]:
        """Return all versions of the session that one is of."""
        domain = self._catalog.keys.domain(TENANT, version.tenant)
        return self._catalog.lookup.versions(domain, version.name)

    def _put(self, versions: Sequence[Version], verb: int, fence: Callable[[], None]) -> None:
        """Forget or undelete versions. ``fence``: as of `Listing.publish`.

        A mark's counter is the time in seconds since 1970, or one above that of the mark in force. So a collector knows
        how old a mark is, and the later of two marks wins whatever the clocks say.

        Restoring copies the records that lie only in condemned packs, which may be deleted at any moment. Raises
        ArchiveError where a segment is gone, Outdated, StoreError.
        """
        tenant = {v.location: self._catalog.lookup.head(v.location) for v in versions}
        rows: list[tuple[Context, Record]] = []
        copied: set[bytes] = set()
        now = min(self._catalog.store.now(), MAX_CLOCK)
        for v in versions:
            item = tenant[v.location]
            if verb != FORGET:
                rows += self._rescued(item, copied)
            counter = max(self._catalog.listing.stable(partial(self._catalog.lookup.mark, v.id))[1] + 1, now)
            rows.append((item.context, Record(0, mark=Mark(v.id, counter, verb))))
        relied = set[bytes]()
        if verb != FORGET:
            relied = {at.pack for v in versions for at in self._places(v)} - self._catalog.listing.condemned
        keys = self._catalog.keys
        sessions = [keys.session_key(keys.domain(TENANT, v.tenant), v.name) for v in versions]
        done = self._catalog.record(Verb.FORGET if verb == FORGET else Verb.UNDELETE, len(versions), sessions)
        self._writer.publisher.put(rows, relied=relied, fence=fence, record=done)

    def _rescued(self, item: Found, copied: set[bytes]) -> Iterator[tuple[Context, Record]]:
        """Yield the records that a version is read with and that lie only in condemned packs, parents first."""
        chain: list[Found] = []
        for segment, places in self._catalog.lookup.tower(item.record.leaf):
            if not places:
                raise ArchiveError("a segment of this version is already gone: it cannot be brought back")
            if all(p.location.pack in self._catalog.listing.condemned for p in places) and segment not in copied:
                chain.append(places[0])
            copied.add(segment)
        for found in reversed(chain):
            whole = found.record.mode & RUN  # a run keeps all its versions
            yield found.context, found.record if whole else segment_only(found.record)
        if item.location.pack not in self._catalog.listing.condemned:
            return
        if not item.record.mode & RUN:
            yield item.context, session_only(item.record)
        elif item.location not in [found.location for found in chain]:  # that of its last segment has not its versions
            yield item.context, item.record

    def _places(self, version: Version) -> Iterator[Location]:
        item = self._catalog.lookup.head(version.location)
        yield item.location
        for _, places in self._catalog.lookup.tower(item.record.leaf):
            yield from (p.location for p in places)

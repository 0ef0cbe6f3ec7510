"""Transfer: copy what live sessions need from one archive to another, record by record, as it is.

    report = Transfer(source, destination).run(decode=True)

Nothing is coded anew: names, versions, times, labels and bitstrings stay, so the copy thaws with the bundle that froze it. What the
destination has already is left out, so a copy that was stopped goes on where it was, and a later one brings what is new.
Order: segments before the segments and sessions that need them, parents first, a commit a batch; stopped anywhere,
the destination holds whole sessions and perhaps segments that a later run needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pltz.archive.archive import Archive
from pltz.archive.chain import MAX_SEGMENTS
from pltz.archive.errors import LostError
from pltz.archive.identity import NONE
from pltz.archive.index import SEGMENTS
from pltz.archive.pack import Context
from pltz.archive.record import Record
from pltz.archive.view import Found, Version
from pltz.archive.writer import Writer, segment_only, session_only

BATCH_BYTES = 8 << 20  # of bitstrings, a commit


@dataclass
class Copied:
    """``sessions``: versions that were copied; ``there``: versions that the destination had; ``lost``: versions whose tower is damaged
    at the source, which were left out."""

    sessions: int = 0
    there: int = 0
    segments: int = 0
    size: int = 0
    lost: int = 0


class Transfer:
    """One copy. Source and destination may be in use meanwhile."""

    def __init__(self, source: Archive, destination: Archive):
        self.source, self.destination = source, destination
        self.done = Copied()
        self._rows: list[tuple[Context, Record]] = []
        self._bytes = 0
        self._queued: set[bytes] = set()

    def run(
        self,
        tenant: str | None = None,
        *,
        decode: bool = False,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Copied:
        """Copy all versions that are not forgotten (of one ``tenant``, if given); ``decode``: decode every segment first and compare.

        Raises StoreError and the like where the destination cannot be written, BundleMismatch where ``decode`` lacks a bundle.
        """
        self.destination.view.refresh()
        for version in self.source.ls(tenant, history=True):
            self._version(version, decode)
            if progress:
                progress(1)
            if self._bytes >= BATCH_BYTES:
                self._commit(dry_run)
        self._commit(dry_run)
        return self.done

    def _version(self, version: Version, decode: bool) -> None:
        if any(v.id == version.id for v in self.destination.history(version.name, version.tenant)):
            self.done.there += 1
            return
        try:
            rows = list(self._missing(version.leaf, decode))
        except LostError:
            self.done.lost += 1
            return
        own = self.source.view.at(version.location)
        leaf = rows[-1][1] if rows else None
        if leaf is not None and leaf.id == own.record.id == version.leaf:  # a session keeps its leaf's record
            rows[-1] = (own.context, own.record)
        else:
            rows.append((own.context, session_only(own.record)))
        for _context, record in rows:
            if record.id is not None:
                self._queued.add(record.id)
                self.done.segments += 1
            self.done.size += len(record.bitstring)
            self._bytes += 64 + len(record.bitstring)
        self._rows += rows
        self.done.sessions += 1

    def _missing(self, leaf: bytes, decode: bool) -> Iterator[tuple[Context, Record]]:
        """Segments of a tower that the destination lacks, parents first. Raises LostError."""
        chain: list[Found] = []
        at = leaf
        while at != NONE and at not in self._queued and not self.destination.view.find(SEGMENTS, at):
            places = self.source.view.find(SEGMENTS, at)
            if not places or len(chain) == MAX_SEGMENTS:
                raise LostError(f"segment {at.hex()} is damaged or gone: see pltz archive verify")
            chain.append(places[0])
            at = places[0].record.parent
        if decode and leaf != NONE:
            self.source.segment(leaf)
        for found in reversed(chain):
            yield found.context, segment_only(found.record)

    def _commit(self, dry_run: bool) -> None:
        if self._rows and not dry_run:
            Writer(self.destination.view, self.destination.codecs).copy(self._rows)
        self._rows, self._bytes = [], 0

"""LastTowers: the towers of versions that puts will extend, remembered or decoded with a proof.

    last = LastTowers(reader, writer)
    last.load(versions)                 # many, side by side
    last.of(version).tokens             # as often as wanted: decoded once

A put of a session's next version cuts it where the last one was cut, and codes new segments after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pltz.archive.catalog.chain import MAX_SEGMENTS, Chains, decodable_groups
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import Tower, TowerReader
from pltz.archive.format.ids import NO_SEGMENT, Tokens, segment_of
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.format.record import RUN
from pltz.archive.writing.writer import ArchiveWriter
from pltz.plt_codec.errors import PltzError


class LastTowers:
    """Reads towers for one writer, which remembers them."""

    def __init__(self, reader: TowerReader, writer: ArchiveWriter) -> None:
        self._reader, self._writer, self._catalog = reader, writer, reader.catalog

    def of(self, version: Version) -> Tower:
        """Return the tower of a version that a put will extend.

        One that this process put or read recently is remembered. Else this proves that it decodes, so the put need not
        prove it again. Raises the errors of `TowerReader.tower`.
        """
        if not version.lacks and (segments := self._writer.recent.get(version.leaf)) is not None:
            return Tower(version, segments)
        [tower] = self._reader.towers([version], heard=self._writer.proved.heard)
        self._writer.recent.add(tower.segments)
        return tower

    def load(self, versions: Sequence[Version]) -> None:
        """Decode the towers of versions side by side, so that `of` remembers them.

        Those that cannot be read are left out. Raises StoreError.
        """
        recent = self._writer.recent
        fresh = [v for v in versions if v.lacks or recent.get(v.leaf) is None]
        for group in decodable_groups(fresh, self._reader.length):
            if len(group) < 2:
                continue  # `of` decodes it when its turn comes
            chains = Chains(self._catalog, self._reader.codecs, heard=self._writer.proved.heard)
            with suppress(FileNotFoundError):  # `of` looks again
                chains.load([v.leaf for v in group])
                for version in group:
                    with suppress(PltzError):
                        recent.add(chains.version(version))

    def ends(self, version: Version, tokens: Tokens) -> tuple[list[int], bool] | None:
        """Return the ends of the segments of a version with which tokens, (T,), begin, and whether they are all of it.

        Their ids tell; nothing is decoded. None where that cannot tell: segments are in a run, or a record is gone.
        """
        chain: list[Found] = []
        leaf = version.leaf
        while leaf != NO_SEGMENT:
            found = self._catalog.lookup.find(SEGMENTS, leaf)
            if not found or found[0].record.mode & RUN or len(chain) >= MAX_SEGMENTS:
                return None
            chain.append(found[0])
            leaf = found[0].record.parent
        # the id of each segment is told by its tokens and the id above it
        ends, at = list[int](), 0
        for item in reversed(chain):
            context, record = item.context, item.record
            part = tokens[at : at + record.tokens]
            digest = self._catalog.keys.segment_digest(context.domain, context.tokenizer, record.parent, part)
            if segment_of(digest) != record.id:
                break
            at += record.tokens
            ends.append(at)
        return ends, len(ends) == len(chain)

    def is_sound(self, tower: Tower) -> bool:
        """Return whether the records of a version and of its segments read now. None of them is decoded.

        For a put that finds a remembered tower unchanged. If one does not read, the next put decodes every
        segment that it relies on. Raises StoreError.
        """
        sound = self.stands(tower.version)
        if not sound:
            self._writer.recent.clear()
            self._writer.proved.clear()
        return sound

    def stands(self, version: Version) -> bool:
        """Return whether the records that a version is read from are there. A run has no records of its segments."""
        if not self._catalog.lookup.is_sound(version.location):
            return False
        leaf = version.leaf
        for _ in range(MAX_SEGMENTS):
            if leaf == NO_SEGMENT:
                return True
            if not (found := self._catalog.lookup.find(SEGMENTS, leaf)):
                return False
            leaf = found[0].record.parent
        return False

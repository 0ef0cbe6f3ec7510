"""LastTowers: the towers of versions that puts will extend, remembered or decoded with a proof.

    last = LastTowers(reader, writer)
    last.load(versions)                 # many, side by side
    last.of(version).tokens             # as often as wanted: decoded once

A put of a session's next version cuts it where the last one was cut, and codes new segments after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import numpy as np

from pltz.archive.catalog.chain import Chains, decodable_groups
from pltz.archive.catalog.listing import Found
from pltz.archive.catalog.lookup import Version
from pltz.archive.catalog.reader import Tower, TowerReader
from pltz.archive.format.ids import NO_SEGMENT, segment_of
from pltz.archive.format.index_file import SEGMENTS
from pltz.archive.writing.new_session import Sliced
from pltz.archive.writing.segments import Beginning, PendingSegment
from pltz.archive.writing.writer import ArchiveWriter
from pltz.coding.codecs.codec import SegmentCodec, as_bytes
from pltz.coding.log.recall import Passages
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

    def beginning(
        self, version: Version, content: Sliced, seen: Passages | None = None
    ) -> tuple[Beginning, list[int], bool]:
        """Return the segments of a version with which a content begins, and whether they are all of the version.

        Ids tell it, and digests in bitstrings: nothing is decoded. Between the two stand the ends of more segments that
        the content has, but that are not relied on: it is cut there, and they are put again. ``seen`` is shown the
        others.
        """
        begun, ends, at = Beginning(), list[int](), 0
        names = self._names(version)
        for name in names:
            items = self._catalog.lookup.find(SEGMENTS, name)
            segment = self._alike(items[0], content, at)
            if segment.id != name:
                return begun, ends, False
            at += len(segment.tokens)
            pack = None if ends else self._place(items, segment)
            if pack is None:
                ends.append(at)
                continue
            if seen:
                seen.add(as_bytes(segment.tokens), begun.size)
            segment.up, segment.depth = begun.last, begun.count
            begun = begun.and_then([segment], frozenset([pack]))
        return begun, ends, bool(names) or version.leaf == NO_SEGMENT

    def vouches(self, version: Version, content: Sliced) -> bool:
        """Return whether a version has a content and no more, as its records vouch, also those in condemned packs."""
        at = 0
        for name in self._names(version):
            segment = self._alike(self._catalog.lookup.find(SEGMENTS, name)[0], content, at)
            if segment.id != name or self._writer.proved.vouched_aside(segment) is None:
                return False
            at += len(segment.tokens)
        return at == len(content)

    def _names(self, version: Version) -> list[bytes]:
        """Return the segments of a version's tower, the root first; none where one is gone."""
        names = list[bytes]()
        for segment, found in self._catalog.lookup.tower(version.leaf):
            if not found:
                return []
            names.append(segment)
        return names[::-1]

    def _alike(self, item: Found, content: Sliced, at: int) -> PendingSegment:
        """Return what a content has from ``at`` on in the place of a record, named as if it were a segment there."""
        context, record = item.context, item.record
        codec = cast("SegmentCodec", self._reader.codecs.for_context(context, record.mode))  # it codes no more
        segment = PendingSegment(context, codec, None, np.frombuffer(content[at : at + record.tokens], np.uint8))
        about = context.domain, context.tokenizer, record.parent
        segment.digest = self._catalog.keys.segment_digest(*about, segment.tokens)
        segment.id = segment_of(segment.digest)
        return segment

    def _place(self, items: Sequence[Found], segment: PendingSegment) -> bytes | None:
        """Return the pack of a record that vouches for a segment and stays; None without."""
        for item in items:
            if (stored := self._writer.proved.vouched(item, segment)) is not None:
                segment.stored = stored
                return item.location.pack
        return None

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
        lookup = self._catalog.lookup
        return lookup.is_sound(version.location) and all(found for _, found in lookup.tower(version.leaf))

"""Verified segments: places where a segment decodes to its tokens. A new session relies on no other place.

A bitstring that holds a digest of its tokens is not decoded (`vouches`): the digest and the segment's id are compared.
Any other record a process decodes and compares once, whether a put relies on it or a reader asks for it
(`VerifiedSegments.heard`). After that it compares all 32 bytes of the segment's digest (WRITING.md, "Put"), and
asks the file system whether the pack was written, cut off, replaced or removed since: then it decodes again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import Chains, Segments
from pltz.archive.catalog.listing import Found
from pltz.archive.errors import StoreError
from pltz.archive.format import ids, object_names
from pltz.archive.format.index_file import SEGMENTS, Location
from pltz.archive.format.record import RUN
from pltz.archive.storage.disk import Stamp
from pltz.archive.writing.pending_segment import PendingSegment
from pltz.coding.codecs.registry import CodecRegistry
from pltz.plt_codec.errors import CorruptError, FormatError, PltzError

PROVED = 1 << 18  # segments remembered as decoded and compared
BUDGET = 32 << 20  # bytes of remembered towers


class VerifiedSegments:
    """The segments that one process has proved to decode, and their places."""

    def __init__(self, catalog: Catalog, codecs: CodecRegistry):
        self.catalog, self.codecs = catalog, codecs
        self._known: dict[bytes, tuple[Location, bytes]] = {}  # place, and the segment's digest
        self._stamps: dict[bytes, Stamp | None] = {}  # of their packs, from when one was proved there first
        self._as_before: set[bytes] = set()  # packs that this put found as they were

    def begin(self) -> None:
        """Begin a put: look once at each pack that it relies on."""
        self._as_before.clear()

    def place(self, segment: PendingSegment) -> Location | None:
        """Return where a segment is stored such that it decodes to its tokens; None without a reliable place.

        Of a codec that carries the record is always looked up: what is below it is coded after what it leaves.

        Raises CorruptError where another segment has its id, StoreError.
        """
        return (None if segment.codec.carries else self._remembered(segment)) or self.own_place(segment)

    def own_place(self, segment: PendingSegment) -> Location | None:
        """Return where a record of a segment is that decodes to its tokens, not that of a run which goes on behind it.

        None without one. Raises the errors of `place`.
        """
        for item in self.catalog.lookup.find(SEGMENTS, segment.id):
            if self._decodes(item, segment):
                self._note(segment.id, item.location, segment.digest)
                return item.location
        return None

    def vouched_aside(self, segment: PendingSegment) -> tuple[bytes, int] | None:
        """Return bitstring and mode of a record in a condemned pack that vouches for a segment's tokens, or None.

        The pack may be deleted at any moment, so the bitstring is put again. Where no pack is condemned, nothing is
        looked up.
        """
        codec, keys = segment.codec, self.catalog.keys
        if not codec.vouching or not self.catalog.listing.condemned:
            return None
        for item in self.catalog.lookup.find(SEGMENTS, segment.id):
            if item.record.mode & RUN:
                continue
            if self.codecs.for_context(item.context, item.record.mode) is not codec or self._going(item, segment.id):
                continue
            with suppress(PltzError, FileNotFoundError):
                bits = keys.bits(item.context, item.record)
                if codec.vouches(bits, segment.tokens):
                    return bits, item.record.mode
        return None

    def vouched(self, item: Found, segment: PendingSegment) -> tuple[bytes, int] | None:
        """Return bitstring and mode of a record that stays and vouches for a segment's tokens; else None.

        Raises StoreError.
        """
        codec, condemned = self.codecs.for_context(item.context, item.record.mode), self.catalog.listing.condemned
        if codec is None or item.location.pack in condemned or self._going(item, segment.id):
            return None
        try:
            bits = self.catalog.keys.bits(item.context, item.record)
            return (bits, item.record.mode) if codec.vouches(bits, segment.tokens) else None
        except StoreError:
            raise
        except (PltzError, FileNotFoundError) as exc:
            self._problem(item, str(exc))
            return None

    def _remembered(self, segment: PendingSegment) -> Location | None:
        """Return the place where it was proved before, if the record stays there."""
        if not (known := self._known.get(segment.id)):
            return None
        location, digest = known
        if digest != segment.digest:
            raise collision(segment.id)
        if location.pack not in self.catalog.listing.packs or location.pack in self.catalog.listing.condemned:
            return None
        if not self._is_as_before(location.pack):
            return None
        with suppress(FormatError, FileNotFoundError):  # damaged since then: another place may serve
            if not (self.catalog.keys.cipher and self._going(self.catalog.lookup.at(location), segment.id)):
                return location
        return None

    def _is_as_before(self, pack: bytes) -> bool:
        """Return whether a pack is as it was when something in it was proved. Else all its proofs are forgotten."""
        if pack in self._as_before:
            return True
        with suppress(FileNotFoundError):
            if self.catalog.store.stamp(object_names.pack(pack)) == self._stamps.get(pack):
                self._as_before.add(pack)
                return True
        self._stamps.pop(pack, None)
        for segment in [segment for segment, (at, _) in self._known.items() if at.pack == pack]:
            del self._known[segment]
        return False

    def _decodes(self, item: Found, segment: PendingSegment) -> bool:
        """Return whether a record is reliable and decodes to a segment's tokens.

        Raises CorruptError where different tokens have its id, StoreError.
        """
        if item.record.mode & RUN:
            return self._in_run(item, segment)
        codec, keys = self.codecs.for_context(item.context, item.record.mode), self.catalog.keys
        if item.location.pack in self.catalog.listing.condemned or codec is None or self._going(item, segment.id):
            return False
        try:
            bits = keys.bits(item.context, item.record)
            if codec.vouches(bits, segment.tokens):
                segment.stored = bits, item.record.mode
                return True
            tokens = codec.decode([segment.coded_by(codec, item.record.mode, bits, item.record.tokens)])[0]
        except StoreError:
            raise
        except (PltzError, FileNotFoundError) as exc:
            self._problem(item, str(exc))
            return False
        if np.array_equal(tokens, segment.tokens):
            return True
        about = segment.context.domain, segment.codec.tokenizer, segment.parent
        if ids.segment_of(keys.segment_digest(*about, tokens)) == segment.id:
            raise collision(segment.id)
        self._problem(item, "decodes to other tokens than its id says")
        return False

    def _in_run(self, item: Found, segment: PendingSegment) -> bool:
        """Return whether a run is reliable and its tower ends in a segment's tower.

        Raises CorruptError where different tokens have an id, StoreError.
        """
        if item.location.pack in self.catalog.listing.condemned or self._going(item, segment.id):
            return False
        try:
            tower = Chains(self.catalog, self.codecs, heard=self.heard).tower(segment.id)
        except StoreError:
            raise
        except (PltzError, FileNotFoundError) as exc:
            self._problem(item, str(exc))
            return False
        at: PendingSegment | None = segment
        for name, tokens in reversed(tower):
            if at is None or at.id != name:
                return False
            if not np.array_equal(at.tokens, tokens):
                raise collision(name)
            at = at.up
        return at is None

    def place_of(self, segment: bytes) -> Location | None:
        """Return where a segment was proved last; None where it was not."""
        known = self._known.get(segment)
        return known[0] if known else None

    def knows(self, segment: bytes) -> bool:
        """Return whether a segment was proved before, perhaps in a run in which no index names it."""
        return segment in self._known

    def _problem(self, item: Found, what: str) -> None:
        self.catalog.damage.note("record", f"{item.location.pack.hex()} at {item.location.offset}", what)

    def _going(self, item: Found, segment: bytes) -> bool:
        """Return whether a segment was erased or is being erased. A writer does not rely on it then."""
        keys = self.catalog.keys
        return keys.gone(item.context, segment) or keys.doomed(item.context, segment)

    def remember(self, segments: Iterable[tuple[Location, PendingSegment | None]]) -> None:
        """Remember segments that were decoded from places and compared."""
        self._make_room()
        for location, segment in segments:
            if segment:
                self._note(segment.id, location, segment.digest)

    def heard(self, item: Found, digest: bytes) -> None:
        """Remember a record that a reader decoded.

        ``digest``: digest of the tokens, 32 bytes; the first 10 are in the segment's id.
        """
        self._make_room()
        self._note(ids.segment_of(digest), item.location, digest)

    def take_over(self, other: VerifiedSegments) -> None:
        """Share the proofs of another object of the same archive from now on."""
        self._known, self._stamps = other._known, other._stamps

    def clear(self) -> None:
        """Forget all proofs: the next put decodes what it relies on."""
        self._known.clear()
        self._stamps.clear()

    def _note(self, segment: bytes, location: Location, digest: bytes) -> None:
        self._known[segment] = location, digest
        if location.pack not in self._stamps:
            with suppress(FileNotFoundError):  # deleted since: nobody relies on it
                self._stamps[location.pack] = self.catalog.store.stamp(object_names.pack(location.pack))

    def _make_room(self) -> None:
        if len(self._known) >= PROVED:
            self.clear()


def collision(segment: bytes) -> CorruptError:
    """Return the error for two segments with one id."""
    return CorruptError(
        f"two different segments have the id {segment.hex()}: this content is crafted, and refused"
    )


class RecentTowers:
    """Towers put or read last, by their leaf: (id, tokens of shape (t,)) of each segment, from the root.

    So a session's next version need not decode them: it took 3.6 s of CPU time for a chat of 4000 tokens in 40 turns. A
    leaf's id is a digest of all tokens of its tower. A remembered tower is never taken as proof: the writer looks up
    every stored segment that it relies on (`VerifiedSegments.place`).

    ``budget``: most bytes of all their tokens. The least recently used go first. Not for several threads.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._free = budget
        self._towers: OrderedDict[bytes, Segments] = OrderedDict()

    def add(self, segments: Segments) -> None:
        """Remember a tower, (id, tokens of shape (t,)) from its root.

        Towers that it extends are forgotten: the next version builds on this one.
        """
        if not segments:
            return
        for segment, _ in segments:
            self._drop(segment)
        leaf = segments[-1][0]
        self._towers[leaf] = list(segments)
        self._free -= _size(self._towers[leaf])
        while self._free < 0:
            self._drop(next(iter(self._towers)))

    def get(self, leaf: bytes) -> Segments | None:
        """Return the tower of a leaf, or None where it is not remembered."""
        if leaf not in self._towers:
            return None
        self._towers.move_to_end(leaf)
        return list(self._towers[leaf])

    def clear(self) -> None:
        """Forget everything."""
        while self._towers:
            self._drop(next(iter(self._towers)))

    def _drop(self, leaf: bytes) -> None:
        if (tower := self._towers.pop(leaf, None)) is not None:
            self._free += _size(tower)


def _size(segments: Segments) -> int:
    return sum(tokens.nbytes for _, tokens in segments)

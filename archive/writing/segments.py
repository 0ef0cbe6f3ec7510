"""Segments of a put: those that it names, codes and writes, and the stored ones that it may rely on.

    tokens, the segment above --> id --> bitstring, mode --> Row                 PendingSegment
    id --look up, decode or compare digests--> a place that holds its tokens     VerifiedSegments

A log of any length is put as a tower of slices, some at a time. Each is named, coded and proved below the one before,
the last of its `Beginning`. Of the segments above only as many are kept as the next one is coded after
(`Above.to_follow`).

A new session relies on no place but one where a segment decodes to its tokens. A bitstring that holds a digest of its
tokens is not decoded (`vouches`): the digest and the segment's id are compared. Any other record a process decodes and
compares once, whether a put relies on it or a reader asks for it (`VerifiedSegments.heard`). After that it compares all
32 bytes of the segment's digest (WRITING.md, "Put"), and asks the file system whether the pack was written, cut off,
replaced or removed since: then it decodes again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, cast

import numpy as np

from pltz.archive.catalog.catalog import Catalog
from pltz.archive.catalog.chain import NOTHING, Chains, Segments
from pltz.archive.catalog.listing import Found
from pltz.archive.errors import StoreError
from pltz.archive.format import ids, object_names
from pltz.archive.format.ids import NO_SEGMENT, Tokens
from pltz.archive.format.index_file import SEGMENTS, Location
from pltz.archive.format.record import RUN, Context, Record
from pltz.archive.storage.disk import Stamp
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec, as_bytes, ways_of
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.log.above import REACH, Above
from pltz.coding.log.recall import Recalled, Source
from pltz.plt_codec.container.frame import ALONE, CODING, TOWER
from pltz.plt_codec.errors import CorruptError, FormatError, PltzError

PROVED = 1 << 18  # segments remembered as decoded and compared
BUDGET = 32 << 20  # bytes of remembered towers

Row = tuple[Context, Record]  # a record to put, with its context


class PendingSegment:
    """A segment of the batch: its place and tokens, then its name, then its bitstring.

    Attributes:
        tokens: token ids, (T,).
        up: the segment above, None for a root.
        context: the context it is stored under, one object for all segments that share it.
        mode: how ``data`` is coded.
        digest: 32 bytes; the first 10 are in its ``id``.
        coded: whether ``data`` is its bitstring already.
        begun: as of `NewSession`.
        part: of a codec that carries, what a segment below is coded after, once one asked.
        stored: of a codec that carries, bitstring and mode where it is stored and vouches for its tokens.
        recalled: of a log, what is left of it without the passages that it recalls; None: all.
        source: of a log, what it recalls them from.
        proved: the bitstring that was decoded already, and gave these tokens; empty: none was.
    """

    __slots__ = (
        "begun", "codec", "coded", "context", "data", "depth", "digest", "id", "mode", "part", "proved", "recalled",
        "source", "stored", "tokens", "up",
    )  # fmt: skip

    def __init__(self, context: Context, codec: SegmentCodec, up: PendingSegment | None, tokens: Tokens):
        self.context, self.mode = context, ALONE
        self.depth: int = up.depth + 1 if up else 0
        self.codec, self.up, self.tokens = codec, up, tokens
        self.id = self.digest = self.data = self.proved = b""
        self.coded = False
        self.begun: Sequence[Callable[[], bytes]] = ()
        self.part: Above | None = None
        self.stored: tuple[bytes, int] | None = None
        self.recalled: Recalled | None = None
        self.source: Source | None = None

    @property
    def parent(self) -> bytes:
        """Return the id of the segment above, NO_SEGMENT for a root."""
        return self.up.id if self.up else NO_SEGMENT

    def ancestors(self) -> Iterator[PendingSegment]:
        """Yield the segments above it, from its parent up."""
        at = self.up
        while at is not None:
            yield at
            at = at.up

    def above(self, reach: int) -> Tokens:
        """Return the last ``reach`` tokens above it, (m,), m at most ``reach``."""
        if self.up is None or reach <= 0:
            return NOTHING
        parts: list[Tokens] = []
        for segment in self.ancestors():
            if reach <= 0:
                break
            parts.append(segment.tokens[-reach:])
            reach -= len(parts[-1])
        return np.concatenate(parts[::-1])

    @property
    def followed(self) -> int:
        """Return the bytes of the segments above that it is coded after, of a codec that carries."""
        size = 0
        for segment in reversed([*self.ancestors()]):
            size = len(segment.tokens) + (size if size <= REACH else 0)
        return size if size <= REACH else 0

    def ways(self) -> list[tuple[int, Plain]]:
        """Return the modes in which it is tried, each with what is to be encoded."""
        if not self.codec.carries:
            above = self.above(self.codec.reach) if len(self.tokens) else NOTHING
            return ways_of(self.codec, self.tokens, above)
        up = self._part_above() if len(self.tokens) else None
        up = up if up and self._are_alike(up.parts()) else None
        return [(TOWER if up else ALONE, Plain(self.tokens, NOTHING, up=up, recalled=self.recalled))]

    def _are_alike(self, parts: list[Above]) -> bool:
        """Return whether segments above that are stored leave what these parts of them do: else it is coded alone."""
        for s in reversed([*self.ancestors()]):
            bits, mode = s.stored or (s.data, s.mode)
            if s.part in parts and bits:
                below = s.part.up is not None
                if below != bool(mode & TOWER) or not cast("LogCodec", self.codec).makes(s.part, bits):
                    return False
        return True

    def coded_by(self, codec: SegmentCodec, mode: int, data: bytes, tokens: int) -> Coded:
        """Return what a codec decodes to it: a bitstring of so many tokens that a record of this mode has."""
        below = mode & TOWER
        above = self.above(codec.reach) if below else NOTHING
        up = self._part_above() if below and codec.carries else None
        return Coded(data, tokens, above, mode & CODING, up=up, source=self.source)

    def _part_above(self) -> Above | None:
        """Return what it is coded after, of a codec that carries."""
        left = list(takewhile(lambda s: s.part is None, self.ancestors()))
        above = left[-1].up if left else self.up
        part = above.part if above else None
        for segment in reversed(left):
            if len(segment.tokens):
                recalled = segment.recalled
                if segment.stored:
                    recalled = cast("LogCodec", self.codec).recalled(segment.stored[0], segment.tokens)
                own = recalled.own if recalled else as_bytes(segment.tokens)
                part = segment.part = Above.of(own, part and part.to_follow, len(segment.tokens))
        return part and part.to_follow

    def row(self, **of_session: Any) -> Row:
        """Return the row that puts the segment. ``of_session``: fields of a session that it is the last segment of."""
        up = self.up
        record = Record(
            0,
            up.id if up else NO_SEGMENT,
            id=self.id,
            tokens=len(self.tokens),
            bitstring=self.data,
            mode=self.mode,
            **of_session,
        )
        return self.context, record


@dataclass
class Beginning:
    """Segments of a log from its first one on, which are stored and proved.

    Attributes:
        chain: the last of them, as far up as the next one is coded after.
        count, size: how many they are, and the bytes of their content.
        packs: where they are.
    """

    chain: list[PendingSegment] = field(default_factory=list)
    count: int = 0
    size: int = 0
    packs: frozenset[bytes] = frozenset()

    @property
    def last(self) -> PendingSegment | None:
        """Return the last segment, None where there is none."""
        return self.chain[-1] if self.chain else None

    def and_then(self, segments: Sequence[PendingSegment], packs: frozenset[bytes]) -> Beginning:
        """Return this beginning with more segments, in the packs that these are in."""
        chain = list(self.chain)
        for segment in segments:
            if sum(len(s.tokens) for s in chain) > REACH:
                chain = []
            chain.append(segment)
        if chain and chain[0].up:
            chain[0].up = None  # what stands above is not held in memory
        size = sum(len(s.tokens) for s in segments)
        return Beginning(chain, self.count + len(segments), self.size + size, self.packs | packs)


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
        self.catalog.problems.note("record", f"{item.location.pack.hex()} at {item.location.offset}", what)

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
    return CorruptError(f"two different segments have the id {segment.hex()}: this content is crafted, and refused")


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

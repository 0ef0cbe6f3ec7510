"""Batch: the sessions of one commit with their segments, each once and named by its tokens, before encoding.

    NewSession --draft--> PendingVersion: tower of PendingSegment, context --session_rows--> records, parents first

A session is stored in the record of its leaf where that is new and in the same context. Otherwise it has a
record of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import numpy as np

from pltz.archive.catalog.chain import NOTHING
from pltz.archive.catalog.lookup import Version
from pltz.archive.encryption.keys import Encryption
from pltz.archive.format import ids
from pltz.archive.format.context import Context
from pltz.archive.format.ids import BASE, NO_SEGMENT, TENANT, U32, Tokens
from pltz.archive.format.record import Record, pack_about
from pltz.archive.writing.new_session import CommitReceipt, NewSession, check
from pltz.coding.codecs.codec import Coded, Plain, SegmentCodec, as_bytes, ways_of
from pltz.coding.codecs.logs import LogCodec
from pltz.coding.codecs.modes import ALONE, CODING, TOWER
from pltz.coding.codecs.registry import CodecRegistry
from pltz.coding.log.above import Above
from pltz.models.session.session import kind_number
from pltz.plt_codec.identity import NONE

BATCH_TOKENS = 1 << 22  # tokens per call of a codec
BATCH_BYTES = 1 << 24  # the same of logs, whose tokens are bytes: processes split and join so many side by side



class PendingSegment:
    """A segment of the batch: its place and tokens, then its name, then its bitstring.

    Attributes:
        tokens: token ids, (T,).
        up: the segment above, None for a root.
        context: the context it is stored under, one object for all segments that share it.
        mode: how ``data`` is coded.
        digest: 32 bytes; the first 10 are in its ``id``.
        coded: whether ``data`` is its bitstring already.
        part: of a codec that carries, what a segment below is coded after, once one asked.
        stored: of a codec that carries, bitstring and mode where it is stored and vouches for its tokens.
    """

    __slots__ = (
        "codec", "coded", "context", "data", "depth", "digest", "id", "mode", "part", "stored", "tokens", "up",
    )  # fmt: skip

    def __init__(self, context: Context, codec: SegmentCodec, up: PendingSegment | None, tokens: Tokens):
        self.context, self.mode = context, ALONE
        self.depth: int = up.depth + 1 if up else 0
        self.codec, self.up, self.tokens = codec, up, tokens
        self.id = self.digest = self.data = b""
        self.coded = False
        self.part: Above | None = None
        self.stored: tuple[bytes, int] | None = None

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
    def reached(self) -> int:
        """Return the number of tokens above it that its codec reaches."""
        found, reach, at = 0, self.codec.reach, self.up
        while at is not None and found < reach:
            found += len(at.tokens)
            at = at.up
        return min(found, reach)

    def ways(self) -> list[tuple[int, Plain]]:
        """Return the modes in which it is tried, each with what is to be encoded."""
        if not self.codec.carries:
            above = self.above(self.codec.reach) if len(self.tokens) else NOTHING
            return [(mode, Plain(self.tokens, context)) for mode, context in ways_of(self.codec, above)]
        up = self._part_above() if len(self.tokens) else None
        up = up if up and self._are_alike(up.parts()) else None
        return [(TOWER if up else ALONE, Plain(self.tokens, NOTHING, up=up))]

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
        return Coded(data, tokens, above, mode & CODING, up=self._part_above() if below and codec.carries else None)

    def _part_above(self) -> Above | None:
        """Return what it is coded after, of a codec that carries."""
        part: Above | None = None
        for segment in reversed([*self.ancestors()]):
            if len(segment.tokens):
                part = segment.part = segment.part or Above.of(as_bytes(segment.tokens), part and part.to_follow)
        return part and part.to_follow

    def take(self, data: bytes, mode: int) -> None:
        """Take a bitstring that was coded in a mode."""
        self.data, self.mode, self.coded = data, mode, True

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


class PendingVersion:
    """A session of the batch: its tower and the version to write.

    Attributes:
        codec: the codec of its segments.
        part: key of its part.
        leaf: id of the last segment, once it is named.
        moment, time: when it is put, in ticks, and its own time, in seconds, both since 1970.
        version: its number among the session's versions.
        kept: the last version, if it is the same.
        new: number of segments that this session is the first to have.
        size: bytes of their bitstrings.
    """

    __slots__ = (
        "codec",
        "context",
        "id",
        "kept",
        "key",
        "leaf",
        "moment",
        "new",
        "part",
        "session",
        "size",
        "time",
        "tower",
        "version",
    )

    def __init__(
        self,
        session: NewSession,
        codec: SegmentCodec,
        tower: list[PendingSegment],
        context: Context,
        key: bytes,
        part: int,
    ):
        self.session, self.codec, self.tower, self.context = session, codec, tower, context
        self.key, self.part = key, part
        self.version, self.id, self.leaf = 1, b"", NO_SEGMENT
        self.moment = self.time = 0
        self.kept: Version | None = None
        self.new = self.size = 0

    def receipt(self) -> CommitReceipt:
        """Return the receipt of the session."""
        s, unchanged = self.session, self.kept is not None
        tokens = sum(len(segment.tokens) for segment in self.tower)
        return CommitReceipt(
            tenant=s.tenant,
            name=s.name,
            part=s.part,
            id=self.id,
            version=self.version,
            moment=self.moment,
            leaf=self.leaf,
            new=self.new,
            size=self.size,
            unchanged=unchanged,
            codec=self.codec,
            segments=len(self.tower),
            tokens=tokens,
            coded=[segment.data for segment in self.tower if segment.data],
        )


Row = tuple[Context, Record]  # a record to put, with its context


def draft(
    sessions: Sequence[NewSession], contexts: Contexts
) -> tuple[list[PendingVersion], list[PendingSegment]]:
    """Check sessions and name their segments; return the drafts and each segment once, parents first.

    Raises ContentError, LimitError, UsageError.
    """
    check(sessions, contexts.codecs)
    known: dict[tuple[int, int, int], PendingSegment] = {}  # many sessions share a prompt
    session_key = contexts.keys.session_key
    keys: dict[tuple[bytes, str], bytes] = {}
    drafts = []
    for session in sessions:
        codec, own, base = contexts.of(session)
        tower = _tower(session, codec, own, base, known)
        place = own.domain, session.name
        if (key := keys.get(place)) is None:  # ways of one session have one key
            key = keys[place] = session_key(*place)
        part = contexts.keys.part_key(own.domain, key, session.part) if session.part else 0
        drafts.append(PendingVersion(session, codec, tower, own, key, part))
    segments = list(known.values())
    _name(segments, contexts.keys)
    for d in drafts:
        if d.tower:
            d.leaf = d.tower[-1].id
    return drafts, segments


def _tower(
    session: NewSession,
    codec: SegmentCodec,
    own: Context,
    base: Context,
    known: dict[tuple[int, int, int], PendingSegment],
) -> list[PendingSegment]:
    """Return the segments of a session, not named yet."""
    tower: list[PendingSegment] = []
    up, shared = None, session.shared
    for number, tokens in enumerate(session.segments):
        context = base if number < shared else own
        place = id(context), id(up), id(tokens)
        segment = known.get(place)
        if segment is None:
            segment = known[place] = PendingSegment(context, codec, up, tokens)
        tower.append(segment)
        up = segment
    return tower


def _name(segments: Sequence[PendingSegment], keys: Encryption) -> None:
    """Name segments by their tokens, one level of all towers after the other. Raises ContentError.

    A name depends on the parent's name, so parents come first.
    """
    levels: dict[int, list[PendingSegment]] = {}
    for s in segments:
        tokens = s.tokens
        if type(tokens) is not np.ndarray or tokens.dtype != U32 or tokens.ndim != 1:
            narrow = type(tokens) is np.ndarray and tokens.dtype == np.uint8 and tokens.ndim == 1
            s.tokens = (tokens if narrow else ids.checked(tokens)).astype(U32)
        elif not tokens.flags.c_contiguous:
            s.tokens = tokens.copy()
        levels.setdefault(s.depth, []).append(s)
    for level in levels.values():
        known: dict[tuple[int, int], ids.Head] = {}  # by context and parent
        heads = []
        for s in level:
            place = id(s.context), id(s.up)
            head = known.get(place)
            if head is None:
                head = known[place] = keys.segment_head(s.context.domain, s.codec.tokenizer, s.parent)
            heads.append(head)
        for s, digest in zip(level, ids.digests(heads, [s.tokens for s in level]), strict=True):
            s.digest, s.id = digest, ids.segment_of(digest)


def session_rows(drafts: Sequence[PendingVersion], unwritten: dict[bytes, PendingSegment]) -> list[Row]:
    """Return the rows of the batch in tower order, parents first.

    A session goes into the record of its leaf where that is new. A new segment is counted for the first
    session that has it.
    """
    rows: list[Row] = []
    for d in drafts:
        leaf: PendingSegment | None = None
        for s in d.tower:
            if leaf:
                rows.append(leaf.row())
            if leaf := unwritten.pop(s.id, None):
                d.new += 1
                d.size += len(leaf.data)
        unnamed = d.kept or d.session.begins
        if leaf and (unnamed or leaf.context is not d.context):
            rows.append(leaf.row())
            leaf = None
        if unnamed:
            continue
        own = d.session
        about = pack_about(own.part, own.content, own.tags)
        fields: dict[str, Any] = {"name": own.name, "moment": d.moment, "time": d.time, "about": about, "part": d.part}
        rows.append(leaf.row(**fields) if leaf else (d.context, Record(0, parent=d.leaf, **fields)))
    return rows


class Contexts:
    """The contexts of a batch: one `Context` object for all sessions that share it."""

    def __init__(self, codecs: CodecRegistry, keys: Encryption):
        self.codecs, self.keys = codecs, keys
        self._domains: dict[tuple[int, str], Context] = {}
        self._known: dict[tuple[int, str, SegmentCodec, bytes | None, int], Context] = {}

    @property
    def domains(self) -> set[bytes]:
        """Return the ids of all domains used so far."""
        return {context.domain for context in self._domains.values()}

    def of(self, session: NewSession) -> tuple[SegmentCodec, Context, Context]:
        """Return the codec of a session, the context of it and its tenant's segments, and that of its shared segments.

        The codec is the one that it names, or the archive's first. Raises the errors of `Encryption.context`.
        """
        codec = self.codecs[0] if session.codec is None else session.codec
        own = self._context(TENANT, session.tenant, codec, session.target, kind_number(session.kind, session.writing))
        return codec, own, self._context(BASE, session.base, codec, None, kind_number("ids")) if session.shared else own

    def _context(self, kind: int, name: str, codec: SegmentCodec, target: bytes | None, session: int) -> Context:
        key = kind, name, codec, target, session
        if (known := self._known.get(key)) is None:
            if (domain := self._domains.get((kind, name))) is None:
                domain = self._domains[kind, name] = self.keys.context(kind, name)
            known = replace(
                domain,
                tokenizer=codec.tokenizer,
                bundle=codec.bundle_id,
                method=codec.method,
                target=target or NONE,
                kind=session,
            )
            self._known[key] = known
        return known


def batches(segments: Sequence[PendingSegment]) -> list[tuple[SegmentCodec, list[int]]]:
    """Return each codec with indexes of its segments, in batches that keep the codec busy and bound memory."""
    found = []
    for codec in {id(s.codec): s.codec for s in segments}.values():
        numbers = [n for n, s in enumerate(segments) if s.codec is codec]
        most = BATCH_BYTES if isinstance(codec, LogCodec) else BATCH_TOKENS
        ends = list(accumulate(len(segments[n].tokens) + segments[n].reached for n in numbers))
        begin = done = 0
        while begin < len(numbers):
            end = max(begin + 1, bisect_right(ends, done + most))
            found.append((codec, numbers[begin:end]))
            begin, done = end, ends[end - 1]
    return found

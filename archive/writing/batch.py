"""Batch: the sessions of one commit with their segments, each once and named by its tokens, before encoding.

    NewSession --draft--> PendingVersion: tower of PendingSegment, context --session_rows--> records, parents first

A session is stored in the record of its leaf where that is new and in the same context. Otherwise it has a
record of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from pltz.archive.catalog.chain import MAX_SEGMENTS
from pltz.archive.catalog.lookup import Version
from pltz.archive.encryption.keys import Encryption
from pltz.archive.errors import stays_erased
from pltz.archive.format import ids
from pltz.archive.format.ids import BASE, NO_SEGMENT, TENANT, U32
from pltz.archive.format.record import MAX_TIME, Context, Record, check_name, pack_about
from pltz.archive.writing.new_session import CommitReceipt, NewSession, Slices
from pltz.archive.writing.segments import Beginning, PendingSegment, Row
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import SegmentCodec, as_bytes
from pltz.coding.codecs.logs import LogCodec, method_of
from pltz.models.session.session import KINDS, kind_number
from pltz.plt_codec.errors import ContentError, LimitError, UsageError
from pltz.plt_codec.identity import NONE, SIZE
from pltz.plt_codec.limits import MAX_TOKENS

BATCH_TOKENS = 1 << 22  # tokens per call of a codec
BATCH_BYTES = 1 << 24  # the same of logs, whose tokens are bytes: processes split and join so many side by side


@dataclass(slots=True, eq=False)
class PendingVersion:
    """A session of the batch: its tower and the version to write.

    Attributes:
        codec: the codec of its segments.
        key, part: its key, and that of its part.
        leaf: id of the last segment, once it is named.
        moment, time: when it is put, in ticks, and its own time, in seconds, both since 1970.
        version: its number among the session's versions.
        kept: the last version, if it is the same.
        new: number of segments that this session is the first to have.
        size: bytes of their bitstrings.
    """

    session: NewSession
    codec: SegmentCodec
    tower: list[PendingSegment]
    context: Context
    key: bytes
    part: int
    leaf: bytes = NO_SEGMENT
    id: bytes = b""
    moment: int = 0
    time: int = 0
    version: int = 1
    kept: Version | None = None
    new: int = 0
    size: int = 0

    def receipt(self) -> CommitReceipt:
        """Return the receipt of the session."""
        s, unchanged = self.session, self.kept is not None
        begun = s.after or Beginning()
        tokens = begun.size + sum(len(segment.tokens) for segment in self.tower)
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
            segments=begun.count + len(self.tower),
            tokens=tokens,
            coded=[method_of(s.data) for s in self.tower if s.data and isinstance(self.codec, LogCodec)],
        )


def draft(sessions: Sequence[NewSession], contexts: Contexts) -> tuple[list[PendingVersion], list[PendingSegment]]:
    """Check sessions and name their segments; return the drafts and each segment once, parents first.

    Raises ContentError (StaysErased for a session that was erased), LimitError, UsageError.
    """
    _check(sessions, contexts.codecs)
    known: dict[tuple[int, int, int], PendingSegment] = {}  # many sessions share a prompt
    session_key = contexts.keys.session_key
    keys: dict[tuple[bytes, str], bytes] = {}
    drafts = []
    for session in sessions:
        codec, own, base = contexts.of(session)
        tower = _tower(session, codec, own, base, known)
        place = own.domain, session.name
        if (key := keys.get(place)) is None:  # parts of one session have one key
            if contexts.keys.cipher and is_erased(contexts.keys, *place, session.unerased):
                raise stays_erased(session.tenant, session.name)
            key = keys[place] = session_key(*place)
        part = contexts.keys.part_key(own.domain, key, session.part) if session.part else 0
        drafts.append(PendingVersion(session, codec, tower, own, key, part))
    segments = list(known.values())
    _name(segments, contexts.keys)
    for d in drafts:
        if last := d.tower[-1] if d.tower else _above(d.session):
            d.leaf = last.id
    return drafts, segments


def is_erased(keys: Encryption, domain: bytes, name: str, unerased: int | None = None) -> bool:
    """Return whether a session is to stay erased, or was erased after a moment, in ticks, itself or with its tenant."""
    return keys.buried(domain, name) if unerased is None else keys.erased_at(domain, name) > unerased


def _check(sessions: Sequence[NewSession], codecs: CodecRegistry) -> None:
    """Check that sessions can be put by these codecs. Raises ContentError, LimitError, UsageError."""
    for tenant, base, codec, kind, target in {(s.tenant, s.base, s.codec, s.kind, s.target) for s in sessions}:
        check_name(tenant)
        check_name(base)
        if codec is None and not codecs:
            raise UsageError("expected an archive with a codec to code sessions, found one without")
        if kind not in KINDS:
            raise UsageError(f"expected a kind among {', '.join(KINDS)}, got {kind!r}")
        if target is not None and len(target) != SIZE:
            raise UsageError(f"expected a target fingerprint of 16 bytes, got {len(target)}")
    for s in sessions:
        check_name(s.name)
        if not 0 <= s.shared <= len(s.segments):
            raise UsageError(f"{s.shared} shared of {len(s.segments)} segments: not valid")
        count = len(s.segments) + (s.after.count if s.after else 0)
        if count > MAX_SEGMENTS:
            raise ContentError(f"a tower has at most {MAX_SEGMENTS} segments, not {count}")
        if not isinstance(s.segments, Slices) and (tokens := sum(map(len, s.segments))) > MAX_TOKENS:
            raise LimitError(
                f"expected a session of at most {MAX_TOKENS} tokens, found {tokens} in {s.name!r}: split it"
            )
        if s.time is not None and not 0 <= s.time < MAX_TIME:
            raise UsageError(f"expected a time in seconds since 1970, got {s.time}")


def _tower(
    session: NewSession,
    codec: SegmentCodec,
    own: Context,
    base: Context,
    known: dict[tuple[int, int, int], PendingSegment],
) -> list[PendingSegment]:
    """Return the segments of a session, not named yet."""
    tower: list[PendingSegment] = []
    up, shared = _above(session), session.shared
    slices = session.segments if isinstance(session.segments, Slices) else None
    begin = slices.begin if slices else 0
    for number, tokens in enumerate(session.segments):
        context = base if number < shared else own
        place = id(context), id(up), id(tokens)
        segment = known.get(place)
        if segment is None:
            segment = known[place] = PendingSegment(context, codec, up, tokens)
            if slices and slices.seen:
                segment.recalled = slices.seen.recalled(as_bytes(tokens), begin, begin - segment.followed)
                segment.source = slices.seen.source
        begin += len(tokens)
        tower.append(segment)
        up = segment
    if session.begun:
        tower[0].begun = session.begun
    return tower


def _above(session: NewSession) -> PendingSegment | None:
    """Return the stored segment that those of a session stand below; None: they begin with a root."""
    return session.after.last if session.after else None


def _name(segments: Sequence[PendingSegment], keys: Encryption) -> None:
    """Name segments by their tokens, one level of all towers after the other. Raises ContentError.

    A name depends on the parent's name, so parents come first.
    """
    levels: dict[int, list[PendingSegment]] = {}
    for s in segments:
        tokens = s.tokens
        if type(tokens) is not np.ndarray or tokens.dtype not in (U32, np.uint8) or tokens.ndim != 1:
            s.tokens = ids.checked(tokens).astype(U32)
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
                parent = s.up.id if s.up else NO_SEGMENT
                head = known[place] = keys.segment_head(s.context.domain, s.codec.tokenizer, parent)
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
        content = own.content() if callable(own.content) else own.content
        about = pack_about(own.part, content, own.tags)
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
        most = BATCH_BYTES * codec.weight if isinstance(codec, LogCodec) else BATCH_TOKENS
        # a segment reaches as many tokens above it as its codec does, at most
        ends = list(accumulate(len(segments[n].tokens) + bool(segments[n].up) * codec.reach for n in numbers))
        begin = done = 0
        while begin < len(numbers):
            end = max(begin + 1, bisect_right(ends, done + most))
            found.append((codec, numbers[begin:end]))
            begin, done = end, ends[end - 1]
    return found

"""Put: sessions to packs, with group commit. Spec: FORMAT.md, "Put".

    NewSession --ids--> which segments are new --encode--> pack in memory --parse, decode, compare--> put --plans?--> Receipt

One call is one commit (or several packs, where it is large). What is known already is relied on only after its record was decoded and
compared, and only where no plan condemns its pack. After the packs are in place the plans are read again: a collector may have
condemned what was relied on, and then it is put again, before anything is acknowledged.

A crash leaves all sessions of a pack or none of them; see the table in FORMAT.md.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from pltz.archive import identity
from pltz.archive.chain import MAX_SEGMENTS, NOTHING
from pltz.archive.codec import Coded, Plain, SegmentCodec, codec_of
from pltz.archive.errors import ArchiveError, Fenced, StoreError
from pltz.archive.identity import BASE, NONE, TENANT, Tokens
from pltz.archive.index import SEGMENTS, SESSIONS, Location
from pltz.archive.keys import Keys
from pltz.archive.pack import FOOTER, MANY_CHILDREN, TOWER, Builder, Context, Damage, Pack
from pltz.archive.parity import Parity, Range
from pltz.archive.record import FORGET, MAX_NAME, Mark, Record, pack_labels
from pltz.archive.view import Found, Version, View
from pltz.plt_codec.errors import ContentError, CorruptError, PltzError, UsageError

KINDS = ("chat", "text", "ids")
BATCH_TOKENS = 1 << 22  # handed to a codec at once
COMPARED = 1 << 16  # tokens compared at once
PROVED = 1 << 18  # segments remembered as decoded and compared


@dataclass(frozen=True)
class NewSession:
    """A session to freeze.

    ``segments``: token ids from the root to the leaf, each (T,); none is a session without tokens. ``shared``: how many of them, from the
    root, belong to the domain ``base`` rather than to the tenant's: prompts that many tenants have. ``time``: seconds since
    1970, None is now. ``target``: fingerprint of the weights it was made with. ``codec``: number of the archive's codec.
    """

    name: str
    segments: Sequence[Tokens]
    tenant: str = "default"
    shared: int = 0
    base: str = "base"
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: str = "ids"
    target: bytes | None = None
    time: int | None = None
    codec: int = 0


class Receipt(NamedTuple):
    """What a put did. ``new``: segments that were not there; ``size``: bytes of their bitstrings; ``unchanged``: the session's
    last version is the same, so none was added."""

    tenant: str
    name: str
    version: bytes
    number: int
    leaf: bytes
    new: int
    size: int
    unchanged: bool


@dataclass(slots=True, eq=False)
class _Segment:
    """A segment of the batch: its context, place and tokens; ``data``, and the context's mode, once it is encoded. ``digest`` begins
    with its id; ``up``: the segment above; ``own``: its context of mode ALONE, one object for all that share it."""

    id: bytes
    digest: bytes
    parent: bytes
    context: Context
    codec: SegmentCodec
    tokens: Tokens
    up: _Segment | None
    own: Context
    data: bytes = b""

    def above(self, reach: int) -> Tokens:
        """The last ``reach`` tokens above it, (m,)."""
        parts: list[Tokens] = []
        at = self.up
        while at is not None and reach > 0:
            parts.append(at.tokens[-reach:])
            reach -= len(parts[-1])
            at = at.up
        return np.concatenate([NOTHING, *parts[::-1]])


@dataclass(slots=True, eq=False)
class _Draft:
    """A session of the batch: its tower, and the version to write. ``kept``: the last version, where it is the same."""

    session: NewSession
    tower: list[_Segment]
    context: Context
    key: bytes
    labels: bytes
    time: int
    number: int = 1
    version: bytes = b""
    kept: Version | None = None

    @property
    def leaf(self) -> bytes:
        return self.tower[-1].id if self.tower else NONE


class Writer:
    """Puts sessions and marks. One a process is enough; several processes need not know of each other."""

    def __init__(self, view: View, codecs: Sequence[SegmentCodec], parity: tuple[int, int] = (0, 0)):
        self.view, self.codecs, self.parity = view, codecs, parity
        self._proved: dict[bytes, tuple[Location, bytes]] = {}  # and the segment's digest

    def put(self, sessions: Sequence[NewSession]) -> list[Receipt]:
        """Freeze sessions; a receipt each, once all are durable. See `Archive.put`."""
        with _no_sweeps():
            return self._put(sessions)

    def _put(self, sessions: Sequence[NewSession]) -> list[Receipt]:
        drafts = self._drafts(sessions)
        fresh, relied = self._sort_out(drafts)
        self._encode(list(fresh.values()))
        self._number(drafts)
        receipts = _receipts(drafts, fresh)
        self._publish(self._sealed(_session_records(drafts, dict(fresh))), fresh)
        if relied:  # another writer may stand between its link and its sync
            self.view.store.settle("packs")
        self.view.keys.check({c.domain for d in drafts for c in (d.context, *(s.context for s in d.tower))})
        self._fence(drafts, relied)
        return receipts

    def mark(self, versions: Sequence[Version], verb: int) -> None:
        """Forget or restore versions; restoring copies what lies only in condemned packs, since that may go any moment."""
        tenant = {v.location: self.view.at(v.location) for v in versions}
        rows: list[tuple[Context, Record]] = []
        copied: set[bytes] = set()
        for v in versions:
            item = tenant[v.location]
            if verb != FORGET:
                rows += self._rescued(item, copied)
            counter = self.view.state(v.id)[1] + 1
            rows.append((item.context, Record(0, mark=Mark(v.id, counter, verb))))
        before = self.view.epoch
        self._publish(iter(rows), {})
        if verb != FORGET and (lost := self.view.read_plans()):
            self._check_plans(before)
            if any(at.pack in lost for v in versions for at in self._places(v)):
                self.mark(versions, verb)

    def copy(self, rows: Iterable[tuple[Context, Record]]) -> None:
        """Put records as they are (for the collector)."""
        self._publish(iter(rows), {})

    def _drafts(self, sessions: Sequence[NewSession]) -> list[_Draft]:
        """Check sessions and name their segments. Raises ContentError, UsageError."""
        now = self.view.store.now()
        times = [self._checked(session, now) for session in sessions]
        distinct = {id(tokens): tokens for session in sessions for tokens in session.segments}
        rows = dict(zip(distinct, identity.checked_rows(list(distinct.values())), strict=True))
        contexts = _Contexts(self.codecs, self.view.keys)
        known: dict[tuple[int, bytes, int], _Segment] = {}  # many sessions hand over one prompt
        drafts = []
        for session, time in zip(sessions, times, strict=True):
            context = contexts.own(session)
            tower = self._tower(session, context, contexts, rows, known)
            key = self.view.keys.session_key(context.domain, session.name)
            drafts.append(_Draft(session, tower, context, key, pack_labels(session.labels), time))
        return drafts

    def _checked(self, session: NewSession, now: int) -> int:
        """The session's time. Raises ContentError, UsageError."""
        if not 0 <= session.codec < len(self.codecs):
            raise UsageError(
                f"expected one of the archive's {len(self.codecs)} codecs, got number {session.codec}"
            )
        if not 0 <= session.shared <= len(session.segments) or session.kind not in KINDS:
            raise UsageError(
                f"{session.shared} shared of {len(session.segments)} segments, kind {session.kind!r}: not valid"
            )
        if len(session.segments) > MAX_SEGMENTS:
            raise ContentError(f"a tower has at most {MAX_SEGMENTS} segments, not {len(session.segments)}")
        for name in (session.name, session.tenant, session.base):
            if len(name) > MAX_NAME or not name.isascii():
                _check_name(name)
        if session.target is not None and len(session.target) != identity.SIZE:
            raise UsageError(f"expected a target fingerprint of 16 bytes, got {len(session.target)}")
        time = now if session.time is None else session.time
        if not 0 <= time < 1 << 40:
            raise UsageError(f"expected a time in seconds since 1970, got {time}")
        return time

    def _tower(
        self,
        session: NewSession,
        own: Context,
        contexts: _Contexts,
        rows: Mapping[int, Tokens],
        known: dict[tuple[int, bytes, int], _Segment],
    ) -> list[_Segment]:
        """The segments of a session, named."""
        codec = self.codecs[session.codec]
        base = contexts.base(session) if session.shared else own
        tokens = [rows[id(ids)] for ids in session.segments]
        tower: list[_Segment] = []
        parent, up = NONE, None
        for number, ids in enumerate(tokens):
            context = base if number < session.shared else own
            place = id(context), parent, id(ids)
            segment = known.get(place)
            if segment is None:
                digest = self.view.keys.segment_digest(context.domain, codec.tokenizer, parent, ids)
                segment = _Segment(digest[: identity.SIZE], digest, parent, context, codec, ids, up, context)
                known[place] = segment
            tower.append(segment)
            parent, up = segment.id, segment
        return tower

    def _sort_out(self, drafts: list[_Draft]) -> tuple[dict[bytes, _Segment], dict[bytes, Location]]:
        """(segments to write, stored segments relied on). Raises CorruptError where two segments have one id."""
        segments: dict[bytes, _Segment] = {}
        for draft in drafts:
            for segment in draft.tower:
                if segments.setdefault(segment.id, segment).digest != segment.digest:
                    raise _collision(segment.id)
        stored = self.view.known(SEGMENTS, list(segments))
        relied = {
            s.id: location
            for s in segments.values()
            if s.id in stored and (location := self._prove(s)) is not None
        }
        return {i: s for i, s in segments.items() if i not in relied}, relied

    def _prove(self, segment: _Segment) -> Location | None:
        """Where a segment is stored such that it decodes to these tokens; None: nowhere that may be relied on."""
        if known := self._proved.get(segment.id):
            location, digest = known
            if digest != segment.digest:
                raise _collision(segment.id)
            stays = location.pack in self.view.packs and location.pack not in self.view.condemned
            if stays and not (self.view.keys.cipher and self._going(self.view.at(location), segment.id)):
                return location
        for item in self.view.find(SEGMENTS, segment.id):
            codec = codec_of(self.codecs, item.context)
            if item.location.pack in self.view.condemned or codec is None or self._going(item, segment.id):
                continue
            try:
                tokens = codec.decode([_coded(self.view.keys, item, segment, codec)])[0]
            except (PltzError, FileNotFoundError) as exc:
                self.view.problem("record", f"{item.location.pack.hex()} at {item.location.offset}", str(exc))
                continue
            if not np.array_equal(tokens, segment.tokens):
                name = self.view.keys.segment_digest(
                    segment.context.domain, segment.codec.tokenizer, segment.parent, tokens
                )
                if name[: identity.SIZE] == segment.id:
                    raise _collision(segment.id)
                self.view.problem(
                    "record",
                    f"{item.location.pack.hex()} at {item.location.offset}",
                    "decodes to other tokens than its id says",
                )
                continue
            self._remember([(segment, item.location)])
            return item.location
        return None

    def _going(self, item: Found, segment: bytes) -> bool:
        """Whether a segment was erased, or is being erased: it is not relied on."""
        keys = self.view.keys
        return keys.gone(item.context, segment) or keys.doomed(item.context, segment)

    def _sealed(self, rows: Iterator[tuple[Context, Record]]) -> Iterator[tuple[Context, Record]]:
        keys = self.view.keys
        return ((context, keys.seal(context, record)) for context, record in rows) if keys.cipher else rows

    def _encode(self, segments: list[_Segment]) -> None:
        """After the tower, or alone where that is no longer: a prompt may say nothing of what follows, and alone is read faster."""
        towers: dict[int, Context] = {}
        for codec, batch in _batches(segments):
            for segment, data in zip(
                batch, codec.encode([Plain(s.tokens, NOTHING) for s in batch]), strict=True
            ):
                segment.data, segment.context = data, segment.own
            if not codec.reach:
                continue
            plain = [(s, Plain(s.tokens, s.above(codec.reach))) for s in batch if s.up]
            below = [(s, p) for s, p in plain if len(p.above) and len(p.tokens)]
            for (segment, _), data in zip(below, codec.encode([p for _, p in below]), strict=True):
                if len(data) < len(segment.data):
                    own = segment.own
                    tower = towers.setdefault(id(own), replace(own, mode=TOWER))
                    segment.data, segment.context = data, tower

    def _number(self, drafts: list[_Draft]) -> None:
        """Give each session its version number, or find that its last version is the same."""
        latest: dict[bytes, _Draft] = {}
        stored = self.view.known(SESSIONS, [d.key for d in drafts])
        marked = self.view.marked()
        for d in drafts:
            if d.key in latest:
                d.number = latest[d.key].number + 1
            elif d.key in stored:
                known = self.view.versions(d.context.domain, d.session.name)
                d.number = max((v.number for v in known), default=0) + 1
                staying = [v for v in known if not v.forgotten]
                if staying and self._same(staying[-1], d):
                    d.kept, d.number = staying[-1], staying[-1].number
            latest[d.key] = d
            d.version = d.kept.id if d.kept else identity.version_id(d.key, d.number, d.leaf, d.time)
            while marked and not d.kept and self.view.state(d.version)[0] == FORGET:
                d.number += 1
                d.version = identity.version_id(d.key, d.number, d.leaf, d.time)

    def _same(self, version: Version, draft: _Draft) -> bool:
        """Whether a put would add nothing to the last version. One in a condemned pack is not relied on."""
        c = draft.context
        return (
            (version.leaf, version.kind, version.target) == (draft.leaf, c.kind, c.target)
            and pack_labels(version.labels) == draft.labels
            and version.location.pack not in self.view.condemned
            and draft.session.time in (None, version.time)
        )

    def _publish(self, rows: Iterator[tuple[Context, Record]], fresh: dict[bytes, _Segment]) -> None:
        """Lay out packs, prove them and put them."""
        rest = list(rows)
        done = 0
        while done < len(rest):
            times = [r.time for _, r in rest[done:] if r.name is not None]
            builder = Builder(
                self.view.epoch, min(times, default=self.view.store.now()), self.view.store.random(16)
            )
            numbers: dict[int, int] = {}  # by object: equal contexts are looked for only once
            for context, record in rest[done:]:
                if builder.full:
                    break
                if (number := numbers.get(id(context))) is None:
                    number = numbers[id(context)] = builder.context(context)
                builder.add(record._replace(context=number) if number != record.context else record)
            done += len(builder)
            data = builder.finish()
            found = self._parsed(data, builder.records)
            self._prove_decoding([s for r in builder.records if (s := fresh.get(r.id or NONE))], found)
            self._put_pack(data, found)
            self._put_parity(data, found)
            self._remember([(s, item.location) for item in found if (s := fresh.get(item.record.id or NONE))])

    def _parsed(self, data: bytes, wanted: Sequence[Record]) -> list[Found]:
        """Read the pack as a reader would: every record must be what was put into it."""
        pack, name = Pack.of(data), _pack_name(data)
        contexts, found = pack.head.contexts, list[Found]()
        for item, record in zip_longest(pack.scan(), wanted):
            if item is None or isinstance(item, Damage) or item[1] != record:
                raise ArchiveError("the pack just laid out does not read back: nothing was written")
            found.append(Found(Location(name, item[0]), item[1], contexts[item[1].context]))
        return found

    def _prove_decoding(self, segments: list[_Segment], found: list[Found]) -> None:
        """Decode every new segment from the pack's bytes and compare, before a byte is written."""
        written, keys = {f.record.id: f for f in found}, self.view.keys
        for codec, batch in _batches(segments):
            coded = [_coded(keys, written[s.id], s, codec) for s in batch]
            if not _equal(codec.decode(coded), [s.tokens for s in batch]):
                raise ArchiveError(
                    "a segment just encoded does not decode to its tokens: nothing was written"
                )

    def _put_pack(self, data: bytes, found: list[Found]) -> None:
        name = _pack_name(data)
        if not self.view.store.put(f"packs/{name.hex()}", data):
            raise StoreError(
                f"packs/{name.hex()} holds other bytes than its name says: nothing was acknowledged"
            )
        self.view.add_pack(name, len(data), found)

    def _put_parity(self, data: bytes, found: list[Found]) -> None:
        """After the pack, so that parity never stands for a pack that was not there; see FORMAT.md.

        Where there is no room for it the pack is durable all the same, so it is acknowledged, and `repair` tries again.
        """
        if not self.parity[0]:
            return
        name = _pack_name(data)
        parity = Parity.of(name, data, shared_ranges(found, Pack.of(data).end), self.parity)
        try:
            self.view.store.put(f"parity/{name.hex()}", parity.encode())
            if not self._there(f"packs/{name.hex()}"):  # collected while this writer stood still
                self.view.store.delete(f"parity/{name.hex()}")
        except StoreError as exc:
            self.view.problem("parity", name.hex(), f"{exc}: this pack has no parity until repair writes it")

    def _there(self, name: str) -> bool:
        try:
            self.view.store.read(name, 0, 1)
        except FileNotFoundError:
            return False
        return True

    def _fence(self, drafts: list[_Draft], relied: dict[bytes, Location]) -> None:
        """Step 7: put again what was relied on and is condemned now. Raises Fenced."""
        segments = {s.id: s for d in drafts for s in d.tower}
        while True:
            before = self.view.epoch
            condemned = self.view.read_plans()
            if not condemned:
                return
            self._check_plans(before)
            again = {i: segments[i] for i, at in relied.items() if at.pack in condemned}
            relied = {i: at for i, at in relied.items() if i not in again}
            self._encode(list(again.values()))
            self._publish(self._sealed((s.context, _segment_record(s)) for s in again.values()), again)

    def _check_plans(self, before: int) -> None:
        """Raises Fenced where the plan after the one known is gone: what it condemned cannot be known."""
        if not self.view.has_plan(before + 1):
            raise Fenced(
                f"the plan of epoch {before + 1} is gone, so what it condemned is not known: nothing was acknowledged, put again"
            )

    def _rescued(self, item: Found, copied: set[bytes]) -> Iterator[tuple[Context, Record]]:
        """Records of a version and its tower that lie only in condemned packs, parents first."""
        chain: list[Found] = []
        leaf = item.record.leaf
        while leaf != NONE and len(chain) < MAX_SEGMENTS:
            places = self.view.find(SEGMENTS, leaf)
            if not places:
                raise ArchiveError("a segment of this version is already gone: it cannot be restored")
            if all(p.location.pack in self.view.condemned for p in places) and leaf not in copied:
                chain.append(places[0])
            copied.add(leaf)
            leaf = places[0].record.parent
        for found in reversed(chain):
            yield found.context, segment_only(found.record)
        if item.location.pack in self.view.condemned:
            yield item.context, session_only(item.record)

    def _places(self, version: Version) -> Iterator[Location]:
        item = self.view.at(version.location)
        yield item.location
        leaf = item.record.leaf
        for _ in range(MAX_SEGMENTS):
            places = self.view.find(SEGMENTS, leaf) if leaf != NONE else []
            if not places:
                return
            yield from (p.location for p in places)
            leaf = places[0].record.parent

    def _remember(self, segments: Iterable[tuple[_Segment, Location]]) -> None:
        if len(self._proved) >= PROVED:
            self._proved.clear()
        self._proved.update((s.id, (location, s.digest)) for s, location in segments)


@contextmanager
def _no_sweeps() -> Iterator[None]:
    """A put makes many objects and no cycles of them: looking for some again and again takes a fifth of its time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def segment_only(record: Record) -> Record:
    """The segment of a record without its session."""
    return Record(0, record.parent, record.id, record.tokens, record.bitstring)


def session_only(record: Record) -> Record:
    """The session of a record, its segment named as parent."""
    return Record(
        0,
        record.leaf,
        name=record.name,
        number=record.number,
        time=record.time,
        labels=record.labels,
        veil=record.veil,
    )


def shared_ranges(found: Sequence[Found], end: int) -> Iterator[Range]:
    """Where in a pack the segments lie that many sessions depend on, and what it takes to read them: header and table.

    ``found``: all records of the pack in order; ``end``: behind the last.
    """
    children = Counter(f.record.parent for f in found)
    ends = [*(f.location.offset for f in found[1:]), end]
    first = True
    for item, behind in zip(found, ends, strict=True):
        segment = item.record.id
        many = item.context.domain_kind == BASE or children[segment or NONE] >= MANY_CHILDREN
        if segment is not None and many:
            if first:
                yield Range(0, found[0].location.offset)
            first = False
            yield Range(item.location.offset, behind - item.location.offset)


def _session_records(
    drafts: list[_Draft], unwritten: dict[bytes, _Segment]
) -> Iterator[tuple[Context, Record]]:
    """Records of the batch in tower order; a session shares the record of its leaf where that is new."""
    for d in drafts:
        for segment in d.tower[:-1]:
            if unwritten.pop(segment.id, None):
                yield segment.context, _segment_record(segment)
        leaf = unwritten.pop(d.leaf, None) if d.tower else None
        if leaf and (d.kept or leaf.own is not d.context):
            yield leaf.context, _segment_record(leaf)
            leaf = None
        if not d.kept:
            session = d.session.name, d.number, d.time, d.labels
            if leaf:
                yield (
                    leaf.context,
                    Record(0, leaf.parent, leaf.id, len(leaf.tokens), leaf.data, *session),
                )
            else:
                yield d.context, Record(0, d.leaf, None, 0, b"", *session)


def _coded(keys: Keys, item: Found, segment: _Segment, codec: SegmentCodec) -> Coded:
    """A record as it is decoded, what stands above it being that of a segment in hand."""
    above = segment.above(codec.reach) if item.context.mode else NOTHING
    return Coded(keys.bits(item.context, item.record), item.record.tokens, above)


def _segment_record(segment: _Segment) -> Record:
    return Record(0, segment.parent, segment.id, len(segment.tokens), segment.data)


def _receipts(drafts: list[_Draft], fresh: dict[bytes, _Segment]) -> list[Receipt]:
    """A new segment is counted for the first session that has it."""
    uncounted, receipts = set(fresh), list[Receipt]()
    for d in drafts:
        new = size = 0
        for segment in d.tower:
            if segment.id in uncounted:
                uncounted.discard(segment.id)
                new += 1
                size += len(segment.data)
        s = d.session
        receipts.append(Receipt(s.tenant, s.name, d.version, d.number, d.leaf, new, size, d.kept is not None))
    return receipts


class _Contexts:
    """One `Context` object for all sessions of a batch that share it."""

    def __init__(self, codecs: Sequence[SegmentCodec], keys: Keys):
        self.codecs, self.keys = codecs, keys
        self._known: dict[tuple[int, str, int, bytes | None, str], Context] = {}

    def own(self, session: NewSession) -> Context:
        """Of a session and its tenant's segments."""
        return self._context(TENANT, session.tenant, session.codec, session.target, session.kind)

    def base(self, session: NewSession) -> Context:
        """Of its shared segments."""
        return self._context(BASE, session.base, session.codec, None, "ids")

    def _context(self, kind: int, name: str, codec: int, target: bytes | None, session: str) -> Context:
        key = kind, name, codec, target, session
        if (known := self._known.get(key)) is None:
            c, domain = self.codecs[codec], self.keys.context(kind, name)
            known = replace(
                domain,
                tokenizer=c.tokenizer,
                bundle=c.bundle_id,
                contract=c.contract,
                target=target or NONE,
                kind=KINDS.index(session),
            )
            self._known[key] = known
        return known


def _equal(found: Sequence[Tokens], wanted: Sequence[Tokens]) -> bool:
    """Whether all rows are equal, compared as one."""
    if [len(row) for row in found] != [len(row) for row in wanted]:
        return False
    begin = 0
    while begin < len(found):  # some at a time: what fits a cache is compared several times as fast
        end, size = begin, 0
        while end < len(found) and size < COMPARED:
            size += len(found[end])
            end += 1
        if not np.array_equal(np.concatenate(found[begin:end]), np.concatenate(wanted[begin:end])):
            return False
        begin = end
    return True


def _batches(segments: list[_Segment]) -> Iterator[tuple[SegmentCodec, list[_Segment]]]:
    """Segments of one codec, so many that a codec is busy and memory is bounded."""
    by_codec: dict[int, list[_Segment]] = {}
    codecs = {id(s.codec): s.codec for s in segments}
    for s in segments:
        by_codec.setdefault(id(s.codec), []).append(s)
    for number, rows in by_codec.items():
        batch: list[_Segment] = []
        total = 0
        for s in rows:
            size = len(s.tokens) + s.codec.reach
            if batch and total + size > BATCH_TOKENS:
                yield codecs[number], batch
                batch, total = [], 0
            batch.append(s)
            total += size
        yield codecs[number], batch


def _check_name(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise ContentError("a name is not valid Unicode (a lone surrogate)") from exc
    if size > MAX_NAME:
        raise ContentError(f"a name has {size} bytes, at most {MAX_NAME} are allowed")


def _pack_name(data: bytes) -> bytes:
    return data[12 - FOOTER.size : 28 - FOOTER.size]


def _collision(segment: bytes) -> CorruptError:
    return CorruptError(
        f"two different segments have the id {segment.hex()}: this content is crafted, and refused"
    )

"""Put: sessions to packs, with group commit. Spec: FORMAT.md, "Put".

    NewSession --ids--> which segments are new --encode--> pack in memory --parse, decode, compare--> put --plans?--> Receipt

One call is one commit (or several packs, where it is large). What is known already is relied on only after its record was decoded and
compared, and only where no plan condemns its pack. After the packs are in place the plans are read again: a collector may have
condemned what was relied on, and then it is put again, before anything is acknowledged.

A crash leaves all sessions of a pack or none of them; see the table in FORMAT.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pltz.archive import identity
from pltz.archive.chain import MAX_SEGMENTS, NOTHING
from pltz.archive.codec import Coded, Plain, SegmentCodec, codec_of
from pltz.archive.errors import ArchiveError, Fenced
from pltz.archive.identity import BASE, NONE, TENANT, Tokens
from pltz.archive.index import SEGMENTS, Location
from pltz.archive.pack import ALONE, FOOTER, TOWER, Builder, Context, Damage, Pack
from pltz.archive.record import FORGET, MAX_NAME, Mark, Record, pack_labels
from pltz.archive.view import Found, Version, View
from pltz.plt_codec.errors import ContentError, CorruptError, PltzError, UsageError

KINDS = ("chat", "text", "ids")
BATCH_TOKENS = 1 << 22  # handed to a codec at once
PROVED = 1 << 20  # segments remembered as decoded and compared


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


@dataclass(frozen=True)
class Receipt:
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


@dataclass
class _Segment:
    """A segment of the batch: its context, place and tokens; ``data``, and the context's mode, once it is encoded."""

    id: bytes
    parent: bytes
    context: Context
    codec: SegmentCodec
    tokens: Tokens
    up: _Segment | None = field(repr=False, compare=False)
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


@dataclass
class _Draft:
    """A session of the batch: its tower, and the version to write (None: the last one is the same)."""

    session: NewSession
    tower: list[_Segment]
    context: Context
    labels: bytes
    version: Version | None = None
    number: int = 1
    time: int = 0

    @property
    def leaf(self) -> bytes:
        return self.tower[-1].id if self.tower else NONE


class Writer:
    """Puts sessions and marks. One a process is enough; several processes need not know of each other."""

    def __init__(self, view: View, codecs: Sequence[SegmentCodec]):
        self.view, self.codecs = view, codecs
        self._proved: dict[bytes, tuple[Location, bytes]] = {}  # and the digest of the tokens

    def put(self, sessions: Sequence[NewSession]) -> list[Receipt]:
        """Freeze sessions; a receipt each, once all are durable. See `Archive.put`."""
        now = self.view.store.now()
        drafts = [self._draft(s, now) for s in sessions]
        fresh, relied = self._sort_out(drafts)
        self._encode(list(fresh.values()))
        self._number(drafts)
        unwritten = dict(fresh)
        self._publish(_session_records(drafts, unwritten), fresh)
        if relied:  # another writer may stand between its link and its sync
            self.view.store.settle("packs")
        self._fence(drafts, relied)
        return [_receipt(d, fresh) for d in drafts]

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

    def _draft(self, session: NewSession, now: int) -> _Draft:
        """Check a session and name its segments. Raises ContentError, UsageError."""
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
            _check_name(name)
        if session.target is not None and len(session.target) != identity.SIZE:
            raise UsageError(f"expected a target fingerprint of 16 bytes, got {len(session.target)}")
        time = now if session.time is None else session.time
        if not 0 <= time < 1 << 40:
            raise UsageError(f"expected a time in seconds since 1970, got {time}")
        codec = self.codecs[session.codec]
        target, kind = session.target or NONE, KINDS.index(session.kind)
        own = _context(TENANT, session.tenant, codec, target, kind)
        base = _context(BASE, session.base, codec)
        tower: list[_Segment] = []
        parent, up = NONE, None
        for number, ids in enumerate(session.segments):
            tokens = identity.checked(ids)
            context = base if number < session.shared else own
            segment = identity.segment_id(context.domain, codec.tokenizer, parent, tokens)
            up = _Segment(segment, parent, context, codec, tokens, up)
            tower.append(up)
            parent = segment
        return _Draft(session, tower, own, pack_labels(session.labels), time=time)

    def _sort_out(self, drafts: list[_Draft]) -> tuple[dict[bytes, _Segment], dict[bytes, Location]]:
        """(segments to write, stored segments relied on). Raises ContentError where two segments have one id."""
        fresh: dict[bytes, _Segment] = {}
        relied: dict[bytes, Location] = {}
        for draft in drafts:
            for segment in draft.tower:
                if segment.id in fresh:
                    if not np.array_equal(fresh[segment.id].tokens, segment.tokens):
                        raise _collision(segment.id)
                elif segment.id not in relied:
                    location = self._prove(segment)
                    if location is None:
                        fresh[segment.id] = segment
                    else:
                        relied[segment.id] = location
        return fresh, relied

    def _prove(self, segment: _Segment) -> Location | None:
        """Where a segment is stored such that it decodes to these tokens; None: nowhere that may be relied on."""
        if known := self._proved.get(segment.id):
            location, tokens_digest = known
            if tokens_digest != identity.tokens_digest(segment.tokens):
                raise _collision(segment.id)
            if location.pack in self.view.packs and location.pack not in self.view.condemned:
                return location
        for item in self.view.find(SEGMENTS, segment.id):
            codec = codec_of(self.codecs, item.context)
            if item.location.pack in self.view.condemned or codec is None:
                continue
            try:
                tokens = codec.decode([_coded(item, segment, codec)])[0]
            except (PltzError, FileNotFoundError) as exc:
                self.view.problem("record", f"{item.location.pack.hex()} at {item.location.offset}", str(exc))
                continue
            if not np.array_equal(tokens, segment.tokens):
                name = identity.segment_id(
                    segment.context.domain, segment.codec.tokenizer, segment.parent, tokens
                )
                if name == segment.id:
                    raise _collision(segment.id)
                self.view.problem(
                    "record",
                    f"{item.location.pack.hex()} at {item.location.offset}",
                    "decodes to other tokens than its id says",
                )
                continue
            self._remember(segment, item.location)
            return item.location
        return None

    def _encode(self, segments: list[_Segment]) -> None:
        """After the tower, or alone where that is no longer: a prompt may say nothing of what follows, and alone is read faster."""
        for codec, batch in _batches(segments):
            for segment, data in zip(
                batch, codec.encode([Plain(s.tokens, NOTHING) for s in batch]), strict=True
            ):
                segment.data, segment.context = data, replace(segment.context, mode=ALONE)
            plain = [(s, Plain(s.tokens, s.above(codec.reach))) for s in batch]
            below = [(s, p) for s, p in plain if len(p.above) and len(p.tokens)]
            for (segment, _), data in zip(below, codec.encode([p for _, p in below]), strict=True):
                if len(data) < len(segment.data):
                    segment.data, segment.context = data, replace(segment.context, mode=TOWER)

    def _number(self, drafts: list[_Draft]) -> None:
        """Give each session its version number, or find that its last version is the same."""
        latest: dict[tuple[bytes, str], _Draft] = {}
        for d in drafts:
            key = d.context.domain, d.session.name
            if key in latest:
                d.number = latest[key].number + 1
            else:
                known = self.view.versions(d.context.domain, d.session.name)
                d.number = max((v.number for v in known), default=0) + 1
                staying = [v for v in known if not v.forgotten]
                if staying and self._same(staying[-1], d):
                    d.version, d.number = staying[-1], staying[-1].number
            if d.version is None:
                skey = identity.session_key(*key)
                while self.view.state(identity.version_id(skey, d.number, d.leaf, d.time))[0] == FORGET:
                    d.number += 1
            latest[key] = d

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
        while rest:
            base = min((r.time for _, r in rest if r.name is not None), default=self.view.store.now())
            builder = Builder(self.view.epoch, base, self.view.store.random(16))
            taken = 0
            for context, record in rest:
                if builder.full:
                    break
                builder.add(record.in_context(builder.context(context)))
                taken += 1
            rest = rest[taken:]
            data = builder.finish()
            found = self._parsed(data, len(builder), fresh)
            self._put_pack(data, found)
            for item in found:
                if segment := fresh.get(item.record.id or NONE):
                    self._remember(segment, item.location)

    def _parsed(self, data: bytes, count: int, fresh: dict[bytes, _Segment]) -> list[Found]:
        """Read the pack as a reader would, decode every new segment and compare, before a byte is written."""
        pack, name = Pack.of(data), _pack_name(data)
        found: list[Found] = []
        for item in pack.scan():
            if isinstance(item, Damage):
                raise ArchiveError(
                    f"the pack just laid out does not read back ({item.why}): nothing was written"
                )
            found.append(Found(Location(name, item[0]), item[1], pack.head.contexts[item[1].context]))
        if len(found) != count:
            raise ArchiveError(f"{count} records were laid out, {len(found)} read back: nothing was written")
        written = {f.record.id: f for f in found if f.record.id in fresh}
        for codec, batch in _batches([fresh[i] for i in written if i is not None]):
            coded = [_coded(written[s.id], s, codec) for s in batch]
            for segment, tokens in zip(batch, codec.decode(coded), strict=True):
                if (
                    not np.array_equal(tokens, segment.tokens)
                    or written[segment.id].record.parent != segment.parent
                ):
                    raise ArchiveError(
                        "a segment just encoded does not decode to its tokens: nothing was written"
                    )
        return found

    def _put_pack(self, data: bytes, found: list[Found]) -> None:
        name = _pack_name(data)
        self.view.store.put(f"packs/{name.hex()}", data)
        self.view.add_pack(name, len(data), found)

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
            self._publish(((s.context, _segment_record(s)) for s in again.values()), again)

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

    def _remember(self, segment: _Segment, location: Location) -> None:
        if len(self._proved) >= PROVED:
            self._proved.clear()
        self._proved[segment.id] = location, identity.tokens_digest(segment.tokens)


def segment_only(record: Record) -> Record:
    """The segment of a record without its session."""
    return Record(0, record.parent, record.id, record.tokens, record.bitstring)


def session_only(record: Record) -> Record:
    """The session of a record, its segment named as parent."""
    return Record(
        0, record.leaf, name=record.name, number=record.number, time=record.time, labels=record.labels
    )


def _session_records(
    drafts: list[_Draft], unwritten: dict[bytes, _Segment]
) -> Iterator[tuple[Context, Record]]:
    """Records of the batch in tower order; a session shares the record of its leaf where that is new."""
    for d in drafts:
        for segment in d.tower[:-1]:
            if unwritten.pop(segment.id, None):
                yield segment.context, _segment_record(segment)
        leaf = unwritten.pop(d.leaf, None) if d.tower else None
        if leaf and (d.version is not None or replace(leaf.context, mode=ALONE) != d.context):
            yield leaf.context, _segment_record(leaf)
            leaf = None
        if d.version is None:
            r = _segment_record(leaf) if leaf else Record(0, d.leaf)
            name = d.session.name
            yield (
                leaf.context if leaf else d.context,
                Record(0, r.parent, r.id, r.tokens, r.bitstring, name, d.number, d.time, d.labels),
            )


def _coded(item: Found, segment: _Segment, codec: SegmentCodec) -> Coded:
    """A record as it is decoded, what stands above it being that of a segment in hand."""
    above = segment.above(codec.reach) if item.context.mode else NOTHING
    return Coded(item.record.bitstring, item.record.tokens, above)


def _segment_record(segment: _Segment) -> Record:
    return Record(0, segment.parent, segment.id, len(segment.tokens), segment.data)


def _receipt(d: _Draft, fresh: dict[bytes, _Segment]) -> Receipt:
    new = [s for s in d.tower if fresh.get(s.id) is s]
    version = d.version.id if d.version else _version_id(d)
    size = sum(len(s.data) for s in new)
    return Receipt(
        d.session.tenant, d.session.name, version, d.number, d.leaf, len(new), size, d.version is not None
    )


def _version_id(d: _Draft) -> bytes:
    key = identity.session_key(d.context.domain, d.session.name)
    return identity.version_id(key, d.number, d.leaf, d.time)


_domain_id = functools.lru_cache(maxsize=4096)(identity.domain_id)


def _context(
    kind: int, name: str, codec: SegmentCodec, target: bytes = NONE, session_kind: int = 2
) -> Context:
    domain = _domain_id(kind, name)
    return Context(kind, domain, name, codec.tokenizer, codec.bundle_id, codec.contract, target, session_kind)


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
